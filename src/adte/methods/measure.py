"""What methods on features share: the measure of uncertainty, checked samples, checked loading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, StateError, unknown
from adte.methods.base import PriorMethod, Sample
from adte.options import option

__all__ = ["EntropyMethod", "EntropyOptions", "check_entries", "class_weights_of", "features_of"]


@dataclass(kw_only=True, eq=False)
class EntropyOptions:
    """The measure of uncertainty as an option, so that ADTE's drops into any entropy's place.

      shannon   −Σ P log P
      tsallis   Σ (P^q − P)/(1 − q), one q for all classes
      adaptive  Σ (P^{q_l} − P)/(1 − q_l), q_l from the class prior as in ADTE; Shannon's until
                the prior is known

    The adaptive measure is the form that vanishes where a prediction is certain. The paper's own,
    Σ P^{q_l}/(1 − q_l), never falls below 1/(1 − α) > 1: nothing would pass a threshold in nats
    such as ln 2. Measures differ in size, so thresholds in nats are multiplied by
    `entropy_scale`, the measure of the uniform distribution over ln L, which is 1 for Shannon's.

    >>> EntropyOptions(entropy="tsallis", q=0.5).measure(torch.tensor([0.5, 0.5]).log())
    tensor(0.8284)
    """

    entropy: Literal["shannon", "tsallis", "adaptive"] = option(
        "shannon", "measure of uncertainty: Shannon's, Tsallis', or ADTE's with the class prior"
    )
    q: float = option(0.5, "q > 0 of the Tsallis entropy")
    alpha: float = option(0.01, "lower end of the interval of q of the adaptive entropy")
    beta: float = option(0.9, "upper end of the interval of q of the adaptive entropy")
    rule: Literal["minmax", "zscore", "decimal", "sigmoid"] = option(
        "minmax", "how the log prior is brought into the interval of q"
    )
    direction: Literal["released", "paper"] = option(
        "released", "who gets the large q: favoured classes (released) or neglected ones (paper)"
    )

    def check_entropy(self) -> None:
        F.check_interval(self.alpha, self.beta)
        if not self.q > 0:
            raise InputError(f"q={self.q} of the Tsallis entropy must be positive; choose e.g. 0.5")
        for name, value, known in (
            ("entropy", self.entropy, ("shannon", "tsallis", "adaptive")),
            ("q rule", self.rule, ("minmax", "zscore", "decimal", "sigmoid")),
            ("direction of q", self.direction, ("released", "paper")),
        ):
            if value not in known:
                raise unknown(name, value, known)

    def class_q(self, log_prior: Tensor | None) -> Tensor | None:
        """q (L,) where the adaptive entropy is in force."""
        if self.entropy != "adaptive" or log_prior is None:
            return None
        return F.q_from_prior(log_prior, self.alpha, self.beta, self.rule, self.direction)

    def measure(self, log_p: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """Uncertainty, low = sure, zero = certain.  (…, L), (L,) → (…)"""
        if self.entropy == "tsallis":
            return F.tsallis(log_p, self.q)
        q = self.class_q(log_prior)
        return F.shannon(log_p) if q is None else F.adaptive_tsallis(log_p, q, "vanishing")

    def entropy_scale(self, num_classes: int, log_prior: Tensor | None = None) -> float:
        """By what a threshold in nats is multiplied for this measure: H(uniform) / ln L."""
        adaptive = self.entropy == "adaptive" and log_prior is not None
        if num_classes == 1 or not (adaptive or self.entropy == "tsallis"):
            return 1.0
        uniform = torch.full((num_classes,), -math.log(num_classes), dtype=torch.float64)
        prior = None if log_prior is None else log_prior.to(uniform)
        return float(self.measure(uniform, prior)) / math.log(num_classes)


@dataclass(kw_only=True, eq=False)
class EntropyMethod(EntropyOptions, PriorMethod):
    """A method with a measure of its choice. A class prior is kept only if something reads it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_entropy()

    @property
    def uses_prior(self) -> bool:
        return self.entropy == "adaptive" or self.adjust != "none"

    @property
    def stateful(self) -> bool:
        return self.uses_prior

    def learn(self, sample: Sample) -> None:
        if self.uses_prior:
            super().learn(sample)


# --------------------------------------------------------------------------- checks


def features_of(sample: Sample) -> Tensor:
    """The image features (V, D) of a sample, float32 or wider, finite and a row a view."""
    features: Tensor = sample.require("features")
    if features.ndim != 2 or len(features) != len(sample.logits):
        raise InputError(
            f"features of shape {tuple(features.shape)} do not go with logits of shape "
            f"{tuple(sample.logits.shape)}; pass one row of features a view"
        )
    if not bool(torch.isfinite(features).all()):  # what is cached would spoil later predictions
        raise InputError("features hold NaN or infinite values; check the model's output")
    return _wide(features)


def class_weights_of(sample: Sample) -> Tensor:
    """The class weights (L, D) of a sample, on the device and in the dtype of its features."""
    features, weights = _wide(sample.require("features")), _wide(sample.require("class_weights"))
    shape = (sample.logits.shape[-1], features.shape[-1])
    if tuple(weights.shape) != shape:
        raise InputError(
            f"class weights of shape {tuple(weights.shape)} do not go with the sample's logits "
            f"and features; pass them as (classes, dimensions) = {shape}"
        )
    return weights.to(features)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_fit(name: str, expected: tuple[int, ...], sample: Sample) -> None:
    """Refuse a sample of other classes or another width than the state was learned from."""
    came = (sample.logits.shape[-1], sample.require("features").shape[-1])
    if came != expected:
        raise InputError(
            f"method {name!r} has learned from (classes, dimensions) = {expected}, but an image "
            f"of {came} came; reset it or use another copy"
        )


def check_entries(name: str, state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuse a saved state whose entries differ from `like` in name, shape or dtype."""
    if odd := sorted(state.keys() ^ like.keys()):
        raise StateError(
            f"state of {name!r} does not fit: entry {odd[0]!r} is missing or unexpected; "
            "it was saved by another method or with other options"
        )
    for key, want in like.items():
        got = state[key]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise StateError(
                f"state of {name!r} does not fit: entry {key!r} is {tuple(got.shape)} {got.dtype}, "
                f"expected {tuple(want.shape)} {want.dtype}; it was saved for other classes, "
                "another model or other options"
            )
