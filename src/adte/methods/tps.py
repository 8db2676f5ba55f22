"""TPS: shift every class weight on each image until its sure views agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Prediction, Predictions
from adte.methods._features import class_weights_of, features_of
from adte.methods.parts import Selection
from adte.methods.prompt_tuning import adamw
from adte.methods.registry import register
from adte.methods.tracking import EntropyMethod, images, marginal, off_record

__all__ = ["TPS"]


@register("tps")
@dataclass(kw_only=True, eq=False)
class TPS(EntropyMethod):
    """The base view, with class weights shifted to suit the image's surest views.

    A shift S (L, D), one vector per class, starts at zero; T(S) = normalise(T + S).
    1. z = s·f·T(S)ᵀ for all views; the 10 % of lowest entropy are kept.
    2. loss = H(p̄), the entropy of the mean distribution of the kept views; AdamW, one step on S.
    3. The base view is predicted under T(S). Then S and the optimiser are as before.

    It is TPT with the text tower left out: features suffice, whatever prompts the class weights
    came from. The first step of a fresh AdamW moves every coordinate by lr, up or down, unless its
    gradient is below 1e-8; decay has nothing to act on. With more steps the views are chosen anew
    in each, as in the authors' code (TPT keeps its first choice). lr = 5e-3 is the default of their
    code, and what they run ImageNet and its variants with; class weights from descriptions, theirs
    in their best rows, are the caller's. `entropy` replaces Shannon's in both 1 and 2.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.8, 0.6]])
    >>> TPS(lr=0.1).predict(Sample(10 * x @ weights.T, x, weights, 10.0)).probs
    tensor([0.9672, 0.0328])
    """

    needs = frozenset({"features", "class weights"})
    reference = (
        "Sui et al., Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization "
        "with Vision-Language Models, WACV 2025, arXiv:2403.12952, github.com/elaine-sui/TPS"
    )

    keep: Selection = part(Selection(), "which views are kept")
    lr: float = option(5e-3, "learning rate of AdamW", low=0)
    decay: float = option(0.01, "weight decay of AdamW", low=0)
    steps: int = option(1, "steps of AdamW per image", low=0)

    @off_record
    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        each = images(batch, readouts)
        return Predictions.stack([self._adapt(image, prior) for image, prior in each])

    def _adapt(self, image: Batch, log_prior: Tensor | None) -> Prediction:
        f = features_of(image)[0].clone()  # (V, D), free of inference mode
        weights, scale = class_weights_of(image).clone(), image.context.scale
        prior = None if log_prior is None else log_prior.to(f, copy=True)

        def logits(views: Tensor, shift: Tensor) -> Tensor:
            return scale * views @ normalize(weights + shift, dim=-1).mT

        def select(z: Tensor) -> tuple[Tensor, Tensor]:
            entropy = self.entropy(self.log_probs(z, prior, "before"), prior)  # (V,)
            return entropy, self.keep(entropy)

        def gradient(shift: Tensor) -> Tensor:
            shift = shift.detach().requires_grad_()
            with torch.enable_grad():
                z = logits(f, shift)
                z = z[select(z.detach())[1]]
                log_p = self.log_probs(z, prior, "before", "per-view")
                return torch.autograd.grad(self.entropy(marginal(log_p), prior), shift)[0]

        still = torch.zeros_like(weights)
        entropy, kept = select(logits(f, still))
        shift = adamw(still, gradient, self.steps, self.lr, self.decay)
        return self.answer(logits(f[:1], shift)[0], prior, entropy, kept)
