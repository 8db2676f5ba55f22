"""Names for methods: register, create, list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from adte.errors import InputError, brief
from adte.methods.base import Method
from adte.options import build, describe
from adte.registry import Registry, check_name

__all__ = ["MethodInfo", "create_method", "list_methods", "method_info", "preset", "register"]

M = TypeVar("M", bound=type[Method])


@dataclass(frozen=True)
class MethodInfo:
    """What a name stands for: a class, and the options that the name sets."""

    name: str
    cls: type[Method]
    summary: str
    reference: str
    defaults: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """The facts that `adte methods --json` prints."""
        method = create_method(self.name)
        return {
            "name": self.name,
            "summary": self.summary,
            "needs": sorted(self.cls.needs),
            "stateful": method.stateful,
            "reference": self.reference,
            "options": describe(self.cls, method),
        }


_METHODS: Registry[MethodInfo] = Registry("method")


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known under a name."""
    check_name(name, '@register("my-method")')

    def add(cls: M) -> M:
        if not isinstance(cls, type) or not issubclass(cls, Method):
            raise InputError(f"{brief(cls)} is no class of methods; derive it from adte.Method")
        cls.name = name
        _METHODS.add(name, MethodInfo(name, cls, _summary(cls.__doc__), cls.reference, {}))
        return cls

    return add


def preset(
    name: str, cls: type[Method], summary: str, *, reference: str = "", **defaults: Any
) -> None:
    """Make a class of methods known under a name, with these defaults."""
    info = MethodInfo(name, cls, summary, reference or cls.reference, defaults)
    _METHODS.add(name, info)


def _summary(doc: str | None) -> str:
    return (doc or "").strip().split("\n")[0].rstrip(".")


def method_info(name: str) -> MethodInfo:
    return _METHODS[name]


def create_method(name: str, **options: Any) -> Method:
    """A method by name. An unknown name or option is an error that lists what exists.

    Options of its parts are given by their own name, or as {"prior.clip": 2.0}.

    >>> create_method("te", q=0.1).params["entropy.q"]
    0.1
    """
    info = _METHODS[name]
    method = build(info.cls, {**info.defaults, **options}, f"option of method {name!r}")
    method.name = name  # type: ignore[misc]  # a preset's name lives on the instance
    return method


def list_methods() -> list[str]:
    """The names of all methods, those of plug-ins too, in the order of registration."""
    return list(_METHODS)
