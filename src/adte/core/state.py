"""Declared state: the memory that a method has of a stream, entry by entry.

A method says of every entry its shape, its dtype and how two of them become one. Reset, copy,
device moves, checked loading, merging and a limit on its size follow from that, here, once. A
letter in a shape is a size that the first image tells: L classes, D dimensions. A name that ends in
`.*` stands for entries whose names and shapes the model decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from adte.core.errors import InputError, StateError, brief
from adte.core.schema import MANY

__all__ = [
    "MANY", "Entry", "State", "alike", "check", "check_kept", "copy", "entry_of", "fresh",
    "in_order", "merge", "move", "nbytes", "part_of", "prefixed", "saved", "unprefixed",
]  # fmt: skip

State = dict[str, Tensor]
Reduction = Literal["sum", "mean", "keep", "same", "trim", "tail", "derived"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

LIMIT = 2 << 30  # bytes; a state that would be larger is refused before it is made


@dataclass(frozen=True)
class Entry:
    """The declaration of one tensor that a method keeps in its state.

    Attributes:
        shape: sizes, as numbers or as letters: L classes, D feature dimensions. None if the model
            decides.
        dtype: dtype of the tensor; None if the model decides.
        reduce: how the entries of two streams are merged.
          sum      they are added
          mean     they are averaged, weighted by the counter that `by` names
          keep     the receiver keeps its own, or takes the other's if it has none yet
          same     both must be equal: it came with the model and not from the stream
          trim     slots (L, M, …) of both are sorted by the entry that `by` names, the first M stay
          tail     rows (N, …) of both follow each other, the last `most` stay
          derived  it is computed from other entries by `Method.refresh`; neither saved nor merged
          or a function of (name, ours, theirs), for anything else.
        fill: value before anything was seen.
        by: name of another entry, for `mean` and `trim`.
        most: maximum number of rows, for `tail`.
        shift: name of a counter of images, for ranks by age: what is merged in counts as later, so
            the counter is subtracted from its ranks first.
    """

    shape: tuple[int | str, ...] | None
    dtype: torch.dtype | None = torch.float64
    reduce: Reduction | Callable[[str, State, State], Tensor] = "sum"
    fill: float = 0.0
    by: str = ""
    most: int = 0
    shift: str = ""

    def __post_init__(self) -> None:
        if wrong := _wrong(self):
            raise InputError(f"an entry of a state has {wrong}")
        sizes: Any = self.shape
        if isinstance(sizes, list):
            object.__setattr__(self, "shape", tuple(sizes))


def _wrong(e: Any) -> str:
    """The fault of a declaration, and its mend; empty if it has none."""
    sizes = e.shape
    if sizes is not None and not (
        isinstance(sizes, tuple | list)
        and all(isinstance(n, Integral | str) and n != "" for n in sizes)
    ):
        return f"shape={brief(sizes)}; give a tuple of sizes and letters, as in ('L', 3)"
    if not isinstance(e.dtype, torch.dtype | None):
        return f"dtype={brief(e.dtype)}; give one of torch, as in torch.float32, or None"
    if not callable(e.reduce) and e.reduce not in REDUCTIONS:
        return f"reduce={brief(e.reduce)}; give one of {', '.join(REDUCTIONS)}, or a function"
    if e.reduce in ("mean", "trim") and not e.by:
        return f"reduce={e.reduce!r}, but no `by`; name the entry that it goes by"
    if e.reduce == "tail" and e.most < 1:
        return "reduce='tail', but no `most`; say how many rows stay"
    return ""


Entries = Mapping[str, Entry]


def entry_of(entries: Entries, name: str) -> Entry | None:
    """The declaration that an entry goes by."""
    if name in entries:
        return entries[name]
    return next(
        (e for pattern, e in entries.items() if "*" in pattern and fnmatchcase(name, pattern)), None
    )


def saved(entries: Entries, state: State) -> State:
    """The entries of a state that are saved: all but derived ones. Undeclared ones stay, for
    `check` to refuse.
    """
    derived = {n for n in state if (e := entry_of(entries, n)) and e.reduce == "derived"}
    return {name: value for name, value in state.items() if name not in derived}


def _shape(entry: Entry, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert entry.shape is not None
    return tuple(sizes[n] if isinstance(n, str) else n for n in entry.shape)


def nbytes(entries: Entries, sizes: Mapping[str, int]) -> int:
    """How large a state of these sizes is, without what the model decides."""
    return sum(
        math.prod(_shape(e, sizes)) * (e.dtype or torch.float32).itemsize
        for name, e in entries.items()
        if e.shape is not None and "*" not in name
    )


def fresh(
    owner: str, entries: Entries, sizes: Mapping[str, int], device: torch.device | None = None
) -> State:
    """The state before the first image. Counters, which have no dimension, stay on the host."""
    for name, e in entries.items():
        if strange := [n for n in e.shape or () if isinstance(n, str) and n not in sizes]:
            raise InputError(
                f"entry {name!r} of {owner!r} has a size {strange[0]!r} in its shape, and images "
                f"tell no more than {', '.join(sizes)}; give a number, or define `sizes`"
            )
    if (size := nbytes(entries, sizes)) > LIMIT:
        raise InputError(
            f"the state of {owner!r} would take {size / 2**30:.1f} GiB for "
            f"{', '.join(f'{k}={v}' for k, v in sizes.items())}; choose an option whose state is "
            "linear in the classes, such as estimator='marginal'"
        )
    return {
        name: torch.full(
            _shape(e, sizes), e.fill, dtype=e.dtype, device=device if e.shape else None
        )
        for name, e in entries.items()
        if e.shape is not None and "*" not in name
    }


def copy(state: State) -> State:
    """A copy that may be changed in place, and be part of a gradient, whatever the mode."""
    with torch.inference_mode(False):
        return {k: v.clone() for k, v in state.items()}


def move(state: State, device: torch.device) -> State:
    """The state on a device; counters stay on the host."""
    if all(v.device == device for v in state.values() if v.ndim):
        return state
    return {k: v.to(device) if v.ndim else v for k, v in state.items()}


def check(
    owner: str,
    entries: Entries,
    state: Mapping[str, Tensor],
    known: Mapping[str, int] | None = None,
    live: bool = False,
) -> dict[str, int]:
    """Refuse a saved state that does not fit the declaration; returns the sizes it was made for.

    `known` are sizes that it must be made for. Of a `live` one values are not looked at, and what
    the model decides may be yet to come.
    """
    saved = {n: e for n, e in entries.items() if e.reduce != "derived"}
    due = {n for n, e in saved.items() if "*" not in n and not (live and e.shape is None)}
    missing = sorted(due - state.keys())
    odd = [n for n in state if entry_of(saved, n) is None]
    if missing or odd:
        what = f"entry {missing[0]!r} is missing" if missing else f"entry {odd[0]!r} is unexpected"
        raise StateError(
            f"state of {owner!r} does not fit: {what}; it was saved by another method or with "
            "other options"
        )
    sizes = dict(known or {})
    for name, value in state.items():
        e = entry_of(saved, name)
        assert e is not None
        good = e.dtype is None or value.dtype == e.dtype
        if e.shape is not None:
            good = good and value.ndim == len(e.shape)
            rows = 1 if e.reduce == "tail" else 0  # their number grows
            for want, got in zip(e.shape[rows:], value.shape[rows:], strict=False):
                n = sizes.setdefault(want, got) if isinstance(want, str) else want
                good = good and n == got
        if not good:
            shape = [sizes.get(n, n) if isinstance(n, str) else n for n in e.shape or ("any",)]
            kind = "" if e.dtype is None else f" {e.dtype}"
            raise StateError(
                f"state of {owner!r} does not fit: entry {name!r} is {tuple(value.shape)} "
                f"{value.dtype}, expected {tuple(shape)}{kind}; it was saved for other "
                "classes, another model or other options"
            )
        if not live and (odd_value := _impossible(e, value)):
            raise StateError(
                f"state of {owner!r} does not fit: entry {name!r} holds {odd_value}; save it again"
            )
    return sizes


def alike(a: State, b: State) -> bool:
    """Whether both have the same entries, of the same dtypes and shapes."""
    return a.keys() == b.keys() and all(
        x.dtype == b[k].dtype and x.shape == b[k].shape for k, x in a.items()
    )


def check_kept(
    owner: str,
    entries: Entries,
    state: State,
    sizes: Mapping[str, int] | None = None,
    live: bool = False,
) -> None:
    """Refuse what a method has made of its own state, if it could not be loaded again."""
    try:
        check(owner, entries, saved(entries, state), sizes, live)
    except StateError as error:
        raise InputError(
            f"{error.problem}; the method itself made it so: let it keep what `entries` declares"
        ) from error


def in_order(owner: str, entries: Entries, state: State, order: Sequence[int]) -> State:
    """The state with its classes in another order: class i is what class `order[i]` was.

    What is per class has a size L. Whole numbers that count nothing may be numbers of classes, and
    of what the model decides nobody knows: a state that holds either is refused.
    """
    out: State = {}
    for name, value in state.items():
        e = entry_of(entries, name)
        assert e is not None
        plain = e.reduce == "sum" or value.is_floating_point() or value.dtype == torch.bool
        if e.shape is None or (e.shape and not plain):
            raise StateError(
                f"the state of {owner!r} cannot be taken with its classes in another order: entry "
                f"{name!r} may hold numbers of classes; name the classes in the order that the "
                "state has"
            )
        for dim, size in enumerate(e.shape):
            if size == "L":
                value = value.index_select(dim, torch.tensor(order, device=value.device))
        out[name] = value
    return out


def _impossible(e: Entry, value: Tensor) -> str:
    """The values of an entry that no stream could have left, in words; empty if there are none."""
    if value.is_floating_point():
        if not math.isnan(e.fill) and bool(value.isnan().any()):
            return "NaN"
        if not math.isinf(e.fill) and bool(value.isinf().any()):
            return "infinite values"
    elif e.reduce == "sum" and value.numel():
        if int(value.min()) < 0:
            return "a negative count"
        if int(value.max()) > MANY:
            return "a count beyond all streams"
    return ""


def merge(
    owner: str, entries: Entries, ours: State, theirs: State, common: State | None = None
) -> State:
    """Two streams' states as one, by the declared reductions; neither is changed.

    What both began with, `common`, counts once. It can be taken out of sums alone.
    """
    _check_alike(owner, entries, ours, theirs)
    if common is not None:
        _check_alike(owner, entries, theirs, common)
        theirs = _without(owner, entries, theirs, common)
    theirs = {k: v.to(ours[k].device) if k in ours and v.ndim else v for k, v in theirs.items()}
    for name, entry in entries.items():
        if entry.shift and name in theirs and entry.shift in ours:
            theirs[name] = theirs[name] - int(ours[entry.shift])
    out: State = {}
    for name in {**ours, **theirs}:
        e = entry_of(entries, name)
        assert e is not None
        if e.reduce == "derived":
            continue
        if name not in ours or name not in theirs:
            out[name] = (ours if name in ours else theirs)[name].clone()
        else:
            out[name] = _reduced(owner, name, e, ours, theirs)
    return out


def _check_alike(owner: str, entries: Entries, ours: State, theirs: State) -> None:
    """Refuse to put together what is of other sizes."""
    for name in {**ours, **theirs}:
        e = entry_of(entries, name)
        assert e is not None
        free = 1 if e.reduce == "tail" else 0  # leading sizes that may differ
        here, there = (tuple(s[name].shape) if name in s else "missing" for s in (ours, theirs))
        same = "missing" not in (here, there) and here[free:] == there[free:]
        if not same and e.reduce not in ("keep", "derived"):
            raise StateError(
                f"cannot merge states of {owner!r}: entry {name!r} is {here} here and {there} "
                "there; both must have the same classes, model and options"
            )


def _without(owner: str, entries: Entries, state: State, common: State) -> State:
    out = dict(state)
    for name, value in common.items():
        e = entry_of(entries, name)
        assert e is not None
        if e.reduce == "sum":
            out[name] = state[name] - value.to(state[name])
        elif e.reduce not in ("same", "keep", "derived"):
            raise StateError(
                f"the state of {owner!r} is no sum, so what two of them began with cannot be taken "
                "out of one; merge states that began empty"
            )
    return out


def _reduced(owner: str, name: str, e: Entry, ours: State, theirs: State) -> Tensor:
    a, b = ours[name], theirs[name].to(ours[name])
    if callable(e.reduce):
        return e.reduce(name, ours, theirs)
    if e.reduce == "sum":
        return a + b
    if e.reduce == "mean":
        n, m = int(ours[e.by]), int(theirs[e.by])
        return torch.lerp(a, b, m / (n + m)) if n + m else a.clone()
    if e.reduce == "tail":
        return torch.cat([a, b])[-e.most :].clone()
    if e.reduce == "same":
        if not torch.allclose(a, b, atol=1e-3):
            raise StateError(
                f"cannot merge states of {owner!r} of different class weights; both must come from "
                "one model, one set of prompts and the same classes"
            )
        return a.clone()
    if e.reduce == "trim":
        rank = torch.cat([ours[e.by], theirs[e.by].to(ours[e.by])], 1)  # (L, 2 M)
        order = rank.argsort(dim=1, stable=True)[:, : ours[e.by].shape[1]]
        rows = torch.arange(len(order), device=order.device)[:, None]
        return torch.cat([a, b], 1)[rows, order]
    return a.clone()


# --------------------------------------------------------------------------- parts of a state


def prefixed(values: Mapping[str, Any], prefix: str = "prior.") -> dict[str, Any]:
    """Entries of a part under its name; what refers to another entry refers to it there."""

    def there(value: Any) -> Any:
        if not isinstance(value, Entry) or not (value.by or value.shift):
            return value
        by, shift = (name and f"{prefix}{name}" for name in (value.by, value.shift))
        return replace(value, by=by, shift=shift)

    return {f"{prefix}{k}": there(v) for k, v in values.items()}


def unprefixed(state: State, prefix: str = "prior.") -> State:
    """A part's own entries, by its own names."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


@contextmanager
def part_of(state: State, prefix: str = "prior.") -> Iterator[State]:
    """A part's own entries, to be changed; the state gets what they became."""
    inner = unprefixed(state, prefix)
    yield inner
    state.update(prefixed(inner, prefix))
