"""Facts read from a file, checked before anybody believes them.

A schema names each fact and says what it must be. A fact that is missing or of another kind is
named in one sentence, however the file was damaged.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import lru_cache, reduce
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from adte.core.errors import InputError, StateError, brief
from adte.core.options import MANY

__all__ = [
    "ANY",
    "FLAG",
    "NUMBER",
    "SCALAR",
    "TEMPERATURES",
    "TEXT",
    "Fact",
    "before",
    "between",
    "check_more",
    "facts_of",
    "instance",
    "many",
    "maybe",
    "one_of",
    "plain",
    "read_facts",
    "read_state",
    "table",
    "whole",
    "written",
]

MOST = 1_000_000  # entries of a list, classes among them
VIEWS = 100_000  # views per image
TEMPERATURES = 1e-3, 1e3  # of confidence, from and to
WORD = 1 << 63  # whole numbers stay below it
_NEEDED: Any = object()


class _Bad(ValueError):
    """A fact is not what it must be; the text says which and why."""


@dataclass(frozen=True)
class Fact:
    """What a fact must be.

    Attributes:
        read: takes a value and its place, and gives what is kept of it; a bad value raises.
        default: of a missing one; without a default the fact is needed.
    """

    read: Callable[[Any, str], Any]
    default: Any = _NEEDED


def _fact(wanted: str, good: Callable[[Any], bool]) -> Fact:
    def read(value: Any, place: str) -> Any:
        if not good(value):
            raise _Bad(f"{place or 'it'} is {brief(value)}, not {wanted}")
        return value

    return Fact(read)


def _is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and abs(x) < WORD


def _is_number(x: object) -> bool:
    return _is_whole(x) or (isinstance(x, float) and not math.isnan(x))


ANY = _fact("anything", lambda x: True)
TEXT = _fact("a text", lambda x: isinstance(x, str))
FLAG = _fact("true or false", lambda x: isinstance(x, bool))
NUMBER = _fact("a number", _is_number)
SCALAR = _fact(
    "a number, a text, true, false or null",
    lambda x: x is None or isinstance(x, bool | str) or _is_number(x),
)


def whole(low: int = 1 - WORD, high: int = WORD - 1) -> Fact:
    """A whole number in a range."""
    limits = f" from {low}" if low > 1 - WORD else ""
    limits += f" up to {high}" if high < WORD - 1 else ""
    return _fact(f"a whole number{limits}", lambda x: _is_whole(x) and low <= x <= high)


def between(low: float, high: float) -> Fact:
    """A number in a range."""
    return _fact(f"a number from {low} up to {high}", lambda x: _is_number(x) and low <= x <= high)


def one_of(*values: Any) -> Fact:
    """One of these values."""
    return _fact("one of " + ", ".join(map(repr, values)), lambda x: x in values)


def maybe(fact: Fact) -> Fact:
    """The same, or null, or missing."""
    return Fact(lambda value, place: None if value is None else fact.read(value, place), None)


def many(fact: Fact, low: int = 0, high: int = MOST) -> Fact:
    """A list of facts of one kind."""
    number = f"{low}" if low == high else f"{low} to {high}"
    whole_list = _fact(
        f"a list of {number} entries", lambda x: isinstance(x, list) and low <= len(x) <= high
    )

    def read(value: Any, place: str) -> list[Any]:
        return [fact.read(v, f"{place}[{i}]") for i, v in enumerate(whole_list.read(value, place))]

    return Fact(read)


def table(facts: Mapping[str, Fact] | Fact, more: bool = False) -> Fact:
    """Facts by name: these, or any names with facts of one kind.

    Names beside these are passed over with `more`, and an error otherwise.
    """
    of_names = _fact("a table", lambda x: isinstance(x, dict))

    def read(value: Any, place: str) -> dict[str, Any]:
        values, dot = of_names.read(value, place), place and "."
        if isinstance(facts, Fact):
            return {k: facts.read(v, f"{place}{dot}{brief(k)[1:-1]}") for k, v in values.items()}
        return _read(values, facts, place + dot, more)

    return Fact(read)


def instance(cls: type, more: bool = False, **own: Fact) -> Fact:
    """A dataclass: its fields by their types, or by facts of their own; `more` as of a table."""
    by_name = table({**facts_of(cls), **own}, more)

    def read(value: Any, place: str) -> Any:
        found = by_name.read(value, place)
        return cls(**{k: v for k, v in found.items() if k in value or k in before(cls)})

    return Fact(read)


def facts_of(cls: type) -> dict[str, Fact]:
    """What the fields of a dataclass must be, by their types; missing ones have its defaults.

    An option that came later has the value that held before it (see `options.option`).
    """
    hints = get_type_hints(cls)
    out = {}
    for f in fields(cls):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        default = before(cls).get(f.name, default)
        fact = _by_hint(hints[f.name])
        out[f.name] = Fact(fact.read, _NEEDED if default is MISSING else default)
    return out


def plain(thing: Any, cls: type) -> dict[str, Any]:
    """The fields that a dataclass has, of an instance of it or of a class derived from it."""
    return {f.name: getattr(thing, f.name) for f in fields(cls)}


def before(cls: type) -> dict[str, Any]:
    """The options of a dataclass that came after a release, and what held before them."""
    return {f.name: f.metadata["before"] for f in fields(cls) if "before" in f.metadata}


def written(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass as a file has them, of which `facts_of` makes the same again.

    An option at the value that held before there was the option is left out, as it was then: so
    what is the same has the same digest, whichever version wrote it.
    """
    older = before(type(thing))
    return {k: v for k, v in asdict(thing).items() if k not in older or v != older[k]}


