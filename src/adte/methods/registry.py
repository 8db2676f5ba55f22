"""Names for methods: register, create, list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from adte.errors import InputError, unknown
from adte.methods.base import Method
from adte.options import describe

__all__ = ["MethodInfo", "create_method", "list_methods", "method_info", "preset", "register"]

M = TypeVar("M", bound=type[Method])


@dataclass(frozen=True)
class MethodInfo:
    """What a name stands for: a class, and the options a preset sets."""

    name: str
    cls: type[Method]
    summary: str
    defaults: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """The facts that `adte methods --json` prints."""
        options = describe(self.cls)
        for o in options:
            o["default"] = self.defaults.get(o["name"], o["default"])
        return {
            "name": self.name,
            "summary": self.summary,
            "needs": sorted(self.cls.needs),
            "stateful": self.cls(**self.defaults).stateful,
            "reference": self.cls.reference,
            "options": options,
        }


_METHODS: dict[str, MethodInfo] = {}


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known under a name."""

    def add(cls: M) -> M:
        cls.name = name
        _METHODS[name] = MethodInfo(name, cls, _summary(cls.__doc__), {})
        return cls

    return add


def preset(name: str, base: str, summary: str, **defaults: Any) -> None:
    """Make a method with other defaults known under a name of its own."""
    _METHODS[name] = MethodInfo(name, method_info(base).cls, summary, defaults)


def _summary(doc: str | None) -> str:
    return (doc or "").strip().split("\n")[0].rstrip(".")


def method_info(name: str) -> MethodInfo:
    if name not in _METHODS:
        raise unknown("method", name, _METHODS)
    return _METHODS[name]


def create_method(name: str, **options: Any) -> Method:
    """A method by name. An unknown name or option is an error that lists what exists.

    >>> create_method("te", q=0.1).params["q"]
    0.1
    """
    info = method_info(name)
    known = [o["name"] for o in describe(info.cls)]
    for option in options:
        if option not in known:
            raise unknown(f"option of method {name!r}", option, known)
    try:
        method = info.cls(**{**info.defaults, **options})
    except TypeError as error:  # e.g. a text where a number belongs
        raise InputError(f"method {name!r} cannot be made with {options}: {error}") from error
    method.name = name  # type: ignore[misc]  # a preset's name lives on the instance
    return method


def list_methods() -> list[str]:
    """The names of all methods, in the order of registration."""
    return list(_METHODS)
