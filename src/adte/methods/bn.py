"""Single-point batch norm: let each image have a say in the statistics."""

from __future__ import annotations

from dataclasses import dataclass

from adte.errors import InputError
from adte.methods.base import Prediction, PriorMethod, Sample
from adte.methods.image_tower import Tower, answer, prior_like
from adte.methods.prompt_tuning import off_record
from adte.methods.registry import register
from adte.options import option

__all__ = ["BN"]


@register("bn")
@dataclass(kw_only=True, eq=False)
class BN(PriorMethod):
    """The base view under batch-norm statistics that are 1/(N+1) the image's own.

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
        "adaptation, NeurIPS 2020; for one image: Zhang et al., MEMO, NeurIPS 2022"
    )
    needs = frozenset({"pixels", "image tower"})

    bn_prior: float = option(16.0, "N: how many images the source's statistics count for")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bn_prior >= 0:
            raise InputError(f"bn_prior={self.bn_prior} is negative; choose e.g. 16")

    @off_record
    def predict(self, sample: Sample) -> Prediction:
        tower = Tower(sample, self.bn_prior)
        z = tower.logits(tower.pixels[:1])[0]
        return answer(self, z, prior_like(self, z))
