"""`tilt`, the default: answers are tilted by what the stream so far says of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option
from adte.core.prediction import Predictions
from adte.core.state import Entry, State
from adte.methods._features import features_of
from adte.methods.base import Method
from adte.methods.prior import Belief, shares
from adte.methods.registry import register

__all__ = ["Tilt"]

ROOT = 0.6  # power of the predictions whose mean tells the bias; 1 takes frequency for bias
OWN = 0.5  # images like the mean of all, counted before the first image of each class
NEAREST = 16  # classes that an image may be of; further down answers are noise


class Readout(NamedTuple):
    """The numbers that images read of the state; B images, L classes, K nearest classes."""

    log_w: Tensor  # (B, L), float64: added to the log-probabilities of every view
    strength: Tensor  # (B,): how far the likeness counts where an image is in full doubt
    classes: Tensor  # (B, K): the most probable classes
    alike: Tensor  # (B, K): the likeness of the image to those


@register("tilt")
@dataclass(kw_only=True, eq=False)
class Tilt(Method):
    """All views weighted by exp(−entropy), tilted against the model's bias or towards frequencies.

    The mean prediction of a stream is uneven because the model favours some classes (bias), to be
    divided by, and because some occur more often (frequency), to be multiplied by.

    1. An image contributes p = Σ_v w_v P_v, its views weighted by w ∝ exp(−H), H Shannon's entropy,
       and x, the mean of its features with the same weights, of unit length.
    2. M = Σ p + 50/L says how often a class is predicted. A = Σ p^0.6 + 50/L^0.6 says more of how
       probable it is in images of other classes, so b = log(A)/0.6 is bias more than frequency.
    3. Images i and j agree with probability p_i·p_j. c is the number of agreements so far over that
       which images with the distribution A/Σ A would make, with one pair added to either. g =
       max(0, 1 − 1/c) is the share that chance does not explain; s = Σ p·p/n, how sure answers are.
    4. E[frequency] = g·log M, trusted as far as answers are sure, and E[bias] = (1 − g)·b. To the
       logits of every view log w = s·g·log M − (1 − g)·b is added; the views are weighted anew, and
       their mean is the answer y.
    5. Names cannot say which of two similar classes is meant; earlier images can. Each counts for
       its 16 most probable classes: S_l = Σ p_l x, N_l = Σ p_l. With m the mean of all x and y* the
       highest probability of an answer, its 16 most probable classes become

           log y + ½·scale·max(g, s²)²·(1 − y*)·(S_l − N_l m)/(N_l + ½)·(x − m)

    Only sums over images are kept. A stream that begins with the state of another
    (`for_new_stream`) knows its bias, A ∝ exp(0.6 E[bias]), and what classes look like, but no
    frequencies. If the images of the other make a share k, E[bias] = (1 − g (1 − k))·b, and
    E[frequency] = g·(log M − k b).

    >>> from adte import Sample, create_method
    >>> method = create_method("tilt")
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> [method.step(Sample(image)).index for image in (z, z.roll(1, 1), z)]
    [1, 2, 1]
    """

    reference = "this project, docs/default.md"

    likeness: float = option(
        0.5, "weight of the similarity to earlier images of each class; 0 keeps no vectors", low=0
    )
    smoothing: float = option(50.0, "images that say nothing, counted before the first", above=0)
    frequencies: Literal["auto", "equal", "as-they-come"] = option(
        "auto",
        "what is known of the stream: nothing (auto); that its classes are about equally frequent "
        "(equal); that the model has no bias (as-they-come)",
    )

    def entries(self) -> dict[str, Entry]:
        counters = {name: Entry((), torch.int64) for name in ("seen", "before")}
        vectors = {name: Entry(("L",)) for name in ("probs", "roots", "answers", "squares")}
        kept = {**counters, "sure": Entry((1,)), **vectors}
        if not self.likeness:
            return kept
        like = {
            "features": Entry(("L", "D"), torch.float32),
            "counts": Entry(("L",), torch.float32),
        }
        return {**kept, **like, "total": Entry(("D",))}

    def sizes(self, batch: Batch) -> dict[str, int]:
        return super().sizes(batch) | ({} if self._uses_similarity(batch) else {"D": 0})

    def _uses_similarity(self, batch: Batch) -> bool:
        return self.likeness > 0 and batch.context.unit and batch.features is not None

    def evidence(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B, L), float64, and x (B, D); D is 0 without features."""
        means = [F.soft_mean(batch.logits[rows].detach()) for rows in F.pieces(batch.logits)]
        log_p, weights = (torch.cat(parts) for parts in zip(*means, strict=True))
        if not self._uses_similarity(batch):
            return log_p.double(), log_p.new_zeros(len(log_p), 0, dtype=torch.float32)
        x = features_of(batch).detach()
        x = (weights.to(x)[..., None] * x).sum(1)
        return log_p.double(), torch.nn.functional.normalize(x, dim=-1).float()

    def scan(self, state: State, evidence: tuple[Tensor, Tensor]) -> tuple[Readout, State]:
        if self.order == "predict-first":
            return self._step(state, *evidence), state
        readouts = []
        for i in range(len(evidence[0])):
            one = evidence[0][i : i + 1], evidence[1][i : i + 1]
            self._step(state, *one)
            readouts.append(self.read(state, one))
        return Readout(*(torch.cat(column) for column in zip(*readouts, strict=True))), state

    def absorb(self, state: State, evidence: tuple[Tensor, Tensor]) -> State:
        return self.scan(state, evidence)[1]

    def read(self, state: State, evidence: tuple[Tensor, Tensor]) -> Readout:
        return self._step(dict(state), *evidence, learn=False)

    def decide(self, batch: Batch, readouts: Readout) -> Predictions:
        pieces = F.pieces(batch.logits)
        return Predictions.join([self._decide(batch, readouts, rows) for rows in pieces])

    def _decide(self, batch: Batch, readouts: Readout, rows: slice) -> Predictions:
        log_w, strength, classes, alike = (x[rows] for x in readouts)
        logits = F.wide(batch.logits[rows])
        log_p = F.log_probs(logits + log_w[:, None].to(logits))
        p = log_p.exp()
        entropy = F.shannon(log_p, p)  # (B, V)
        probs = F.weighed_sum(F.soft_weights(entropy), p)
        if self._uses_similarity(batch):
            doubt = 1 - probs.amax(-1, keepdim=True)
            added = self.likeness * batch.context.scale * strength[:, None].to(probs) * doubt
            z = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
            probs = torch.softmax(z.scatter_add(1, classes, added * alike.to(probs)), -1)
        prior = torch.softmax(-log_w, -1).to(probs)
        return Predictions(probs, entropy, F.rank_views(entropy), prior=prior)

    def _step(self, state: State, log_p: Tensor, x: Tensor, learn: bool = True) -> Readout:
        """The readouts of images at their turn; with `learn` the state takes them in, in place."""
        images, p = len(log_p), log_p.exp()
        number = torch.arange(images, device=p.device) * learn + int(state["seen"])  # (B,)
        sums: State = {}  # before each image

        def take(name: str, rows: Tensor) -> None:
            total = torch.cat([state[name][None], rows]).cumsum(0) if learn else state[name][None]
            sums[name] = total[:images]
            state[name] = total[-1].clone()

        take("probs", p)
        take("roots", (ROOT * log_p).exp())
        take("sure", p.square().sum(-1, keepdim=True))
        log_w, strength, _ = self._estimate(sums, number[:, None], int(state["before"]))
        log_w, strength = log_w.expand_as(p), strength.expand(images)
        answers = torch.softmax(log_p + log_w, -1)
        take("answers", answers)
        take("squares", answers.square())
        state["seen"] = state["seen"] + images * learn
        classes = answers.topk(min(NEAREST, p.shape[-1])).indices  # (B, K)
        if not x.shape[-1]:
            return Readout(log_w, strength, classes, torch.zeros_like(classes, dtype=x.dtype))
        take("total", x.double())
        mean = sums["total"] / (number + int(state["before"])).clamp_min(1)[:, None]
        nearest = p.topk(classes.shape[1])
        each = (x, x - mean.to(x), mean.to(x), classes, nearest.indices, nearest.values.to(x))
        size = 1 if x.is_cpu else len(x)  # on a CPU no bit depends on the images beside it
        parts = [slice(start, start + size) for start in range(0, len(x), size)]
        alike = [self._alike(state, learn, *(v[rows] for v in each)) for rows in parts]
        return Readout(log_w, strength, classes, torch.cat(alike))

    def _alike(
        self, state: State, learn: bool, x: Tensor, off: Tensor, mean: Tensor, classes: Tensor,
        nearest: Tensor, weights: Tensor,
    ) -> Tensor:  # fmt: skip
        """The likeness of images x (B, D) to their classes (B, K); `off` is x − mean.

        With `learn` they count for their nearest classes (B, K) by weights (B, K).
        """
        products = (state["features"][classes] @ off[..., None])[..., 0]  # (B, K)
        counts = state["counts"][classes]
        if learn and len(x) > 1:  # those before an image in this batch
            own = x.new_zeros(len(x), len(state["counts"])).scatter_(1, nearest, weights)  # (B, L)
            earlier = x.new_ones(len(x), len(x)).tril(-1)
            theirs = own.T[classes]  # (B, K, B): how far the others are of its classes
            products = products + (theirs @ (earlier * (off @ x.T))[..., None])[..., 0]
            counts = counts + (theirs @ earlier[..., None])[..., 0]
        if learn:
            at, rows = (nearest.flatten(),), weights[..., None] * x[:, None]  # (B, K, D)
            state["features"].index_put_(at, rows.flatten(0, 1), accumulate=True)
            state["counts"].index_put_(at, weights.flatten(), accumulate=True)
        return (products - counts * (mean * off).sum(-1, keepdim=True)) / (counts + OWN)

    def _estimate(self, sums: State, n: Tensor, before: int) -> tuple[Tensor, Tensor, Tensor]:
        """log w (B, L), how far the likeness counts (B,), and E[bias] (B, L).

        From rows of sums, over n images (B, 1) after those `before`, of an earlier stream.
        """
        L = sums["probs"].shape[-1]
        log_m = (sums["probs"] + self.smoothing / L).log()
        b = (sums["roots"] + self.smoothing * L**-ROOT).log() / ROOT
        chance = torch.softmax(ROOT * b, -1).square().sum(-1, keepdim=True)
        agreed = sums["probs"].square().sum(-1, keepdim=True) - sums["sure"]
        c = (agreed + 1) / (n * (n - 1) * chance + 1)
        g = (1 - 1 / c.clamp(1, L)) * (self.frequencies != "equal")
        s, k = sums["sure"] / n.clamp_min(1), before / (before + n).clamp_min(1)
        bias = (1 - g * (1 - k)) * b * (self.frequencies != "as-they-come")
        log_w = s * g * (log_m - k * b) - bias
        strength = torch.maximum(g, s.square()).square()[:, 0]
        return log_w - log_w.mean(-1, keepdim=True), strength, bias

    def _now(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The estimate for the next image; rows of 1."""
        sums = {name: state[name][None] for name in ("probs", "roots", "sure")}
        n = torch.full((1, 1), int(state["seen"]), device=state["probs"].device)
        return self._estimate(sums, n, int(state["before"]))

    def for_new_stream(self, state: State) -> State:
        if int(state["seen"]):
            spread = torch.softmax(ROOT * self._now(state)[2][0], -1)
            state["roots"] = spread * state["roots"].sum()
            state["before"] += state["seen"]
            for name in ("seen", "probs", "sure", "answers", "squares"):
                state[name] = torch.zeros_like(state[name])
        return state

    def adjustment(self, logits: Tensor) -> Tensor | None:
        return None if self._state is None else -self._now(self._state)[0][0]

    @property
    def class_prior(self) -> Belief | None:
        """The estimate from the stream so far; None before the first image."""
        if (state := self._state) is None:
            return None
        log_prior, n = torch.log_softmax(-self._now(state)[0][0], -1), int(state["seen"])
        return Belief(n, log_prior, shares(state["answers"], state["squares"], max(n, 1)))
