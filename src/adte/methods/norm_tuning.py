"""The base of Tent and DeYO: normalisation layers that follow a stream of single images."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from adte.core.batch import Batch, Sample
from adte.core.errors import InputError
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.core.state import Entry, State, prefixed, unprefixed
from adte.methods.image_tower import MOMENTS, Descent, Tensors, Tower, Towers, refuse, slopes
from adte.methods.tracking import EntropyMethod, off_record

__all__ = ["NormTuner"]

HEAD = "parameter."


@dataclass(kw_only=True, eq=False)
class NormTuner(EntropyMethod):
    """A method that lets scale and shift of the normalisation layers follow the stream.

    Images come one by one, so what its paper calls a batch is one of two things.
      batch=0   the views of the image: one step per image
      batch=B   the base views of the last B images: one step every B images. Until a step is due,
                an image is predicted with the parameters so far and, where the tower has batch
                norm, in the company of the B − 1 images before it, whose pixels are kept.

    States merge by the mean of their parameters and moments, weighted by the images seen.
    """

    needs = frozenset({"pixels", "image tower"})
    sequential = True

    batch: int = option(
        0, "images per step, with their base views; 0 takes one image, with all its views", low=0
    )
    bn_prior: float | None = option(
        None,
        "N in the batch-norm statistics (N·source + batch)/(N + 1); by default 16 for the views of "
        "one image, 0 for a batch of images",
        low=0,
        high=math.inf,
    )
    optimiser: Literal["sgd", "adam"] = option("sgd", "optimiser: SGD with momentum, or Adam")
    lr: float = option(2.5e-4, "learning rate", low=0)
    momentum: float = option(0.9, "momentum of SGD", low=0)

    _towers: Towers = field(default_factory=Towers, init=False, repr=False)

    # ------------------------------------------------------------------ what a method defines

    @abstractmethod
    def loss(self, run: Callable[[Tensor], Tensor], pixels: Tensor, state: State) -> Tensor | None:
        """The loss of a step, of which `run` takes pixels to logits; None if nothing is learned."""

    def layers(self, norms: list[list[str]]) -> list[list[str]]:
        """Which of the normalisation layers are tuned; they come in the order of the pass."""
        return norms

    def explain(self, logits: Tensor, log_prior: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Every view's uncertainty, and the views that count.  (V, L)"""
        return self.entropy(self.log_probs(logits, log_prior, "before"), log_prior), None

    # ------------------------------------------------------------------ state

    @property
    def descent(self) -> Descent:
        return Descent(self.optimiser, self.lr, self.momentum)

    def entries(self) -> dict[str, Entry]:
        count, mean = Entry((), torch.int64), Entry(None, None, "mean", by="images")
        own = {"images": count, "steps": count, f"{HEAD}*": mean}
        own |= {f"{order}.*": mean for order in self.descent.orders}
        if self.batch:
            own["window"] = Entry(None, None, "tail", most=self.batch)  # the last base views
        return own | super().entries()

    @off_record
    def initial(self, batch: Batch) -> State:
        with self._tower(batch) as tower:
            pixels = tower.views(batch[0])
            x = tower.start([n for names in self.layers(tower.norms(pixels)) for n in names])
        window = {"window": pixels[:0]} if self.batch else {}
        return super().initial(batch) | prefixed(x, HEAD) | self.descent.start(x) | window

    def check_state(self, state: State) -> None:
        odd = self.descent.odd(unprefixed(state, HEAD), state)
        images, steps = int(state["images"]), int(state["steps"])
        if not 0 <= steps <= images:
            odd.append("steps")
        if self.batch and state["window"].shape[:-3] != (min(images, self.batch),):
            odd.append("window")
        refuse(self.name, odd)

    # ------------------------------------------------------------------ the stream

    @off_record
    def logits(self, images: Sample | Batch) -> Tensor:
        """(V, L) of an image's views under the parameters so far."""
        with self._taken(images) as batch:
            image = batch[0]
            state = self._fitting(image)
            with self._tower(image) as tower:
                x, _ = self._learned(state, tower)
                return tower.logits(tower.views(image), x)

    @off_record
    def look(self, state: State, image: Batch) -> Prediction:
        with self._tower(image) as tower:
            x, _ = self._learned(state, tower)
            pixels = tower.views(image)
            if self.batch:
                pixels = self._window(state, pixels) if tower.mixes else pixels[:1]
            z = tower.logits(pixels, x)
        prior = self.log_prior(state, z)
        if self.batch:
            return self.answer(z[-1], prior)
        return self.answer(z[0], prior, *self.explain(z, prior))

    @off_record
    def update(self, state: State, image: Batch) -> None:
        images, steps = int(state["images"]) + 1, int(state["steps"])
        with self._tower(image) as tower:
            x, moments = self._learned(state, tower)
            pixels = tower.views(image)
            if self.batch:
                pixels = self._window(state, pixels)

            def loss(x: Tensors) -> Tensor | None:
                return self.loss(lambda pixels: tower.logits(pixels, x), pixels, state)

            due = not self.batch or images % self.batch == 0
            slope = slopes(x, loss) if due else {}
        x, moments = self.descent.step(x, slope, moments, steps + 1)
        self.track(state, image.logits)
        state.update(prefixed(x, HEAD) | moments)
        if self.batch:
            state["window"] = pixels.to(image.logits.device, copy=True)
        state["images"], state["steps"] = torch.tensor(images), torch.tensor(steps + bool(slope))

    def _tower(self, batch: Batch) -> AbstractContextManager[Tower]:
        usual = 0 if self.batch else 16
        return self._towers.lend(batch, usual if self.bn_prior is None else self.bn_prior)

    def _window(self, state: State, pixels: Tensor) -> Tensor:
        """The base views of the last images, the image's own last."""
        base, past = pixels[:1], state["window"]
        if past.shape[1:] != base.shape[1:]:
            raise InputError(
                f"an image of {tuple(base.shape[1:])} cannot join a batch of "
                f"{tuple(past.shape[1:])}; give all images one size"
            )
        return torch.cat([past.to(base), base])[-self.batch :]

    def _learned(self, state: State, tower: Tower) -> tuple[Tensors, Tensors]:
        """Parameters and moments beside the tower; refused if they are another model's."""
        x, device = unprefixed(state, HEAD), tower.like.device
        for n, value in x.items():
            if n not in tower.source or tower.source[n].shape != value.shape:
                raise InputError(
                    f"method {self.name!r} has learned parameter {n!r} of {tuple(value.shape)}, "
                    "which this model does not have; reset it or use another copy"
                )
        moments = {n: m.to(device) for n, m in state.items() if n.startswith(MOMENTS)}
        return {n: p.to(device) for n, p in x.items()}, moments
