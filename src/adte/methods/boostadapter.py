"""BoostAdapter: TDA, with the image's own surest views beside the positive cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adte.core.options import option
from adte.core.state import State
from adte.methods import bank
from adte.methods.registry import register
from adte.methods.tda import TDA, Query

__all__ = ["BoostAdapter"]


@register("boostadapter")
@dataclass(kw_only=True, eq=False)
class BoostAdapter(TDA):
    """TDA, with the image's own surest views added to the positive cache for its prediction.

    Each of the 10 % views of lowest entropy stands under its own top class, with its own entropy;
    of these and the stored items, the 3 + δ of lowest entropy per class speak for the class. The
    stored cache stays as it is: the union is formed when asked. A lone view has nothing to add,
    and before the first image there is no cache to join.

    The authors set δ between 0 and 3 for each data set; here δ = 1 for all. Their negative cache
    keeps the newest items, not the surest; so does this one by default. For the image itself they
    take the base view on ten sets and the mean of the kept views on ImageNet's variants, as `key`
    says.

    >>> BoostAdapter().boost, BoostAdapter().negative_keep
    (1, 'newest')
    """

    reference = (
        "Zhang et al., BoostAdapter: Improving Vision-Language Test-Time Adaptation via "
        "Regional Bootstrapping, NeurIPS 2024, arXiv:2410.15430, "
        "github.com/taolinzhang/BoostAdapter"
    )

    boost: int = option(
        1, "δ, the image's own views per class that may join the positive cache", low=0
    )
    negative_keep: Literal["surest", "newest"] = option(
        "newest", "images that the negative cache keeps: those of lowest entropy, or the latest"
    )

    def used(self, it: Query) -> Tensor:
        return it.kept

    def positive(self, state: State, it: Query) -> Tensor:
        near = bank.affinity(state, "positive.", it.feature, self.positive_sharpness)  # (L, M)
        total = near.sum(1)
        if len(it.view_features) == 1 or not bool(bank.filled(state, "positive.").any()):
            return total
        views = it.view_features[it.kept]  # (K, D)
        own = (-self.positive_sharpness * (1 - views @ it.feature)).exp()  # (K,)
        rank = (it.view_entropy[it.kept] / it.scale).double()
        labels = it.view_logits[it.kept].argmax(-1)
        for label in set(labels.tolist()):
            mine = labels == label
            ranks = torch.cat([state["positive.rank"][label], rank[mine]])
            order = ranks.argsort(stable=True)[: self.positive_size + self.boost]
            total[label] = torch.cat([near[label], own[mine]])[order].sum()
        return total
