"""TDA: two small caches of the stream's surest images, one for and one against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte import functional as F
from adte.errors import InputError, StateError, unknown
from adte.methods.base import Method, Prediction, Sample
from adte.methods.measure import EntropyMethod, check_entries, check_fit, features_of
from adte.methods.registry import register
from adte.options import option

__all__ = ["TDA", "Cache"]


class Cache:
    """At most M items a class: those of lowest rank, in order of rank; the older of equals first.

    Tensors: `rank` (L, M), infinite where a slot is empty; `keys` (L, M, D); `masks` (L, M, L)
    of booleans, for a cache that speaks against classes.
    """

    def __init__(self, classes: int, size: int, dim: int, masks: bool, like: Tensor) -> None:
        shape = (classes, size)
        self.tensors = {
            "rank": like.new_full(shape, torch.inf, dtype=torch.float64),
            "keys": like.new_zeros((*shape, dim), dtype=torch.float32),
        }
        if masks:
            self.tensors["masks"] = like.new_zeros((*shape, classes), dtype=torch.bool)

    def insert(self, label: int, rank: float, key: Tensor, mask: Tensor | None = None) -> None:
        new = {"rank": torch.tensor(rank, dtype=torch.float64), "keys": key, "masks": mask}
        order: Tensor | None = None
        for name, old in self.tensors.items():
            value = new[name]
            assert value is not None
            rows = torch.cat([old[label], value.to(old)[None]])  # (M + 1, …)
            if order is None:
                order = rows.argsort(stable=True)[:-1]
            old[label] = rows[order]

    def newest(self, label: int) -> float:
        """The rank under which an item displaces the oldest: ranks count down as items come."""
        return min(float(self.tensors["rank"][label, 0]), 0.0) - 1

    def merged(self, other: Cache, newest: bool = False) -> Cache:
        """The union, cut to size. With `newest`, the other's items came after all of this one's."""
        mine, theirs = self.tensors["rank"], other.tensors["rank"].to(self.tensors["rank"])
        if newest:
            theirs = theirs + mine[:, :1].clamp_max(0)
        order = torch.cat([mine, theirs], 1).argsort(dim=1, stable=True)[:, : mine.shape[1]]
        row = torch.arange(len(mine)).to(order)[:, None]
        out = object.__new__(Cache)
        out.tensors = {
            name: torch.cat([x, theirs if name == "rank" else other.tensors[name].to(x)], 1)[
                row, order
            ]
            for name, x in self.tensors.items()
        }
        return out

    def affinity(self, feature: Tensor, sharpness: float) -> Tensor:
        """exp(−β (1 − f·k)) for every item, 0 for an empty slot.  (D,) → (L, M)"""
        near = (-sharpness * (1 - self.tensors["keys"].to(feature) @ feature)).exp()
        return torch.where(self.tensors["rank"].isfinite(), near, 0.0)


class Look(NamedTuple):
    """What the caches see of an image."""

    feature: Tensor  # (D,)
    logits: Tensor  # (L,)
    probs: Tensor  # (L,)
    entropy: float  # of probs, on the scale of nats
    view_features: Tensor  # (V, D)
    view_logits: Tensor  # (V, L)
    view_entropy: Tensor  # (V,)
    scale: float  # entropy_scale of the measure
    kept: Tensor  # (K,) the views of lowest entropy
    mine: Tensor  # those that stand for the image: the kept ones, or the base view
    log_prior: Tensor | None  # (L,)

    @property
    def label(self) -> int:
        return int(self.logits.argmax())


@register("tda")
@dataclass(kw_only=True, eq=False)
class TDA(EntropyMethod):
    """Logits moved by the likeness to sure images of the stream, and to unsure ones.

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
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> f = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2]]), dim=-1)
    >>> TDA().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs.round(decimals=3)
    tensor([0.9420, 0.0000, 0.0580])
    """

    needs = frozenset({"logits", "features"})
    reference = "Karmanov et al., Efficient Test-Time Adaptation of Vision-Language Models, 2024"

    order: Literal["predict-first", "learn-first"] = option(
        "learn-first", "online, whether an image is predicted before or after it is learned from"
    )
    ratio: float = option(0.1, "share of the views to keep, at least one view")
    count: int | None = option(None, "number of views to keep, instead of the ratio")
    key: Literal["kept", "base"] = option(
        "kept", "what stands for an image: the mean of its kept views, or its base view"
    )
    positive_size: int = option(3, "items a class in the positive cache")
    positive_weight: float = option(2.0, "α₊, weight of the positive cache")
    positive_sharpness: float = option(5.0, "β₊, how fast the positive weight falls with distance")
    negative_size: int = option(2, "items a class in the negative cache")
    negative_weight: float = option(0.117, "α₋, weight of the negative cache")
    negative_sharpness: float = option(1.0, "β₋, how fast the negative weight falls with distance")
    negative_keep: Literal["surest", "newest"] = option(
        "surest", "which items the negative cache keeps: of lowest entropy, or the last that came"
    )
    negative_low: float = option(0.2, "the negative cache takes H/log₂ L above this")
    negative_high: float = option(0.5, "the negative cache takes H/log₂ L below this")
    mask_low: float = option(0.03, "a class is plausible above this probability")
    mask_high: float = option(1.0, "a class is plausible below this probability")

    _caches: tuple[Cache, Cache] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        F.keep_count(self.count or 1, self.ratio, self.count)
        if self.key not in ("kept", "base"):
            raise unknown("key", self.key, ("kept", "base"))
        if self.negative_keep not in ("surest", "newest"):
            raise unknown("negative_keep", self.negative_keep, ("surest", "newest"))
        for name in ("positive_size", "negative_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} of a cache must be at least 1")

    @property
    def stateful(self) -> bool:
        return True

    # ------------------------------------------------------------------ one image

    def _look(self, sample: Sample) -> Look:
        features = features_of(sample)
        log_p = F.log_probs(sample.logits)
        prior = self.log_prior()
        prior = None if prior is None else prior.to(log_p)
        place = "none" if prior is None else self.adjust
        z = sample.logits.to(log_p.dtype)
        if place == "before" and prior is not None:
            z = z - self.tau * prior
            log_p = F.log_probs(z)
        entropy = self.measure(log_p, prior)  # (V,)
        kept = F.rank_views(entropy)[: F.keep_count(len(entropy), self.ratio, self.count)]
        if place == "per-view" and prior is not None:
            z = z - self.tau * prior
            log_p = F.log_probs(z)
        mine = kept if self.key == "kept" else torch.zeros_like(kept[:1])
        log_mean, scale = F.mean_probs(log_p[mine]), self.entropy_scale(z.shape[-1], prior)
        return Look(
            feature=features[mine].mean(0),
            logits=z[mine].mean(0),
            probs=log_mean.exp(),
            entropy=float(self.measure(log_mean, prior)) / scale,
            view_features=features,
            view_logits=z,
            view_entropy=entropy,
            scale=scale,
            kept=kept,
            mine=mine,
            log_prior=prior,
        )

    def _here(self, sample: Sample) -> tuple[Cache, Cache] | None:
        """The caches, checked against the sample and on its device."""
        if self._caches is None:
            return None
        keys = self._caches[0].tensors["keys"]
        check_fit(self.name, (keys.shape[0], keys.shape[2]), sample)
        device = sample.require("features").device
        for cache in self._caches:
            cache.tensors = {k: v.to(device) for k, v in cache.tensors.items()}
        return self._caches

    def _empty(self, classes: int, dim: int, like: Tensor) -> tuple[Cache, Cache]:
        return (
            Cache(classes, self.positive_size, dim, masks=False, like=like),
            Cache(classes, self.negative_size, dim, masks=True, like=like),
        )

    def learn(self, sample: Sample) -> None:
        features, classes = features_of(sample), sample.logits.shape[-1]
        caches = self._here(sample) or self._empty(classes, features.shape[-1], features)
        super().learn(sample)  # the prior first: the key is measured as the prediction will be
        look, self._caches = self._look(sample), caches
        positive, negative = caches
        positive.insert(look.label, look.entropy, look.feature)
        share = look.entropy / math.log2(max(classes, 2))
        if self.negative_low < share < self.negative_high:
            newest = self.negative_keep == "newest"
            rank = negative.newest(look.label) if newest else look.entropy
            mask = (look.probs > self.mask_low) & (look.probs < self.mask_high)
            negative.insert(look.label, rank, look.feature, mask)

    def positive(self, cache: Cache, look: Look) -> Tensor:
        """Σ exp(−β₊(1 − f·k)) over the items of every class.  → (L,)"""
        return cache.affinity(look.feature, self.positive_sharpness).sum(1)

    def used(self, look: Look) -> Tensor:
        """The views that had a say."""
        return look.mine

    def predict(self, sample: Sample) -> Prediction:
        look, caches = self._look(sample), self._here(sample)
        out = look.logits
        if caches is not None:
            near = caches[1].affinity(look.feature, self.negative_sharpness)  # (L, M)
            filled = caches[1].tensors["rank"].isfinite()
            against = near[filled] @ caches[1].tensors["masks"][filled].to(near)
            out = out + self.positive_weight * self.positive(caches[0], look)
            out = out - self.negative_weight * against
        prior = look.log_prior
        if prior is not None and self.adjust == "after":
            out = out - self.tau * prior
        return Prediction(
            probs=out.softmax(-1),
            entropy=look.view_entropy,
            kept=self.used(look),
            q=self.class_q(prior),
            prior=None if prior is None else prior.exp(),
        )

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        super().reset()
        self._caches = None

    def state_dict(self) -> dict[str, Tensor]:
        if self._caches is None:
            return {}
        caches = zip(("positive", "negative"), self._caches, strict=True)
        own = {f"{n}.{k}": v.clone() for n, cache in caches for k, v in cache.tensors.items()}
        return own | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        prior = {k: v for k, v in state.items() if k.startswith("prior.")}
        own = {k: v for k, v in state.items() if k not in prior}
        if not state:
            return self.reset()
        if bool(prior) != self.uses_prior:
            raise StateError(
                f"state of {self.name!r} does not fit: it holds "
                f"{'a' if prior else 'no'} class prior; load it with the options of its saving"
            )
        keys = own.get("positive.keys")
        if keys is None or keys.ndim != 3:
            raise StateError(
                f"state of {self.name!r} does not fit: entry 'positive.keys' is missing or not "
                "(classes, items, dimensions); it was saved by another method"
            )
        caches = self._empty(keys.shape[0], keys.shape[2], keys)
        named = {"positive": caches[0].tensors, "negative": caches[1].tensors}
        check_entries(self.name, own, {f"{n}.{k}": v for n in named for k, v in named[n].items()})
        if prior and len(prior.get("prior.counts", ())) != len(keys):
            raise StateError(
                f"state of {self.name!r} does not fit: its caches are over {len(keys)} classes, "
                "its class prior is not; save it again"
            )
        super().load_state_dict(prior)
        for n, tensors in named.items():
            tensors.update({k: own[f"{n}.{k}"].clone() for k in tensors})
        self._caches = caches

    def merge(self, other: Method) -> None:
        Method.merge(self, other)
        assert isinstance(other, TDA)
        if other._caches is None:
            return
        keys = other._caches[0].tensors["keys"]
        mine = self._caches or self._empty(keys.shape[0], keys.shape[2], keys)
        for a, b in zip(mine, other._caches, strict=True):
            check_entries(self.name, b.tensors, a.tensors)
        if self.negative_keep != other.negative_keep:
            raise StateError(
                f"cannot merge {self.name!r} with negative_keep={self.negative_keep!r} and "
                f"{other.negative_keep!r}; give both the same options"
            )
        super().merge(other)
        newest = self.negative_keep == "newest"
        self._caches = mine[0].merged(other._caches[0]), mine[1].merged(other._caches[1], newest)
