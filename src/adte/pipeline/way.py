"""Sources to features of their views, in order, decoded and cropped ahead by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from adte.batch import Batch, Context
from adte.errors import InputError
from adte.models.base import Model
from adte.views import Preprocess, Views, load_image

__all__ = ["Encoded", "Pipeline", "default_workers"]

K = TypeVar("K")

GROUP = 16  # images that go through the tower together on a device where that pays


class Encoded(NamedTuple, Generic[K]):
    """One image behind the tower: its key, features (V, D) float16, pixels if they were kept."""

    key: K
    features: Tensor
    pixels: Tensor | None = None  # (V, 3, S, S)


class _Rendered(NamedTuple):
    pixels: Tensor | None
    error: InputError | None = None


def default_workers() -> int:
    """Threads that decode and crop beside the one that encodes."""
    return min(8, max(0, (os.cpu_count() or 1) - 1))


@dataclass(eq=False)
class Pipeline:
    """Turns images into features of their views.

    An image's crops depend on its pixels and the seed alone, and on a CPU its views go through the
    tower by themselves: so the numbers are the same in whatever company it comes. On a GPU `group`
    images go through the tower together, always as many: the last few are filled up.

    Args:
        model: whose image tower it is; preprocess: its own, unless another is given.
        views: how an image becomes many.
        keep_pixels: hand the pixels on, for methods that need the image tower.
        workers: threads that decode and crop ahead; 0 does it in this one.
        group: images a pass through the tower, on a GPU; 0 takes 16 there.
    """

    model: Model
    views: Views = field(default_factory=Views)
    preprocess: Preprocess | None = None
    keep_pixels: bool = False
    workers: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        if self.model.training:
            raise InputError(
                f"model {self.model.name!r} is in training mode; call model.eval() first"
            )
        if self.preprocess is None:
            self.preprocess = self.model.preprocess
        if self.workers < 0 or self.group < 0:
            raise InputError("workers and group of the pipeline cannot be negative; give 0 or more")

    # ------------------------------------------------------------------ the four steps

    def decode(self, source: Any) -> Any:
        """A path, bytes, an array, or a function that gives one of them, to bytes (H, W, 3)."""
        try:
            return load_image(source() if callable(source) else source)
        except OSError as error:  # a source that is read when it is asked for
            raise InputError(f"cannot read the image ({error}); check the file") from error

    def render(self, source: Any) -> Tensor:
        """The views (V, 3, S, S) of an image, on the CPU: decoded, planned, cropped, normalised."""
        assert self.preprocess is not None
        return self.views(self.decode(source), self.preprocess)

    @torch.no_grad()
    def encode(self, pixels: Tensor, size: int | None = None) -> Tensor:
        """Pixels (B, V, 3, S, S) to features (B, V, D), float16, where the model is.

        `size` images go through the tower together, by default as many as pay there.
        """
        images, views = pixels.shape[:2]
        size = size or self._size
        out = []
        for start in range(0, images, size):
            part = pixels[start : start + size].to(self.model.device, self.model.dtype)
            if len(part) < size:  # the tower always sees the same shape
                part = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
            features = self.model.encode_image(part.flatten(0, 1)).half().contiguous()
            out.append(features.view(size, views, -1)[: images - start])
        return torch.cat(out)

    @property
    def _size(self) -> int:
        """Images a pass. One at a time on a CPU, where more gain nothing."""
        if self.model.device.type == "cpu":
            return 1
        return self.group or GROUP

    # ------------------------------------------------------------------ streams

    def __call__(
        self,
        items: Iterable[tuple[K, Any]],
        failed: Callable[[K, InputError], None] | None = None,
        at_once: int | None = None,
    ) -> Iterator[Encoded[K]]:
        """Encoded images in order, of (key, source) pairs.

        An image that cannot be read is told to `failed` and left out; without it, the error is
        raised. `at_once` images are collected for the tower; as many as it takes by default.
        """
        size = at_once or self._size
        waiting: list[tuple[K, Tensor]] = []
        for key, (pixels, error) in self._rendered(items):
            if error is not None:
                if failed is None:
                    raise error
                failed(key, error)
                continue
            assert pixels is not None
            waiting.append((key, pixels))
            if len(waiting) == size:
                yield from self._encoded(waiting, size)
                waiting = []
        if waiting:
            yield from self._encoded(waiting, size)

    def _encoded(self, images: list[tuple[K, Tensor]], size: int) -> Iterator[Encoded[K]]:
        keep = self.keep_pixels
        device, dtype = self.model.device, self.model.dtype
        pixels = torch.stack([p.to(device, dtype) for _, p in images])
        features = self.encode(pixels, size)
        for (key, _), f, p in zip(images, features, pixels, strict=True):
            yield Encoded(key, f, p if keep else None)

    def _rendered(self, items: Iterable[tuple[K, Any]]) -> Iterator[tuple[K, _Rendered]]:
        if not self.workers:
            for key, source in items:
                yield key, self._try(source)
            return
        ahead: deque[tuple[K, Future[_Rendered]]] = deque()
        with ExitStack() as stack:
            pool = ThreadPoolExecutor(self.workers, "adte-views", lambda: torch.set_num_threads(1))
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            for key, source in items:
                ahead.append((key, pool.submit(self._try, source)))
                if len(ahead) > 2 * self.workers:  # bounds the memory, not the speed
                    done, future = ahead.popleft()
                    yield done, future.result()
            while ahead:
                done, future = ahead.popleft()
                yield done, future.result()

    def _try(self, source: Any) -> _Rendered:
        try:
            return _Rendered(self.render(source))
        except InputError as error:
            return _Rendered(None, error)

    def batches(
        self,
        items: Iterable[tuple[str, Any]],
        context: Context,
        size: int = 1,
        failed: Callable[[str, InputError], None] | None = None,
    ) -> Iterator[Batch]:
        """Batches of at most `size` images, as a method sees them."""
        group: list[Encoded[str]] = []
        for e in self(items, failed, at_once=min(size, self._size)):
            group.append(e)
            if len(group) == size:
                yield joined(group, context)
                group = []
        if group:
            yield joined(group, context)


def joined(group: list[Encoded[str]], context: Context) -> Batch:
    """Encoded images as one batch."""
    features = torch.stack([e.features for e in group])
    kept = [e.pixels for e in group if e.pixels is not None]
    pixels = torch.stack(kept) if len(kept) == len(group) else None
    return context.batch(features, pixels, tuple(e.key for e in group))
