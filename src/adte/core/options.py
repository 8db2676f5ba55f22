"""Options with their help text: one source for Python arguments and the command line.

An option is a dataclass field made by `option`. A *part* is a field that holds another such
dataclass: what several methods share, such as the class prior, is written once and held by each.
The options of a part are addressed by their own name where that is unique, or as `part.name`; a
plain value given to the part itself sets its first option. So `entropy="adaptive"`, `clip=2.0` and
`{"prior.clip": 2.0}` all say what they seem to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from functools import cache
from numbers import Real
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from adte.core.errors import InputError, unknown
from adte.core.schema import NONE, WORD, Bounds

__all__ = [
    "Option", "at_least", "build", "check", "choices", "coerce", "describe", "flat",
    "full_name", "option", "options", "parse", "part", "unread",
]  # fmt: skip

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    before: Any = MISSING,
    only: tuple[str, ...] = (),
) -> Any:
    """Declare an option: a dataclass field with a default, a help text and bounds.

    Methods and readers declare their options so. The help text is shown by `adte methods NAME` and
    the like; the bounds are checked when an instance is made.

    Args:
        default: the default value.
        help: what the option does, as a phrase without capital letter and full stop.
        low, high: smallest and largest value allowed.
        above, below: bounds that a value must not reach.
        before: for an option that was added after a release, the value that held until then. Saved
            files that do not name the option mean this value. Such an option can only be given by
            name.
        only: another option and the values of it with which this one has an effect, such as
            ("kind", "tsallis").
    """
    metadata = {"help": help, "bounds": Bounds(low, high, above, below), "only": only}
    if before is MISSING:
        return field(default=default, metadata=metadata)
    return field(default=default, metadata={**metadata, "before": before}, kw_only=True)


def part(default: Any, help: str) -> Any:
    """Declare a part: a dataclass field that holds another dataclass of options.

    Args:
        default: a frozen instance of that dataclass.
        help: what the part is for.
    """
    return field(default=default, metadata={"help": help, "part": type(default)})


class Option(NamedTuple):
    """One option, where it lies, and what it may be."""

    path: tuple[str, ...]
    hint: Any
    default: Any
    help: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def options(cls: type, defaults: Any = None) -> Iterator[Option]:
    """Every option of a dataclass, those of its parts too, with its default."""
    hints = _hints(cls)
    for f in _options(cls):
        default = getattr(defaults, f.name, f.default)
        inner = f.metadata.get("part")
        if inner is None:
            default = None if default is MISSING else default
            yield Option((f.name,), hints[f.name], default, f.metadata["help"])
        else:
            for o in options(inner, default):
                yield o._replace(path=(f.name, *o.path))


def _options(cls: type) -> list[Field[Any]]:
    if lost := [name for name, value in vars(cls).items() if isinstance(value, Field)]:
        raise InputError(
            f"{cls.__name__} has the option {lost[0]!r} and is no dataclass; put @dataclass on it, "
            "as the class that it derives from has it"
        )
    return [f for f in fields(cls) if "help" in f.metadata]


def flat(thing: Any) -> dict[str, Any]:
    """The values of all options of an instance, by full name."""
    return {o.name: o.default for o in options(type(thing), thing)}


def choices(hint: Any) -> list[Any] | None:
    """The values of a Literal, None in it left out; None for other types."""
    kinds = [k for k in (get_args(hint) or (hint,)) if k is not type(None)]
    inner = hint if _is_literal(hint) else kinds[0] if len(kinds) == 1 else None
    return list(get_args(inner)) if _is_literal(inner) else None


def describe(cls: type, defaults: Any = None) -> list[dict[str, Any]]:
    """Name, default, choices, bounds and help of every option; a part is one entry with its own
    inside."""
    hints = _hints(cls)
    rows = []
    for f in _options(cls):
        default = getattr(defaults, f.name, f.default)
        row = {
            "name": f.name,
            "default": None if default is MISSING else default,
            "choices": choices(hints[f.name]),
            "bounds": str(bounds) if (bounds := f.metadata.get("bounds", NONE)) != NONE else None,
            "only": list(f.metadata.get("only", ())),
            "help": f.metadata["help"],
        }
        if (inner := f.metadata.get("part")) is not None:
            row["options"] = describe(inner, default)
            row["default"] = row["options"][0]["default"]
            row["choices"], row["bounds"] = (row["options"][0][k] for k in ("choices", "bounds"))
        rows.append(row)
    return rows


def unread(thing: Any, names: Iterable[str], within: str = "") -> dict[str, str]:
    """Those of the named options that have no effect as an instance is set, and with what they
    would have one.

    >>> from adte import create_method
    >>> unread(create_method("se"), ["entropy.q", "prior.clip"])
    {'entropy.q': 'kind=tsallis'}
    """
    out: dict[str, str] = {}
    names, own = set(names), {f.name: f for f in _options(type(thing))}

    def lacks(name: str) -> list[str]:
        """The settings without which an option has no effect."""
        if not (only := own[name].metadata.get("only", ())):
            return []
        set_so = getattr(thing, only[0]) in only[1:]
        return lacks(only[0]) + ([] if set_so else [f"{only[0]}={' or '.join(only[1:])}"])

    for f in own.values():
        name = within + f.name
        if "part" in f.metadata:
            out |= unread(getattr(thing, f.name), names, f"{name}.")
        elif name in names and (lacking := lacks(f.name)):
            out[name] = " and ".join(lacking)
    return out


def _find(cls: type, name: str, what: str) -> Option:
    """The option that a name stands for: its own, a part's, or one inside a part."""
    every = {o.name: o for o in options(cls)}
    return every[full_name(list(every), name, what)]


