"""Frolic: a Gaussian classifier of the stream beside the text's, and the prior taken out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State, part_of, prefixed, unprefixed
from adte.methods._features import base_alone, class_weights_of, features_of
from adte.methods.base import ORDER, Method
from adte.methods.prior import ClassPrior, PriorOptions, Rule, rule_of
from adte.methods.registry import register

__all__ = ["Frolic", "gaussian_logits", "match_temperature", "shrunk_variance"]

PUBLISHED = PriorOptions(
    estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, eps=1e-3, max_iter=100
)
# The temperatures, times the logit scale, at which the Gaussian's confidence is followed.
_LOG2_GRID = torch.linspace(-4, 12, 129, dtype=torch.float64)


def shrunk_variance(count: int, total: Tensor, square: Tensor, share: float = 0.1) -> Tensor:
    """share · diag(cov) + (1 − share), from the number of rows, their sum and sum of squares (D,).

    The variance is unbiased.
    """
    variance = (square - total.square() / count) / (count - 1)
    return share * variance.clamp_min(0) + (1 - share)


def gaussian_logits(x: Tensor, weights: Tensor, variance: Tensor) -> Tensor:
    """tᵀΣ⁻¹x − ½ tᵀΣ⁻¹t for every class t; what is equal for all is left out.  (…, D) → (…, L)"""
    precision = 1 / variance.to(weights)
    return (x * precision) @ weights.T - weights.square() @ precision / 2


def match_temperature(log2_tau: Tensor, confidence: Tensor, target: float) -> float:
    """The τ at which a falling curve of confidences (G,) meets the target; an end if it does not.

    Between two points of the curve it is taken as straight in log τ.
    """
    after = int((confidence >= target).cumprod(0).sum())  # where it is flat, rounding may rise
    if after in (0, len(confidence)):
        return float(2 ** log2_tau[min(after, len(confidence) - 1)])
    high, low = float(confidence[after - 1]), float(confidence[after])
    at = (high - target) / (high - low)
    return float(2 ** torch.lerp(log2_tau[after - 1], log2_tau[after], at))


@register("frolic")
@dataclass(kw_only=True, eq=False)
class Frolic(Method):
    """Text logits plus Gaussian logits learned from the stream, minus the log of the class prior.

    1. f_c = s·x·Tᵀ, the model's logits of the base view; further views are not looked at.
    2. f_g = tᵀΣ⁻¹x − ½ tᵀΣ⁻¹t, with Σ = 0.1·diag(cov of images and class weights) + 0.9·I.
    3. τ makes the mean confidence of f_g/τ that of f_c; fused = f_c + f_g/τ.
    4. p̃ is the fixed point of the fused predictions (`adte.methods.prior`); out = fused − ln p̃.

    The original sees the whole test set before it predicts, as the two-pass protocol does here.
    The online form is ours: Σ comes from a running count, sum and sum of squares, the prior from
    the bank, and τ from running means of the confidence of f_c and of f_g/τ at 129 temperatures,
    from 1/16 to 4096 over s. Nothing grows with the stream and all of it adds up, so states
    merge. What an image adds to these means, and to the bank, is computed with the Σ and τ of its
    time. Before the first image, out = f_c.

    These are the paper's equations. The authors' released code is another method and has a name of
    its own, `frolic-released`: it learns two sets of proxies where step 3 fuses, and repeats step 4
    eleven times, with a zero column for a class without images (uniform here; `empty="zero"`).

    Either can do harm, online above all, and wherever the stream's own frequencies are uneven or
    few of the classes occur: step 4 takes what the stream shows for the model's bias.

    >>> from adte import Sample
    >>> weights = torch.eye(2)
    >>> x = torch.tensor([[0.8, 0.6]])
    >>> Frolic(tau=0).step(Sample(10 * x @ weights.T, x, weights, 10.0)).probs
    tensor([0.9820, 0.0180])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = (
        "Zhu et al., Enhancing Zero-Shot Vision Models by Label-Free Prompt Distribution "
        "Learning and Bias Correcting, NeurIPS 2024, arXiv:2410.19294, "
        "github.com/zhuhsingyuu/Frolic"
    )

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    covariance: float = option(
        0.1,
        "share of the measured covariance in Σ; the rest is the identity matrix",
        low=0,
        below=1,
    )
    tau: float = option(1.0, "strength of the correction by the class prior; 0 makes none")
    prior: PriorOptions = part(PUBLISHED, "how the class prior is estimated")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior.item != "base":
            raise InputError(
                f"item={self.prior.item!r} has no meaning here: the prior learns from the fused "
                "prediction of the base view; leave it out"
            )

    @cached_property
    def _rule(self) -> Rule:
        return rule_of(self.prior)

    @property
    def class_prior(self) -> ClassPrior | None:
        """The estimate so far; None before the first image."""
        return None if self._state is None else ClassPrior.of(self.prior, unprefixed(self._state))

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "count": Entry((), torch.int64),
            "total": Entry(("D",)),  # Σ x
            "square": Entry(("D",)),  # Σ x²
            "class_total": Entry(("D",), reduce="same"),
            "class_square": Entry(("D",), reduce="same"),
            "text": Entry(()),  # Σ confidence of f_c
            "gaussian": Entry((len(_LOG2_GRID),)),  # Σ confidence of f_g/τ at every τ
        } | prefixed(self._rule.entries())

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch).double()
        sums = {"class_total": weights.sum(0), "class_square": weights.square().sum(0)}
        return super().initial(batch) | sums

    def refresh(self, state: State) -> None:
        with part_of(state) as prior:
            self._rule.refresh(prior)

    # ------------------------------------------------------------------ one image

    def _gaussian(self, state: State, image: Batch) -> Tensor:
        """f_g of the base view.  → (L,)"""
        x, weights = features_of(image)[0, 0], class_weights_of(image)
        variance = shrunk_variance(
            int(state["count"]) + len(weights),
            state["total"] + state["class_total"],
            state["square"] + state["class_square"],
            self.covariance,
        )
        return gaussian_logits(x, weights, variance)

    def _fused(self, state: State, image: Batch, gaussian: Tensor) -> Tensor:
        """f_c + f_g/τ of the base view.  → (L,)"""
        count = int(state["count"])
        curve, target = (state[name].detach() / count for name in ("gaussian", "text"))
        tau = match_temperature(_LOG2_GRID, curve, float(target)) / image.context.scale
        return image.logits[0, 0].to(gaussian) + gaussian / tau

    def update(self, state: State, image: Batch) -> None:
        x = features_of(image)[0, 0].double()
        state["count"] += 1
        state["total"] += x
        state["square"] += x.square()
        g = self._gaussian(state, image)
        hot = g * image.context.scale / 2 ** _LOG2_GRID.to(g)[:, None]  # (G, L), at every τ
        state["gaussian"] += hot.softmax(-1).amax(-1).to(state["gaussian"])
        state["text"] += F.log_probs(image.logits[0, 0]).max().exp().to(state["text"])
        with part_of(state) as prior:
            self._rule.learn(prior, F.log_probs(self._fused(state, image, g))[None].double())

    def look(self, state: State, image: Batch) -> Prediction:
        z = image.logits[0, 0]
        if int(state["count"]):
            z = self._fused(state, image, self._gaussian(state, image))
        log_prior = self._rule.read(unprefixed(state)).row(0)
        out = F.log_probs(z) if log_prior is None else F.adjust(z, log_prior, self.tau)
        return Prediction(
            probs=out.exp(),
            kept=base_alone(out),
            prior=None if log_prior is None else log_prior.to(out).exp(),
        )
