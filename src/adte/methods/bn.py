"""Single-point batch norm: let each image have a say in the statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option
from adte.core.prediction import Prediction, Predictions
from adte.methods.image_tower import Towers
from adte.methods.prior import Reading
from adte.methods.registry import register
from adte.methods.tracking import ANYWHERE, PriorMethod, images, off_record

__all__ = ["BN"]


@register("bn")
@dataclass(kw_only=True, eq=False)
class BN(PriorMethod):
    """The base view, with batch-norm statistics of which a share 1/(N+1) is the image's own.

    In every batch norm, with m and v the mean and the unbiased variance of the layer's present
    input over its positions, and ρ = N/(N + 1):

        μ = ρ·μ_source + (1 − ρ)·m        σ² = ρ·σ²_source + (1 − ρ)·v

    Later layers see what earlier ones have changed. N = 16 by default, so ρ = 0.9412. Nothing is
    learned and no gradient taken. A tower without batch norm, such as CLIP's transformers, is not
    affected: there the answer is the model's own for the base view.

    >>> BN().params["bn_prior"]
    16.0
    """

    reference = (
        "Schneider et al., Improving robustness against common corruptions by covariate shift "
        "adaptation, NeurIPS 2020, arXiv:2006.16971, github.com/bethgelab/robustness; for one "
        "image: Zhang et al., MEMO, NeurIPS 2022, arXiv:2110.09506, github.com/zhangmarvin/memo"
    )
    needs = frozenset({"pixels", "image tower"})

    bn_prior: float = option(
        16.0,
        "N: how many images the model's own statistics count for; inf uses them alone",
        low=0,
        high=math.inf,
    )

    _towers: Towers = field(default_factory=Towers, init=False, repr=False)

    @off_record
    def decide(self, batch: Batch, readouts: Reading | None) -> Predictions:
        return Predictions.stack([self._decide(*each) for each in images(batch, readouts)])

    def _decide(self, image: Batch, log_prior: Tensor | None) -> Prediction:
        with self._towers.lend(image, self.bn_prior) as tower:
            z = tower.logits(tower.views(image)[:1])[0]
        prior = None if log_prior is None else log_prior.to(z)
        probs = F.log_probs(self.adjust(z, prior, *ANYWHERE)).exp()
        return Prediction(probs, prior=None if prior is None else prior.exp())
