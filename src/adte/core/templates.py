"""Templates by name, for prompts and for the data sets alike: `assets/templates.json`.

A set there is a list of templates, or the name of the set that it is the same as.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["SINGLE", "template_set", "template_sets"]


@cache
def _table() -> dict[str, dict[str, Any]]:
    path = resources.files("adte").joinpath("assets", "templates.json")
    table: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return table


def template_sets() -> dict[str, tuple[str, ...]]:
    """The named sets: "single", "seven", "eighty", and for each data set what it is read with.

    >>> [len(template_sets()[name]) for name in ("single", "seven", "eighty")]
    [1, 7, 80]
    """
    sets = _table()["sets"]
    return {n: tuple(sets[t] if isinstance(t, str) else t) for n, t in sets.items()}


def template_set(name: str) -> tuple[str, ...] | None:
    """A set by its name or another name of it, case and separators ignored.

    >>> template_set("Oxford_Pets")
    ('a photo of a {}, a type of pet.',)
    """
    sets = {_plain(n): templates for n, templates in template_sets().items()}
    aliases = {_plain(n): _plain(known) for n, known in _table()["aliases"].items()}
    return sets.get(aliases.get(_plain(name), _plain(name)))


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


SINGLE = template_sets()["single"]
