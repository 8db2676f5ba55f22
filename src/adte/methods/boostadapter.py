"""BoostAdapter: TDA, with the image's own surest views beside the positive cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adte.errors import InputError
from adte.methods.registry import register
from adte.methods.tda import TDA, Cache, Look
from adte.options import option

__all__ = ["BoostAdapter"]


@register("boostadapter")
@dataclass(kw_only=True, eq=False)
class BoostAdapter(TDA):
    """TDA whose positive cache is joined, for one prediction, by the image's own surest views.

    Each of the 10 % views of lowest entropy stands under its own top class, with its own entropy;
    of these and the stored items, the 3 + δ of lowest entropy a class speak for the class. The
    stored cache stays as it is: the union is formed when asked. A lone view has nothing to add.

    The authors set δ between 0 and 3 for each data set; here δ = 1 for all. Their negative cache
    keeps the newest items, not the surest; so does this one by default. For the image itself they
    take the base view on ten sets and the mean of the kept views on ImageNet's variants, as `key`
    says.

    >>> BoostAdapter().boost, BoostAdapter().negative_keep
    (1, 'newest')
    """

    reference = "Zhang et al., BoostAdapter: Test-Time Adaptation via Regional Bootstrapping, 2024"

    boost: int = option(1, "δ, room for views a class beside the positive cache's own items")
    negative_keep: Literal["surest", "newest"] = option(
        "newest", "which items the negative cache keeps: of lowest entropy, or the last that came"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.boost < 0:
            raise InputError(f"boost={self.boost} of the positive cache must be at least 0")

    def used(self, look: Look) -> Tensor:
        return look.kept

    def positive(self, cache: Cache, look: Look) -> Tensor:
        total = super().positive(cache, look)
        if len(look.view_features) == 1:
            return total
        near = cache.affinity(look.feature, self.positive_sharpness)  # (L, M)
        views = look.view_features[look.kept]  # (K, D)
        own = (-self.positive_sharpness * (1 - views @ look.feature)).exp()  # (K,)
        rank = (look.view_entropy[look.kept] / look.scale).double()
        labels = look.view_logits[look.kept].argmax(-1)
        for label in set(labels.tolist()):
            mine = labels == label
            ranks = torch.cat([cache.tensors["rank"][label], rank[mine]])
            order = ranks.argsort(stable=True)[: self.positive_size + self.boost]
            total[label] = torch.cat([near[label], own[mine]])[order].sum()
        return total
