"""What Tent and DeYO share: normalisation layers that follow a stream of single images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from adte.errors import InputError, StateError, unknown
from adte.methods.base import Method, Prediction, Sample
from adte.methods.image_tower import (
    Descent,
    Tensors,
    Tower,
    answer,
    log_probs,
    prior_like,
    slopes,
)
from adte.methods.measure import EntropyMethod, check_entries
from adte.methods.prompt_tuning import off_record
from adte.options import option

__all__ = ["NormTuner"]


@dataclass
class _Learned:
    """What the stream has changed."""

    parameters: Tensors
    moments: Tensors
    images: int = 0
    steps: int = 0
    window: Tensor | None = None  # (≤ batch, 3, H, W) the last base views

    def tensors(self) -> Tensors:
        counts = {"images": torch.tensor(self.images), "steps": torch.tensor(self.steps)}
        named = {f"parameter.{n}": p.clone() for n, p in self.parameters.items()}
        window = {} if self.window is None else {"window": self.window.clone()}
        return counts | named | {n: m.clone() for n, m in self.moments.items()} | window


@dataclass(kw_only=True, eq=False)
class NormTuner(EntropyMethod):
    """A method that lets scale and shift of the normalisation layers follow the stream.

    A sample is one image, so what its paper calls a batch is one of two things.
      batch=0   the views of the image: one step an image
      batch=B   the base views of the last B images: one step every B images. Until a step is due,
                an image is predicted with the parameters so far and, where the tower has batch
                norm, in the company of the B − 1 images before it, whose pixels are kept.

    States merge by the mean of their parameters and moments, weighted by the images seen.
    """

    needs = frozenset({"pixels", "image tower"})

    batch: int = option(0, "images a step, by their base views; 0: each image's own views")
    bn_prior: float | None = option(
        None,
        "N of the batch-norm statistics (N·source + batch)/(N + 1); none: 16 for the views of "
        "one image, 0 for a batch of images",
    )
    optimiser: Literal["sgd", "adam"] = option("sgd", "SGD with momentum, or Adam")
    lr: float = option(2.5e-4, "learning rate")
    momentum: float = option(0.9, "momentum of SGD")

    _learned: _Learned | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser not in ("sgd", "adam"):
            raise unknown("optimiser", self.optimiser, ("sgd", "adam"))
        for name in ("batch", "bn_prior", "lr", "momentum"):
            if not (getattr(self, name) is None or getattr(self, name) >= 0):
                raise InputError(f"{name}={getattr(self, name)} of {self.name!r} is negative")

    @property
    def stateful(self) -> bool:
        return True

    @abstractmethod
    def loss(self, run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor | None:
        """What a step minimises; `run` takes pixels to logits. None: there is nothing to learn."""

    def layers(self, norms: list[list[str]]) -> list[list[str]]:
        """Which of the normalisation layers are tuned; they come in the order of the pass."""
        return norms

    def explain(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Every view's uncertainty, and the views that count.  (V, L)"""
        prior = prior_like(self, logits)
        return self.measure(log_probs(self, logits, prior, "before"), prior), None

    # ------------------------------------------------------------------ the stream

    @off_record
    def logits(self, sample: Sample) -> Tensor:
        """(V, L) of the sample's views under the parameters so far."""
        tower = self._tower(sample)
        return tower.logits(tower.pixels, self._parameters(tower))

    @off_record
    def predict(self, sample: Sample) -> Prediction:
        if not self.batch:
            z = self.logits(sample)
            return answer(self, z[0], prior_like(self, z), *self.explain(z))
        tower = self._tower(sample)
        changed = self._parameters(tower)
        company = self._window(tower)[-self.batch :] if tower.mixes else tower.pixels[:1]
        z = tower.logits(company, changed)
        return answer(self, z[-1], prior_like(self, z))

    @off_record
    def learn(self, sample: Sample) -> None:
        tower = self._tower(sample)
        descent = Descent(self.optimiser, self.lr, self.momentum)
        if self._learned is None:
            x = tower.start([n for names in self.layers(tower.norms()) for n in names])
            s = _Learned(x, descent.start(x))
        else:
            s = self._fit(tower, self._learned)
        pixels = self._window(tower)[-self.batch :] if self.batch else tower.pixels
        due = not self.batch or (s.images + 1) % self.batch == 0
        slope = slopes(s.parameters, lambda x: self._loss(tower, pixels, x)) if due else {}
        super().learn(sample)
        x, moments = descent.step(s.parameters, slope, s.moments, s.steps + 1)
        window = pixels.clone() if self.batch else None
        self._learned = _Learned(x, moments, s.images + 1, s.steps + bool(slope), window)

    def _loss(self, tower: Tower, pixels: Tensor, x: Tensors) -> Tensor | None:
        return self.loss(lambda pixels: tower.logits(pixels, x), pixels)

    def _parameters(self, tower: Tower) -> Tensors:
        return {} if self._learned is None else self._fit(tower, self._learned).parameters

    def _tower(self, sample: Sample) -> Tower:
        usual = 0 if self.batch else 16
        return Tower(sample, usual if self.bn_prior is None else self.bn_prior)

    def _window(self, tower: Tower) -> Tensor:
        """The base views so far and the image's own, last."""
        base, past = tower.pixels[:1], None if self._learned is None else self._learned.window
        if past is None:
            return base
        if past.shape[1:] != base.shape[1:]:
            raise InputError(
                f"an image of {tuple(base.shape[1:])} cannot join a batch of "
                f"{tuple(past.shape[1:])}; give all images one size"
            )
        return torch.cat([past.to(base), base])

    def _fit(self, tower: Tower, s: _Learned) -> _Learned:
        """What was learned, on the tower's device; refused if it is another model's."""
        for n, p in s.parameters.items():
            if n not in tower.source or tower.source[n].shape != p.shape:
                raise InputError(
                    f"method {self.name!r} has learned parameter {n!r} of {tuple(p.shape)}, which "
                    "this model does not have; reset it or use another copy"
                )
        place = tower.pixels.device
        x, moments = ({n: t.to(place) for n, t in d.items()} for d in (s.parameters, s.moments))
        return _Learned(x, moments, s.images, s.steps, s.window)

    # ------------------------------------------------------------------ state

    def reset(self) -> None:
        super().reset()
        self._learned = None

    def state_dict(self) -> Tensors:
        return {} if self._learned is None else self._learned.tensors() | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return self.reset()
        prior = {k: v for k, v in state.items() if k.startswith("prior.")}
        own = {k: v for k, v in state.items() if k not in prior}
        if bool(prior) != self.uses_prior:
            raise StateError(
                f"state of {self.name!r} does not fit: it holds "
                f"{'a' if prior else 'no'} class prior; load it with the options of its saving"
            )
        head = "parameter."
        x = {k.removeprefix(head): v.clone() for k, v in own.items() if k.startswith(head)}
        window = own.get("window")
        like = _Learned(x, Descent(self.optimiser, self.lr).start(x)).tensors()
        if self.batch:
            size = min(int(own.get("images", torch.tensor(0))), self.batch)
            shape = (size, *(window.shape[1:] if window is not None else ()))
            like["window"] = torch.empty(shape, dtype=None if window is None else window.dtype)
        check_entries(self.name, own, like)
        super().load_state_dict(prior)
        moments = {k: v.clone() for k, v in own.items() if k.startswith(("first.", "second."))}
        window = None if window is None else window.clone()
        self._learned = _Learned(x, moments, int(own["images"]), int(own["steps"]), window)

    def merge(self, other: Method) -> None:
        Method.merge(self, other)
        assert isinstance(other, NormTuner)
        if (theirs := other._learned) is None:
            return
        mine = self._learned
        if mine is not None:
            check_entries(self.name, _sizes(theirs), _sizes(mine))
        super().merge(other)
        if mine is None:
            mine = _Learned(theirs.parameters, theirs.moments)
        past = [w for w in (mine.window, theirs.window) if w is not None]
        share = theirs.images / (mine.images + theirs.images)

        def mean(a: Tensors, b: Tensors) -> Tensors:
            return {n: torch.lerp(a[n], b[n].to(a[n]), share) for n in a}

        self._learned = _Learned(
            mean(mine.parameters, theirs.parameters),
            mean(mine.moments, theirs.moments),
            mine.images + theirs.images,
            mine.steps + theirs.steps,
            torch.cat(past)[-self.batch :] if past else None,
        )


def _sizes(s: _Learned) -> Tensors:
    """What two states must have in common to merge."""
    return {k: v for k, v in s.tensors().items() if k != "window"}
