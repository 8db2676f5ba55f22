"""How much an image is like those that were taken for a class before it.

S_l = Σ r_l x and N_l = Σ r_l are kept of a stream's features x and answers r, and T = Σ x. With
m = T/n the mean of n images, the likeness of x to class l is

    (S_l − N_l m)/(N_l + 1) · (x − m):

the mean of the class, drawn to that of all, as seen from there. On a host it is found image by
image, so that no number depends on how a stream is cut; elsewhere by products over a whole batch.

The S of all classes is by far the largest part of a state, and an image changes a few rows of it.
So on a host it is not copied for every step: rows that change are kept beside it until they are
`settled`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte.state import Entry, State, copy

__all__ = ["ENTRIES", "draft", "follow", "read", "settled"]

OWN = 1.0  # images as the mean one, taken as seen of each class

ENTRIES = {
    "like.sums": Entry(("L", "D"), torch.float32),
    "like.counts": Entry(("L",), torch.float32),
    "like.total": Entry(("D",)),  # float64: of all images, however many
}

Array = NDArray[np.float32]
Wide = NDArray[np.float64]
Index = NDArray[np.int64]


SUMS, ROWS, CHANGED = "like.sums", "like.rows", "like.changed"


def draft(state: State) -> State:
    """A copy, but for the sums where their rows are changed beside them."""
    if not state[SUMS].is_cpu:
        return copy(state)
    return copy({k: v for k, v in state.items() if k != SUMS}) | {SUMS: state[SUMS]}


def settled(draft: State) -> State:
    """The rows that were changed, in their places."""
    if ROWS in draft:
        draft[SUMS].numpy()[draft.pop(ROWS).numpy()] = draft.pop(CHANGED).numpy()
    return draft


def follow(
    state: State, x: Tensor, answers: Tensor, classes: Tensor, seen: int, first: bool
) -> Tensor:
    """Take images (B, D), each for its classes (B, K), into a draft: its likeness to them by then.

    `first` takes an image in before it is likened.
    """
    rule = one_by_one if x.device.type == "cpu" else all_at_once
    return rule(state, x, answers, classes, seen, first)


def read(state: State, x: Tensor, classes: Tensor, seen: int) -> Tensor:
    """The likeness of images (B, D) to their classes (B, K) in a state that stays."""
    rule = read_one_by_one if x.device.type == "cpu" else read_at_once
    return rule(state, x, classes, seen)


def one_by_one(
    state: State, x: Tensor, answers: Tensor, classes: Tensor, seen: int, first: bool
) -> Tensor:
    every, counts, total = (v.numpy() for v in _kept(state))
    likely, out = classes.numpy(), np.empty(classes.shape, np.float32)
    touched, places = _touched(likely)
    sums = every[touched]
    images = zip(x.numpy(), answers.numpy(), likely, places, strict=True)
    for i, (f, answer, rows, here) in enumerate(images):
        share, mine = answer[rows].astype(np.float32), sums[here]
        if not first:
            out[i] = _alike(mine, counts[rows], total, f, seen + i)
        mine += share[:, None] * f
        sums[here] = mine
        counts[rows] += share
        total += f
        if first:
            out[i] = _alike(mine, counts[rows], total, f, seen + i + 1)
    state[ROWS], state[CHANGED] = torch.from_numpy(touched), torch.from_numpy(sums)
    return torch.from_numpy(out)


def _touched(classes: Index) -> tuple[Index, Iterable[Index | slice]]:
    """The classes of some images (B, K), and where those of each are among them."""
    if len(classes) == 1:
        return classes[0], [slice(None)]
    found, places = np.unique(classes, return_inverse=True)
    return found, places.reshape(classes.shape)


def read_one_by_one(state: State, x: Tensor, classes: Tensor, seen: int) -> Tensor:
    sums, counts, total = (v.numpy() for v in _kept(state))
    images = zip(x.numpy(), classes.numpy(), strict=True)
    return torch.from_numpy(
        np.stack([_alike(sums[rows], counts[rows], total, f, seen) for f, rows in images])
    )


def _alike(sums: Array, counts: Array, total: Wide, x: Array, seen: int) -> Array:
    """The likeness of x (D,) to some classes, by the sums of their images.  (K, D), (K,) → (K,)"""
    mean = (total / max(seen, 1)).astype(np.float32)
    off = x - mean
    return np.asarray((sums @ off - counts * (mean @ off)) / (counts + OWN))


def all_at_once(
    state: State, x: Tensor, answers: Tensor, classes: Tensor, seen: int, first: bool
) -> Tensor:
    sums, counts, total = _kept(state)
    shares = torch.zeros_like(answers, dtype=x.dtype)  # (B, L)
    shares.scatter_(1, classes, answers.gather(1, classes).to(x))
    before = torch.ones(len(x), len(x), device=x.device).tril(0 if first else -1)
    number = torch.arange(seen + first, seen + first + len(x), device=x.device)
    mean = ((total + before @ x) / number.clamp_min(1)[:, None]).to(x)
    off = x - mean
    products = off @ sums.T + (before * (off @ x.T)) @ shares
    by_then = counts + before @ shares
    likeness = (products - by_then * (mean * off).sum(1, keepdim=True)) / (by_then + OWN)
    sums += shares.T @ x
    counts += shares.sum(0)
    total += x.sum(0)
    return likeness.gather(1, classes)


def read_at_once(state: State, x: Tensor, classes: Tensor, seen: int) -> Tensor:
    sums, counts, total = _kept(state)
    mean = (total / max(seen, 1)).to(x)
    off = x - mean
    products, counts = (sums[classes] @ off[..., None])[..., 0], counts[classes]
    return (products - counts * (off @ mean)[:, None]) / (counts + OWN)


def _kept(state: State) -> tuple[Tensor, Tensor, Tensor]:
    return state[SUMS], state["like.counts"], state["like.total"]
