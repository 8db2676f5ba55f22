"""OnZeta: predicted classes kept in balance, and class proxies learned among the images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods._features import base_alone, class_weights_of, features_of
from adte.methods.base import Method
from adte.methods.registry import register

__all__ = ["OnZeta"]

PER_CLASS = 50  # images per class of ImageNet's validation set, on which the weights were chosen


@register("onzeta")
@dataclass(kw_only=True, eq=False)
class OnZeta(Method):
    """Probabilities from text and proxies, with a bonus for classes that are predicted too rarely.

    ρ (L,) starts at zero, the proxies w (L, D) as the class weights. For image i, from 1 on, with
    feature x and logits z of its base view (further views are not looked at):
    1. p = softmax(z + ρ), the labels of the text; v = softmax(s·x·wᵀ/4), those of the proxies.
    2. out = b·v + (1 − b)·p with b = 0.8·√(i/n), n being the length of the stream.
    3. ρ ← max(0, ρ − (20/√i)·(p − 1/L)): a class with less than its share gets a bonus.
    4. w ← normalise(w − (0.5/√i)·(s/4)·(v − p)xᵀ): a step down the cross-entropy of v under p.
    Steps 3 and 4 come after the prediction.

    All of it, and every constant, is as in the authors' code, which has them for ImageNet; its
    temperature of the proxies, 0.04, is written as 4/s, s = 100 being CLIP's scale. Two things
    differ. The code knows n before the first image. A stream seldom does: `length` says n where it
    is known, else it is 50 images per class, as ImageNet has; b stays at 0.8 from there on. And
    p > 0 is made in one softmax, so that a large ρ cannot overflow.

    Step 3 takes the classes for equally frequent (`balance`, the least share of a class times L);
    where they are not it takes the stream's frequencies for the model's fault.

    `merge` averages ρ and w, weighted by the images that each side has seen; that is no stream's
    exact outcome.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> x = normalize(torch.tensor([[0.9, 0.3]]), dim=-1)
    >>> method = OnZeta(length=4)
    >>> for _ in range(2):  # the same image again: its class has had more than its share
    ...     print(method.step(Sample(10 * x @ weights.T, x, weights, 10.0)).probs)
    tensor([0.6740, 0.0434, 0.2826])
    tensor([0.4171, 0.1639, 0.4191])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = (
        "Qian and Hu, Online Zero-Shot Classification with CLIP, ECCV 2024, arXiv:2408.13320, "
        "github.com/idstcv/OnZeta"
    )

    length: int | None = option(
        None, "n, number of images in the stream, if known; by default 50 per class", low=1
    )
    balance: float = option(
        1.0,
        "α: each class should be predicted for at least the share α/L of the images",
        low=0,
        high=1,
    )
    bonus_rate: float = option(
        20.0, "step size of the bonus ρ; at image i it is divided by √i", low=0
    )
    proxy_rate: float = option(
        0.5, "step size of the proxies; at image i it is divided by √i", low=0
    )
    proxy_weight: float = option(
        0.8, "β, weight of the proxies at the end of the stream", low=0, high=1
    )
    softness: float = option(
        4.0, "temperature of the proxies, as a multiple of the model's", above=0
    )

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "seen": Entry((), torch.int64),
            "bonus": Entry(("L",), torch.float32, "mean", by="seen"),  # ρ
            "proxies": Entry(("L", "D"), torch.float32, _merged_proxies),
            "class_total": Entry(("D",), torch.float32, "same"),  # Σ class weights
        }

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch)
        state = super().initial(batch)
        state["proxies"].copy_(weights)
        state["class_total"].copy_(weights.sum(0))
        return state

    # ------------------------------------------------------------------ one image

    def _labels(self, state: State, image: Batch) -> tuple[Tensor, Tensor]:
        """p of the text and v of the proxies, (L,) each."""
        x, z = features_of(image)[0, 0], image.logits[0, 0]
        p = (F.wide(z) + state["bonus"]).softmax(-1)
        v = (image.context.scale / self.softness * state["proxies"].to(x) @ x).softmax(-1)
        return p, v

    def look(self, state: State, image: Batch) -> Prediction:
        p, v = self._labels(state, image)
        n = self.length or PER_CLASS * image.classes
        b = self.proxy_weight * math.sqrt(min(1.0, (int(state["seen"]) + 1) / n))
        out = b * v + (1 - b) * p
        return Prediction(probs=out, kept=base_alone(out))

    def update(self, state: State, image: Batch) -> None:
        p, v = self._labels(state, image)
        state["seen"] += 1
        root = math.sqrt(int(state["seen"]))
        fair = self.balance / image.classes
        state["bonus"] = (state["bonus"] - self.bonus_rate / root * (p - fair)).clamp_min(0).float()
        step = self.proxy_rate / root * image.context.scale / self.softness
        x = features_of(image)[0, 0]
        moved = state["proxies"] - step * torch.outer(v - p, x)
        state["proxies"] = normalize(moved, dim=-1).float()


def _merged_proxies(name: str, ours: State, theirs: State) -> Tensor:
    n, m = int(ours["seen"]), int(theirs["seen"])
    share = m / (n + m) if n + m else 0.0
    return normalize(torch.lerp(ours[name], theirs[name], share), dim=-1)