def full_name(every: Sequence[str], name: str, what: str) -> str:
    """Which of these full names of options a name stands for."""
    name = name.replace("-", "_")
    own = [n for n in every if n == name]
    leading = [n for n in every if n.startswith(f"{name}.")][:1]
    inside = [n for n in every if n.endswith(f".{name}")]
    for found in (own, leading, inside):
        if len(found) == 1:
            return found[0]
    if inside:
        raise InputError(f"{what} {name!r} could be {' or '.join(inside)}; write it in full")
    ends = (n.split(".") for n in every)
    raise unknown(what, name, {word for path in ends for word in (path[0], path[-1])})


def build(cls: type[T], values: Mapping[str, Any], what: str = "option") -> T:
    """An instance from values by name; later ones win. Unknown names are an error."""
    direct: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    parts = {f.name: f for f in _options(cls) if "part" in f.metadata}
    for name, value in values.items():
        if name in parts and isinstance(value, parts[name].metadata["part"]):
            direct[name], inner[name] = value, {}
            continue
        path = _find(cls, name, what).path
        if len(path) == 1:
            direct[path[0]] = value
        else:
            inner.setdefault(path[0], {})[".".join(path[1:])] = value
    for name, changes in inner.items():
        base = direct.get(name, parts[name].default)
        direct[name] = _changed(base, changes)
    try:
        return cls(**direct)
    except TypeError as error:  # e.g. a text where a number belongs
        raise InputError(
            f"an {what} has the wrong kind of value in {dict(values)} ({error}); give each the "
            "kind that its default has"
        ) from error


def _changed(base: Any, changes: Mapping[str, Any]) -> Any:
    try:
        return replace(base, **changes)
    except TypeError as error:
        raise InputError(
            f"{type(base).__name__} cannot be made with {changes} ({error}); give each the kind of "
            "value that its default has"
        ) from error


def coerce(thing: Any) -> None:
    """Give every part that was set to a plain value its dataclass, with that as first option."""
    for f in fields(thing):
        kind = f.metadata.get("part")
        if kind is None:
            continue
        value = getattr(thing, f.name)
        if not isinstance(value, kind):
            if is_dataclass(value):
                raise InputError(
                    f"{f.name} takes {kind.__name__}, not {type(value).__name__}; give "
                    f"{f.name}={kind.__name__}(…), or one of its options by name"
                )
            first = _options(kind)[0].name
            object.__setattr__(thing, f.name, _changed(f.default, {first: value}))


