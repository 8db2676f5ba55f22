"""Labelled images as features of their views: re-iterable streams, live, in memory or on disk.

A `FeatureStream` gives batches as methods see them, with what is known of each image beside.
Features made on the fly and features from a cache are the same numbers (`Context.batch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from itertools import islice
from operator import index
from typing import Any, NamedTuple, TypeAlias, TypeVar

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
    "PIXELS",
    "TOWERS",
    "FeatureStream",
    "Held",
    "Image",
    "Samples",
    "Tick",
    "fewer_views",
    "narrowed",
    "part",
    "silent",
]  # fmt: skip

PIXELS = frozenset({"pixels", "image tower"})  # needs of methods that only images meet,
TOWERS = PIXELS | {"text tower"}  # and that features without a model do not

Ints: TypeAlias = NDArray[np.int64]
Tick: TypeAlias = Callable[[int], object]  # is called with the number of images just done
S = TypeVar("S", bound="FeatureStream")

_NO_CLOCK: AbstractContextManager[Any] = nullcontext()


def silent(images: int) -> None:
    """A `Tick` that does nothing."""


class Image(NamedTuple):
    """One image of a stream: features (V, D) float16, its label, and where it is from.

    `place` is that in the source of the stream, whatever the order of the stream.
    """

    features: Tensor
    label: int
    id: str = ""
    domain: str = ""
    group: int = -1
    pixels: Tensor | None = None
    place: int = 0


class FeatureStream(ABC):
    """A re-iterable stream of labelled images behind the tower.

    A stream reads images by their place in its source. Its order is an array of places, so another
    order, a part, other labels or fewer views are copies that share the source.

    Attributes:
        recipe: what decides its numbers.
        class_weights: (L, D); model: the towers, for methods that need one.
        order: places of its images in the source, in the order of the stream.
        skipped: the images that could not be read, of the last pass.
    """

    def __init__(
        self,
        recipe: Recipe,
        class_weights: Tensor,
        labels: Ints,
        domains: Sequence[str],
        model: Model | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        self.recipe, self.class_weights, self.model = recipe, class_weights, model
        self.skipped = skipped
        self.order = np.arange(len(labels))
        self._labels, self._domains = labels, domains  # by place
        self._views: int | None = None  # all

    @abstractmethod
    def _read(self, places: Ints) -> Iterator[Image]:
        """The images at these places, each with its place, but for those that cannot be read."""

    def images(self) -> Iterator[Image]:
        """The images in order."""
        for image in self._read(self.order):
            features, label = image.features[: self._views], int(self._labels[image.place])
            yield image._replace(features=features, label=label)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def labels(self) -> Ints:
        """The true classes, in the order of the stream."""
        return self._labels[self.order]

    @property
    def domains(self) -> list[str]:
        """The domain of each image, in the order of the stream."""
        return [self._domains[i] for i in self.order.tolist()]

    def ordered(self: S, order: Ints) -> S:
        """The same images in another order, or some of them."""
        other = copy(self)
        other.order = self.order[order]
        return other

    def first(self: S, count: int | None) -> S:
        """The first images; all of them for None."""
        if count is not None and count < 1:
            raise InputError(f"limit={count} leaves no image; give at least 1")
        if count is None or count >= len(self):
            return self
        return part(self, np.arange(count), f"first {count}")

    def order_of(self, seed: int) -> Ints:
        """Another order of the same kind as the stream's own, which is that of 0."""
        if seed == 0:
            return np.arange(len(self))
        return another_order(self.recipe.data, self.labels, lambda: self.domains, seed)

    def shuffled(self: S, seed: int) -> S:
        """The stream in another order of its kind; 0 leaves it as it is."""
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
        """The part of the stream that methods see, beside the model where it has one."""
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
        images = self.images()
        while group := list(islice(images, size)):
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


class Held(FeatureStream):
    """Images in memory, so that many methods pay for them once."""

    def __init__(
        self,
        images: Sequence[Image],
        recipe: Recipe,
        class_weights: Tensor,
        model: Model | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        labels = np.array([i.label for i in images], dtype=np.int64)
        domains = [i.domain for i in images]
        super().__init__(recipe, class_weights, labels, domains, model, skipped)
        self._images = images

    @classmethod
    def of(cls, stream: FeatureStream, tick: Tick = silent) -> Held:
        """All of a stream."""
        images = []
        for image in stream.images():
            images.append(image)
            tick(1)
        return cls(images, stream.recipe, stream.class_weights, stream.model, stream.skipped)

    def _read(self, places: Ints) -> Iterator[Image]:
        return (self._images[i]._replace(place=i) for i in places.tolist())


class Samples(FeatureStream):
    """Samples that somebody made, such as a simulation's, as a stream."""

    def __init__(self, samples: Iterable[tuple[Sample, int]], recipe: Recipe) -> None:
        self.samples = list(samples)
        for pair in self.samples:
            two = isinstance(pair, tuple | list) and len(pair) == 2
            if not (two and isinstance(pair[0], Sample)):
                raise InputError(
                    f"{brief(pair)} is no image with its label; give (sample, label) pairs, or a "
                    "stream as adte.evaluate.from_arrays makes"
                )
        labels = np.array([_label(s, label) for s, label in self.samples], dtype=np.int64)
        weights = self.samples[0][0].class_weights if self.samples else None
        weights = torch.empty(0) if weights is None else weights
        super().__init__(recipe, weights, labels, [""] * len(labels))

    def _read(self, places: Ints) -> Iterator[Image]:
        for i in places.tolist():
            sample, label = self.samples[i]
            yield Image(sample.batch.require("features")[0], label, place=i)

    def batches(
        self, size: int, clock: AbstractContextManager[Any] = _NO_CLOCK
    ) -> Iterator[tuple[Batch, list[Image]]]:
        places = self.order.tolist()
        for batch in Batch.runs((self.samples[i][0].batch for i in places), size):
            some, places = places[: len(batch)], places[len(batch) :]
            yield (
                batch,
                [
                    Image(logits, int(self._labels[i]), place=i)
                    for logits, i in zip(batch.logits, some, strict=True)
                ],
            )


def _label(sample: Sample, label: Any) -> int:
    """A label, if it is that of a class."""
    classes = sample.logits.shape[-1]
    try:
        if 0 <= (number := index(label)) < classes:
            return number
    except TypeError:  # no whole number
        pass
    raise InputError(
        f"{brief(label)} is the label of no class; give a whole number from 0 to {classes - 1}"
    )


# --------------------------------------------------------------------------- parts of a stream


def part(stream: S, order: Ints, name: str) -> S:
    """Some images of a stream, as a stream with a name of its own."""
    out = stream.ordered(order)
    out.recipe = stream.recipe.named(name)
    return out


def narrowed(stream: S, classes: Sequence[int], name: str) -> S:
    """The images of some classes, in a label space of those alone."""
    kept = list(map(int, classes))
    new = np.full(len(stream.classes), -1)
    new[kept] = np.arange(len(kept))
    out = stream.ordered(np.flatnonzero(np.isin(stream.labels, kept)))
    out._labels = np.where(stream._labels < 0, -1, new[stream._labels])  # of others, none
    out.class_weights = stream.class_weights[kept]
    out.recipe = stream.recipe.narrowed(kept, name)
    return out


def fewer_views(stream: S, views: int) -> S:
    """The same images with their first views alone; the base view is among them."""
    out = copy(stream)
    out._views = views
    out.recipe = replace(stream.recipe, views=replace(stream.recipe.views, count=views))
    return out