def _by_hint(hint: Any) -> Fact:
    simple: dict[Any, Fact] = {str: TEXT, bool: FLAG, float: NUMBER, int: whole(), Any: ANY}
    if hint in simple:
        return simple[hint]
    if is_dataclass(hint):
        return instance(hint)  # type: ignore[arg-type]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return one_of(*args)
    if origin in (Union, types.UnionType):
        fact = reduce(_either, (_by_hint(a) for a in args if a is not type(None)))
        return maybe(fact) if type(None) in args else fact
    if origin is tuple:
        limits = (0, MOST) if args[-1] is Ellipsis else (len(args), len(args))
        listed = many(_by_hint(args[0]), *limits)
        return Fact(lambda value, place: tuple(listed.read(value, place)))
    if origin in (Sequence, list):
        return many(_by_hint(args[0]))
    if origin in (Mapping, dict):
        return table(_by_hint(args[1]))
    raise TypeError(f"no fact is known for the type {hint}")


def _either(one: Fact, other: Fact) -> Fact:
    def read(value: Any, place: str) -> Any:
        try:
            return one.read(value, place)
        except _Bad:
            return other.read(value, place)

    return Fact(read)


def read_facts(
    facts: object, schema: Mapping[str, Fact], name: str, more: bool = False
) -> dict[str, Any]:
    """The facts of a schema, checked, or a `StateError`; missing ones have their defaults.

    Args:
        facts: as JSON gave them.
        name: of the file, for the error.
        more: pass over names that the schema does not have; otherwise they are an error.
    """
    try:
        read: dict[str, Any] = table(schema, more).read(facts, "")
        return read
    except _Bad as error:
        raise StateError(f"the header of {name!r} is damaged: {error}; save it again") from None


def _read(
    facts: Mapping[str, Any], schema: Mapping[str, Fact], place: str, more: bool
) -> dict[str, Any]:
    if not more and (strange := [k for k in facts if k not in schema]):
        raise _Bad(f"this version of adte does not know {place}{brief(strange[0])[1:-1]}")
    out = {}
    for name, fact in schema.items():
        if name not in facts and fact.default is _NEEDED:
            raise _Bad(f"{place}{name} is missing")
        out[name] = fact.read(facts[name], place + name) if name in facts else fact.default
    return out


# --------------------------------------------------------------------------- a classifier's state


@lru_cache(maxsize=1)
def _state() -> dict[str, Fact]:
    from adte.files.journal import Mark
    from adte.images import Preprocess, Views
    from adte.models.prompts import Prompts

    return {
        "format": whole(1),
        "version": TEXT,
        "model": TEXT,
        "fingerprint": maybe(TEXT),
        "preprocess": Fact(maybe(table(facts_of(Preprocess))).read, None),  # older files have none
        "scale": Fact(maybe(NUMBER).read, None),
        "class_ids": Fact(maybe(many(TEXT, 1)).read, None),  # of a model of fixed classes
        "classes": many(TEXT, 1),
        "prompts": table(facts_of(Prompts)),
        "method": TEXT,
        "options": table(SCALAR),
        "views": table({**facts_of(Views), "count": whole(1, VIEWS)}),
        "auto": Fact(FLAG.read, False),
        "seen": whole(0, MANY),
        "frozen": FLAG,
        "temperature": Fact(between(*TEMPERATURES).read, 1.0),
        "begun_from": Fact(many(TEXT).read, []),
        "outputs": maybe(table(table({**facts_of(Mark), "rows": whole(0)}))),
    }


def read_state(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The facts of a classifier's state file, checked. In format 1, of adte 0.1, `seen` is None.

    `views` and `prompts` are ready for `Views(**…)` and `Prompts(**…)`; `outputs` has what a state
    covers of each output, as a `Mark`.
    """
    schema = _state()
    if facts.get("format") == 1:
        schema = {**schema, "seen": maybe(schema["seen"])}
    return read_facts(facts, schema, name, more=True)


def check_more(more: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse further facts of a state that are facts of every state, or that JSON cannot hold."""
    if taken := sorted(more.keys() & facts.keys() - {"frozen"}):
        raise InputError(f"{taken[0]!r} is a fact of every state; give yours another name")
    if not isinstance(more.get("frozen", False), bool):
        raise InputError(f"frozen={brief(more['frozen'])} is neither True nor False")
    try:
        json.dumps(more)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the facts {brief(more)} cannot be written as JSON ({error}); give texts, numbers and "
            "lists of them"
        ) from error
