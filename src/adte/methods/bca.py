"""BCA: class centres and their class posteriors, brought up to date by Bayes' rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte import functional as F
from adte.errors import InputError, StateError
from adte.methods.base import Method, Prediction, Sample
from adte.methods.measure import check_entries, check_fit, class_weights_of, features_of
from adte.methods.registry import register
from adte.options import option

__all__ = ["BCA"]


@register("bca")
@dataclass(kw_only=True, eq=False)
class BCA(Method):
    """Class centres and the class posterior of each centre, both learned from the stream.

    Centres μ (L, D) start as the class weights, posteriors R (L, L), R_m = P(Y | μ_m), as the
    identity. For an image f, of several views the mean of the 10 % of lowest Shannon entropy
    (mean logits; the mean feature is not normalised again):
    1. u = softmax(s·f·μᵀ), the posterior of the centres; out = u·R, that of the classes.
    2. k = argmax out. If out_k > τ₁: μ_k ← normalise((c₁ μ_k + f)/(c₁ + 1)), c₁ ← c₁ + 1.
    3. If out_k > τ₂: R_k ← (c₂ R_k + out)/(c₂ + 1), c₂ ← c₂ + 1.

    τ₁ = 0.05, τ₂ = 0.65 and the counts' starts, 20000 and 1, are those of a re-implementation; the
    authors' own were not to be had. With them a centre moves by 5·10⁻⁵ an image: nearly all of
    what is learned lies in R. A small c₁ is a trap where images lie far from text, as CLIP's do:
    the first centre that moves towards the images draws them all.

    `merge` combines by counts: R = (c R + c' R' − c₀ I)/(c + c' − c₀), exact for the same
    predictions in any order; centres likewise, then normalised, exact to first order in 1/c₁.

    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> f = normalize(torch.tensor([[0.9, 0.3]]), dim=-1)
    >>> BCA().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs
    tensor([0.7788, 0.0014, 0.2198])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = "Zhou et al., Bayesian Test-Time Adaptation for Vision-Language Models, CVPR 2025"

    ratio: float = option(0.1, "share of the views to keep, at least one view")
    count: int | None = option(None, "number of views to keep, instead of the ratio")
    centre_threshold: float = option(0.05, "τ₁, the confidence above which a centre moves")
    centre_count: int = option(20000, "start of c₁: images that a class weight is worth")
    row_threshold: float = option(0.65, "τ₂, the confidence above which a class posterior moves")
    row_count: int = option(1, "start of c₂: images that the identity is worth")

    _state: dict[str, Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        F.keep_count(self.count or 1, self.ratio, self.count)
        for name in ("centre_count", "row_count"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0")

    @property
    def stateful(self) -> bool:
        return True

    def _here(self, sample: Sample) -> dict[str, Tensor]:
        """The state on the sample's device, or a fresh one that nothing holds yet."""
        weights = class_weights_of(sample)
        if self._state is None:
            return _fresh(weights)
        check_fit(self.name, tuple(self._state["centres"].shape), sample)
        self._state = {k: v.to(weights.device) for k, v in self._state.items()}
        return self._state

    def _look(self, sample: Sample, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Prediction]:
        """The mean feature, its class posterior, and the prediction with what explains it."""
        f = features_of(sample)
        z = sample.scale * f @ state["centres"].to(f).T  # (V, L)
        entropy = F.shannon(F.log_probs(z))
        kept = F.rank_views(entropy)[: F.keep_count(len(z), self.ratio, self.count)]
        out = z[kept].mean(0).softmax(-1) @ state["rows"].to(z)
        out = out / out.sum()  # rows sum to one but for rounding
        return f[kept].mean(0), out, Prediction(probs=out, entropy=entropy, kept=kept)

    def predict(self, sample: Sample) -> Prediction:
        return self._look(sample, self._here(sample))[2]

    def learn(self, sample: Sample) -> None:
        state = self._here(sample)
        f, out, _ = self._look(sample, state)
        k = int(out.argmax())
        if out[k] > self.centre_threshold:
            c = self.centre_count + int(state["centre_seen"][k])
            state["centres"][k] = normalize((c * state["centres"][k] + f) / (c + 1), dim=-1)
            state["centre_seen"][k] += 1
        if out[k] > self.row_threshold:
            c = self.row_count + int(state["row_seen"][k])
            state["rows"][k] = (c * state["rows"][k] + out) / (c + 1)
            state["row_seen"][k] += 1
        self._state = state

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        self._state = None

    def state_dict(self) -> dict[str, Tensor]:
        return {k: v.clone() for k, v in (self._state or {}).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return self.reset()
        start = state.get("start")
        if start is None or start.ndim != 2:
            raise StateError(
                f"state of {self.name!r} does not fit: entry 'start' is missing or not "
                "(classes, dimensions); it was saved by another method"
            )
        check_entries(self.name, state, _fresh(start))
        self._state = {k: v.clone() for k, v in state.items()}

    def merge(self, other: Method) -> None:
        super().merge(other)
        assert isinstance(other, BCA)
        for name in ("centre_count", "row_count"):
            if (a := getattr(self, name)) != (b := getattr(other, name)):
                raise StateError(
                    f"cannot merge {self.name!r} with {name}={a} and {b}; give both the same"
                )
        if other._state is None:
            return
        if self._state is None:
            self._state = other.state_dict()
            return
        a, b = self._state, {k: v.to(self._state["start"].device) for k, v in other._state.items()}
        check_entries(self.name, b, a)
        if not torch.allclose(a["start"], b["start"], atol=1e-5):
            raise StateError(
                f"cannot merge {self.name!r} states of different class weights; "
                "both must come from one model, one set of prompts and the same classes"
            )
        eye = torch.eye(len(a["rows"])).to(a["rows"])
        a["centres"] = normalize(_pool(a, b, "centre", a["start"], self.centre_count), dim=-1)
        a["rows"] = _pool(a, b, "row", eye, self.row_count)
        for name in ("centre_seen", "row_seen"):
            a[name] = a[name] + b[name]


def _fresh(weights: Tensor) -> dict[str, Tensor]:
    classes, start = len(weights), weights.to(torch.float32)
    return {
        "start": start.clone(),
        "centres": start.clone(),
        "centre_seen": torch.zeros_like(start[:, 0], dtype=torch.int64),
        "rows": torch.eye(classes).to(start),
        "row_seen": torch.zeros_like(start[:, 0], dtype=torch.int64),
    }


def _pool(a: dict[str, Tensor], b: dict[str, Tensor], kind: str, start: Tensor, c0: int) -> Tensor:
    """(c x + c' x' − c₀ x₀)/(c + c' − c₀): both sides began with x₀, which counts once."""
    n, m = (s[f"{kind}_seen"][:, None].double() for s in (a, b))
    x, y = (s[f"{kind}s"] for s in (a, b))
    pooled = ((c0 + n) * x + (c0 + m) * y - c0 * start) / (c0 + n + m).clamp_min(1)
    return torch.where(m == 0, x, torch.where(n == 0, y, pooled.to(x)))
