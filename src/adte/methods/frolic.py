"""Frolic: a Gaussian classifier of the stream beside the text's, and the prior taken out.

`frolic` is the paper's equations, `frolic-released` the authors' code, which is another method.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from adte.core import functional as F
from adte.core import state as declared
from adte.core.batch import Batch
from adte.core.errors import InputError, StateError
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State, part_of, prefixed, unprefixed
from adte.methods._features import base_alone, class_weights_of, features_of
from adte.methods.base import ORDER, Method
from adte.methods.prior import Belief, PriorOptions, Rule, fixed_point, rule_of
from adte.methods.registry import register

__all__ = [
    "Frolic", "FrolicReleased", "debiased", "gaussian_logits", "match_temperature", "proxies",
    "shrunk_variance",
]  # fmt: skip

PUBLISHED = PriorOptions(
    estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, eps=1e-3, max_iter=100
)
# The temperatures, times the logit scale, at which the Gaussian's confidence is followed.
_LOG2_GRID = torch.linspace(-4, 12, 129, dtype=torch.float64)


def shrunk_variance(count: int, total: Tensor, square: Tensor, share: float = 0.1) -> Tensor:
    """share · diag(cov) + (1 − share), from the number of rows, their sum and sum of squares (D,).

    The variance is unbiased.
    """
    variance = (square - total.square() / count) / (count - 1)
    return share * variance.clamp_min(0) + (1 - share)


def gaussian_logits(x: Tensor, weights: Tensor, variance: Tensor) -> Tensor:
    """tᵀΣ⁻¹x − ½ tᵀΣ⁻¹t for every class t; what is equal for all is left out.  (…, D) → (…, L)"""
    precision = 1 / variance.to(weights)
    return (x * precision) @ weights.T - weights.square() @ precision / 2


def match_temperature(log2_tau: Tensor, confidence: Tensor, target: float) -> float:
    """The τ at which a falling curve of confidences (G,) meets the target; an end if it does not.

    Between two points of the curve it is taken as straight in log τ.
    """
    after = int((confidence >= target).cumprod(0).sum())  # where it is flat, rounding may rise
    if after in (0, len(confidence)):
        return float(2 ** log2_tau[min(after, len(confidence) - 1)])
    high, low = float(confidence[after - 1]), float(confidence[after])
    at = (high - target) / (high - low)
    return float(2 ** torch.lerp(log2_tau[after - 1], log2_tau[after], at))


@dataclass(kw_only=True, eq=False)
class _Gaussian(Method):
    """The options that both forms share."""

    reference = (
        "Zhu et al., Enhancing Zero-Shot Vision Models by Label-Free Prompt Distribution "
        "Learning and Bias Correcting, NeurIPS 2024, arXiv:2410.19294, "
        "github.com/zhuhsingyuu/Frolic"
    )

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    covariance: float = option(
        0.1,
        "share of the measured covariance in Σ; the rest is the identity matrix",
        low=0,
        below=1,
    )


@register("frolic")
@dataclass(kw_only=True, eq=False)
class Frolic(_Gaussian):
    """Text logits plus Gaussian logits learned from the stream, minus the log of the class prior.

    1. f_c = s·x·Tᵀ, the model's logits of the base view; further views are not looked at.
    2. f_g = tᵀΣ⁻¹x − ½ tᵀΣ⁻¹t, with Σ = 0.1·diag(cov of images and class weights) + 0.9·I.
    3. τ makes the mean confidence of f_g/τ that of f_c; fused = f_c + f_g/τ.
    4. p̃ is the fixed point of the fused predictions (`adte.methods.prior`); out = fused − ln p̃.

    The original sees the whole test set before it predicts, as the two-pass protocol does here.
    The online form is ours: Σ comes from a running count, sum and sum of squares, the prior from
    the bank, and τ from running means of the confidence of f_c and of f_g/τ at 129 temperatures,
    from 1/16 to 4096 over s. Nothing grows with the stream and all of it adds up, so states
    merge. What an image adds to these means, and to the bank, is computed with the Σ and τ of its
    time. Before the first image, out = f_c.

    These are the paper's equations. The authors' released code is another method and has a name of
    its own, `frolic-released`: it learns two sets of proxies where step 3 fuses, and repeats step 4
    eleven times, with a zero column for a class without images (uniform here; `empty="zero"`).

    Either can do harm, online above all, and wherever the stream's own frequencies are uneven or
    few of the classes occur: step 4 takes what the stream shows for the model's bias.

    >>> from adte import Sample
    >>> weights = torch.eye(2)
    >>> x = torch.tensor([[0.8, 0.6]])
    >>> Frolic(tau=0).step(Sample(10 * x @ weights.T, x, weights, 10.0)).probs
    tensor([0.9820, 0.0180])
    """

    needs = frozenset({"logits", "features", "class weights"})

    tau: float = option(1.0, "strength of the correction by the class prior; 0 makes none")
    prior: PriorOptions = part(PUBLISHED, "how the class prior is estimated")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior.item != "base":
            raise InputError(
                f"item={self.prior.item!r} has no meaning here: the prior learns from the fused "
                "prediction of the base view; leave it out"
            )

    @cached_property
    def _rule(self) -> Rule:
        return rule_of(self.prior)

    @property
    def class_prior(self) -> Belief | None:
        """The estimate so far; None before the first image."""
        if self._state is None:
            return None
        state = unprefixed(self._state)
        return Belief(int(state["seen"]), self._rule.log_prior(state))

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "count": Entry((), torch.int64),
            "total": Entry(("D",)),  # Σ x
            "square": Entry(("D",)),  # Σ x²
            "class_total": Entry(("D",), reduce="same"),
            "class_square": Entry(("D",), reduce="same"),
            "text": Entry(()),  # Σ confidence of f_c
            "gaussian": Entry((len(_LOG2_GRID),)),  # Σ confidence of f_g/τ at every τ
        } | prefixed(self._rule.entries())

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch).double()
        sums = {"class_total": weights.sum(0), "class_square": weights.square().sum(0)}
        return super().initial(batch) | sums

    def refresh(self, state: State) -> None:
        with part_of(state) as prior:
            self._rule.refresh(prior)

    # ------------------------------------------------------------------ one image

    def _gaussian(self, state: State, image: Batch) -> Tensor:
        """f_g of the base view.  → (L,)"""
        x, weights = features_of(image)[0, 0], class_weights_of(image)
        variance = shrunk_variance(
            int(state["count"]) + len(weights),
            state["total"] + state["class_total"],
            state["square"] + state["class_square"],
            self.covariance,
        )
        return gaussian_logits(x, weights, variance)

    def _fused(self, state: State, image: Batch, gaussian: Tensor) -> Tensor:
        """f_c + f_g/τ of the base view.  → (L,)"""
        count = int(state["count"])
        curve, target = (state[name].detach() / count for name in ("gaussian", "text"))
        tau = match_temperature(_LOG2_GRID, curve, float(target)) / image.context.scale
        return image.logits[0, 0].to(gaussian) + gaussian / tau

    def update(self, state: State, image: Batch) -> None:
        x = features_of(image)[0, 0].double()
        state["count"] += 1
        state["total"] += x
        state["square"] += x.square()
        g = self._gaussian(state, image)
        hot = g * image.context.scale / 2 ** _LOG2_GRID.to(g)[:, None]  # (G, L), at every τ
        state["gaussian"] += hot.softmax(-1).amax(-1).to(state["gaussian"])
        state["text"] += F.log_probs(image.logits[0, 0]).max().exp().to(state["text"])
        with part_of(state) as prior:
            self._rule.learn(prior, F.log_probs(self._fused(state, image, g))[None].double())

    def look(self, state: State, image: Batch) -> Prediction:
        z = image.logits[0, 0]
        if int(state["count"]):
            z = self._fused(state, image, self._gaussian(state, image))
        log_prior = self._rule.read(unprefixed(state)).row(0)
        out = F.log_probs(z) if log_prior is None else F.adjust(z, log_prior, self.tau)
        return Prediction(
            probs=out.exp(),
            kept=base_alone(out),
            prior=None if log_prior is None else log_prior.to(out).exp(),
        )


RATE = 10.0  # InMaP's own learning rate
CERTAIN = 0.6  # a label above this counts as sure


def proxies(x: Tensor, start: Tensor, labels: Tensor, temperature: float, steps: int) -> Tensor:
    """InMaP's vision proxies: unit W with softmax(x·Wᵀ/τ) near the labels.

    (N, D), (L, D), (…, N, L) → (…, L, D). A label above 0.6 counts as sure. Descent from
    `start` along the mean slope over τ, W normalised after every step, the rate halved whenever
    the slope's length grew. It may end stuck or unsettled: how far it goes is part of the method.
    """
    top = labels.max(-1)
    sure = (top.values > CERTAIN)[..., None]
    labels = torch.where(sure, one_hot(top.indices, labels.shape[-1]).to(labels), labels)
    base = labels.mT @ x  # (…, L, D)
    w, rate = start.expand_as(base), base.new_full(base.shape[:-2], RATE)
    before = torch.full_like(rate, torch.inf)
    for step in range(steps):
        slope = (x @ w.mT / temperature).softmax(-1).mT @ x - base
        length = torch.linalg.vector_norm(slope, dim=(-2, -1))
        rate = torch.where(length > before, rate / 2, rate)
        before = length
        w = normalize(w - (rate / (len(x) * temperature))[..., None, None] * slope, dim=-1)
        if step % 50 == 0 and bool((rate < 1e-12).all()):  # nothing moves any more
            break
    return w


def debiased(logits: Tensor, rounds: int = 11) -> Tensor:
    """The sum of the biases that rounds of debiasing take off logits.  (N, L) → (L,)

    Of the images whose two highest logits differ by more than 1/L, the mean prediction per
    predicted class makes a column of A, zero where there is none; p = A p by power iteration, the
    iterate before the last; ln(p + 1e-12) is taken off all logits. The next round begins there.

    >>> debiased(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), rounds=1).exp()
    tensor([0.5798, 0.4202])
    """
    L, off = logits.shape[1], torch.zeros_like(logits[0])
    for _ in range(rounds):
        z = logits - off
        top = z.topk(min(2, L)).values
        p = z[top[:, 0] - top[:, -1] > 1 / L].softmax(-1) if L > 1 else z[:0]
        if not len(p):  # nothing is told apart
            break
        mine = one_hot(p.argmax(-1), L).to(p)  # (n, L)
        matrix = p.mT @ mine / mine.sum(0).clamp_min(1)
        even = torch.full_like(off, 1 / L)
        prior, _ = fixed_point(matrix, even, eps=1e-3, max_iter=100, previous=True)
        off = off + (prior + 1e-12).log()
    return off


@register("frolic-released")
@dataclass(kw_only=True, eq=False)
class FrolicReleased(_Gaussian):
    """Frolic as its published code has it: two sets of learned proxies, then rounds of debiasing.

    X: the features of the images; T: the class weights; `frolic` is the paper's equations.
    1. f_c = s·X·Tᵀ; f_g, the Gaussian's logits, as in `frolic`, with no temperature matched to it.
    2. W_c and W_g are InMaP's proxies (`proxies`): descent from T, 2,000 steps, to the labels
       softmax(f_c) and softmax(s·f_g), those above 0.6 taken for sure.
    3. fused = s·X·(W_c + W_g)ᵀ.
    4. Eleven times: p̃ from the fused predictions, a class without images having a zero column;
       fused ← fused − ln p̃ (`debiased`). This evens out the predicted classes, whatever the
       stream, the more the less sure the predictions are.

    The code asks Sinkhorn's iteration for the labels, with the marginals that the predictions have
    already (γ = 1): it changes nothing and is left out. InMaP's own numbers stand for those of a
    helper file that was not released: rate 10, 2,000 steps, τ = 0.04, four times CLIP's. The code
    also averages templates and descriptions into two sets of class weights; here there is one.

    The original sees the whole test set before it predicts. Here the last `window` images stand
    for it, and a fit is made after the first 64 and whenever the stream has grown by a quarter;
    before, out = f_c. With `first` the number of all images, `window` no less, there is one fit,
    of all of them, and two-pass is the released code. Online it can do harm, where proxies and
    eleven rounds of debiasing rest on few images; where few of the classes occur it does harm in
    any case. A fit of 1,000 images and classes takes minutes on a processor.

    Merged states keep the last images of both; proxies are averaged until the next fit, which is
    due with the next image.
    """

    needs = frozenset({"features", "class weights"})

    steps: int = option(2000, "steps of gradient descent per set of proxies", low=0)
    temperature: float = option(
        4.0, "temperature of the proxies, as a multiple of the model's", above=0
    )
    rounds: int = option(11, "rounds of debiasing; 0 makes none", low=0)
    window: int = option(2048, "images to learn from: the last ones of the stream", low=1)
    growth: float = option(0.25, "share by which the stream must grow before the next fit", low=0)
    first: int = option(64, "images to see before the first fit", low=1)

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "seen": Entry((), torch.int64),
            "fitted": Entry((), torch.int64, _anew),  # images seen at the last fit
            "start": Entry(("L", "D"), torch.float32, "same"),  # the class weights
            "window": Entry(("images", "D"), torch.float32, "tail", most=self.window),
            "proxies": Entry(("L", "D"), torch.float32, "mean", by="seen"),  # W_c + W_g
            "bias": Entry(("L",), torch.float32, "mean", by="seen"),
        }

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch)
        sizes = self.sizes(batch) | {"images": 0}
        state = declared.fresh(self.name, self.entries(), sizes, batch.logits.device)
        for name in ("start", "proxies"):
            state[name].copy_(weights)
        return state

    def check_state(self, state: State) -> None:
        seen, fitted = int(state["seen"]), int(state["fitted"])
        if not 0 <= fitted <= seen or len(state["window"]) != min(seen, self.window):
            raise StateError(
                f"state of {self.name!r} does not fit: {seen} images seen, {fitted} fitted and "
                f"{len(state['window'])} kept do not go together; save it again"
            )

    # ------------------------------------------------------------------ one image

    def due(self, seen: int, fitted: int) -> bool:
        """Whether proxies are learned anew after so many images."""
        return seen >= self.first and seen >= (1 + self.growth) * fitted and seen > fitted

    def update(self, state: State, image: Batch) -> None:
        x = features_of(image)[0, :1].to(state["window"])
        state["window"] = torch.cat([state["window"], x])[-self.window :].clone()
        state["seen"] += 1
        if self.due(int(state["seen"]), int(state["fitted"])):
            state["proxies"], state["bias"] = self.fit(
                state["window"], class_weights_of(image).to(x), image.context.scale
            )
            state["fitted"] = state["seen"].clone()

    def fit(self, x: Tensor, weights: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """W_c + W_g and what debiasing takes off.  (N, D), (L, D) → (L, D), (L,)"""
        rows = torch.cat([x, weights]).double()
        variance = shrunk_variance(len(rows), rows.sum(0), rows.square().sum(0), self.covariance)
        both = torch.stack([x @ weights.mT, gaussian_logits(x, weights, variance)])
        labels = (scale * both).softmax(-1)
        found = proxies(x, weights, labels, self.temperature / scale, self.steps).sum(0)
        return found, debiased(scale * x @ found.mT, self.rounds)

    def look(self, state: State, image: Batch) -> Prediction:
        x = features_of(image)[0, 0]
        out = F.log_probs(image.context.scale * state["proxies"].to(x) @ x - state["bias"].to(x))
        return Prediction(probs=out.exp(), kept=base_alone(out))


def _anew(name: str, ours: State, theirs: State) -> Tensor:
    """A merged state was not fitted: the next image makes a fit due."""
    return torch.zeros_like(ours[name])
