"""One checker for what comes out of files: a value is what the type that declares it says.

States, caches, recipes, results and settings are dataclasses. Their JSON is read by the hints of
their fields: whatever is missing, unknown or of another kind is named in one sentence, however the
file was damaged. `Annotated[int, Bounds(low=1)]` bounds a number, and the length of a list.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

from adte.core.errors import brief

__all__ = [
    "MANY", "MOST", "NONE", "VIEWS", "WORD", "Bounds", "Count", "Mismatch", "Positive", "Scalar",
    "before", "read", "read_fields", "written",
]  # fmt: skip

MANY = 1 << 53  # images; no stream has had as many
MOST = 1_000_000  # entries of a list, classes among them
VIEWS = 100_000  # views per image
WORD = 1 << 63  # whole numbers stay below it


class Bounds(NamedTuple):
    """low ≤ value ≤ high, above < value < below, where they are given.

    Numbers are finite; `high=math.inf` says that this one need not be.

    >>> str(Bounds(low=0, below=1)), str(Bounds(above=0)), Bounds(above=0).hold(0.0)
    ('at least 0 and below 1', 'positive', False)
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def hold(self, value: Any) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self == Bounds(above=0):
            return "positive"
        ends = {
            "at least": self.low,
            "above": self.above,
            "at most": self.high,
            "below": self.below,
        }
        return " and ".join(f"{w} {x}" for w, x in ends.items() if x not in (None, math.inf))


NONE = Bounds()
Scalar: TypeAlias = bool | int | float | str | None
Count: TypeAlias = Annotated[int, Bounds(low=0, high=MANY)]
Positive: TypeAlias = Annotated[int, Bounds(low=1)]


class Mismatch(ValueError):
    """A value is not what it must be; the text says which, and what was wanted."""

    def __init__(self, place: str, value: object, wanted: str) -> None:
        super().__init__(f"{place or 'it'} is {brief(value)}, not {wanted}")
        self.wanted = wanted


def _is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and abs(x) < WORD


def _is_number(x: object) -> bool:
    return _is_whole(x) or (isinstance(x, float) and not math.isnan(x))


_SIMPLE: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda x: isinstance(x, str)),
    bool: ("true or false", lambda x: isinstance(x, bool)),
    int: ("a whole number", _is_whole),
    float: ("a number", _is_number),
}


def read(hint: Any, value: Any, place: str = "", bounds: Bounds = NONE) -> Any:
    """A value of JSON as a type has it; one that the type does not allow is a `Mismatch`.

    Args:
        hint: the type: a dataclass, a TypedDict, of which further names are passed over, a simple
            type, or a list, tuple, mapping, union or Literal of these.
        value: what JSON gave.
        place: where it stands, for the error.
        bounds: of a number, or of the length of a list.
    """
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)[:2]
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint in _SIMPLE:
        wanted, fits = _SIMPLE[hint]
        if not (fits(value) and (bounds == NONE or bounds.hold(value))):
            raise Mismatch(place, value, wanted if bounds == NONE else f"{wanted}, {bounds}")
        return value
    if origin in (Union, types.UnionType):
        return _read_union(args, value, place, bounds)
    if origin is Literal:
        if value not in args:
            raise Mismatch(place, value, "one of " + ", ".join(map(repr, args)))
        return value
    if origin is tuple and args[-1] is not Ellipsis:
        found = _read_list(args[0], value, place, Bounds(len(args), len(args)))
        return tuple(found)
    if origin in (list, tuple, Sequence):
        found = _read_list(args[0], value, place, bounds)
        return tuple(found) if origin is tuple else found
    if origin in (dict, Mapping):
        inner = _table(value, place).items()
        return {k: read(args[1], v, _within(place, brief(k)[1:-1])) for k, v in inner}
    if is_typeddict(hint):
        return _read_typed(hint, value, place)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return hint(**read_fields(hint, value, place))
    raise TypeError(f"no value of JSON is of the type {hint}")


def read_fields(
    cls: type, value: Any, place: str = "", *, more: bool = False, **own: Any
) -> dict[str, Any]:
    """The fields of a dataclass that a table of JSON has, checked.

    What is missing is left to the dataclass's defaults; an option that came later (`before`, see
    `adte.core.options.option`) has the value that held before it.

    Args:
        cls: the dataclass.
        value: what JSON gave.
        place: where it stands, for the error.
        more: pass over names that the dataclass does not have; otherwise they are an error.
        own: hints for some fields, in place of their own.
    """
    values, older = _table(value, place), before(cls)
    hints = get_type_hints(cls, include_extras=True) | own
    known = [f for f in fields(cls) if f.init]
    if not more and (odd := [k for k in values if k not in {f.name for f in known}]):
        raise ValueError(
            f"this version of adte does not know {_within(place, brief(odd[0])[1:-1])}"
        )
    out = {}
    for f in known:
        if f.name in values:
            bounds = NONE if f.name in own else f.metadata.get("bounds", NONE)
            out[f.name] = read(hints[f.name], values[f.name], _within(place, f.name), bounds)
        elif f.name in older:
            out[f.name] = older[f.name]
        elif f.default is f.default_factory is MISSING:
            raise ValueError(f"{_within(place, f.name)} is missing")
    return out


def before(cls: type) -> dict[str, Any]:
    """The options of a dataclass that came after a release, and the values that held before."""
    return {f.name: f.metadata["before"] for f in fields(cls) if "before" in f.metadata}


def written(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass as a file has them, of which `read` makes the same again.

    An option at the value that held before there was the option is left out, as it was then: so
    the same options have the same digest, whichever version wrote them.
    """
    older = before(type(thing))
    return {k: v for k, v in asdict(thing).items() if k not in older or v != older[k]}


def _within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _table(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch(place, value, "a table")
    return value


def _read_list(hint: Any, value: Any, place: str, bounds: Bounds) -> list[Any]:
    low, high = int(bounds.low or 0), int(bounds.high or MOST)
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise Mismatch(
            place, value, f"a list of {low if low == high else f'{low} to {high}'} entries"
        )
    return [read(hint, v, f"{place}[{i}]") for i, v in enumerate(value)]


def _read_union(hints: Sequence[Any], value: Any, place: str, bounds: Bounds) -> Any:
    """The first of several types that fits; where none does, the error of the one that came far."""
    if value is None and type(None) in hints:
        return None
    errors = []
    for hint in hints:
        if hint is not type(None):
            try:
                return read(hint, value, place, bounds)
            except ValueError as error:
                errors.append(error)
    inner = [e for e in errors if not str(e).startswith(f"{place or 'it'} is ")]
    wanted = " or ".join(e.wanted for e in errors if isinstance(e, Mismatch))
    raise inner[0] if inner else Mismatch(place, value, wanted)


def _read_typed(hint: Any, value: Any, place: str) -> dict[str, Any]:
    """The names of a TypedDict, checked; the table is kept as it is."""
    values = _table(value, place)
    for name, inner in get_type_hints(hint, include_extras=True).items():
        if name in values:
            read(inner, values[name], _within(place, name))
        elif name in hint.__required_keys__:
            raise ValueError(f"{_within(place, name)} is missing")
    return values
