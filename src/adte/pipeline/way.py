"""Sources to features of their views, in order, decoded ahead by threads.

`adte.pipeline.places` says where views are made. `adte.pipeline.ahead` has what runs ahead of what.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from adte.core.batch import Batch, Context
from adte.core.errors import InputError, brief
from adte.core.machine import head_device, threads
from adte.images import Preprocess, Views, load_picture
from adte.images.decode import Picture, load_image
from adte.models import check_model
from adte.models.base import Model, check_features
from adte.pipeline.ahead import prepared
from adte.pipeline.places import OnDevice, OnHost, Prepared
from adte.pipeline.rounds import enough, rounds

__all__ = [
    "Encoded", "Pipeline", "Prepared", "default_group", "default_workers", "joined", "refused",
]  # fmt: skip

K = TypeVar("K")
T = TypeVar("T")

GROUP = 16  # images that go through the tower together on a device where that pays
FEW = 7  # distinct views of an image that has many


@dataclass(frozen=True, eq=False)
class Encoded(Generic[K]):
    """One image behind the tower: its key, features (V, D) float16, pixels if they were kept."""

    key: K
    features: Tensor
    pixels: Tensor | None = None  # (V, 3, S, S)


def default_workers() -> int:
    """Threads that decode, and crop on a CPU, beside the one that encodes."""
    return min(8, max(0, (os.cpu_count() or 1) - 1))


def default_group(model: Model) -> int:
    """Images a pass through the tower. One at a time but on CUDA; on a CPU more gain nothing."""
    return GROUP if model.device.type == "cuda" else 1


@dataclass(eq=False)
class Pipeline:
    """Encodes images: decodes them, makes their views, and computes the features of each view.

    An image's crops depend only on the image itself and the seed, and on a CPU its views go through
    the image tower by themselves. So its numbers do not depend on the images beside it. On a GPU,
    `group` images go through the tower together, and the last group is filled up to that number.
    Of small images many views are equal; with workers, more such images then share a pass.

    Call it with (key, image) pairs to get encoded images in order.

    Args:
        model: the model whose image tower encodes the views, in evaluation mode.
        views: how many views to make of an image, and how.
        preprocess: how pixels are prepared; by default as the model says.
        keep_pixels: also return the pixels, for methods that need the image tower.
        workers: threads that decode in advance, and crop on a CPU; 0 does it in this thread. With
            threads, a GPU makes the views of one group while another is in the tower.
        group: images per pass through the tower on a GPU; 0 means 16.
        auto: draw views in rounds, and no more than the answer needs.
    """

    model: Model
    views: Views = field(default_factory=Views)
    preprocess: Preprocess = None  # type: ignore[assignment]
    keep_pixels: bool = False
    workers: int = 0
    group: int = 0
    auto: bool = False

    def __post_init__(self) -> None:
        given: Any = self.model
        if isinstance(given, Model) or not hasattr(given, "training"):  # else it stands for one
            check_model(given)
        modules = self.model.modules() if isinstance(self.model, nn.Module) else [self.model]
        if any(module.training for module in modules):
            raise InputError(
                f"model {self.model.name!r} is in training mode, or a part of it; call "
                "model.eval() first"
            )
        self.preprocess = self.preprocess or self.model.preprocess
        if not isinstance(self.views, Views):
            raise InputError(f"views={brief(self.views)} are no Views; give e.g. Views(count=64)")
        if self.workers < 0 or self.group < 0:
            raise InputError("workers and group of the pipeline cannot be negative; give 0 or more")
        self.views.kernel()  # ADTE_VIEWS may name one that there is not: no image is to blame

    # ------------------------------------------------------------------ the four steps

    @property
    def place(self) -> OnHost:
        """Where views are made: on CUDA, except with AugMix or if ADTE_VIEWS names a kernel of the
        CPU, on the device; else on the host.
        """
        on_host = self.views.augmix or os.environ.get("ADTE_VIEWS")
        kind = OnHost if on_host or self.model.device.type != "cuda" else OnDevice
        return kind(self.model, self.views, self.preprocess, self.workers > 0, self.keep_pixels)

    @property
    def kernel(self) -> str:
        """Name of the code that makes the views; results record it."""
        return self.place.kernel

    def decode(self, source: Any) -> Any:
        """Decode an image, as `load_image` does, into a uint8 array (H, W, 3)."""
        return load_image(source)

    def picture(self, source: Any) -> Picture:
        """Decode an image only as far as the views need it."""
        return load_picture(source, self.preprocess, self.views)

    def render(self, source: Any) -> Tensor:
        """Make the normalised views (V, 3, S, S) of an image, on the CPU."""
        return self.views(self.picture(source), self.preprocess)

    def prepare(self, source: Any) -> Prepared:
        """Do what worker threads do for an image: make its views, or plan them."""
        picture = self.picture(source)
        return picture if self.auto else self.place.prepare(picture)

    def pixels(self, images: Sequence[Prepared], size: int = 0) -> Tensor:
        """Put the views of prepared images together (B, V, 3, S, S), on the model's device.

        B is the number of images, or `size` if that is larger, so that the tower always sees the
        same number.
        """
        return self.place.pixels(images, size)

    @torch.no_grad()
    def encode(self, pixels: Tensor, size: int | None = None) -> Tensor:
        """Encode pixels (B, V, 3, S, S) into features (B, V, D), in float16.

        `size` images go through the tower together, by default as many as is fastest there.
        """
        images, views = pixels.shape[:2]
        size = size or self._size
        out = []
        for part in torch.split(pixels, size):
            part = part.to(self.model.device, self.model.dtype)
            if len(part) < size:  # the tower always sees the same shape
                part = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
            rows, which = part.flatten(0, 1), None
            if size == 1 and self.model.device.type == "cpu":  # elsewhere a pass has one shape
                rows, which = _distinct(rows)
            with self.model.at_work(len(rows)):
                found = self.model.encode_image(rows)
            found = check_features(self.model, "encode_image", found, len(rows))
            features = found.to(head_device(found.device), torch.float16).contiguous()
            out.append((features if which is None else features[which]).view(size, views, -1))
        return torch.cat(out)[:images]

    @property
    def _size(self) -> int:
        own = default_group(self.model)
        return own if own == 1 else self.group or own

    # ------------------------------------------------------------------ streams

    def __call__(
        self,
        items: Iterable[tuple[K, Any]],
        failed: Callable[[K, InputError], None] | None = None,
        at_once: int | None = None,
    ) -> Iterator[Encoded[K]]:
        """Encode images, given as (key, image) pairs, in order.

        Args:
            items: pairs of a key and an image as `load_image` takes it.
            failed: called with the key and the error of an image that cannot be read, which is then
                left out. Without it the error is raised.
            at_once: images per pass through the tower; by default as many as is fastest there.
        """
        if self.auto:
            raise InputError("views='auto' needs class names to stop by; give a number of views")
        place, size = self.place, at_once or self._size

        def full(group: list[tuple[K, Any]]) -> bool:  # what cannot be read waits for no other
            images = _readable(group)
            return not images or place.full(images, size)

        def load(group: list[tuple[K, Any]]) -> Tensor | None:
            images = _readable(group)
            return place.load(images, size) if images else None

        def encode(pixels: Tensor) -> Tensor:
            return self.encode(pixels, size)

        with closing(prepared(items, self._try, self.workers)) as ahead:
            for group, made in place.passes(_cut(ahead, full), load, encode):
                encoded: Iterator[tuple[Tensor, Tensor | None]] = iter(())
                if made is not None:
                    pixels, features = made
                    kept = pixels if self.keep_pixels else repeat(None)
                    encoded = zip(place.unload(features, _readable(group)), kept, strict=False)
                for key, image in group:
                    if isinstance(image, InputError):
                        refused(key, image, failed)
                    else:
                        yield Encoded(key, *next(encoded))

    @threads(1)
    def _try(self, source: Any) -> Prepared | InputError:
        try:
            return self.prepare(source)
        except InputError as error:
            return error

    def batches(
        self,
        items: Iterable[tuple[str, Any]],
        context: Context,
        size: int = 1,
        failed: Callable[[str, InputError], None] | None = None,
        adjustment: Callable[[Tensor], Tensor | None] = lambda logits: None,
    ) -> Iterator[Batch]:
        """Batches of at most `size` images, as a method sees them.

        With `auto` an image is a batch of its own: it has the views that it needs, by what
        `adjustment` says of its logits (V, L) when its turn comes. Where the stream ends in an
        error, the images before it come first, however many go together.
        """
        if not self.auto:
            images = self(items, failed, at_once=min(size, self._size))
            for group in _cut(images, lambda group: len(group) == size):
                yield joined(group, context)
            return
        with closing(prepared(items, self._try, self.workers)) as ahead:
            for key, image in ahead:
                if isinstance(image, InputError):
                    refused(key, image, failed)
                else:
                    encoded = self._in_rounds(image, context, adjustment)
                    yield joined([Encoded(key, *encoded)], context)

    def _in_rounds(
        self, picture: Any, context: Context, adjustment: Callable[[Tensor], Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Features (V, D) of as many views as the answer needs, and their pixels if kept."""
        draw, most = self.place.draw(picture), self.views.count
        features: list[Tensor] = []
        pixels: list[Tensor] = []
        for some in rounds(most):
            pixels.append(draw(some))
            features.append(self.encode(pixels[-1][None], 1)[0])
            drawn = torch.cat(features)
            logits = context.batch(drawn[None]).logits[0]
            if enough(logits, most, adjustment(logits)):
                break
        return drawn, torch.cat(pixels) if self.keep_pixels else None


