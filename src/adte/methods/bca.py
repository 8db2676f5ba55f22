"""BCA: class centres and their class posteriors, brought up to date by Bayes' rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods._features import class_weights_of, features_of
from adte.methods.base import Method
from adte.methods.parts import Selection
from adte.methods.registry import register

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

    τ₁ = 0.05, τ₂ = 0.65 and the counts' starts, 20000 and 1, are those of a re-implementation,
    walawalagoose/TTABC; the authors' own were not to be had. With them a centre moves by 5·10⁻⁵ per
    image: nearly all of what is learned lies in R. A small c₁ is a trap where images lie far from
    text, as CLIP's do: the first centre that moves towards the images draws them all.

    `merge` combines by counts: R = (c R + c' R' − c₀ I)/(c + c' − c₀), exact for the same
    predictions in any order; centres likewise, then normalised, exact to first order in 1/c₁.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> f = normalize(torch.tensor([[0.9, 0.3]]), dim=-1)
    >>> BCA().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs
    tensor([0.7788, 0.0014, 0.2198])
    """

    needs = frozenset({"features", "class weights"})
    reference = (
        "Zhou et al., Bayesian Test-Time Adaptation for Vision-Language Models, CVPR 2025, "
        "arXiv:2503.09248, "
        "github.com/buerzlh/Bayesian-Test-Time-Adaptation-for-Vision-Language-Models"
    )

    keep: Selection = part(Selection(), "which views are kept")
    centre_threshold: float = option(
        0.05, "τ₁, confidence above which an image moves the centre of its class"
    )
    centre_count: int = option(
        20000, "initial count c₁: how many images the class weight from the text is worth", low=0
    )
    row_threshold: float = option(
        0.65, "τ₂, confidence above which an image moves the posterior of its class"
    )
    row_count: int = option(
        1, "initial count c₂: how many images the initial posterior (the identity) is worth", low=0
    )

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "start": Entry(("L", "D"), torch.float32, "same"),  # the class weights
            "centres": Entry(("L", "D"), torch.float32, self._merged_centres),
            "centre_seen": Entry(("L",), torch.int64),
            "rows": Entry(("L", "L"), torch.float32, self._merged_rows),
            "row_seen": Entry(("L",), torch.int64),
        }

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch)
        state = super().initial(batch)
        for name in ("start", "centres"):
            state[name].copy_(weights)
        state["rows"].fill_diagonal_(1.0)
        return state

    def _merged_centres(self, _: str, ours: State, theirs: State) -> Tensor:
        return normalize(_pool(ours, theirs, "centre", ours["start"], self.centre_count), dim=-1)

    def _merged_rows(self, name: str, ours: State, theirs: State) -> Tensor:
        eye = torch.eye(len(ours[name])).to(ours[name])
        return _pool(ours, theirs, "row", eye, self.row_count)

    # ------------------------------------------------------------------ one image

    def _posterior(self, state: State, image: Batch) -> tuple[Tensor, Prediction]:
        """The mean feature, and its class posterior with what explains it."""
        f = features_of(image)[0]
        z = image.context.scale * f @ state["centres"].to(f).T  # (V, L)
        entropy = F.shannon(F.log_probs(z))
        kept = self.keep(entropy)
        out = z[kept].mean(0).softmax(-1) @ state["rows"].to(z)
        out = out / out.sum()  # rows sum to one but for rounding
        return f[kept].mean(0), Prediction(probs=out, entropy=entropy, kept=kept)

    def look(self, state: State, image: Batch) -> Prediction:
        return self._posterior(state, image)[1]

    def update(self, state: State, image: Batch) -> None:
        f, found = self._posterior(state, image)
        k, out = found.index, found.probs
        if out[k] > self.centre_threshold:
            c = self.centre_count + int(state["centre_seen"][k])
            state["centres"][k] = normalize((c * state["centres"][k] + f) / (c + 1), dim=-1)
            state["centre_seen"][k] += 1
        if out[k] > self.row_threshold:
            c = self.row_count + int(state["row_seen"][k])
            state["rows"][k] = (c * state["rows"][k] + out) / (c + 1)
            state["row_seen"][k] += 1


def _pool(ours: State, theirs: State, kind: str, start: Tensor, c0: int) -> Tensor:
    """(c x + c' x' − c₀ x₀)/(c + c' − c₀): both sides began with x₀, which counts once."""
    n, m = (s[f"{kind}_seen"][:, None].double() for s in (ours, theirs))
    x, y = (s[f"{kind}s"] for s in (ours, theirs))
    pooled = ((c0 + n) * x + (c0 + m) * y - c0 * start) / (c0 + n + m).clamp_min(1)
    return torch.where(m == 0, x, torch.where(n == 0, y, pooled.to(x)))
