"""`adte` where names are many more than the stream shows: its own images tell them apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adte import functional as F
from adte.batch import Batch, Predictions
from adte.errors import InputError
from adte.methods._features import features_of
from adte.methods.base import prefixed, unprefixed
from adte.methods.registry import preset
from adte.methods.selector import DEFAULT, Selector
from adte.options import option
from adte.prior import Reading
from adte.state import Entry, State

__all__ = ["Likened"]

TOP = 16  # classes that an image may count for: beyond them answers are noise
OWN = 1.0  # images as the mean one, taken as seen of each class


class Readout(NamedTuple):
    """What images read: the prior, the trust in frequencies (B,), the likeness (B, L)."""

    prior: Reading
    trust: Tensor
    likeness: Tensor


@dataclass(kw_only=True, eq=False)
class Likened(Selector):
    """`adte`, and how much an image is like those that were taken for a class before it.

    x is the image's feature (the mean of its views by their weights, of unit length), m the mean of
    all so far, r the answers by which the prior counts (`adte.bias`), g its trust in frequencies.
    1. S_l = Σ r_l x and N_l = Σ r_l, of the 16 most probable classes of each image.
    2. The likeness is (S_l/(N_l + 1) − N_l/(N_l + 1)·m) · (x − m): the mean of the class, drawn to
       that of all, as seen from there.
    3. The answer is softmax((log p + `likeness`·scale·g²·that) / (1 + g²/3)): what it adds agrees
       with p more often than not, so that together they would be too sure.

    On a stream that shows all of its classes alike g is nought, and this is `adte`; so it is where
    `frequencies="equal"` says so. Where few of
    many names are shown, texts alone cannot say which of two like names is meant; the images that
    came before can. The state takes L × D numbers more than that of `adte`.
    """

    needs = frozenset({"logits", "features"})

    likeness: float = option(
        0.3,
        "how much the likeness to earlier images of a class counts, as a share of the logits' "
        "scale, where a stream is found to show few of its classes; 0 leaves it out",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.likeness < math.inf:
            raise InputError(f"likeness={self.likeness} must be at least 0; choose e.g. 0.3")
        if self.prior.estimator != "joint" or not self.tracks:
            raise InputError(
                f"the likeness to earlier images needs estimator='joint' and an adjustment, which "
                f"are {self.prior.estimator!r} and {self.adjust.place!r}; leave them as they are"
            )

    def entries(self) -> dict[str, Entry]:
        return super().entries() | {
            "like.sums": Entry(("L", "D"), torch.float32),
            "like.counts": Entry(("L",), torch.float32),
            "like.total": Entry(("D",), torch.float32),
        }

    def initial(self, batch: Batch) -> State:
        features_of(batch)  # refused here, where there are none
        return super().initial(batch)

    def evidence(self, batch: Batch) -> Tensor:
        """What the prior learns from (B, L), and the feature (B, D), side by side."""
        items, weights = self.prior.weighed(batch.logits)
        x = features_of(batch).detach()
        x = torch.nn.functional.normalize((weights.to(x)[..., None] * x).sum(1), dim=-1)
        return torch.cat([items, x.to(items)], -1)

    def scan(self, state: State, evidence: Any) -> tuple[Any, State]:
        inner, seen = unprefixed(state), int(state["prior.seen"])
        items, features = _halves(evidence, len(inner["total"]))
        first = self.order == "learn-first"
        prior = self.prior.scan(inner, items, first)
        assert prior.answers is not None
        assert prior.trust is not None
        likeness = []
        for i, (x, answer) in enumerate(zip(features, prior.answers, strict=True)):
            if first:
                _take(state, x, answer)
            likeness.append(_likeness(state, x, seen + i + first))
            if not first:
                _take(state, x, answer)
        return Readout(prior, prior.trust, torch.stack(likeness)), state | prefixed(inner)

    def absorb(self, state: State, evidence: Any) -> State:
        inner = unprefixed(state)
        items, features = _halves(evidence, len(inner["total"]))
        prior = self.prior.scan(inner, items)
        assert prior.answers is not None
        for x, answer in zip(features, prior.answers, strict=True):
            _take(state, x, answer)
        return state | prefixed(inner)

    def read(self, state: State, evidence: Any) -> Readout:
        inner, seen = unprefixed(state), int(state["prior.seen"])
        _, features = _halves(evidence, len(inner["total"]))
        prior = self.prior.read(inner)
        assert prior.trust is not None
        likeness = torch.stack([_likeness(state, x, seen) for x in features])
        return Readout(prior, prior.trust.expand(len(features)), likeness)

    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        out = super().decide(batch, readouts.prior)
        if self.prior.frequencies == "equal":  # then no stream shows few of its classes
            return out
        probs = out.probs
        late = torch.arange(len(probs), device=probs.device) >= readouts.prior.since
        trusted = torch.where(late, readouts.trust.to(probs).square(), 0.0)[:, None]
        added = self.likeness * batch.context.scale * trusted * readouts.likeness.to(probs)
        z = probs.clamp_min(torch.finfo(probs.dtype).tiny).log() + added
        return replace(out, probs=F.log_probs(z / (1 + trusted / 3)).exp())


def _halves(evidence: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """What the prior learns from, and the features in single precision."""
    return evidence[:, :classes], evidence[:, classes:].float()


def _likeness(state: State, x: Tensor, seen: int) -> Tensor:
    """How much x (D,) is like the images of each class.  → (L,)"""
    sums, counts = state["like.sums"], state["like.counts"]
    mean = state["like.total"] / max(seen, 1)
    off = x - mean
    return (sums @ off - counts * (mean @ off)) / (counts + OWN)


def _take(state: State, x: Tensor, answer: Tensor) -> None:
    """Count x for its classes, in place."""
    r, classes = answer.float().topk(min(TOP, len(answer)))
    state["like.sums"].index_add_(0, classes, r[:, None] * x)
    state["like.counts"].index_add_(0, classes, r)
    state["like.total"] += x


preset(
    "adte-open",
    Likened,
    "`adte`, and the likeness to earlier images: where names are many more than the stream shows",
    reference="this project, docs/default.md; class means as in Zhang et al., DPE, NeurIPS 2024",
    **DEFAULT,
)
