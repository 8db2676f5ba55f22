"""Labelled images as features of their views: re-iterable streams, live, held or in parts.

A `FeatureStream` hands out batches as methods see them, with what is known of each image beside.
Features made on the fly and features from a cache are the same numbers (`Context.batch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte.core.batch import Batch, Context, Sample
from adte.core.errors import InputError, brief
from adte.core.machine import head_device
from adte.data.base import Skipped
from adte.data.streams import another_order
from adte.evaluate.features.recipe import Recipe
from adte.models.base import Model

__all__ = [
    "PIXELS", "TOWERS", "FeatureStream", "Fewer", "Held", "Image", "Narrowed", "Tick", "part",
    "silent",
]  # fmt: skip

PIXELS = frozenset({"pixels", "image tower"})  # needs of methods that only images meet,
TOWERS = PIXELS | {"text tower"}  # and that features without a model do not

Tick: TypeAlias = Callable[[int], object]  # is told how many images were just done
S = TypeVar("S", bound="FeatureStream")

_NO_CLOCK: AbstractContextManager[Any] = nullcontext()


def silent(images: int) -> None:
    """A `Tick` that tells nobody."""


class Image(NamedTuple):
    """One image of a stream: features (V, D) float16, its label, and whose they are."""

    features: Tensor
    label: int
    id: str = ""
    domain: str = ""
    group: int = -1
    pixels: Tensor | None = None


class FeatureStream(ABC):
    """A re-iterable stream of labelled images behind the tower.

    Attributes:
        recipe: what decides its numbers.
        class_weights: (L, D); model: the towers, for methods that need one.
        skipped: the images that could not be read, of the last pass.
    """

    recipe: Recipe
    class_weights: Tensor
    model: Model | None
    skipped: Sequence[Skipped] = ()

    @abstractmethod
    def images(self) -> Iterator[Image]:
        """The images in order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ordered(self, order: NDArray[np.int64]) -> FeatureStream:
        """The same images in another order, or some of them."""

    @property
    @abstractmethod
    def labels(self) -> NDArray[np.int64]:
        """The true classes, in the order of the stream."""

    def first(self: S, count: int | None) -> S:
        """The first images; all of them for None."""
        if count is not None and count < 1:
            raise InputError(f"limit={count} leaves no image; give at least 1")
        if count is None or count >= len(self):
            return self
        return part(self, np.arange(count), f"first {count}")

    @property
    def domains(self) -> Sequence[str]:
        """The domain of each image."""
        return [image.domain for image in self.images()]

    def order_of(self, seed: int) -> NDArray[np.int64]:
        """Another order of the same kind as the stream's own, which is that of 0."""
        if seed == 0:
            return np.arange(len(self))
        return another_order(self.recipe.data, self.labels, lambda: self.domains, seed)

    def shuffled(self, seed: int) -> FeatureStream:
        """The stream in an order of the seed's own; 0 leaves it as it is."""
        return self if seed == 0 else self.ordered(self.order_of(seed))

    @property
    def classes(self) -> Sequence[str]:
        return self.recipe.classes

    @property
    def frequency(self) -> NDArray[np.float64] | None:
        """How many images of each class the model was trained on (L,), where that is known."""
        known = self.recipe.frequency
        return None if known is None else np.asarray(known, dtype=np.float64)

    @property
    def context(self) -> Context:
        """What methods are told of the stream, beside the model where there is one."""
        if self.model is not None:
            self.class_weights = self.class_weights.to(head_device(self.model.device))
        r = self.recipe
        return Context(self.class_weights, r.scale, self.model, list(r.classes), r.bias, r.unit)

    def batches(
        self, size: int, clock: AbstractContextManager[Any] = _NO_CLOCK
    ) -> Iterator[tuple[Batch, list[Image]]]:
        """At most `size` images at a time, as a method sees them, and what is known of each.

        `clock` is entered where features become a batch, not where images are read and encoded.
        """
        context = self.context
        device = self.class_weights.device
        for group in _groups(self.images(), size):
            kept = [i.pixels for i in group if i.pixels is not None]
            pixels = torch.stack(kept) if len(kept) == len(group) else None
            keys = tuple(i.id for i in group)
            with clock:
                features = torch.stack([i.features.to(device) for i in group])
                batch = context.batch(features, pixels, keys)
            yield batch, [i._replace(pixels=None) for i in group]

    def __iter__(self) -> Iterator[tuple[Sample, int]]:
        """One image at a time, as a person would bring it."""
        for batch, (image,) in self.batches(1):
            yield Sample.of(batch), image.label


