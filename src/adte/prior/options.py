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
    """What decides the estimate; the estimate itself is its `rule`.

    The defaults are the plain ones; `adte` sets the joint estimate, and `adte-paper`,
    `adte-released` and `frolic` what was published.
    """

    estimator: Literal["fixed-point", "marginal", "joint"] = option(
        "marginal",
        "the plain mean of all predictions; the fixed point of the bank's matrix; or bias and "
        "frequencies told apart",
    )
    frequencies: Literal["auto", "equal", "as-they-come"] = option(
        "auto",
        "what is known of the classes in the stream: nothing (auto); that they are "
        "about equally frequent (equal); that the model has no bias (as-they-come)",
        only=("estimator", "joint"),
    )
    smoothing: float = option(1.0, "uniform predictions that are added to every class's own", low=0)
    smoothing_total: float = option(
        20.0, "uniform predictions that are added in all, at least, however few the classes", low=0
    )
    clip: float = option(
        2.0,
        "robust deviations from the median beyond which the bias is cut, so that classes the "
        "stream repeats do not pass for favoured ones; 0 cuts nothing",
        low=0,
    )
    item: Literal["base", "mean-logits", "soft"] = option(
        "base",
        "what the prior learns from an image: its base view, the mean logits of all views, or the "
        "mean of all weighed by exp(−entropy)",
    )
    warmup: int = option(0, "images to learn from before the prior is used, at least one", low=0)
    bank: Literal["all", "gap", "gap-larger", "fifo", "reservoir"] = option(
        "all",
        "which items the fixed point is of: all, as running sums; or, for a class that is full, "
        "a new one in the place of that with the smallest gap (gap, as released; gap-larger: if "
        "its own gap is larger), of the oldest (fifo) or of a random one (reservoir)",
        only=FIXED,
    )
    size: int = option(
        10,
        "items a class the bank keeps",
        low=1,
        only=("bank", "gap", "gap-larger", "fifo", "reservoir"),
    )
    threshold: float = option(
        0.0, "smallest top-1 minus top-2 logit that the bank admits", only=FIXED
    )
    norm: Literal["l1", "l2"] = option(
        "l1", "norm of the iteration: l1 (paper), l2 (released)", only=FIXED
    )
    eps: float = option(
        1e-4, "the iteration stops when it changes by no more than this", low=0, only=FIXED
    )
    max_iter: int = option(500, "most steps of one solution", low=1, only=FIXED)
    damping: float = option(
        0.0, "share of the uniform distribution mixed into the matrix", low=0, high=1, only=FIXED
    )
    empty: Literal["uniform", "zero"] = option(
        "uniform", "column of a class without items: uniform, or zero as released", only=FIXED
    )
    noise: float = option(
        0.0,
        "share of pseudo-labels replaced by random ones (noise study)",
        low=0,
        high=1,
        only=FIXED,
    )
    seed: int = option(0, "seed of the reservoir and of the noise", only=FIXED)

    def __post_init__(self) -> None:
        check(self, "the class prior")

    @cached_property
    def rule(self) -> Rule:
        """The estimate, as functions of a declared state."""
        return RULES[self.estimator](self)

    def entries(self) -> dict[str, Entry]:
        """What is kept: linear in the classes, but for the fixed point."""
        return {"seen": Entry((), torch.int64)} | self.rule.entries()

    def evidence(self, logits: Tensor) -> Tensor:
        """What images say: float64 log-probabilities of their items.  (B, V, L) → (B, L)"""
        return self.weighed(logits)[0]

    def weighed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the weights of the views in it.  (B, V, L) → (B, L), (B, V)"""
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
        """Take in items (B, L) in order, in place; what each image reads of the prior by then."""
        early = max(self.warmup, 1) - int(state["seen"]) - learn_first  # images that come too early
        return self.rule.scan(state, items, learn_first)._replace(since=max(0, early))

    def read(self, state: State) -> Reading:
        """What any image reads of a state that does not change."""
        early = int(state["seen"]) < max(self.warmup, 1)
        return self.rule.read(state)._replace(since=NEVER if early else 0)

    def learn(self, state: State, items: Tensor) -> None:
        """Take in items (B, L) in order, in place."""
        self.rule.learn(state, items)

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction (L,), in place; True if it is kept."""
        return self.rule.observe(state, log_p, label)

    def refresh(self, state: State) -> None:
        """After loading or merging: make what is derived anew, in place."""
        self.rule.refresh(state)

    def begin(self, state: State) -> None:
        """Make it, in place, what another stream begins with: what the model favours stays.

        How often classes came is forgotten, where the joint estimate tells the two apart; the
        other estimates do not.
        """
        self.rule.begin(state)

    def log_prior(self, state: State) -> Tensor:
        """log p̃ (L,), float64, finite; uniform before anything was seen."""
        return self.rule.log_prior(state)

    def shares(self, state: State) -> Shares | None:
        """The share of every class in what was seen, with an interval; the joint estimate's."""
        return self.rule.shares(state)
