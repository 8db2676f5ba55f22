"""Figures of merit: pure functions of labels, confidences and what was right."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Coverage",
    "accuracy",
    "aurc",
    "average_precision",
    "bias_statistics",
    "bootstrap_difference",
    "ece",
    "mcnemar",
    "mean_per_class",
    "nll",
    "risk_coverage",
    "seed_interval",
    "spearman",
    "thirds",
]


def accuracy(correct: ArrayLike) -> float:
    """Share of correct predictions."""
    return float(np.asarray(correct, float).mean())


def mean_per_class(correct: ArrayLike, labels: ArrayLike) -> float:
    """Accuracy of each class that occurs, averaged over classes."""
    correct, labels = np.asarray(correct, float), np.asarray(labels)
    counts = np.bincount(labels)
    right = np.bincount(labels, weights=correct)
    return float((right[counts > 0] / counts[counts > 0]).mean())


class Coverage(NamedTuple):
    """The effect of thresholds on confidence, if images below them get no label.

    All are arrays (K,), from the highest threshold on.

    Attributes:
        threshold: the threshold on confidence.
        coverage: share of the images that get a label.
        risk: share of those labels that are wrong.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> Coverage:
    """Risk and coverage at every threshold on confidence (El-Yaniv and Wiener, JMLR 2010).

    Coverage is the share of images with at least that confidence, risk the share of wrong answers
    among them.

    Args:
        confidence: confidence of each answer.
        correct: whether each answer is right.

    Returns:
        The thresholds, the coverage and the risk at each, from the highest threshold on.

    >>> risk_coverage([0.9, 0.5, 0.9, 0.7], [True, False, True, True]).risk
    array([0.  , 0.  , 0.25])
    """
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    order = np.argsort(-confidence, kind="stable")
    sure = confidence[order]
    last = np.flatnonzero(np.append(sure[1:] != sure[:-1], True))  # of equals, all or none
    wrong = np.cumsum(1 - correct[order])[last]
    return Coverage(sure[last], (last + 1) / len(sure), wrong / (last + 1))


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the curve of risk over coverage: small where those labels are wrong that are the
    least sure (Geifman et al., ICLR 2019).
    """
    _, coverage, risk = risk_coverage(confidence, correct)
    return float(np.diff(coverage, prepend=0.0) @ risk)


def nll(truth: ArrayLike) -> float:
    """Mean negative log-probability of the true class, in nats; at most 69 per image (1e-30)."""
    return float(-np.log(np.clip(np.asarray(truth, float), 1e-30, 1)).mean())


def mcnemar(a: ArrayLike, b: ArrayLike, images: Sequence[str] | None = None) -> float:
    """Exact two-sided p-value that two methods are right equally often, paired by image.

    `images` names the image of each pair, where one may be shown more than once. All its pairs have
    one sign then, which is as likely to be the other: a sign-flip test, and McNemar's
    where every image is shown once.
    """
    gain = np.asarray(a, bool).astype(np.int64) - np.asarray(b, bool)
    if images is not None:
        which = np.unique(np.asarray(images), return_inverse=True)[1]
        gain = np.rint(np.bincount(which, weights=gain)).astype(np.int64)
    sizes, counts = np.unique(np.abs(gain), return_counts=True)
    if sizes.max(initial=0) > 1:
        return _flipped(sizes, counts, abs(int(gain.sum())))
    only_a, only_b = int((gain > 0).sum()), int((gain < 0).sum())
    n, k = only_a + only_b, min(only_a, only_b)
    log_terms = [
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2) for i in range(k + 1)
    ]
    return min(1.0, 2 * sum(exp(t) for t in log_terms))


def _flipped(sizes: NDArray[np.int64], counts: NDArray[np.int64], total: int) -> float:
    """P(|Σ ± size| ≥ total) for signs that are fair coins, by their characteristic function."""
    places = 2 * int(sizes @ counts) + 1  # of the sum, those below zero behind the others
    turn = 2 * np.pi * np.arange(places) / places
    wave = np.ones(places)
    for size, count in zip(sizes, counts, strict=True):
        wave *= np.cos(size * turn) ** count
    chance = np.fft.ifft(wave).real
    far = np.minimum(np.arange(places), places - np.arange(places)) >= total
    return float(np.clip(chance[far].sum(), 0.0, 1.0))


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
    a: ArrayLike,
    b: ArrayLike,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    images: Sequence[str] | None = None,
) -> tuple[float, float]:
    """Interval of mean(a) − mean(b), paired by image, by the percentile bootstrap.

    `images` names the image of each pair, where one may be shown more than once: it is drawn with
    all its pairs.
    """
    difference = np.asarray(a, float) - np.asarray(b, float)
    shown = np.ones(len(difference))
    if images is not None:
        which = np.unique(np.asarray(images), return_inverse=True)[1]
        difference, shown = np.bincount(which, weights=difference), np.bincount(which).astype(float)
    rng = np.random.default_rng(seed)
    # Few values occur for right and wrong, but any paired values are taken.
    pairs = np.stack([np.round(difference, 12), shown], 1)  # equals stay equal
    kinds, counts = np.unique(pairs, axis=0, return_counts=True)
    samples = rng.multinomial(len(pairs), counts / len(pairs), size=draws)
    totals = samples @ kinds  # (draws, 2)
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, near enough by a formula.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
      2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
      2.052, 2.048, 2.045, 2.042)  # fmt: skip


def seed_interval(values: ArrayLike) -> list[float] | None:
    """95 % interval of the mean over seeds; None for a single one."""
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return None
    t = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1)
    half = t * float(values.std(ddof=1)) / n**0.5
    return [float(values.mean()) - half, float(values.mean()) + half]


def bias_statistics(log_prior: ArrayLike, frequency: ArrayLike | None = None) -> dict[str, float]:
    """Mean, variance and standard deviation of the bias −log p̃ over classes, and, where the
    classes' training frequency is known, how well p̃ ranks them by it.
    """
    bias = -np.asarray(log_prior, float)
    out = {
        "bias_mean": float(bias.mean()),
        "bias_variance": float(bias.var()),
        "bias_std": float(bias.std()),
    }
    return out if frequency is None else {**out, "spearman": spearman(-bias, frequency)}


def average_precision(scores: ArrayLike, targets: ArrayLike) -> float:
    """Mean over classes of average precision, for several labels per image.  (N, L), (N, L)

    Classes without a positive image do not count.
    """
    return float(average_precisions(scores, targets, np.ones((1, len(np.asarray(targets)))))[0])


def average_precisions(
    scores: ArrayLike, targets: ArrayLike, weights: ArrayLike
) -> NDArray[np.float64]:
    """The same where image n counts weights[b, n] times.  (N, L), (N, L), (B, N) → (B,)

    Images of equal score come together: the order among them says nothing.
    """
    hits, w, parts = np.asarray(targets, bool), np.asarray(weights, float), []
    some = hits.any(0)
    for score, hit in zip(np.asarray(scores, float).T[some], hits.T[some], strict=True):
        order = np.argsort(-score, kind="stable")
        last = np.append(np.diff(score[order]) != 0, True)  # of equals
        right = (w[:, order] * hit[order]).cumsum(1)[:, last]
        precision = right / np.maximum(w[:, order].cumsum(1)[:, last], 1e-12)
        with np.errstate(invalid="ignore"):
            gained = np.diff(right, prepend=0.0, axis=1) / right[:, -1:]
        parts.append((gained * precision).sum(1))
    return np.asarray(np.nanmean(parts, 0))  # classes that a draw lacks do not count


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
