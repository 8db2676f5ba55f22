"""Two estimates of the class prior, as functions of a declared state.

marginal     the mean of all predictions
fixed-point  p̃ = A p̃ (Eqs. 9–11 of the paper, after Frolic), where column l' of A is the mean
             prediction of the items with pseudo-label l' in a memory bank
"""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte.core.errors import unknown
from adte.core.state import Entry, State
from adte.methods import bank
from adte.methods.prior.options import PriorOptions

__all__ = ["FixedPoint", "Marginal", "Reading", "Rule", "clipped", "fixed_point", "rule_of"]

FLOOR = 1e-300  # no estimated prior is smaller, so that its logarithm is finite
NEVER = 1 << 62  # images
STEPS = 20  # of the iteration at once: the test for its end costs as much as several


class Reading(NamedTuple):
    """The prior that images of a batch read.

    Attributes:
        log_prior: log p̃, float64, a row per image (B, L), or (1, L) for all of them.
        since: the first image for which it is in force; those before came too early.
    """

    log_prior: Tensor
    since: int = 0

    def runs(self, images: int) -> list[tuple[slice, Tensor | None]]:
        """The images without a prior, and those with theirs; an empty run is left out."""
        early = min(self.since, images)
        rows = self.log_prior if len(self.log_prior) == 1 else self.log_prior[early:]
        runs = [(slice(0, early), None), (slice(early, images), rows)]
        return [(run, prior) for run, prior in runs if run.stop > run.start]

    def row(self, i: int) -> Tensor | None:
        """log p̃ (L,) of one image, if it is in force."""
        if i < self.since:
            return None
        return self.log_prior[i if len(self.log_prior) > 1 else 0]


