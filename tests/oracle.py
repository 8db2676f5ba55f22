"""A slow second opinion: the paper's equations in plain NumPy float64, one loop per sum.

Written from the papers, not from the library, and meant to be read beside them.
`p` is a distribution (L,), `P` a stack of them (V, L), `z` the logits behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# 4 views, 3 classes.
F_LOGITS = np.array([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])


def softmax(z: ArrayLike) -> Array:
    z = np.asarray(z, dtype=np.float64)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# --------------------------------------------------------------------------- entropies


def shannon(p: Sequence[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def tsallis(p: Sequence[float], q: float) -> float:
    if q == 1:
        return shannon(p)
    return (sum(x**q for x in p if x > 0) - 1) / (1 - q)


def adaptive(p: Sequence[float], q: Sequence[float]) -> float:
    """ADTE as printed: Σ P^q / (1 − q)."""
    return sum(x**k / (1 - k) for x, k in zip(p, q, strict=True))


def adaptive_vanishing(p: Sequence[float], q: Sequence[float]) -> float:
    """The form that is zero on one-hot distributions: Σ (P^q − P) / (1 − q)."""
    return sum((x**k - x) / (1 - k) for x, k in zip(p, q, strict=True))


# --------------------------------------------------------------------------- q from the prior


def q_literal(prior: Sequence[float], alpha: float = 0.01, beta: float = 0.9) -> list[float]:
    """The equation for q as printed, with the min and max of p̃ where those of −log p̃ belong."""
    low, high = min(prior), max(prior)
    return [alpha + (beta - alpha) * (-math.log(p) - low) / (high - low) for p in prior]


def q_from_prior(
    log_prior: Sequence[float],
    alpha: float = 0.01,
    beta: float = 0.9,
    rule: str = "minmax",
    direction: str = "released",
) -> list[float]:
    sign = 1.0 if direction == "released" else -1.0
    x = [sign * v for v in log_prior]
    n = len(x)
    mean = sum(x) / n
    std = math.sqrt(sum((v - mean) ** 2 for v in x) / n)
    z = [(v - mean) / std if std > 1e-12 else 0.0 for v in x]
    low, high = min(x), max(x)
    even = [(v - low) / (high - low) if high > low else 0.0 for v in x]
    if rule == "minmax":
        u = even
    elif rule == "zscore":  # mean − 3 std is the lower end, mean + 3 std the upper
        u = [min(1.0, max(0.0, (v + 3) / 6)) for v in z]
    elif rule == "sigmoid":
        u = [1 / (1 + math.exp(-v)) for v in even]
    elif rule == "decimal":
        j = 0
        while max(abs(v) for v in log_prior) / 10**j > 1:
            j += 1
        u = [abs(v) / 10**j for v in log_prior]
        if direction == "released":  # |log p̃| is small for head classes, which get beta
            u = [1 - v for v in u]
    else:
        raise ValueError(rule)
    return [alpha + (beta - alpha) * v for v in u]


# --------------------------------------------------------------------------- selection


def keep_count(views: int, ratio: float) -> int:
    """⌊ratio · N⌋ of the decimal number that was written, at least 1."""
    return max(1, math.floor(Fraction(str(ratio)) * views))


def rank(entropy: Sequence[float]) -> list[int]:
    return sorted(range(len(entropy)), key=lambda i: (entropy[i], i))


# --------------------------------------------------------------------------- aggregation


def mean_probs(P: Array) -> Array:
    return sum(P) / len(P)


def mean_logits(z: Array) -> Array:
    return softmax(sum(z) / len(z))


def first_max(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda i: (values[i], -i))


def vote(P: Array, order: Sequence[int], keep: int) -> Array:
    """Zero: shares of the votes cast, the deciding vote of a tie included."""
    votes = [0] * P.shape[1]
    for view in order[:keep]:
        votes[first_max(P[view])] += 1
    tied = [c for c, n in enumerate(votes) if n == max(votes)]
    if len(tied) > 1:
        rest = list(order[keep:])
        for view in rest:
            if first_max(P[view]) in tied:
                votes[first_max(P[view])] += 1
                break
        else:
            judge = rest[0] if rest else order[0]
            votes[max(tied, key=lambda c: (P[judge, c], -c))] += 1
    return np.array(votes) / sum(votes)


# --------------------------------------------------------------------------- logit adjustment

Entropy = Callable[[Array], float]


def _best(P: Array, entropy: Entropy, keep: int) -> list[int]:
    return rank([entropy(p) for p in P])[:keep]


def adjust_after(z: Array, log_prior: Array, entropy: Entropy, keep: int) -> Array:
    """(a) the log of the averaged kept distribution minus log p̃."""
    P = softmax(z)
    return softmax(np.log(mean_probs(P[_best(P, entropy, keep)])) - log_prior)


def adjust_per_view(z: Array, log_prior: Array, entropy: Entropy, keep: int) -> Array:
    """(b) every kept view's logits minus log p̃, then the average."""
    kept = _best(softmax(z), entropy, keep)
    return mean_probs(softmax(z[kept] - log_prior))


