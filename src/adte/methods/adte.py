"""`adte`, the default: bias told from frequencies, and a stream's own images for its like names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adte.batch import Batch
from adte.methods import likeness
from adte.methods._features import features_of
from adte.methods.registry import preset
from adte.methods.selector import Selector
from adte.options import option
from adte.prediction import Predictions
from adte.prior import Reading
from adte.state import Entry, State, part_of, unprefixed

__all__ = ["Adte"]

TOP = 16  # classes that an image may be of: beyond them answers are noise


class Readout(NamedTuple):
    """What images read: the prior, with its trust in frequencies, and their likeness to classes."""

    prior: Reading
    classes: Tensor  # (B, K)
    alike: Tensor  # (B, K)


@dataclass(kw_only=True, eq=False)
class Adte(Selector):
    """Views weighed by their entropy, the model's bias told from the stream's frequencies.

    1. An image says Σ w_v P_v, all views weighed by w ∝ exp(−H), H Shannon's entropy.
    2. From what images said, the model's bias b and the stream's frequencies π̂ are told apart by
       how often images agree (`adte.bias`); log p̃ = b − g·log(L π̂), g the trust in frequencies,
       more of which is believed in a stream that was begun with the bias of others. A stream may
       show few of all classes and yet most of those that an image may be of. So among more than 32
       classes each image asks again: φ says how far the stream shows few of the image's 32 likely
       ones, and among these frequencies count by φ (`adte.bias.likely`).
    3. Every view's logits are adjusted by −log p̃, weighed anew and averaged. The base view alone
       makes a share 2/(2 + L) of the answer p.
    4. Texts alone cannot say which of two like names is meant; the images that came before can,
       where few of many names are shown, and where answers are sure enough to teach. With x the
       feature of an image (the mean of its views by their weights, of unit length), m the mean of
       all so far, r the answers by which the prior counts, S_l = Σ r_l x and N_l = Σ r_l of the 16
       most probable classes of each image, s = Σ r²/(n + 5) over all n, and h = max(φ·g, s²):

           softmax((log p + `likeness`·scale·h²·likeness_l) / (1 + h²/3))
           likeness_l = (S_l − N_l m)/(N_l + 1) · (x − m)

       What is added agrees with p more often than not, so that undivided they would be too sure.

    A model that is unsure on a stream that shows all of its classes alike has an h of next to
    nothing, and so is the fourth step. It is left out, and so are the L × D numbers of its
    state, with `likeness=0`, where the prior is estimated in another way, and where images come as
    logits alone.

    >>> from adte import Sample, create_method
    >>> method = create_method("adte")
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> [method.step(Sample(image)).index for image in (z, z.roll(1, 1), z)]
    [0, 1, 0]
    """

    likeness: float = option(
        0.3,
        "weight of the similarity to earlier images of each class, as a share of the logits' "
        "scale; it acts where the stream shows few of its classes, or where answers are sure; 0 "
        "leaves it out",
        low=0,
    )

    @property
    def likens(self) -> bool:
        """Whether earlier images are kept: the joint estimate says how far they may speak."""
        return self.likeness > 0 and self.prior.estimator == "joint" and self.tracks

    def entries(self) -> dict[str, Entry]:
        return super().entries() | (likeness.ENTRIES if self.likens else {})

    def likened(self, batch: Batch) -> bool:
        """Whether images come with features that can be likened."""
        return self.likens and batch.context.unit and batch.features is not None

    def sizes(self, batch: Batch) -> dict[str, int]:
        return super().sizes(batch) | ({} if self.likened(batch) else {"D": 0})

    def evidence(self, batch: Batch) -> Any:
        """What the prior learns from (B, L), and the feature (B, D)."""
        if not self.likens:
            return super().evidence(batch)
        items, weights = self.prior.weighed(batch.logits)
        if not self.likened(batch):
            return items, items.new_empty(len(items), 0, dtype=torch.float32)
        x = features_of(batch).detach()
        x = (weights.to(x)[..., None] * x).sum(1)
        return items, torch.nn.functional.normalize(x, dim=-1).float()

    def draft(self, state: State) -> State:
        return likeness.draft(state) if self.likens else super().draft(state)

    def settled(self, draft: State) -> State:
        return likeness.settled(draft)

    def scan(self, state: State, evidence: Any) -> tuple[Any, State]:
        if not self.likens:
            return super().scan(state, evidence)
        first, seen = self.order == "learn-first", int(state["prior.seen"])
        items, x = evidence
        with part_of(state) as inner:
            prior = self.prior.scan(inner, items, first)
        assert prior.answers is not None
        classes = _likely(items, prior)
        alike = likeness.follow(state, x, prior.answers, classes, seen, first)
        return Readout(prior, classes, alike), state

    def absorb(self, state: State, evidence: Any) -> State:
        return self.scan(state, evidence)[1] if self.likens else super().absorb(state, evidence)

    def read(self, state: State, evidence: Any) -> Any:
        if not self.likens:
            return super().read(state, evidence)
        items, x = evidence
        prior = self.prior.read(unprefixed(state), items)
        classes = _likely(items, prior)
        alike = likeness.read(state, x, classes, int(state["prior.seen"]))
        return Readout(prior, classes, alike)

    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        if not isinstance(readouts, Readout):
            return super().decide(batch, readouts)
        prior, classes, alike = readouts
        out = super().decide(batch, prior)
        if not self.likened(batch):
            return out
        assert prior.trust is not None
        assert prior.sure is not None
        probs = out.probs
        trusted = torch.maximum(prior.trust, prior.sure.square()).square().to(probs)[:, None]
        added = self.likeness * batch.context.scale * trusted * alike.to(probs)
        z = probs.clamp_min(torch.finfo(probs.dtype).tiny).log().scatter_add_(1, classes, added)
        likened = torch.softmax(z / (1 + trusted / 3), -1)
        if prior.since:  # images that came before the prior is in force
            late = torch.arange(len(probs), device=probs.device) >= prior.since
            likened = torch.where(late[:, None], likened, probs)
        return replace(out, probs=likened)


def _likely(items: Tensor, prior: Reading) -> Tensor:
    """The classes that images may be of: the most probable ones, bias and frequencies regarded."""
    if prior.likely is not None:
        return prior.likely[:, :TOP]
    return (items - prior.log_prior).topk(min(TOP, items.shape[1])).indices


preset(
    "adte",
    Adte,
    "All views weighted by exp(−entropy); the model's bias told apart from the class frequencies",
    reference="this project, docs/default.md; after Wu et al., ICLR 2026",
    adjust="before",
    ratio=1.0,
    soft=1.0,
    base=2.0,
    estimator="joint",
    item="soft",
)
preset(
    "adte-tsallis",
    Selector,
    "Mean of the views of lowest Tsallis entropy with a q for every class, logits adjusted",
    entropy="adaptive",
    adjust="before",
)

_AS_PUBLISHED: dict[str, Any] = {
    "entropy": "adaptive",
    "form": "paper",
    "few": 0,
    "estimator": "fixed-point",
    "smoothing": 0.0,
    "smoothing_total": 0.0,
    "clip": 0.0,
}
preset(
    "adte-paper",
    Selector,
    "ADTE by the paper's equations: favoured classes get the smaller q, bank of 10 per class",
    **_AS_PUBLISHED,
    direction="paper",
    bank="fifo",
    size=10,
    item="base",
    adjust="after",
    norm="l1",
)
preset(
    "adte-released",
    Selector,
    "ADTE as the published code computes it: bank of 20 confident items per class, no adjustment",
    **_AS_PUBLISHED,
    direction="released",
    bank="gap",
    size=20,
    threshold=1.0,
    item="mean-logits",
    adjust="none",
    norm="l2",
    eps=1e-4,
    empty="zero",
)
