"""Options with their help text: one source for Python arguments and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, get_args, get_origin, get_type_hints

from adte.errors import InputError, unknown

__all__ = ["describe", "option", "parse"]


def option(default: Any, help: str) -> Any:
    """A dataclass field that carries its own help."""
    return field(default=default, metadata={"help": help})


def _options(cls: type) -> list[Field[Any]]:
    return [f for f in fields(cls) if "help" in f.metadata]


def describe(cls: type) -> list[dict[str, Any]]:
    """Name, default, choices and help of every option of a dataclass."""
    hints = get_type_hints(cls)
    return [
        {
            "name": f.name,
            "default": None if f.default is MISSING else f.default,
            "choices": list(get_args(hints[f.name])) if _is_literal(hints[f.name]) else None,
            "help": f.metadata["help"],
        }
        for f in _options(cls)
    ]


def _is_literal(hint: Any) -> bool:
    return str(get_origin(hint)) == "typing.Literal"


def parse(cls: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Texts such as {'beta': '0.8'} to typed values; an unknown name or a bad value is an error."""
    hints = get_type_hints(cls)
    known = {f.name for f in _options(cls)}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        name = name.replace("-", "_")
        if name not in known:
            raise unknown("option", name, known)
        values[name] = _convert(name, text, hints[name])
    return values


def _convert(name: str, text: str, hint: Any) -> Any:
    if _is_literal(hint):
        if text not in get_args(hint):
            raise unknown(f"value for option {name!r}", text, map(str, get_args(hint)))
        return text
    kinds = [k for k in (get_args(hint) or (hint,)) if k is not type(None)]
    if text.lower() == "none" and len(kinds) < len(get_args(hint)):
        return None
    if kinds == [bool]:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    else:
        for kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    wanted = " or ".join(k.__name__ for k in kinds)
    raise InputError(f"option {name}={text!r} is not {wanted}; pass {name}={wanted}")
