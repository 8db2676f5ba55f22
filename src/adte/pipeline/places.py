"""Where views are made: on the host, or on the model's device for a group of images at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from adte.core.machine import threads
from adte.images import Picture, Preprocess, Views
from adte.images.render import pack, render
from adte.images.table import Shown, show, where
from adte.models.base import Model
from adte.pipeline.ahead import Encode, Load, Passes, overlapped

__all__ = ["OnDevice", "OnHost", "Prepared"]

G = TypeVar("G")

UPLOAD = 1 << 28  # bytes that are packed together, but for a single image that is larger

# The views of an image, what a device needs to make them, or the image where they come in rounds
Prepared = Tensor | Shown | Picture


@dataclass(frozen=True)
class OnHost:
    """Threads make the views of an image on the CPU; B images of V views each go through the tower.

    Args:
        model, views, preprocess: as of the pipeline.
        ahead: whether threads prepare images, so that passes may overlap and be filled.
        whole: whether the pixels of every view are kept, so that each has a place in a pass.
    """

    model: Model
    views: Views
    preprocess: Preprocess
    ahead: bool = False
    whole: bool = False

    @property
    def kernel(self) -> str:
        """Name of the code that makes the views; results record it."""
        return self.views.kernel()

    def prepare(self, picture: Picture) -> Any:
        """The work of a thread for an image."""
        return self.views(picture, self.preprocess)

    def pixels(self, images: Sequence[Any], size: int) -> Tensor:
        """The views (B, V, 3, S, S) of prepared images on the device; filled up to `size`."""
        ready = [x.to(self.model.device, self.model.dtype) for x in images]
        return torch.stack(ready + ready[-1:] * (size - len(ready)))

    def draw(self, picture: Picture) -> Callable[[range], Tensor]:
        """A function from a range to these views (v, 3, S, S) of an image, on the device."""

        @threads(1)
        def some(which: range) -> Tensor:
            views = self.views(picture, self.preprocess, some=which)
            return views.to(self.model.device, self.model.dtype)

        return some

    def full(self, images: Sequence[Any], size: int) -> bool:
        """Whether a pass for `size` images has no room for another one."""
        return len(images) == size

    def load(self, images: Sequence[Any], size: int) -> Tensor:
        """The pixels (size, V, 3, S, S) of a pass."""
        return self.pixels(images, size)

    def unload(self, features: Tensor, images: Sequence[Any]) -> Tensor:
        """The features (B, V, D) of the images, from those of their pass (size, V, D)."""
        return features[: len(images)]

    def passes(self, groups: Iterable[G], load: Load[G], encode: Encode) -> Passes[G]:
        """Each group with its pixels and features, in order; `load` gives None for an empty one."""
        for group in groups:
            pixels = load(group)
            yield group, None if pixels is None else (pixels, encode(pixels))


class OnDevice(OnHost):
    """Threads plan the views; one upload and one kernel make those of a group of images.

    Of a small image many views are the same, and are one row of its table. Where passes are filled,
    a pass holds the rows of as many images as it has room for.
    """

    @property
    def kernel(self) -> str:
        return "fused"

    @property
    def filled(self) -> bool:
        return self.ahead and not self.whole

    def prepare(self, picture: Picture) -> Shown:
        crops = self.views.placed(picture, self.preprocess)
        views = self.views.fitted(picture.height, picture.width, self.preprocess)
        return show(picture, crops, self.preprocess, views.interpolation)

    def pixels(self, images: Sequence[Shown], size: int) -> Tensor:
        rest, found = max(0, size - len(images)), where(images)
        if found is None:
            made = self._made(images, (len(images) + rest) * len(images[0].which))
            return made.view(len(images) + rest, -1, *made.shape[1:])
        none = sum(len(x.rows) for x in images)  # the last row, which is empty
        found = np.pad(found, ((0, rest), (0, 0)), constant_values=none)
        return self._made(images, none + 1)[torch.from_numpy(found).to(self.model.device)]

    def draw(self, picture: Picture) -> Callable[[range], Tensor]:
        made = self.pixels([self.prepare(picture)], 1)[0]
        return lambda which: made[which.start : which.stop]

    def full(self, images: Sequence[Shown], size: int) -> bool:
        if not self.filled or size == 1:
            return len(images) == size
        return sum(len(x.rows) for x in images) > (size - 1) * self.views.count

    def load(self, images: Sequence[Shown], size: int) -> Tensor:
        if not self.filled or size == 1:
            return self.pixels(images, size)
        made = self._made(images, size * self.views.count)
        return made.view(size, -1, *made.shape[1:])

    def unload(self, features: Tensor, images: Sequence[Shown]) -> Tensor:
        found = where(images) if self.filled and len(features) > 1 else None
        if found is None:
            return features[: len(images)]
        return features.flatten(0, 1)[torch.from_numpy(found).to(features.device)]

    def passes(self, groups: Iterable[G], load: Load[G], encode: Encode) -> Passes[G]:
        if not self.ahead:
            return super().passes(groups, load, encode)
        return overlapped(groups, load, encode, self.model.device)

    def _made(self, images: Sequence[Shown], count: int) -> Tensor:
        """The rows of all images as views (N, 3, S, S), with zeros after them `count`."""
        device, side = self.model.device, self.preprocess.size
        out = torch.empty(count, 3, side, side, dtype=self.model.dtype, device=device)
        done = 0
        for some in _pieces(images):
            host = pack(some, pinned=device.type == "cuda")
            into = out[done : done + sum(len(x.rows) for x in some)]
            render(host.to(device, non_blocking=True), into, self.preprocess)
            done += len(into)
        out[done:] = 0
        return out


def _pieces(images: Sequence[Shown]) -> Iterator[list[Shown]]:
    """Images in order, as many together as `UPLOAD` allows."""
    piece: list[Shown] = []
    for image in images:
        if piece and sum(i.pixels.size for i in piece) + image.pixels.size > UPLOAD:
            yield piece
            piece = []
        piece.append(image)
    if piece:
        yield piece
