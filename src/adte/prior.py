"""The class prior: which classes a model favours, estimated from unlabelled predictions.

A memory bank holds predicted distributions by pseudo-label. Column l' of the matrix A is the mean
distribution of the items of class l'; the prior is the fixed point p̃ = A p̃ (Eqs. 9–11 of the
paper, after Frolic). The cost of an item does not depend on how many came before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from adte.errors import InputError, StateError, unknown
from adte.options import option

__all__ = ["ClassPrior", "PriorOptions", "clipped", "fixed_point"]

# No estimated prior is smaller than this, so its logarithm is finite whatever the bank holds.
FLOOR = 1e-12

BANKS = ("all", "gap", "gap-larger", "fifo", "reservoir")


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

    >>> p = torch.tensor([0.90, 0.04, 0.03, 0.02, 0.01])
    >>> clipped(p, 2.0)
    tensor([0.4996, 0.2002, 0.1501, 0.1001, 0.0500])
    """
    if not deviations:
        return p
    log_p = p.log()
    middle = log_p.median()
    reach = deviations * 1.4826 * (log_p - middle).abs().median()
    if not bool(reach > 0):
        return p
    cut = log_p.clamp(middle - reach, middle + reach).exp()
    return cut / cut.sum()


@dataclass(kw_only=True, eq=False)
class PriorOptions:
    """What decides the estimate. Methods inherit these, so each is also a hyper-parameter."""

    estimator: Literal["fixed-point", "marginal"] = option(
        "fixed-point", "fixed point of the bank's matrix, or the plain mean of all predictions"
    )
    bank: Literal["all", "gap", "gap-larger", "fifo", "reservoir"] = option(
        "all",
        "which items stay: all as running sums; the newest (gap: it replaces the smallest gap, as "
        "released; gap-larger: only if its own is larger); fifo; a uniform reservoir",
    )
    size: int = option(10, "items a class the bank keeps (not for 'all')")
    threshold: float = option(0.0, "smallest top-1 minus top-2 logit that is admitted")
    norm: Literal["l1", "l2"] = option("l1", "norm of the iteration: l1 (paper), l2 (released)")
    eps: float = option(1e-4, "the iteration stops when it changes by no more than this")
    max_iter: int = option(500, "most steps of one solution")
    damping: float = option(0.0, "share of the uniform distribution mixed into the matrix")
    smoothing: float = option(0.0, "uniform predictions that are added to every class's own")
    smoothing_total: float = option(
        0.0, "uniform predictions that are added in all, at least, however few the classes"
    )
    clip: float = option(
        0.0,
        "robust deviations from the median beyond which log p̃ is cut, so that classes the stream "
        "repeats do not pass for favoured ones; 0 cuts nothing",
    )
    empty: Literal["uniform", "zero"] = option(
        "uniform", "column of a class without items: uniform, or zero as released"
    )
    noise: float = option(0.0, "share of pseudo-labels replaced by random ones (noise study)")
    seed: int = option(0, "seed of the reservoir and of the noise")

    def check_prior(self) -> None:
        if self.bank not in BANKS:
            raise unknown("bank", self.bank, BANKS)
        if self.estimator not in ("fixed-point", "marginal"):
            raise unknown("estimator", self.estimator, ("fixed-point", "marginal"))
        if self.norm not in ("l1", "l2"):
            raise unknown("norm", self.norm, ("l1", "l2"))
        if self.empty not in ("uniform", "zero"):
            raise unknown("empty", self.empty, ("uniform", "zero"))
        for name, low, high in (
            ("size", 1, None), ("max_iter", 1, None), ("eps", 0, None), ("smoothing", 0, None),
            ("clip", 0, None), ("smoothing_total", 0, None),
            ("damping", 0, 1), ("noise", 0, 1), ("threshold", float("-inf"), None),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (value >= low and (high is None or value <= high)):  # NaN compares false
                bound = f"at least {low}" if high is None else f"between {low} and {high}"
                raise InputError(f"{name}={value} of the class prior must be {bound}")


class ClassPrior:
    """A running estimate of the model's class prior.

    >>> prior = ClassPrior(2)
    >>> prior.observe(torch.tensor([0.9, 0.1]).log())
    True
    >>> prior.observe(torch.tensor([0.4, 0.6]).log())
    True
    >>> prior.prior
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """

    def __init__(
        self,
        num_classes: int,
        options: PriorOptions | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if num_classes < 1:
            raise InputError(f"num_classes={num_classes}: a prior needs at least one class")
        self.num_classes = num_classes
        self.options = options or PriorOptions()
        self.options.check_prior()
        self.dtype = dtype  # of the stored items; sums and solutions are float64
        self.reset()

    def reset(self) -> None:
        L, o = self.num_classes, self.options
        self.seen = 0
        self._counts = torch.zeros(L, dtype=torch.int64)  # items in the bank
        self._offered = torch.zeros_like(self._counts)  # items that passed the threshold
        self._sums = torch.zeros(L, L, dtype=torch.float64)  # row l': sum of the items of class l'
        self._total = torch.zeros(
            L, dtype=torch.float64
        )  # sum of everything seen, for the marginal
        self._solution = torch.full((L,), 1 / L, dtype=torch.float64)
        self._fresh = False
        if o.bank != "all":
            self._items = torch.zeros(L, o.size, L, dtype=self.dtype)
            self._gaps = torch.zeros(L, o.size, dtype=torch.float64)
            self._arrival = torch.zeros(L, o.size, dtype=torch.int64)

    # ------------------------------------------------------------------ observing

    def observe(self, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction, log-probabilities (L,). True if the bank kept it.

        It counts for the class it finds most probable, or for `label` where a study knows better.
        """
        if log_p.shape != (self.num_classes,):
            raise InputError(
                f"the prior is over {self.num_classes} classes, but a prediction "
                f"of shape {tuple(log_p.shape)} came; pass one row of log-probabilities"
            )
        o = self.options
        log_p = log_p.detach().to(self._sums)
        label = int(log_p.argmax()) if label is None else label  # of equals, the first
        top = log_p.topk(min(2, self.num_classes)).values
        gap = float(top[0] - top[1]) if self.num_classes > 1 else float("inf")
        if bool(log_p.isnan().any()):
            raise InputError(
                "a prediction with NaN reached the class prior; check the model's output"
            )
        draw = random.Random(f"{o.seed}/{self.seen}")
        if o.noise and draw.random() < o.noise:
            label = draw.randrange(self.num_classes)
        p = log_p.exp()
        self._total += p
        self.seen += 1
        kept = gap >= o.threshold and self._admit(label, p, gap, draw)
        self._fresh &= not (kept or o.estimator == "marginal")
        return kept

    def _admit(self, label: int, p: Tensor, gap: float, draw: random.Random) -> bool:
        o, count = self.options, int(self._counts[label])
        self._offered[label] += 1
        if o.bank == "all":
            self._sums[label] += p
            self._counts[label] += 1
            return True
        if count < o.size:
            slot = count
            self._counts[label] += 1
        elif o.bank == "fifo":
            slot = int(self._arrival[label].argmin())
        elif o.bank == "reservoir":
            slot = draw.randrange(int(self._offered[label]))
            if slot >= o.size:
                return False
        else:
            # The smallest gap goes; of equals the newest, so that the order of arrival decides.
            smallest = self._gaps[label] == self._gaps[label].min()
            slot = int(self._arrival[label].where(smallest, -1).argmax())
            if o.bank == "gap-larger" and gap <= float(self._gaps[label, slot]):
                return False
        self._items[label, slot] = p.to(self.dtype)
        self._gaps[label, slot] = gap
        self._arrival[label, slot] = self.seen
        self._sum_column(label)
        return True

    def _sum_column(self, label: int) -> None:
        """One column anew from its items: as cheap as add-and-subtract, and without drift."""
        count = int(self._counts[label])
        self._sums[label] = self._items[label, :count].to(torch.float64).sum(0)

    # ------------------------------------------------------------------ the estimate

    @property
    def matrix(self) -> Tensor:
        """A (L, L), float64: column l' is the mean distribution of the items of class l'."""
        return self._operator()(torch.eye(self.num_classes).to(self._sums)).T

    def _operator(self) -> Callable[[Tensor], Tensor]:
        """The map p → A p without forming A. A batch of rows p (…, L) is taken too."""
        o = self.options
        smoothing = self._smoothing
        weight = self._counts.to(self._sums.dtype) + smoothing
        filled = weight > 0
        inverse = torch.where(filled, 1 / weight, 0.0)
        lost = 1.0 if o.empty == "uniform" else 0.0  # what an empty class passes on
        even = torch.where(filled, smoothing * inverse, lost) / self.num_classes
        return lambda p: (p * inverse) @ self._sums + (p @ even).unsqueeze(-1)

    @property
    def prior(self) -> Tensor:
        """p̃ (L,), float64, sums to one; uniform before anything was seen."""
        o = self.options
        if not self._fresh:
            if o.estimator == "marginal":
                self._solution = self._marginal(self._smoothing)
            elif bool(self._counts.any()):
                start = self._solution.clamp_min(FLOOR)  # a zero would stay zero
                self._solution, _ = fixed_point(
                    self._operator(), start, o.norm, o.eps, o.max_iter, o.damping
                )
            self._fresh = True
        p = self._solution.clamp_min(FLOOR)
        return clipped(p / p.sum(), o.clip)

    @property
    def _smoothing(self) -> float:
        """Uniform predictions a class."""
        return max(self.options.smoothing, self.options.smoothing_total / self.num_classes)

    def _marginal(self, smoothing: float) -> Tensor:
        """The mean of everything seen and of `smoothing` uniform predictions a class."""
        weight = self.seen + smoothing * self.num_classes
        if not weight:
            return self._solution
        return (self._total + smoothing) / weight

    @property
    def log_prior(self) -> Tensor:
        """log p̃ (L,), float64, finite."""
        return self.prior.log()

    @property
    def bias(self) -> Tensor:
        """The paper's bias, −log p̃: large for the classes that the model neglects."""
        return -self.log_prior

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Tensor]:
        state = {
            "seen": torch.tensor(self.seen),
            "fresh": torch.tensor(self._fresh),
            "counts": self._counts.clone(),
            "offered": self._offered.clone(),
            "total": self._total.clone(),
            "solution": self._solution.clone(),
        }
        if self.options.bank == "all":
            return state | {"sums": self._sums.clone()}
        used = torch.arange(self.options.size).to(self._counts) < self._counts[:, None]  # (L, M)
        return state | {
            "items": self._items[used],  # only filled slots, by class
            "gaps": self._gaps[used],
            "arrival": self._arrival[used],
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state. Checks everything first: on an error nothing has changed."""
        mine = self.state_dict()
        if missing := sorted(mine.keys() ^ state.keys()):
            raise StateError(
                f"state of a class prior does not fit: entry {missing[0]!r} is missing "
                f"or unexpected; it was saved with another bank than "
                f"{self.options.bank!r}"
            )
        counts = state["counts"]
        stored = int(counts.sum())
        for name, value in state.items():
            shape = tuple(mine[name].shape)
            if name in ("items", "gaps", "arrival"):
                shape = (stored, *shape[1:])
            if tuple(value.shape) != shape or value.dtype != mine[name].dtype:
                raise StateError(
                    f"state of a class prior does not fit: entry {name!r} is "
                    f"{tuple(value.shape)} {value.dtype}, expected {shape} {mine[name].dtype}; "
                    "it was saved for other classes or options"
                )
        if self.options.bank != "all" and int(counts.max()) > self.options.size:
            raise StateError(
                f"state of a class prior holds {int(counts.max())} items of one class, "
                f"but size={self.options.size}; load it with the size it was saved with"
            )
        self.reset()
        self.seen, self._fresh = int(state["seen"]), bool(state["fresh"])
        for name in ("counts", "offered", "total", "solution"):
            setattr(self, f"_{name}", state[name].clone())
        if self.options.bank == "all":
            self._sums = state["sums"].clone()
            return
        used = torch.arange(self.options.size).to(self._counts) < self._counts[:, None]
        for name in ("items", "gaps", "arrival"):
            getattr(self, f"_{name}")[used] = state[name]
        for label in self._counts.nonzero().flatten().tolist():
            self._sum_column(label)

    def merge(self, other: ClassPrior) -> None:
        """Take in another prior of the same options, as if its stream had followed this one's.

        Exact for `all`, `fifo` and `gap-larger` (the order of `other`'s items is kept) and for the
        marginal. For `gap`, which forgets what it overwrote, the items of largest gap stay. For
        `reservoir`, items are drawn in proportion to how many each side had been offered.
        """
        if other.num_classes != self.num_classes:
            raise StateError(
                f"cannot merge a prior over {other.num_classes} classes into one over "
                f"{self.num_classes}; both must have the same classes"
            )
        for f in fields(PriorOptions):
            a, b = getattr(self.options, f.name), getattr(other.options, f.name)
            if a != b and f.name != "seed":
                raise StateError(
                    f"cannot merge priors with {f.name}={a!r} and {f.name}={b!r}; "
                    "give both the same options"
                )
        if self.options.bank == "all":
            self._sums += other._sums
            self._counts += other._counts
        else:
            for label in other._counts.nonzero().flatten().tolist():
                self._merge_class(label, other)
        self._offered += other._offered
        self._total += other._total
        n, m = self.seen, other.seen
        if m:
            self._solution = (n * self._solution + m * other._solution) / (n + m)
        self.seen, self._fresh = n + m, False

    def _merge_class(self, label: int, other: ClassPrior) -> None:
        o, a, b = self.options, int(self._counts[label]), int(other._counts[label])
        items = torch.cat([self._items[label, :a], other._items[label, :b]])
        gaps = torch.cat([self._gaps[label, :a], other._gaps[label, :b]])
        arrival = torch.cat([self._arrival[label, :a], other._arrival[label, :b] + self.seen])
        if o.bank == "fifo":
            order = arrival.argsort(descending=True)
        elif o.bank == "reservoir":  # weighted sampling without replacement: keys log(u)/w
            draw = random.Random(f"{o.seed}/{self.seen}/{label}")
            weights = [int(self._offered[label]) / max(a, 1)] * a
            weights += [int(other._offered[label]) / max(b, 1)] * b
            keys = [draw.random() ** (1 / w) for w in weights]
            order = torch.tensor(keys, dtype=torch.float64).argsort(descending=True)
        else:
            oldest = arrival.argsort()  # of equal gaps the older stays
            order = oldest[gaps[oldest].argsort(descending=True, stable=True)]
        keep = order[: o.size].sort().values.to(items.device)
        n = len(keep)
        self._items[label, :n], self._gaps[label, :n] = items[keep], gaps[keep]
        self._arrival[label, :n] = arrival[keep]
        self._counts[label] = n
        self._sum_column(label)
