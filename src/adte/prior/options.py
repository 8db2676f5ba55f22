"""What decides how the class prior is estimated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from adte import functional as F
from adte.options import check, option
from adte.prior.fixed import FixedPoint
from adte.prior.joint import Joint
from adte.prior.marginal import Marginal
from adte.prior.reading import Reading, Shares
from adte.prior.rule import Rule
from adte.state import Entry, State

__all__ = ["PriorOptions"]

RULES: dict[str, type[Rule]] = {
    "fixed-point": FixedPoint, "marginal": Marginal, "joint": Joint,
}  # fmt: skip
NEVER = 1 << 62  # images
FIXED = ("estimator", "fixed-point")


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Options of how the class prior is estimated.

    The class prior says which classes a model's predictions favour. The defaults here are the
    plainest; the method `adte` sets the joint estimate, and `adte-paper`, `adte-released` and
    `frolic` set what was published. `adte methods NAME` lists the options with their defaults.
    """

    estimator: Literal["fixed-point", "marginal", "joint"] = option(
        "marginal",
        "how the prior is estimated: the mean of all predictions (marginal); the fixed point of "
        "the bank's matrix (fixed-point); or with the model's bias told apart from the stream's "
        "class frequencies (joint)",
    )
    frequencies: Literal["auto", "equal", "as-they-come"] = option(
        "auto",
        "what is known beforehand: nothing (auto); that the classes of the stream are about "
        "equally frequent (equal); that the model has no bias (as-they-come)",
        only=("estimator", "joint"),
    )
    smoothing: float = option(
        1.0, "uniform predictions added per class, which keep an early estimate even", low=0
    )
    smoothing_total: float = option(
        20.0, "smallest number of uniform predictions added in all, for few classes", low=0
    )
    clip: float = option(
        2.0,
        "robust deviations from the median at which the bias of a class is cut off, so that a "
        "class that the stream repeats does not pass for a favoured one; 0 cuts nothing",
        low=0,
    )
    item: Literal["base", "mean-logits", "soft"] = option(
        "base",
        "what the prior learns from an image: its base view (base), the mean logits of all views "
        "(mean-logits), or their mean weighted by exp(−entropy) (soft)",
    )
    warmup: int = option(0, "images to learn from before the prior is used; 0 counts as 1", low=0)
    bank: Literal["all", "gap", "gap-larger", "fifo", "reservoir"] = option(
        "all",
        "predictions that the fixed point is computed from: all, as running sums; or a few per "
        "class, where in a full class a new one replaces that with the smallest gap between its "
        "top two logits (gap, as released; gap-larger: only if the new gap is larger), the oldest "
        "(fifo) or a random one (reservoir)",
        only=FIXED,
    )
    size: int = option(
        10,
        "predictions per class that the bank keeps",
        low=1,
        only=("bank", "gap", "gap-larger", "fifo", "reservoir"),
    )
    threshold: float = option(
        0.0, "smallest gap between the top two logits that the bank admits", only=FIXED
    )
    norm: Literal["l1", "l2"] = option(
        "l1", "norm of the iteration: l1 as in the paper, l2 as in the released code", only=FIXED
    )
    eps: float = option(
        1e-4,
        "the iteration stops when a step changes the estimate by no more than this",
        low=0,
        only=FIXED,
    )
    solve_from: Literal["last", "uniform"] = option(
        "last",
        "where the iteration starts: at its last solution, or at the uniform distribution, as "
        "published, from where a nearly diagonal matrix takes hundreds of steps",
        only=FIXED,
    )
    max_iter: int = option(500, "maximum number of steps of the iteration", low=1, only=FIXED)
    damping: float = option(
        0.0, "share of the uniform distribution mixed into the matrix", low=0, high=1, only=FIXED
    )
    empty: Literal["uniform", "zero"] = option(
        "uniform",
        "matrix column of a class without predictions: uniform, or zero as released",
        only=FIXED,
    )
    noise: float = option(
        0.0,
        "share of pseudo-labels that are replaced by random ones, for studies of noise",
        low=0,
        high=1,
        only=FIXED,
    )
    seed: int = option(0, "seed of the reservoir and of the noise", only=FIXED)

    def __post_init__(self) -> None:
        check(self, "the class prior")

    @cached_property
    def rule(self) -> Rule:
        """The estimator, as functions of a state."""
        return RULES[self.estimator](self)

    def entries(self) -> dict[str, Entry]:
        """The entries of the state; all but the fixed point's grow linearly with the classes."""
        return {"seen": Entry((), torch.int64)} | self.rule.entries()

    def evidence(self, logits: Tensor) -> Tensor:
        """What the prior learns from images, as float64 log-probabilities.  (B, V, L) → (B, L)"""
        return self.weighed(logits)[0]

    def weighed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `evidence`, and the weights of the views.  (B, V, L) → (B, L), (B, V)"""
        logits = logits.detach()
        if self.item == "soft" and logits.shape[1] > 1:
            parts = [F.soft_mean(logits[i]) for i in F.pieces(logits)]
            means, weights = parts[0]
            if len(parts) > 1:
                means, weights = (torch.cat(x) for x in zip(*parts, strict=True))
            return means.double(), weights
        weights = torch.zeros_like(F.wide(logits[..., 0]))
        if self.item == "mean-logits":
            weights += 1 / logits.shape[1]
            return F.log_probs(logits.to(weights).mean(1)).double(), weights
        weights[:, 0] = 1
        return F.log_probs(logits[:, 0]).double(), weights

    def scan(self, state: State, items: Tensor, learn_first: bool = False) -> Reading:
        """Learn from items (B, L) in order, in place; return what each image reads of the prior."""
        early = max(self.warmup, 1) - int(state["seen"]) - learn_first  # images that come too early
        return self.rule.scan(state, items, learn_first)._replace(since=max(0, early))

    def read(self, state: State, items: Tensor | None = None) -> Reading:
        """Return what images (B, L), or any, read of a state that does not change."""
        early = int(state["seen"]) < max(self.warmup, 1)
        return self.rule.read(state, items)._replace(since=NEVER if early else 0)

    def learn(self, state: State, items: Tensor) -> None:
        """Learn from items (B, L) in order, in place."""
        self.rule.learn(state, items)

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Learn from one prediction (L,), in place; return whether it is kept."""
        return self.rule.observe(state, log_p, label)

    def refresh(self, state: State) -> None:
        """Compute derived entries again, in place, after loading or merging."""
        self.rule.refresh(state)

    def begin(self, state: State) -> None:
        """Turn a state, in place, into what another stream begins with.

        With the joint estimate, the model's bias stays and the class frequencies are forgotten; the
        other estimates do not tell them apart, and keep everything.
        """
        self.rule.begin(state)

    def log_prior(self, state: State) -> Tensor:
        """The log prior (L,), float64 and finite; uniform before anything was seen."""
        return self.rule.log_prior(state)

    def shares(self, state: State) -> Shares | None:
        """The share of every class in the stream, with an interval; only of the joint estimate."""
        return self.rule.shares(state)