def check(thing: Any, of: str = "") -> None:
    """Refuse values that are none of the choices, no numbers or switches where they must be, or
    out of bounds.

    `of` says whose options they are. Parts are looked into. Numbers and switches become Python's.
    """
    cls: type = type(thing)
    for f in _options(cls):
        value, hint = getattr(thing, f.name), _hints(cls)[f.name]
        if "part" in f.metadata:
            check(value, f.name)
            continue
        kinds = {*(get_args(hint) or (hint,))}
        optional = f.default is None or type(None) in kinds
        if value is None and optional:
            continue
        whose = of and f" of {of}"
        if (known := choices(hint)) is not None:
            if not isinstance(value, str) or value not in known:
                raise unknown(f"{f.name}{whose}", str(value), map(str, known))
        elif kinds <= {bool, type(None)}:
            if type(value).__name__ not in ("bool", "bool_"):  # NumPy's, which is not imported
                raise InputError(f"{f.name}={value!r}{whose} is no switch; give True or False")
            object.__setattr__(thing, f.name, bool(value))
        elif kinds <= {int, float, type(None)}:
            several = len(get_args(hint)) if get_origin(hint) is tuple else 0
            wrong = _wrong(value, several, float in kinds, f.metadata.get("bounds", NONE))
            if wrong:
                mend = "leave it out or give None" if optional else f"choose e.g. {f.default}"
                raise InputError(f"{f.name}={value!r}{whose} {wrong}; {mend}")
            plain = float if float in kinds else int
            if several:
                object.__setattr__(thing, f.name, tuple(plain(x) for x in value))
            elif type(value) not in (plain, int):
                object.__setattr__(thing, f.name, plain(value))  # 3.0 is 3, True is 1, NumPy's ours


def at_least(name: str, value: Any, low: int) -> int:
    """A whole number that is given by itself, checked likewise."""
    if _wrong(value, 0, False, Bounds(low=low)):
        raise InputError(f"{name}={value!r} cannot be used; give a whole number, at least {low}")
    return int(value)


def _wrong(value: Any, several: int, fractions: bool, bounds: Bounds) -> str:
    """The fault of a number, or of several as a tuple; empty if they have none."""
    if several and not (isinstance(value, tuple | list) and len(value) == several):
        return f"is not {several} numbers"
    for one in value if several else (value,):
        if not isinstance(one, Real) or one != one:
            return "is not a number"
        if one != bounds.high and not -WORD < one < WORD:  # type: ignore[operator]
            return "is too large"
        if not fractions and not float(one).is_integer():
            return "is not a whole number"
        if not bounds.hold(one):
            return f"must be {bounds}"
    return ""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_literal(hint: Any) -> bool:
    return str(get_origin(hint)) == "typing.Literal"


def parse(cls: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Texts such as {'beta': '0.8'} to typed values; an unknown name or a bad value is an error."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        found = _find(cls, name, "option")
        values[found.name] = _convert(found.path[-1], text, found.hint)
    return values


def _convert(name: str, text: str, hint: Any) -> Any:
    if _is_literal(hint):
        if text not in get_args(hint):
            raise unknown(f"value for option {name!r}", text, map(str, get_args(hint)))
        return text
    if get_origin(hint) is tuple and text.count(",") == len(get_args(hint)) - 1:
        words = zip(text.split(","), get_args(hint), strict=True)
        return tuple(_convert(name, word, kind) for word, kind in words)
    kinds = [k for k in (get_args(hint) or (hint,)) if k is not type(None)]
    if text.lower() == "none" and len(kinds) < len(get_args(hint)):
        return None
    if kinds == [bool]:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    else:
        for kind in kinds:
            try:
                value = kind(text)
            except ValueError:
                continue
            if value != value:
                raise InputError(f"option {name}={text} is not a number; give it one")
            return value
    both = ",".join if get_origin(hint) is tuple else " or ".join
    wanted = both(k.__name__ for k in kinds)
    raise InputError(f"option {name}={text!r} is not {wanted}; pass {name}={wanted}")
