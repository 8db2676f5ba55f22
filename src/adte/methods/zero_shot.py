"""Zero-shot CLIP: the base view alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from adte import functional as F
from adte.methods.base import Prediction, Sample, ViewMethod
from adte.methods.registry import register

__all__ = ["ZeroShot"]


@register("zero-shot")
@dataclass(kw_only=True, eq=False)
class ZeroShot(ViewMethod):
    """The model's own prediction of the base view; further views are not looked at.

    P = softmax(z₀). With logit adjustment, softmax(z₀ − τ·log p̃), the classic debiased zero-shot.

    >>> import torch
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1]])
    >>> ZeroShot().predict(Sample(z)).index
    0
    """

    reference = (
        "Radford et al., Learning Transferable Visual Models From Natural Language, ICML 2021"
    )

    def measure(self, log_p: Tensor, log_prior: Tensor | None) -> Tensor:
        return F.shannon(log_p)

    def predict_many(self, samples: list[Sample]) -> list[Prediction]:  # type: ignore[override]
        return super().predict_many([replace(s, logits=s.logits[:1]) for s in samples])