def _distinct(views: Tensor) -> tuple[Tensor, Tensor | None]:
    """Views (V, 3, S, S) without repeats, and where each of the V went.

    So it is with small images, whose crops are the whole of them (see `Views.enlarge`). A few
    hundred pixels are compared first. More than `FEW` are left as they are.
    """
    pixels = views.flatten(1)
    few = pixels[:, :: max(1, pixels.shape[1] // 256)].float()
    kinds, which = torch.unique(few, dim=0, return_inverse=True)
    if len(kinds) > min(FEW, len(views) - 1):
        return views, None
    first = torch.full((len(kinds),), len(views)).scatter_reduce_(
        0, which, torch.arange(len(views)), "amin"
    )
    if not torch.equal(pixels[first[which]], pixels):
        return views, None
    return views[first], which


def refused(key: K, error: InputError, failed: Callable[[K, InputError], None] | None) -> None:
    """Hand the error of an image that cannot be read to `failed`; without it, raise it."""
    if failed is None:
        raise error
    failed(key, error)


def _readable(group: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [image for _, image in group if not isinstance(image, InputError)]


def _cut(items: Iterable[T], full: Callable[[list[T]], bool]) -> Iterator[list[T]]:
    """Neighbours together until they are `full`; before an error, those that are there."""
    group: list[T] = []
    try:
        for item in items:
            group.append(item)
            if full(group):
                yield group
                group = []
    except Exception:
        if group:
            yield group
        raise
    if group:
        yield group


def joined(group: list[Encoded[str]], context: Context) -> Batch:
    """Encoded images as one batch."""
    features = torch.stack([e.features for e in group])
    kept = [e.pixels for e in group if e.pixels is not None]
    pixels = torch.stack(kept) if len(kept) == len(group) else None
    return context.batch(features, pixels, tuple(e.key for e in group))
