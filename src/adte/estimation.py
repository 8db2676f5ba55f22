"""Estimates from unlabelled predictions, as pure functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte.bias import Sums, frequencies
from adte.errors import unknown

__all__ = ["FLOOR", "Shares", "clipped", "fixed_point", "shares"]

# No estimated prior is smaller than this, so its logarithm is finite whatever the bank holds.
FLOOR = 1e-12


def fixed_point(
    matrix: Tensor | Callable[[Tensor], Tensor],
    start: Tensor,
    norm: Literal["l1", "l2"] = "l1",
    eps: float = 1e-6,
    max_iter: int = 500,
    damping: float = 0.0,
    previous: bool = False,
) -> tuple[Tensor, int]:
    """Iterate p ← A p, normalised every step, until it changes by at most eps.

    Args:
        matrix: A (L, L) with the distribution of class l' in column l', or the map p → A p.
        start: where to begin (L,): uniform, or the last solution.
        norm: of the iterate and of the change: `l1` as in the paper, `l2` as in the release.
        damping: λ in A' = (1 − λ) A + λ/L, which keeps a nearly diagonal A well conditioned.
        previous: return the iterate before the last, as the release does.

    Returns:
        The solution, of unit length in `norm`, and the number of steps taken.

    >>> A = torch.tensor([[0.9, 0.2], [0.1, 0.8]], dtype=torch.float64)
    >>> p, steps = fixed_point(A, torch.full((2,), 0.5, dtype=torch.float64))
    >>> p
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    apply = matrix if callable(matrix) else lambda p: matrix @ p
    if norm not in ("l1", "l2"):
        raise unknown("norm", norm, ("l1", "l2"))
    order = {"l1": 1, "l2": 2}[norm]
    p = start / torch.linalg.vector_norm(start, order)
    for step in range(1, max_iter + 1):
        new = apply(p)
        if damping:
            new = (1 - damping) * new + damping * p.sum() / p.numel()
        new = new / torch.linalg.vector_norm(new, order).clamp_min(FLOOR)
        done = bool(torch.linalg.vector_norm(new - p, order) <= eps)
        if done and previous:
            return p, step
        p = new
        if done:
            return p, step
    return p, max_iter


def clipped(p: Tensor, deviations: float) -> Tensor:
    """p with log p held within so many robust deviations of its median, and renormalised.

    A robust deviation is 1.4826 times the median distance from the median, the standard deviation
    where values are normal. Where half of the classes are alike it is nought, and nothing is cut.
    (…, L) → (…, L)

    >>> p = torch.tensor([0.90, 0.04, 0.03, 0.02, 0.01])
    >>> clipped(p, 2.0)
    tensor([0.4996, 0.2002, 0.1501, 0.1001, 0.0500])
    """
    if not deviations:
        return p
    log_p = p.log()
    middle = log_p.median(-1, keepdim=True).values
    reach = deviations * 1.4826 * (log_p - middle).abs().median(-1, keepdim=True).values
    cut = log_p.clamp(middle - reach, middle + reach).exp()
    return torch.where(reach > 0, cut / cut.sum(-1, keepdim=True), p)


# --------------------------------------------------------------------------- what is in the stream


class Shares(NamedTuple):
    """The estimated share of every class in a stream, with an interval; (L,) each, float64."""

    share: Tensor
    low: Tensor
    high: Tensor


def shares(sums: Sums, deviations: float = 1.96) -> Shares:
    """What a stream of n = Σ N images is made of.  (L,) each

    Where classes are about equally frequent the mean answer N/n is the better estimate, where few
    are shown counting labels is; so the share is s = (1 − g)·N/n + g·labels/n, with the trust g in
    the frequencies. Its variance has two parts: s (1 − s)/n for the images that came, and d² with
    d = Σ r (1 − r)/n = (N − Q)/n, all that is unsure, as if images erred together. The upper end is
    Wilson's for as many sure images as have that variance; the lower is s less so many deviations,
    so that a class of less than an image may be none.

    >>> import numpy as np
    >>> counts = np.array([30.0, 10.0, 0.0])
    >>> shares(Sums(counts, counts, np.array([28.0, 9.0, 0.0]), counts, counts)).high
    tensor([0.8763, 0.4124, 0.0876], dtype=torch.float64)
    """
    n = max(float(sums.answers.sum()), 1.0)
    _, trust = frequencies(sums.answers, sums.squares)
    s = torch.from_numpy(sums.answers + trust * (sums.labels - sums.answers)) / n
    doubt = torch.from_numpy(sums.answers - sums.squares).clamp_min(0) / n
    spread = (s * (1 - s)).clamp_min(FLOOR)
    variance = spread / n + doubt.square()
    low = (s - deviations * variance.sqrt()).clamp_min(0)
    z2 = deviations**2 * variance / spread  # z² over the number of sure images
    high = (s + z2 / 2 + (z2 * spread + z2.square() / 4).sqrt()) / (1 + z2)
    return Shares(s, low, high.clamp_max(1))