def _groups(images: Iterator[Image], size: int) -> Iterator[list[Image]]:
    while group := list(islice(images, size)):
        yield group


class Held(FeatureStream):
    """Images held in memory, so that many methods pay for them once."""

    def __init__(
        self,
        images: Sequence[Image],
        recipe: Recipe,
        class_weights: Tensor,
        model: Model | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        self._images, self.recipe, self.class_weights = images, recipe, class_weights
        self.model, self.skipped = model, skipped

    @classmethod
    def of(cls, stream: FeatureStream, tick: Tick = silent) -> Held:
        """All of a stream."""
        images = []
        for image in stream.images():
            images.append(image)
            tick(1)
        return cls(images, stream.recipe, stream.class_weights, stream.model, stream.skipped)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([i.label for i in self._images], dtype=np.int64)

    def ordered(self, order: NDArray[np.int64]) -> Held:
        picked = [self._images[i] for i in order.tolist()]
        return Held(picked, self.recipe, self.class_weights, self.model, self.skipped)

    def images(self) -> Iterator[Image]:
        return iter(self._images)


class Given(FeatureStream):
    """Samples that somebody made, such as a simulation's, as a stream."""

    def __init__(self, samples: Iterable[tuple[Sample, int]], recipe: Recipe) -> None:
        self.samples, self.recipe, self.model = list(samples), recipe, None
        for pair in self.samples:
            two = isinstance(pair, tuple | list) and len(pair) == 2
            if not (two and isinstance(pair[0], Sample)):
                raise InputError(
                    f"{brief(pair)} is no image with its label; give (sample, label) pairs, or a "
                    "stream as adte.evaluate.from_arrays makes"
                )
        weights = self.samples[0][0].class_weights if self.samples else None
        self.class_weights = torch.empty(0) if weights is None else weights

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([label for _, label in self.samples], dtype=np.int64)

    def ordered(self, order: NDArray[np.int64]) -> Given:
        return Given([self.samples[i] for i in order.tolist()], self.recipe)

    def images(self) -> Iterator[Image]:
        return (Image(s.batch.require("features")[0], label) for s, label in self.samples)

    def batches(
        self, size: int, clock: AbstractContextManager[Any] = _NO_CLOCK
    ) -> Iterator[tuple[Batch, list[Image]]]:
        done = 0
        for batch in Batch.runs((s.batch for s, _ in self.samples), size):
            labels = [label for _, label in self.samples[done : done + len(batch)]]
            done += len(batch)
            yield batch, [Image(batch.logits[i], label) for i, label in enumerate(labels)]


# --------------------------------------------------------------------------- parts of a stream


def part(stream: S, order: NDArray[np.int64], name: str) -> S:
    """Some images of a stream, as a stream that says so."""
    out = stream.ordered(order)
    out.recipe = stream.recipe.named(name)
    return cast(S, out)


class Narrowed(FeatureStream):
    """The images of some classes, in a label space of those alone."""

    def __init__(self, stream: FeatureStream, classes: Sequence[int], name: str) -> None:
        self.new = {int(c): i for i, c in enumerate(classes)}
        mine = np.flatnonzero(np.isin(stream.labels, list(self.new)))
        self.inner, self.model = stream.ordered(mine), stream.model
        self.class_weights = stream.class_weights[list(self.new)]
        self.recipe = stream.recipe.narrowed(list(self.new), name)

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([self.new[int(c)] for c in self.inner.labels], dtype=np.int64)

    def ordered(self, order: NDArray[np.int64]) -> Narrowed:
        copy = object.__new__(Narrowed)
        copy.__dict__.update(self.__dict__, inner=self.inner.ordered(order))
        return copy

    def images(self) -> Iterator[Image]:
        for i in self.inner.images():
            yield i._replace(label=self.new[i.label])


class Fewer(FeatureStream):
    """The same images with their first views alone; the base view is among them."""

    def __init__(self, stream: FeatureStream, views: int) -> None:
        self.inner, self.model, self.views = stream, stream.model, views
        self.class_weights = stream.class_weights
        self.recipe = replace(stream.recipe, views=replace(stream.recipe.views, count=views))

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.inner.labels

    def ordered(self, order: NDArray[np.int64]) -> Fewer:
        return Fewer(self.inner.ordered(order), self.views)

    def images(self) -> Iterator[Image]:
        for i in self.inner.images():
            yield i._replace(features=i.features[: self.views])
