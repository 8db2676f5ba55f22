"""DiffTPT: TPT on augmented and generated views, without those that drifted from the original."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.options import option, part
from adte.methods.parts import Selection
from adte.methods.registry import register
from adte.methods.tpt import TPT

__all__ = ["DiffTPT"]


@register("difftpt")
@dataclass(kw_only=True, eq=False)
class DiffTPT(TPT):
    """TPT on the views whose logits resemble the original's; some views may be generated images.

    1. c_i = cos(z_0, z_i) of the logit vectors; of the views beyond the first `originals`, the
       80 % of highest c stay. Cosines of CLIP's logits are all near 1: they are ranked.
    2. Of these and the originals together, the 30 % of lowest entropy are kept.
    3. As TPT, with four steps; both choices are made once, before the first.

    View 0 is the original image. With `originals=1`, as published, augmented and generated views
    are filtered alike; set to the number of views that were not generated, only those are.
    Generated images come in as the last views of a `Sample`.

    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> DiffTPT(similar=0.67, keep=0.7).select(z)[1]
    tensor([1, 0])
    """

    reference = (
        "Feng et al., Diverse Data Augmentation with Diffusions for Effective Test-time Prompt "
        "Tuning, ICCV 2023, arXiv:2308.06038, github.com/chunmeifeng/DiffTPT"
    )

    keep: Selection = part(Selection(ratio=0.3), "which of the resembling views are kept")
    steps: int = option(4, "steps of AdamW per image", low=0)
    similar: float = option(
        0.8, "share of the other views that pass the filter by cosine similarity", above=0, high=1
    )
    originals: int = option(1, "number of first views that need not pass the filter", low=1)

    def select(self, logits: Tensor, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
        entropy, _ = super().select(logits, log_prior)
        others = logits[self.originals :]
        pool = torch.arange(len(logits)).to(entropy.device, torch.long)
        if len(others):
            cosine = torch.nn.functional.cosine_similarity(others, logits[:1], dim=-1)
            near = cosine.argsort(descending=True, stable=True) + self.originals
            alike = near[: F.keep_count(len(others), self.similar)].sort().values
            pool = torch.cat([pool[: self.originals], alike])
        return entropy, pool[self.keep(entropy[pool])]
