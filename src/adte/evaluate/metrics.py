"""Figures of merit, from labels, predicted classes and confidences."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["accuracy", "bootstrap_difference", "ece", "spearman", "thirds"]


def accuracy(correct: ArrayLike) -> float:
    """Share of correct predictions."""
    return float(np.asarray(correct, float).mean())


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error over equal-width bins of confidence (Guo et al. 2017)."""
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def thirds(frequency: ArrayLike) -> NDArray[np.int64]:
    """0, 1 or 2 for every class: head, middle or tail third of the classes by frequency.

    Ties go to the class of lower index. Where L is not divisible by three the middle is larger.
    """
    frequency = np.asarray(frequency, float)
    rank = np.empty(len(frequency), int)
    rank[np.argsort(-frequency, kind="stable")] = np.arange(len(frequency))
    size = len(frequency) // 3
    return np.where(rank < size, 0, np.where(rank < len(frequency) - size, 1, 2))


def bootstrap_difference(
    a: ArrayLike, b: ArrayLike, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Interval of mean(a) − mean(b), paired by image, by the percentile bootstrap."""
    difference = np.asarray(a, float) - np.asarray(b, float)
    rng = np.random.default_rng(seed)
    # Only the values −1, 0, 1 occur for right and wrong, but any paired values are taken.
    values, counts = np.unique(difference, return_counts=True)
    samples = rng.multinomial(len(difference), counts / len(difference), size=draws)
    means = samples @ values / len(difference)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation, with mean ranks for ties; 0 where one side is constant."""

    def ranks(x: ArrayLike) -> NDArray[np.float64]:
        _, inverse, counts = np.unique(
            np.asarray(x, float), return_inverse=True, return_counts=True
        )
        last = np.cumsum(counts)
        return (last - (counts - 1) / 2)[inverse]

    ra, rb = ranks(a), ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    size = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return float(ra @ rb / size) if size > 0 else 0.0
