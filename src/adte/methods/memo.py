"""MEMO: one step on the whole image tower, for one image, until its views agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option
from adte.core.prediction import Prediction, Predictions
from adte.methods.image_tower import Descent, Tensors, Tower, Towers, slopes
from adte.methods.registry import register
from adte.methods.tracking import EntropyMethod, images, marginal, off_record

__all__ = ["MEMO"]

RATES = {"adamw": 1e-5, "sgd": 2.5e-4}


@register("memo")
@dataclass(kw_only=True, eq=False)
class MEMO(EntropyMethod):
    """The base view, with the model's weights tuned on the image's other views.

    1. loss = H(p̄), the entropy of the mean distribution of all views but the base view.
    2. One step on all weights of the image tower, batch norm with the statistics of `bn`.
    3. The base view is predicted under the new weights. Then the weights are as before.

    The authors' two optimisers are SGD with 2.5e-4 for ResNet-50 and AdamW with 1e-5 and decay
    0.01 for transformers and the large ResNeXts. AdamW is the default, for the towers that this
    library is about are of the second kind, and because its first step does not depend on the
    size of the gradient, so that one rate suits every tower and every measure of uncertainty.

    The authors restore the weights before each image, but never their optimiser, so AdamW's
    moments leak from image to image. Here it is reset too.

    >>> MEMO().params["optimiser"], MEMO().stateful
    ('adamw', False)
    """

    reference = (
        "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS "
        "2022, arXiv:2110.09506, github.com/zhangmarvin/memo"
    )
    needs = frozenset({"pixels", "image tower"})

    parameters: Literal["all", "norm"] = option(
        "all", "weights that are tuned: all, or scale and shift of the normalisation layers (norm)"
    )
    optimiser: Literal["adamw", "sgd"] = option(
        "adamw", "optimiser: AdamW, or SGD without momentum"
    )
    lr: float | None = option(
        None, "learning rate; by default 1e-5 for AdamW, 2.5e-4 for SGD", low=0
    )
    decay: float = option(0.01, "weight decay of AdamW", low=0)
    steps: int = option(1, "steps per image", low=0)
    bn_prior: float = option(
        16.0, "N in the batch-norm statistics (N·source + batch)/(N + 1)", low=0, high=math.inf
    )

    _towers: Towers = field(default_factory=Towers, init=False, repr=False)

    @property
    def descent(self) -> Descent:
        lr = RATES[self.optimiser] if self.lr is None else self.lr
        return Descent("sgd", lr) if self.optimiser == "sgd" else Descent("adam", lr, 0, self.decay)

    def loss(self, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """The measure of the mean distribution.  (V, L) → ()"""
        log_p = self.log_probs(logits, log_prior, "before", "per-view")
        return self.entropy(marginal(log_p), log_prior)

    @off_record
    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        return Predictions.stack([self._adapt(*each) for each in images(batch, readouts)])

    def _adapt(self, image: Batch, log_prior: Tensor | None) -> Prediction:
        with self._towers.lend(image, self.bn_prior) as tower:
            pixels = tower.views(image)
            x = self._tune(tower, pixels, log_prior)
            z = tower.logits(pixels[:1], x)[0]
        prior = None if log_prior is None else log_prior.to(z)
        log_p = self.log_probs(image.logits[0].to(z), prior, "before")
        entropy = self.entropy(log_p, prior)  # of the views as they came
        ranked = F.rank_views(entropy)
        kept = ranked[ranked > 0] if len(ranked) > 1 else ranked
        return self.answer(z, prior, entropy, kept)

    def _tune(self, tower: Tower, pixels: Tensor, log_prior: Tensor | None) -> Tensors:
        """The weights after the image's steps."""
        names = list(tower.source)
        if self.parameters == "norm":
            names = [n for layer in tower.norms(pixels) for n in layer]
        x, views = tower.start(names), pixels[min(1, len(pixels) - 1) :]
        moments: Tensors = {}

        def loss(x: Tensors) -> Tensor:
            z = tower.logits(views, x)
            return self.loss(z, None if log_prior is None else log_prior.to(z, copy=True))

        for t in range(1, self.steps + 1):
            slope = slopes(x, loss)
            moments = self.descent.start({n: x[n] for n in slope}) | moments
            x, moments = self.descent.step(x, slope, moments, t)
        return x
