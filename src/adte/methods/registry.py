"""Names for methods: register, create, list."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from adte.core.errors import InputError, brief
from adte.core.options import build, describe
from adte.core.registry import Registry, check_name
from adte.methods.base import Method

__all__ = ["MethodInfo", "create_method", "list_methods", "method_info", "preset", "register"]

M = TypeVar("M", bound=type[Method])


@dataclass(frozen=True)
class MethodInfo:
    """The entry of a name: a class, and the options that the name sets.

    `by` is the module that set them; without it the class is what tells one source from another.
    `protocol` is that under which it was published.
    """

    name: str
    cls: type[Method]
    summary: str
    reference: str
    defaults: dict[str, Any]
    by: str = ""
    protocol: str = "online"

    def row(self) -> dict[str, Any]:
        """The facts that `adte methods --json` prints."""
        method = create_method(self.name)
        return {
            "name": self.name,
            "summary": self.summary,
            "needs": sorted(self.cls.needs),
            "stateful": method.stateful,
            "protocol": self.protocol,
            "reference": self.reference,
            "options": describe(self.cls, method),
        }


_METHODS: Registry[MethodInfo] = Registry("method")


def register(name: str) -> Callable[[M], M]:
    """Class decorator that registers a method under a name, for `create_method` and `adte`.

    The first line of the class's docstring is its summary in `adte methods`.

    Args:
        name: such as "my-method".

    Raises:
        InputError: if the name is taken, or the class does not derive from `Method`.
    """
    check_name(name, '@register("my-method")')

    def add(cls: M) -> M:
        if not isinstance(cls, type) or not issubclass(cls, Method):
            raise InputError(f"{brief(cls)} is no class of methods; derive it from adte.Method")
        cls.name = name
        _METHODS.add(name, MethodInfo(name, cls, _summary(cls), cls.reference, {}))
        return cls

    return add


def preset(
    name: str,
    cls: type[Method],
    summary: str,
    *,
    reference: str = "",
    protocol: str = "online",
    **defaults: Any,
) -> None:
    """Make a class of methods known under a name, with these defaults.

    `protocol` is that of commands which are given none.
    """
    by = sys._getframe(1).f_globals["__name__"]  # many presets share a class
    info = MethodInfo(name, cls, summary, reference or cls.reference, defaults, by, protocol)
    _METHODS.add(name, info)


def _summary(cls: type[Method]) -> str:
    doc = cls.__doc__ or ""
    if doc.startswith(f"{cls.__name__}("):  # the signature, where a dataclass has no docstring
        return ""
    return doc.strip().split("\n")[0].rstrip(".")


def method_info(name: str) -> MethodInfo:
    return _METHODS[name]


def create_method(name: str, **options: Any) -> Method:
    """Create a method by name.

    Args:
        name: one of `list_methods()`.
        options: options of the method, and of its parts: by their own name (q=0.1), or by full name
            where two parts share one (**{"prior.clip": 2.0}). `adte methods NAME` lists them.

    Raises:
        InputError: if the name or an option is unknown; the message lists what exists.

    >>> create_method("te", q=0.1).params["entropy.q"]
    0.1
    """
    info = _METHODS[name]
    method = build(info.cls, {**info.defaults, **options}, f"option of method {name!r}")
    method.name = name  # type: ignore[misc]  # a preset's name lives on the instance
    return method


def list_methods() -> list[str]:
    """The names of all methods, including those of plug-ins, in order of registration."""
    return list(_METHODS)