def adjust_before(z: Array, log_prior: Array, entropy: Entropy, keep: int) -> Array:
    """(c) all views' logits minus log p̃, before the entropy sees them."""
    P = softmax(z - log_prior)
    return mean_probs(P[_best(P, entropy, keep)])


def adjust_base(z: Array, log_prior: Array) -> Array:
    """(d) the base view alone."""
    return softmax(z[0] - log_prior)


# --------------------------------------------------------------------------- the class prior


class NaiveBank:
    """Items by pseudo-label in Python lists; the matrix is rebuilt from scratch when asked for."""

    def __init__(
        self, num_classes: int, policy: str = "all", size: int = 10, threshold: float = 0.0
    ) -> None:
        self.policy, self.size, self.threshold = policy, size, threshold
        self.items: list[list[tuple[float, Array]]] = [[] for _ in range(num_classes)]
        self.everything: list[Array] = []

    def observe(self, p: Array) -> bool:
        """One distribution; True if it was kept."""
        p = np.asarray(p, dtype=np.float64)
        self.everything.append(p)
        ordered = sorted(p, reverse=True)
        with np.errstate(divide="ignore"):
            gap = math.inf if len(p) == 1 else float(np.log(ordered[0]) - np.log(ordered[1]))
        if gap < self.threshold:
            return False
        column = self.items[first_max(p)]
        if self.policy == "all" or len(column) < self.size:
            column.append((gap, p))
            return True
        if self.policy == "fifo":
            del column[0]
            column.append((gap, p))
            return True
        weakest = min(range(len(column)), key=lambda i: column[i][0])
        if self.policy == "gap-larger" and gap <= column[weakest][0]:
            return False
        column[weakest] = (gap, p)  # `gap`: even by a smaller one
        return True

    def matrix(self, empty: str = "uniform", smoothing: float = 0.0) -> Array:
        """A: column l' is the mean of the items of class l'."""
        L = len(self.items)
        A = np.zeros((L, L))
        for label, column in enumerate(self.items):
            if column or smoothing:
                total = sum((p for _, p in column), np.zeros(L)) + smoothing * np.full(L, 1 / L)
                A[:, label] = total / (len(column) + smoothing)
            elif empty == "uniform":
                A[:, label] = 1 / L
        return A

    def prior(
        self,
        empty: str = "uniform",
        smoothing: float = 0.0,
        norm: int = 1,
        eps: float = 1e-6,
        max_iter: int = 500,
        damping: float = 0.0,
    ) -> Array:
        """p̃, summing to one; uniform at a cold start, when no item was admitted yet."""
        L = len(self.items)
        if not any(self.items):
            return np.full(L, 1 / L)
        p, _ = fixed_point(self.matrix(empty, smoothing), norm, eps, max_iter, damping)
        return p / p.sum()


def fixed_point(
    A: Array,
    norm: int = 1,
    eps: float = 1e-6,
    max_iter: int = 500,
    damping: float = 0.0,
    previous: bool = False,
) -> tuple[Array, int]:
    """The paper's algorithm 1 from a uniform start (norm 1), or the release's (norm 2)."""
    L = len(A)
    A = (1 - damping) * A + damping / L
    p = np.full(L, 1 / L)
    for step in range(1, max_iter + 1):
        new = A @ p
        new = new / np.linalg.norm(new, norm)
        if np.linalg.norm(new - p, norm) <= eps:
            return (p if previous else new), step
        p = new
    return p, max_iter
