"""The data sets of this package as `sets.toml` has them: facts to show, rows for their readers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from adte.core.templates import SINGLE, template_sets
from adte.data.registry import DatasetInfo, Download, Reader, register_dataset

__all__ = ["card", "cards", "published", "row"]

R = TypeVar("R", bound=type[Reader])
PAPER = "Wu et al., ICLR 2026, zero-shot rows"


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("adte.data").joinpath("sets.toml").read_text(encoding="utf-8"))


def cards() -> dict[str, DatasetInfo]:
    """The facts about every set, by name."""
    return {name: card(name) for name in _table()}


def card(name: str) -> DatasetInfo:
    """The facts about one set."""
    facts = {key: _frozen(value) for key, value in _table()[name].items() if key != "reader"}
    downloads = tuple(Download(**file) for file in facts.pop("downloads", ()))
    known = {
        "how": f"`adte data get {name} FOLDER` downloads it",
        "templates": template_sets().get(name, SINGLE),
        "zero_shot_source": PAPER if facts.get("zero_shot") else "",
    }
    return DatasetInfo(name=name, downloads=downloads, **{**known, **facts})


def row(name: str) -> dict[str, Any]:
    """What the reader of a set looks for: its class attributes."""
    return {key: _frozen(value) for key, value in _table()[name].get("reader", {}).items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(part) for key, part in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def published(*names: str) -> Callable[[R], R]:
    """Class decorator: register a class of readers for each of these sets, with the set's row."""

    def add(cls: R) -> R:
        for name in names:
            about = {"__module__": cls.__module__, "__doc__": cls.__doc__}
            one = cls if len(names) == 1 else type(cls.__name__, (cls,), about)
            for key, value in row(name).items():
                setattr(one, key, value)
            register_dataset(card(name))(one)
        return cls

    return add
