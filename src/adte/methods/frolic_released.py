"""Frolic as its authors released it: proxies learned from the stream, debiased eleven times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from adte.core import functional as F
from adte.core import state as declared
from adte.core.batch import Batch
from adte.core.errors import StateError
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods._features import base_alone, class_weights_of, features_of
from adte.methods.base import ORDER, Method
from adte.methods.frolic import Frolic, gaussian_logits, shrunk_variance
from adte.methods.prior import fixed_point
from adte.methods.registry import register

__all__ = ["FrolicReleased", "debiased", "proxies"]


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
    """What is taken off logits in so many rounds of debiasing, all in all.  (N, L) → (L,)

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
class FrolicReleased(Method):
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
    reference = Frolic.reference

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    covariance: float = option(
        0.1,
        "share of the measured covariance in Σ; the rest is the identity matrix",
        low=0,
        below=1,
    )
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
