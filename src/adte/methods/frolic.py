"""Frolic: a Gaussian classifier of the stream beside the text's, and the prior taken out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, StateError
from adte.methods.base import Method, Prediction, Sample
from adte.methods.measure import check_entries, check_fit, class_weights_of, features_of
from adte.methods.registry import register
from adte.options import option
from adte.prior import ClassPrior, PriorOptions

__all__ = ["Frolic", "gaussian_logits", "match_temperature", "shrunk_variance"]

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
    after = int((confidence >= target).sum())
    if after in (0, len(confidence)):
        return float(2 ** log2_tau[min(after, len(confidence) - 1)])
    high, low = float(confidence[after - 1]), float(confidence[after])
    at = (high - target) / (high - low)
    return float(2 ** torch.lerp(log2_tau[after - 1], log2_tau[after], at))


@register("frolic")
@dataclass(kw_only=True, eq=False)
class Frolic(PriorOptions, Method):
    """Text logits plus matched Gaussian logits of the stream, less the log of the class prior.

    1. f_c = s·x·Tᵀ, the model's logits of the base view; further views are not looked at.
    2. f_g = tᵀΣ⁻¹x − ½ tᵀΣ⁻¹t, with Σ = 0.1·diag(cov of images and class weights) + 0.9·I.
    3. τ makes the mean confidence of f_g/τ that of f_c; fused = f_c + f_g/τ.
    4. p̃ is the fixed point of the fused predictions (`adte.prior`); out = fused − ln p̃.

    The original sees the whole test set before it predicts, as the two-pass protocol does here.
    The online form is ours: Σ comes from a running count, sum and sum of squares, the prior from
    the bank, and τ from running means of the confidence of f_c and of f_g/τ at 129 temperatures,
    from 1/16 to 4096 over s. Nothing grows with the stream and all of it adds up, so states
    merge. What an image adds to these means, and to the bank, is computed with the Σ and τ of its
    time. Before the first image, out = f_c.

    The authors' code admits to the prior what leads by more than 1/L logits, which is next to all
    (`threshold`, 0 here), and repeats step 4 eleven times, which evens out the predicted classes
    whatever the stream; here it is done once, as their equation says.

    >>> weights = torch.eye(2)
    >>> x = torch.tensor([[0.8, 0.6]])
    >>> Frolic(tau=0).step(Sample(10 * x @ weights.T, x, weights, 10.0)).probs
    tensor([0.9820, 0.0180])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = "Zhu et al., Enhancing Zero-Shot Vision Models by Label-Free Prompt Distribution "
    reference += "Learning and Bias Correcting, NeurIPS 2024"

    order: Literal["predict-first", "learn-first"] = option(
        "learn-first", "online, whether an image is predicted before or after it is learned from"
    )
    covariance: float = option(0.1, "share of the measured variance in Σ; the rest is the identity")
    tau: float = option(1.0, "strength of the prior's correction; 0 leaves the prior alone")
    eps: float = option(1e-3, "the iteration stops when it changes by no more than this")
    max_iter: int = option(100, "most steps of one solution")

    _sums: dict[str, Tensor] | None = field(default=None, init=False, repr=False)
    _prior: ClassPrior | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_prior()
        if not 0 <= self.covariance < 1:
            raise InputError(
                f"covariance={self.covariance} is outside [0, 1); choose a share such as 0.1"
            )

    @property
    def stateful(self) -> bool:
        return True

    @property
    def prior(self) -> ClassPrior | None:
        """The estimate so far; None before the first image."""
        return self._prior

    # ------------------------------------------------------------------ one image

    def _gaussian(self, sample: Sample, sums: dict[str, Tensor]) -> Tensor:
        """f_g of the base view.  → (L,)"""
        x, weights = features_of(sample)[0], class_weights_of(sample)
        rows = int(sums["count"]) + len(weights)
        variance = shrunk_variance(
            rows,
            sums["total"] + sums["class_total"],
            sums["square"] + sums["class_square"],
            self.covariance,
        )
        return gaussian_logits(x, weights, variance)

    def _fused(self, sample: Sample, gaussian: Tensor, sums: dict[str, Tensor]) -> Tensor:
        """f_c + f_g/τ of the base view.  → (L,)"""
        curve, target = sums["gaussian"] / sums["count"], float(sums["text"] / sums["count"])
        tau = match_temperature(_LOG2_GRID, curve, target) / sample.scale
        return sample.logits[0].to(gaussian) + gaussian / tau

    def learn(self, sample: Sample) -> None:
        x, weights = features_of(sample)[0], class_weights_of(sample)
        if self._sums is None or self._prior is None:
            self._sums, self._prior = _sums(weights), ClassPrior(len(weights), self)
        check_fit(self.name, (self._prior.num_classes, len(self._sums["total"])), sample)
        sums, x = self._sums, x.to(self._sums["total"])
        sums["count"] += 1
        sums["total"] += x
        sums["square"] += x.square()
        g = self._gaussian(sample, sums)
        hot = g * sample.scale / 2 ** _LOG2_GRID.to(g)[:, None]  # (G, L) at every temperature
        sums["gaussian"] += hot.softmax(-1).amax(-1).to(sums["gaussian"])
        sums["text"] += F.log_probs(sample.logits[0]).max().exp().to(sums["text"])
        self._prior.observe(F.log_probs(self._fused(sample, g, sums)))

    def predict(self, sample: Sample) -> Prediction:
        class_weights_of(sample)
        out, shown = F.log_probs(sample.logits[0]), None
        if self._sums is not None and self._prior is not None:
            check_fit(self.name, (self._prior.num_classes, len(self._sums["total"])), sample)
            log_prior = self._prior.log_prior.to(out)
            g = self._gaussian(sample, self._sums)
            out = F.adjust(self._fused(sample, g, self._sums), log_prior, self.tau)
            shown = log_prior.exp()
        return Prediction(
            probs=out.exp(), kept=torch.zeros_like(out[:1], dtype=torch.int64), prior=shown
        )

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        self._sums = self._prior = None

    def state_dict(self) -> dict[str, Tensor]:
        if self._sums is None or self._prior is None:
            return {}
        prior = {f"prior.{k}": v for k, v in self._prior.state_dict().items()}
        return {k: v.clone() for k, v in self._sums.items()} | prior

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return self.reset()
        sums = {k: v for k, v in state.items() if not k.startswith("prior.")}
        entries = {k.removeprefix("prior."): v for k, v in state.items() if k not in sums}
        if "total" not in sums or "counts" not in entries:
            raise StateError(
                f"state of {self.name!r} does not fit: entry 'total' or 'prior.counts' is "
                "missing; it was saved by another method"
            )
        check_entries(self.name, sums, _sums(sums["total"].new_zeros((1, sums["total"].numel()))))
        prior = ClassPrior(len(entries["counts"]), self)
        prior.load_state_dict(entries)
        self._prior, self._sums = prior, {k: v.clone() for k, v in sums.items()}

    def merge(self, other: Method) -> None:
        super().merge(other)
        assert isinstance(other, Frolic)
        if other._sums is None or other._prior is None:
            return
        sums, theirs = self._sums, other._sums
        if sums is None:
            sums = {k: v if k in _OF_CLASSES else torch.zeros_like(v) for k, v in theirs.items()}
        check_entries(self.name, theirs, sums)
        for key in _OF_CLASSES:
            if not torch.allclose(sums[key], theirs[key], atol=1e-3):
                raise StateError(
                    f"cannot merge {self.name!r} states of different class weights; "
                    "both must come from one model, one set of prompts and the same classes"
                )
        prior = self._prior or ClassPrior(other._prior.num_classes, self)
        prior.merge(other._prior)
        self._prior = prior
        self._sums = {k: v.clone() if k in _OF_CLASSES else v + theirs[k] for k, v in sums.items()}


_OF_CLASSES = ("class_total", "class_square")  # known from the first image on, the same in merges


def _sums(weights: Tensor) -> dict[str, Tensor]:
    """Of no images yet, but of the class weights (L, D)."""
    w = weights.to(_LOG2_GRID)
    zeros = torch.zeros_like(w[0])
    return {
        "count": torch.tensor(0),
        "total": zeros,  # Σ x
        "square": zeros.clone(),  # Σ x²
        "class_total": w.sum(0),
        "class_square": w.square().sum(0),
        "text": torch.zeros((), dtype=torch.float64),  # Σ confidence of f_c
        "gaussian": torch.zeros_like(_LOG2_GRID),  # Σ confidence of f_g/τ at every τ
    }
