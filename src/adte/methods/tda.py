"""TDA: two small caches of the stream's surest images, one for and one against; BoostAdapter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods import bank
from adte.methods._features import features_of
from adte.methods.base import ORDER
from adte.methods.parts import Entropy, Selection
from adte.methods.registry import register
from adte.methods.tracking import EntropyMethod

__all__ = ["TDA", "BoostAdapter", "Query"]

_KEY = {"keys": (("D",), torch.float32)}
_MASK = {"masks": (("L",), torch.bool)}


class Query(NamedTuple):
    """One image as the caches read it."""

    feature: Tensor  # (D,)
    logits: Tensor  # (L,)
    probs: Tensor  # (L,)
    entropy: float  # of probs, on the scale of nats
    view_features: Tensor  # (V, D)
    view_logits: Tensor  # (V, L)
    view_entropy: Tensor  # (V,)
    scale: float  # of the measure: what a nat is in it
    kept: Tensor  # (K,) the views of lowest entropy
    mine: Tensor  # those that stand for the image: the kept ones, or the base view
    log_prior: Tensor | None  # (L,)

    @property
    def label(self) -> int:
        return int(self.logits.argmax())


@register("tda")
@dataclass(kw_only=True, eq=False)
class TDA(EntropyMethod):
    """Logits adjusted by the similarity to earlier images of the stream, sure and unsure ones.

    f, z, P: feature, logits and probabilities of the image; with several views, the means over the
    10 % of lowest entropy (of features without normalising them again). H is P's entropy, ŷ the
    top class.
    1. The positive cache of ŷ takes (f, H) and keeps the 3 of lowest H.
    2. If 0.2 < H/log₂ L < 0.5 (H in nats: 29–72 % of its maximum), so does the negative cache of
       ŷ, which keeps 2, with the mask of plausible classes 0.03 < P < 1.
    3. out = z + α₊ Σ exp(−β₊(1 − f·k))·onehot − α₋ Σ exp(−β₋(1 − f·k))·mask over the items k.
    An image is learned from before it is predicted, so it meets its own key.

    The authors set α₊ and β₊ for each data set; here α₊ = 2 and β₊ = 5, theirs for ImageNet, hold
    for all. They use several views on ImageNet's variants only; here whenever views are given
    (`key="base"` looks at the base view alone). `entropy` replaces Shannon's H in the choice of
    views and in both caches. Caches merge exactly: the union, cut to the lowest H.

    >>> import torch
    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> f = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2]]), dim=-1)
    >>> TDA().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs.round(decimals=3)
    tensor([0.9420, 0.0000, 0.0580])
    """

    needs = frozenset({"logits", "features"})
    reference = (
        "Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, CVPR 2024, "
        "arXiv:2403.18293, github.com/kdiAAA/TDA"
    )
    sequential = True

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    entropy: Entropy = part(
        Entropy(), "the measure of uncertainty that ranks the views and the items of the caches"
    )
    keep: Selection = part(Selection(), "which views are kept")
    key: Literal["kept", "base"] = option(
        "kept", "feature that represents an image: the mean of its kept views, or its base view"
    )
    positive_size: int = option(3, "images per class in the positive cache", low=1)
    positive_weight: float = option(2.0, "α₊, weight of the positive cache")
    positive_sharpness: float = option(
        5.0, "β₊, how fast the weight of a positive item falls with distance", low=0
    )
    negative_size: int = option(2, "images per class in the negative cache", low=1)
    negative_weight: float = option(0.117, "α₋, weight of the negative cache")
    negative_sharpness: float = option(
        1.0, "β₋, how fast the weight of a negative item falls with distance", low=0
    )
    negative_keep: Literal["surest", "newest"] = option(
        "surest", "images that the negative cache keeps: those of lowest entropy, or the latest"
    )
    negative_low: float = option(
        0.2, "smallest entropy, over log₂ L, of images in the negative cache"
    )
    negative_high: float = option(
        0.5, "largest entropy, over log₂ L, of images in the negative cache"
    )
    mask_low: float = option(0.03, "probability above which a class counts as plausible")
    mask_high: float = option(1.0, "probability below which a class counts as plausible")

    def entries(self) -> dict[str, Entry]:
        newest = self.negative_keep == "newest"
        negative = bank.entries(
            self.negative_size, _KEY | _MASK, "negative.", shift="seen" if newest else ""
        )
        positive = bank.entries(self.positive_size, _KEY, "positive.")
        seen = {"seen": Entry((), torch.int64)} if newest else {}  # its age is an item's rank
        return positive | negative | seen | super().entries()

    def initial(self, batch: Batch) -> State:
        features_of(batch)
        return super().initial(batch)

    def query(self, state: State, image: Batch) -> Query:
        """One image (a batch of one), as the caches see it in a state."""
        features, z = features_of(image)[0], F.wide(image.logits[0])
        prior = self.log_prior(state, z)
        z = self.adjust(z, prior, "before")
        entropy = self.entropy(F.log_probs(z), prior)  # (V,)
        kept = self.keep(entropy)
        z = self.adjust(z, prior, "per-view")
        mine = kept if self.key == "kept" else torch.zeros_like(kept[:1])
        log_mean = F.mean_probs(F.log_probs(z[mine]))
        scale = self.entropy.scale(image.classes, prior)
        return Query(
            feature=features[mine].mean(0),
            logits=z[mine].mean(0),
            probs=log_mean.exp(),
            entropy=float(self.entropy(log_mean, prior).detach()) / scale,
            view_features=features,
            view_logits=z,
            view_entropy=entropy,
            scale=scale,
            kept=kept,
            mine=mine,
            log_prior=prior,
        )

    def update(self, state: State, image: Batch) -> None:
        self.track(state, image.logits)  # first: the key is measured as the prediction will be
        it = self.query(state, image)
        newest = self.negative_keep == "newest"
        if newest:
            state["seen"] += 1
        bank.insert(state, "positive.", it.label, it.entropy, {"keys": it.feature})
        share = it.entropy / math.log2(max(image.classes, 2))
        if self.negative_low < share < self.negative_high:
            rank = -float(state["seen"]) if newest else it.entropy
            mask = (it.probs > self.mask_low) & (it.probs < self.mask_high)
            bank.insert(state, "negative.", it.label, rank, {"keys": it.feature, "masks": mask})

    def positive(self, state: State, it: Query) -> Tensor:
        """Σ exp(−β₊(1 − f·k)) over the items of every class.  → (L,)"""
        return bank.affinity(state, "positive.", it.feature, self.positive_sharpness).sum(1)

    def used(self, it: Query) -> Tensor:
        """The views that had a say."""
        return it.mine

    def look(self, state: State, image: Batch) -> Prediction:
        it = self.query(state, image)
        near = bank.affinity(state, "negative.", it.feature, self.negative_sharpness)  # (L, M)
        filled = bank.filled(state, "negative.")
        against = near[filled] @ state["negative.masks"][filled].to(near)
        out = it.logits + self.positive_weight * self.positive(state, it)
        out = self.adjust(out - self.negative_weight * against, it.log_prior, "after")
        return Prediction(
            probs=out.softmax(-1),
            entropy=it.view_entropy,
            kept=self.used(it),
            q=self.entropy.class_q(it.log_prior),
            prior=None if it.log_prior is None else it.log_prior.exp(),
        )


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