class Rule:
    """An estimate of the class prior, as functions of a state that somebody else holds.

    The state has the declared entries. Items are log-probabilities (L,) in float64. What an image
    reads depends on the images before it, not on when it is read.
    """

    def __init__(self, options: PriorOptions) -> None:
        self.options = options

    def entries(self) -> dict[str, Entry]:
        """The declared state: the number of images, and the entries of the rule."""
        return {"seen": Entry((), torch.int64)}

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one item (L,), in place; True if it is kept."""
        raise NotImplementedError

    def log_prior(self, state: State) -> Tensor:
        """log p̃ (L,), float64, finite; uniform before the first image."""
        raise NotImplementedError

    def rows(self, state: State, items: Tensor, learn_first: bool) -> Tensor:
        """Take in items (B, L) in order, in place; the log p̃ that each reads (B, L)."""
        raise NotImplementedError

    def learn(self, state: State, items: Tensor) -> None:
        """Take in items (B, L) in order, in place."""
        for item in items:
            self.observe(state, item)

    def scan(self, state: State, items: Tensor, learn_first: bool = False) -> Reading:
        """Take in items (B, L) in order, in place; the prior that each image reads."""
        early = max(self.options.warmup, 1) - int(state["seen"]) - learn_first
        return Reading(self.rows(state, items, learn_first), max(0, early))

    def read(self, state: State) -> Reading:
        """The prior that every image reads of a state that does not change."""
        early = int(state["seen"]) < max(self.options.warmup, 1)
        return Reading(self.log_prior(state)[None], NEVER if early else 0)

    def refresh(self, state: State) -> None:
        """Compute derived entries again, in place, after loading or merging."""

    def smoothing(self, classes: int) -> float:
        """Uniform predictions per class that are added to what was seen."""
        return max(self.options.smoothing, self.options.smoothing_total / classes)

    def log(self, p: Tensor) -> Tensor:
        """log of an estimate, normalised and clipped.  (…, L) → (…, L)"""
        p = p.clamp_min(FLOOR)
        return clipped(p / p.sum(-1, keepdim=True), self.options.clip).log()


class Marginal(Rule):
    """p̃ ∝ Σ p + what is added; its state is one sum per class."""

    def entries(self) -> dict[str, Entry]:
        return super().entries() | {"total": Entry(("L",))}

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        state["total"] += log_p.exp()
        state["seen"] += 1
        return True

    def rows(self, state: State, items: Tensor, learn_first: bool) -> Tensor:
        before, images = int(state["seen"]), len(items)
        sums = torch.cat([state["total"][None], items.exp()]).cumsum(0)  # (B + 1, L)
        seen = before + torch.arange(images + 1, dtype=sums.dtype, device=sums.device)
        state["total"], state["seen"] = sums[-1].clone(), state["seen"] + images
        read = slice(1, None) if learn_first else slice(0, -1)
        return self._log_mean(sums[read], seen[read])

    def log_prior(self, state: State) -> Tensor:
        return self._log_mean(state["total"], state["seen"].to(state["total"]))

    def _log_mean(self, total: Tensor, seen: Tensor) -> Tensor:
        """log of the mean of what was seen and of uniform predictions.  (…, L), (…)"""
        L = total.shape[-1]
        extra = self.smoothing(L)
        weight = (seen + extra * L)[..., None]
        none = weight <= 0  # nothing seen and nothing added: uniform
        return self.log(torch.where(none, 1 / L, (total + extra) / torch.where(none, 1.0, weight)))


class FixedPoint(Rule):
    """p̃ = A p̃ of a bank's items, or of all items as running sums (`bank="all"`).

    It is a function of the bank, solved from the uniform distribution, so nothing of it is kept.
    """

    def entries(self) -> dict[str, Entry]:
        o = self.options
        reduce: Literal["sum", "derived"] = "sum" if o.bank == "all" else "derived"
        own = super().entries() | {
            "counts": Entry(("L",), torch.int64, reduce),  # items in the bank
            "sums": Entry(("L", "L"), reduce=reduce),  # row l': sum of the items of class l'
        }
        if o.bank == "all":
            return own
        shift = "seen" if o.bank == "fifo" else ""
        return own | bank.entries(o.size, {"items": (("L",), torch.float32)}, shift=shift)

    def refresh(self, state: State) -> None:
        if self.options.bank != "all":
            filled = bank.filled(state)
            state["counts"] = filled.sum(1)
            state["sums"] = torch.where(filled[..., None], state["items"], 0.0).double().sum(1)

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        o, L = self.options, len(log_p)
        label = int(log_p.argmax()) if label is None else label  # of equals, the first
        top = log_p.detach().topk(min(2, L)).values
        gap = float(top[0] - top[1]) if L > 1 else float("inf")
        draw = random.Random(f"{o.seed}/{int(state['seen'])}")
        state["seen"] += 1
        return gap >= o.threshold and self._admit(state, label, log_p.exp(), gap, draw)

    def rows(self, state: State, items: Tensor, learn_first: bool) -> Tensor:
        rows, row = [], self.log_prior(state)
        for item in items:
            if not learn_first:
                rows.append(row)
            if self.observe(state, item):
                row = self.log_prior(state)
            if learn_first:
                rows.append(row)
        return torch.stack(rows)

    def _admit(self, state: State, label: int, p: Tensor, gap: float, draw: random.Random) -> bool:
        kind = self.options.bank
        if kind == "all":
            state["sums"][label] += p
            state["counts"][label] += 1
            return True
        rank = {"fifo": -int(state["seen"]), "reservoir": draw.random()}.get(kind, -gap)
        force = kind == "gap"  # the smallest gap goes, even for a smaller one
        if not bank.insert(state, "", label, float(rank), {"items": p}, force):
            return False
        filled = bank.filled(state)[label]
        state["counts"][label] = filled.sum()
        # One column anew from its items: as cheap as add-and-subtract, and without drift.
        state["sums"][label] = state["items"][label, filled].double().sum(0)
        return True

    def log_prior(self, state: State) -> Tensor:
        o, first = self.options, state["sums"][0]
        uniform = torch.full_like(first, 1 / len(first))
        if not bool(state["counts"].any()):
            return self.log(uniform)
        solve = partial(fixed_point, self.matrix(state), uniform, o.norm, o.eps, o.max_iter)
        return self.log(solve(o.damping, previous=o.iterate == "last-but-one")[0])

    def matrix(self, state: State) -> Tensor:
        """A (L, L): column l' is the mean of the items of class l' and of what is added."""
        L = len(state["counts"])
        extra = self.smoothing(L)
        weight = state["counts"].to(state["sums"].dtype) + extra
        filled = weight > 0
        inverse = torch.where(filled, 1 / weight, 0.0)
        lost = 1.0 if self.options.empty == "uniform" else 0.0  # what an empty class passes on
        even = torch.where(filled, extra * inverse, lost) / L
        return (state["sums"].T * inverse + even).contiguous()


def rule_of(options: PriorOptions) -> Rule:
    """The estimate that the options choose."""
    return (FixedPoint if options.estimator == "fixed-point" else Marginal)(options)


def fixed_point(
    matrix: Tensor,
    start: Tensor,
    norm: Literal["l1", "l2"] = "l1",
    eps: float = 1e-6,
    max_iter: int = 500,
    damping: float = 0.0,
    previous: bool = False,
) -> tuple[Tensor, int]:
    """Find the fixed point p = A p by iteration: p ← A p, which is then normalised.

    Args:
        matrix: A (L, L), whose column l' is the mean distribution of images of class l'.
        start: the vector to start from (L,), as it is: 1/L for each class, as published.
        norm: norm of p and of its change: "l1" as in the paper, "l2" as in the released code.
        eps: stop when a step changes p by no more than this.
        max_iter: maximum number of steps.
        damping: λ in A' = (1 − λ) A + λ/L, which keeps a nearly diagonal A well conditioned.
        previous: return the p before the last step, as the released code does.

    Returns:
        The solution, of length 1 in `norm`, and the number of steps taken.

    >>> A = torch.tensor([[0.9, 0.2], [0.1, 0.8]], dtype=torch.float64)
    >>> p, steps = fixed_point(A, torch.full((2,), 0.5, dtype=torch.float64))
    >>> p
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    if norm not in ("l1", "l2"):
        raise unknown("norm", norm, ("l1", "l2"))
    order, matrix = {"l1": 1, "l2": 2}[norm], matrix.detach()
    length = partial(torch.linalg.vector_norm, ord=order, dim=-1, keepdim=True)
    if damping:
        matrix = torch.lerp(matrix, torch.full_like(matrix, 1 / len(start)), damping)
    p = start
    for before in range(0, max_iter, STEPS):
        rows = p.expand(min(STEPS, max_iter - before) + 1, -1).clone()
        for one, after in pairwise(rows):  # A is linear: the length of all is mended afterwards
            torch.mv(matrix, one, out=after)
        rows[1:] /= length(rows[1:]).clamp_min(FLOOR)
        done = (length(rows.diff(dim=0)) <= eps).flatten().tolist()
        if any(done):
            step = done.index(True) + 1
            return rows[step - previous], before + step
        p = rows[-1]
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
