"""A bank: at most M items per class, those of lowest rank, in order; the older of equals first.

Its tensors are entries of a declared state: `rank` (L, M), infinite where a slot is empty, and what
an item consists of, (L, M, …). What an item's rank is decides who stays: minus the time of arrival
keeps the newest, an entropy keeps the surest, a random number keeps a uniform sample. Two banks
merge by sorting their items together.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adte.core.state import Entry, State

__all__ = ["affinity", "entries", "filled", "insert"]


def entries(
    size: int,
    items: Mapping[str, tuple[tuple[int | str, ...], torch.dtype]],
    prefix: str = "",
    shift: str = "",
) -> dict[str, Entry]:
    """The declaration of a bank of `size` items per class, each of the given tensors.

    `shift` names a counter of the state where ranks are minus the time of arrival.
    """
    by = f"{prefix}rank"
    rank = Entry(("L", size), torch.float64, "trim", fill=torch.inf, by=by, shift=shift)
    return {by: rank} | {
        f"{prefix}{name}": Entry(("L", size, *shape), dtype, "trim", by=by)
        for name, (shape, dtype) in items.items()
    }


def insert(
    state: State,
    prefix: str,
    label: int,
    rank: float,
    item: Mapping[str, Tensor],
    force: bool = False,
) -> bool:
    """Put an item into its class's row, in place; True if it stayed.

    A full row drops its last; with `force` it does so before the item is put in its place.
    """
    ranks = state[f"{prefix}rank"][label]  # (M,), sorted
    kept = ranks[:-1] if force else ranks
    slot = int(torch.searchsorted(kept, ranks.new_tensor(rank), right=True))
    if slot == len(ranks):
        return False
    for name, value in {"rank": ranks.new_tensor(rank), **item}.items():
        row = state[f"{prefix}{name}"][label]
        row[slot + 1 :] = row[slot:-1].clone()
        row[slot] = value.to(row)
    return True


def filled(state: State, prefix: str = "") -> Tensor:
    """Which slots hold an item (L, M). A rank may be minus infinity: a certain prediction's gap."""
    return state[f"{prefix}rank"] < torch.inf


def affinity(state: State, prefix: str, feature: Tensor, sharpness: float) -> Tensor:
    """exp(−β (1 − f·k)) for the `keys` of every item, 0 for an empty slot.  (D,) → (L, M)"""
    near = (-sharpness * (1 - state[f"{prefix}keys"].to(feature) @ feature)).exp()
    return torch.where(filled(state, prefix), near, 0.0)
