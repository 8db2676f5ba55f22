"""MEMO: one step on the whole image tower, for one image, until its views agree."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError
from adte.core.options import option
from adte.core.prediction import Prediction, Predictions
from adte.core.state import Entry, State, unprefixed
from adte.methods.base import AdaptingMethod
from adte.methods.image_tower import MOMENTS, Descent, Tensors, Tower, Towers, refuse, slopes
from adte.methods.measured import MeasuredMethod, images, marginal, off_record
from adte.methods.registry import register

__all__ = ["MEMO"]

RATES = {"adamw": 1e-5, "sgd": 2.5e-4}


@register("memo")
@dataclass(kw_only=True, eq=False)
class MEMO(AdaptingMethod, MeasuredMethod):
    """The base view, with the model's weights tuned on the image's other views.

    1. loss = H(p̄), the entropy of the mean distribution of all views but the base view.
    2. One step on all weights of the image tower, batch norm with the statistics of `bn`.
    3. The base view is predicted under the new weights. Then the weights are as before.

    The authors' two optimisers are SGD with 2.5e-4 for ResNet-50 and AdamW with 1e-5 and decay
    0.01 for transformers and the large ResNeXts. AdamW is the default, for the towers that this
    library is about are of the second kind, and because its first step does not depend on the
    size of the gradient, so that one rate suits every tower and every measure of uncertainty.

    The authors restore the weights before each image, but never their optimiser, so AdamW's
    moments leak from image to image. Here it is reset too; `leak=True` does as they did. When
    states merge, the receiver's moments stay: they are of its last few images.

    >>> MEMO().params["optimiser"], MEMO().stateful, MEMO(leak=True).stateful
    ('adamw', False, True)
    """

    reference = (
        "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS "
        "2022, arXiv:2110.09506, github.com/zhangmarvin/memo"
    )
    needs = frozenset({"pixels", "image tower"})

    parameters: Literal["all", "norm"] = option(
        "all", "weights that are tuned: all, or scale and shift of the normalisation layers (norm)"
    )
    optimiser: Literal["adamw", "sgd"] = option(
        "adamw", "optimiser: AdamW, or SGD without momentum"
    )
    lr: float | None = option(
        None, "learning rate; by default 1e-5 for AdamW, 2.5e-4 for SGD", low=0
    )
    decay: float = option(0.01, "weight decay of AdamW", low=0)
    steps: int = option(1, "steps per image", low=0)
    bn_prior: float = option(
        16.0, "N in the batch-norm statistics (N·source + batch)/(N + 1)", low=0, high=math.inf
    )
    leak: bool = option(False, "keep the optimiser's moments from image to image")

    _towers: Towers = field(default_factory=Towers, init=False, repr=False)

    @property
    def descent(self) -> Descent:
        lr = RATES[self.optimiser] if self.lr is None else self.lr
        return Descent("sgd", lr) if self.optimiser == "sgd" else Descent("adam", lr, 0, self.decay)

    def loss(self, logits: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """The measure of the mean distribution.  (V, L) → ()"""
        log_p = self.log_probs(logits, log_prior, "before", "per-view")
        return self.entropy(marginal(log_p), log_prior)

    # ------------------------------------------------------------------ state, if it leaks

    @property
    def sequential(self) -> bool:  # type: ignore[override]  # as its options say
        return self.leak

    def entries(self) -> dict[str, Entry]:
        if not self.leak:
            return super().entries()
        own = {"steps": Entry((), torch.int64, "keep")}
        own |= {f"{order}.*": Entry(None, None, "keep") for order in self.descent.orders}
        return own | super().entries()

    def check_state(self, state: State) -> None:
        odd = self.descent.odd(unprefixed(state, "first."), state)
        if self.leak and int(state["steps"]) < 0:
            odd.append("steps")
        refuse(self.name, odd)

    # ------------------------------------------------------------------ one image

    @off_record
    def decide(self, batch: Batch, readouts: Any) -> Predictions:
        if self.leak:
            return Predictions.stack(readouts)
        each = images(batch, readouts)
        return Predictions.stack([self._adapt({}, image, prior)[0] for image, prior in each])

    @off_record
    def adapted(self, state: State, image: Batch) -> tuple[Prediction, State]:
        return self._adapt(state, image, self.read_prior(state, image))

    @off_record
    def take(self, state: State, image: Batch, change: State) -> None:
        self.track(state, image.logits)
        state.update(change)

    def _adapt(
        self, state: State, image: Batch, log_prior: Tensor | None
    ) -> tuple[Prediction, State]:
        """The prediction, and the optimiser's moments after it."""
        with self._towers.lend(image, self.bn_prior) as tower:
            pixels = tower.views(image)
            x, moments = self._tune(tower, pixels, state, log_prior)
            z = tower.logits(pixels[:1], x)[0]
        prior = None if log_prior is None else log_prior.to(z)
        log_p = self.log_probs(image.logits[0].to(z), prior, "before")
        entropy = self.entropy(log_p, prior)  # of the views as they came
        ranked = F.rank_views(entropy)
        kept = ranked[ranked > 0] if len(ranked) > 1 else ranked
        return self.answer(z, prior, entropy, kept), moments

    def _tune(
        self, tower: Tower, pixels: Tensor, state: State, log_prior: Tensor | None
    ) -> tuple[Tensors, State]:
        """The weights after the image's steps, and the optimiser's moments and steps."""
        names = list(tower.source)
        if self.parameters == "norm":
            names = [n for layer in tower.norms(pixels) for n in layer]
        x, views = tower.start(names), pixels[min(1, len(pixels) - 1) :]
        moments = {n: m.to(pixels.device) for n, m in state.items() if n.startswith(MOMENTS)}
        for n, m in moments.items():
            if m.shape != x.get(n.partition(".")[2], torch.tensor(torch.nan)).shape:
                raise InputError(
                    f"method {self.name!r} has moments {n!r} of {tuple(m.shape)}, which do not go "
                    "with this model; reset it or use another copy"
                )
        begun = int(state.get("steps", 0))

        def loss(x: Tensors) -> Tensor:
            z = tower.logits(views, x)
            return self.loss(z, None if log_prior is None else log_prior.to(z, copy=True))

        for t in range(begun + 1, begun + self.steps + 1):
            slope = slopes(x, loss)
            moments = self.descent.start({n: x[n] for n in slope}) | moments
            x, moments = self.descent.step(x, slope, moments, t)
        return x, moments | {"steps": torch.tensor(begun + self.steps)}
