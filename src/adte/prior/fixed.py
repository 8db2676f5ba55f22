"""The fixed point p̃ = A p̃ (Eqs. 9–11 of the paper, after Frolic).

A memory bank holds predicted distributions by pseudo-label; column l' of the matrix A is the mean
distribution of the items of class l'. It is solved whenever the bank changes, so that the estimate
depends on what was seen and not on when it is read. The cost of an item does not depend on how many
came before.

It is solved from the last solution on. The paper starts from the uniform distribution each time.
Where A is nearly diagonal, steps are small long before the solution is reached, and what comes out
is then nearer to that start.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from adte import bank
from adte.errors import unknown
from adte.prior.reading import Reading
from adte.prior.rule import FLOOR, Rule
from adte.state import Entry, State

__all__ = ["FixedPoint", "fixed_point"]


class FixedPoint(Rule):
    """p̃ = A p̃ of a bank's items, or of all of them as running sums (`bank="all"`)."""

    def entries(self) -> dict[str, Entry]:
        o, count = self.options, torch.int64
        own = {
            "counts": Entry(("L",), count),  # items in the bank
            "sums": Entry(("L", "L")),  # row l': sum of the items of class l'
            "solution": Entry(("L",), reduce=_mean_solution, fill=1.0),  # up to its length
        }
        if o.bank == "all":
            return own
        own |= {
            "counts": Entry(("L",), count, "derived"),
            "sums": Entry(("L", "L"), reduce="derived"),
        }
        shift = "seen" if o.bank == "fifo" else ""
        return own | bank.entries(o.size, {"items": (("L",), torch.float32)}, shift=shift)

    def refresh(self, state: State) -> None:
        """What is derived is made anew, and a merged estimate solved."""
        if self.options.bank != "all":
            filled = bank.filled(state)
            state["counts"] = filled.sum(1)
            state["sums"] = torch.where(filled[..., None], state["items"], 0.0).double().sum(1)
        length = torch.linalg.vector_norm(state["solution"], {"l1": 1, "l2": 2}[self.options.norm])
        if float(length) > 1 + 1e-6:  # a start; a solution has unit length
            self._solve(state)

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        o, L = self.options, len(log_p)
        label = int(log_p.argmax()) if label is None else label  # of equals, the first
        top = log_p.detach().topk(min(2, L)).values
        gap = float(top[0] - top[1]) if L > 1 else float("inf")
        draw = random.Random(f"{o.seed}/{int(state['seen'])}")
        if o.noise and draw.random() < o.noise:
            label = draw.randrange(L)
        state["seen"] += 1
        kept = gap >= o.threshold and self._admit(state, label, log_p.exp(), gap, draw)
        if kept:
            self._solve(state)
        return kept

    def scan(self, state: State, items: Tensor, learn_first: bool) -> Reading:
        rows = []
        for item in items:
            if not learn_first:
                rows.append(state["solution"])
            self.observe(state, item)
            if learn_first:
                rows.append(state["solution"])
        return Reading(self.log(torch.stack(rows)))

    def learn(self, state: State, items: Tensor) -> None:
        for item in items:
            self.observe(state, item)

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
        return self.log(state["solution"])

    def _solve(self, state: State) -> None:
        if not bool(state["counts"].any()):
            return
        o, start = self.options, state["solution"].clamp_min(FLOOR)  # a zero would stay zero
        if o.solve_from == "uniform":
            start = torch.ones_like(start)
        state["solution"], _ = fixed_point(
            self.operator(state), start, o.norm, o.eps, o.max_iter, o.damping
        )

    def operator(self, state: State) -> Callable[[Tensor], Tensor]:
        """The map p → A p without forming A. A batch of rows p (…, L) is taken too."""
        L = len(state["counts"])
        extra = self.smoothing(L)
        weight = state["counts"].to(state["sums"].dtype) + extra
        filled = weight > 0
        inverse = torch.where(filled, 1 / weight, 0.0)
        lost = 1.0 if self.options.empty == "uniform" else 0.0  # what an empty class passes on
        even = torch.where(filled, extra * inverse, lost) / L
        return lambda p: (p * inverse) @ state["sums"] + (p @ even).unsqueeze(-1)


def _mean_solution(name: str, ours: State, theirs: State) -> Tensor:
    """Where the solution of two streams' items begins: between theirs, by the images seen.

    As long as the start of a fresh state, so that `refresh` sees that it is yet to be solved.
    """
    seen = name.replace("solution", "seen")
    n, m = int(ours[seen]), int(theirs[seen])
    a, b = ours[name], theirs[name].to(ours[name])
    return torch.lerp(a / a.sum(), b / b.sum(), m / max(1, n + m)) * len(a)


def fixed_point(
    matrix: Tensor | Callable[[Tensor], Tensor],
    start: Tensor,
    norm: Literal["l1", "l2"] = "l1",
    eps: float = 1e-6,
    max_iter: int = 500,
    damping: float = 0.0,
    previous: bool = False,
) -> tuple[Tensor, int]:
    """Find the fixed point p = A p by iteration: p ← A p, normalised at every step.

    Args:
        matrix: A (L, L), whose column l' is the mean distribution of images of class l', or a
            function p → A p.
        start: the vector to start from (L,): uniform, or the last solution.
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
