"""Zero-shot CLIP: the base view alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.prediction import Predictions
from adte.methods.prior import Reading
from adte.methods.registry import register
from adte.methods.tracking import PriorMethod, runs

__all__ = ["ZeroShot"]


@register("zero-shot")
@dataclass(kw_only=True, eq=False)
class ZeroShot(PriorMethod):
    """The model's own prediction for the base view; other views are ignored.

    P = softmax(z₀). With logit adjustment, softmax(z₀ − τ·log p̃), the classic debiased zero-shot;
    with one view all its places are the same.

    >>> import torch
    >>> from adte import Sample
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1]])
    >>> ZeroShot().predict(Sample(z)).index
    0
    """

    reference = (
        "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, "
        "ICML 2021, arXiv:2103.00020, github.com/openai/CLIP"
    )

    def decide(self, batch: Batch, readouts: Reading | None) -> Predictions:
        parts = []
        for rows, log_prior in runs(batch, readouts):
            log_p = F.log_probs(batch.logits[rows, 0])  # (B, L)
            entropy = F.shannon(log_p)[:, None]
            shown = None
            if log_prior is not None:
                shown = log_prior.to(log_p).expand_as(log_p)
                log_p = F.adjust(log_p, shown, self.adjust.tau)
            kept = entropy.new_zeros(entropy.shape, dtype=torch.int64)
            prior = None if shown is None else shown.exp()
            known = shown is not None
            parts.append(Predictions(log_p.exp(), entropy, kept, prior=prior, known=known))
        return Predictions.join(parts)
