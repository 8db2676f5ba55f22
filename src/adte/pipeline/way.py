"""Sources to features of their views, in order, decoded ahead by threads.

On a CPU the threads make the views as well. For a model on CUDA they only decode and plan: images
are packed into one upload a group, and one kernel makes all views there (`adte.images.render`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from adte.core.batch import Batch, Context
from adte.core.errors import InputError, brief
from adte.core.machine import head_device, threads
from adte.images import Preprocess, Views, load_picture
from adte.images.decode import Picture, load_image
from adte.images.render import pack, render
from adte.images.table import Shown, show, where
from adte.models import check_model
from adte.models.base import Model, check_features
from adte.pipeline.overlap import overlapped
from adte.pipeline.rounds import enough, rounds

__all__ = ["Encoded", "Pipeline", "default_group", "default_workers", "refused"]

K = TypeVar("K")
T = TypeVar("T")

GROUP = 16  # images that go through the tower together on a device where that pays
FEW = 7  # distinct views of an image that has many: a pass that nobody compiles for
UPLOAD = 1 << 28  # bytes that are packed together, but for a single image that is larger

# The views of an image, what a device needs to make them, or the image where they come in rounds
Prepared = Tensor | Shown | Picture

_Group = list[tuple[K, Prepared | InputError]]


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
    preprocess: Preprocess | None = None
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
        if self.preprocess is None:
            self.preprocess = self.model.preprocess
        if not isinstance(self.views, Views):
            raise InputError(f"views={brief(self.views)} are no Views; give e.g. Views(count=64)")
        if self.workers < 0 or self.group < 0:
            raise InputError("workers and group of the pipeline cannot be negative; give 0 or more")
        self.views.kernel()  # ADTE_VIEWS may name one that there is not: no image is to blame

    # ------------------------------------------------------------------ the four steps

    def decode(self, source: Any) -> Any:
        """Decode an image, as `load_image` does, into a uint8 array (H, W, 3)."""
        return load_image(source)

    def picture(self, source: Any) -> Picture:
        """Decode an image only as far as the views need it."""
        assert self.preprocess is not None
        return load_picture(source, self.preprocess, self.views)

    def render(self, source: Any) -> Tensor:
        """Make the normalised views (V, 3, S, S) of an image, on the CPU."""
        assert self.preprocess is not None
        return self.views(self.picture(source), self.preprocess)

    @property
    def fused(self) -> bool:
        """Whether the views of a whole group are made at once, on the model's device.

        This is so on CUDA, except with AugMix or if ADTE_VIEWS names a kernel of the CPU.
        """
        if self.views.augmix or os.environ.get("ADTE_VIEWS"):
            return False
        return self.model.device.type == "cuda"

    @property
    def kernel(self) -> str:
        """Name of the code that makes the views; results record it."""
        return "fused" if self.fused else self.views.kernel()

    def prepare(self, source: Any) -> Prepared:
        """Do what worker threads do for an image: make its views, or plan them."""
        if self.auto and not self.fused:
            return self.picture(source)
        if not self.fused:
            return self.render(source)
        assert self.preprocess is not None
        picture = self.picture(source)
        crops = self.views.placed(picture, self.preprocess)
        views = self.views.fitted(picture.height, picture.width, self.preprocess)
        return show(picture, crops, self.preprocess, views.interpolation)

    def pixels(self, images: Sequence[Prepared], size: int = 0) -> Tensor:
        """Put the views of prepared images together (B, V, 3, S, S), on the model's device.

        B is the number of images, or `size` if that is larger, so that the tower always sees the
        same number.
        """
        assert self.preprocess is not None
        device, dtype = self.model.device, self.model.dtype
        rest = max(0, size - len(images))
        ready = [x for x in images if isinstance(x, Tensor)]
        if len(ready) == len(images):
            ready = [x.to(device, dtype) for x in ready]
            return torch.stack(ready + ready[-1:] * rest)
        shown = [x for x in images if isinstance(x, Shown)]
        assert len(shown) == len(images), "some images are rendered, some are not"
        found, views = where(shown), len(shown[0].which)
        if found is None:
            made = self._made(shown, (len(images) + rest) * views)
            return made.view(-1, views, *made.shape[1:])
        none = sum(len(x.rows) for x in shown)  # the last row, which is empty
        found = np.pad(found, ((0, rest), (0, 0)), constant_values=none)
        return self._made(shown, none + 1)[torch.from_numpy(found).to(device)]

    def _made(self, images: Sequence[Shown], count: int) -> Tensor:
        """The rows of all images as views (N, 3, S, S), with zeros after them `count`."""
        assert self.preprocess is not None
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

    @torch.no_grad()
    def encode(self, pixels: Tensor, size: int | None = None) -> Tensor:
        """Encode pixels (B, V, 3, S, S) into features (B, V, D), in float16.

        `size` images go through the tower together, by default as many as is fastest there.
        """
        images, views = pixels.shape[:2]
        size = size or self._size
        out = []
        for start in range(0, images, size):
            part = pixels[start : start + size].to(self.model.device, self.model.dtype)
            if len(part) < size:  # the tower always sees the same shape
                part = torch.cat([part, part[-1:].expand(size - len(part), *part.shape[1:])])
            rows, which = part.flatten(0, 1), None
            if size == 1 and self.model.device.type == "cpu":  # elsewhere a pass has one shape
                rows, which = _distinct(rows)
            with self.model.at_work(len(rows)):
                found = self.model.encode_image(rows)
            found = check_features(self.model, "encode_image", found, len(rows))
            features = found.to(head_device(found.device), torch.float16).contiguous()
            features = features if which is None else features[which]
            out.append(features.view(size, views, -1)[: images - start])
        return torch.cat(out)

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
        size = at_once or self._size
        for group, made in self._passes(self._groups(items, size), size):
            images = iter(zip(*made, strict=True)) if made is not None else iter(())
            for key, image in group:
                if isinstance(image, InputError):
                    refused(key, image, failed)
                else:
                    yield Encoded(key, *next(images))

    def _passes(
        self, groups: Iterator[_Group[K]], size: int
    ) -> Iterator[tuple[_Group[K], tuple[Tensor, Iterable[Tensor | None]] | None]]:
        """Groups with the features of their images, one row an image, and the pixels if kept."""

        def load(group: _Group[K]) -> Tensor | None:
            images = _readable(group)
            if not images:
                return None
            if self._dense(size):
                made = self._made(images, size * self.views.count)
                return made.view(size, -1, *made.shape[1:])
            return self.pixels(images, size)

        def encode(pixels: Tensor) -> Tensor:
            return self.encode(pixels, size)

        if self.fused and self.workers:
            passes = overlapped(groups, load, encode, self.model.device)
        else:
            alone = ((group, load(group)) for group in groups)
            passes = ((g, None if x is None else (x, encode(x))) for g, x in alone)
        for group, made in passes:
            if made is None:
                yield group, None
                continue
            (pixels, features), images = made, _readable(group)
            found = where(images) if self._dense(size) else None
            if found is not None:
                features = features.flatten(0, 1)[torch.from_numpy(found).to(features.device)]
            count = len(images)
            kept = pixels[:count] if self.keep_pixels else [None] * count
            yield group, (features[:count], kept)

    def _dense(self, size: int) -> bool:
        """Whether a pass of `size` images takes as many as it has room for: see `_groups`."""
        return self.fused and self.workers > 0 and size > 1 and not self.keep_pixels

    def _groups(self, items: Iterable[tuple[K, Any]], size: int) -> Iterator[_Group[K]]:
        """As many images as go through the tower together, and the unreadable between them.

        Of small images many views are the same and take one place: so more of them are together,
        until another that needs all of its places would find too few.
        """

        def full(group: _Group[K]) -> bool:  # one that cannot be read waits for no other
            images = _readable(group)
            if not images or not self._dense(size):
                return len(images) in (0, size)
            return sum(len(x.rows) for x in images) > (size - 1) * self.views.count

        return _cut(self._prepared(items), full)

    def _prepared(
        self, items: Iterable[tuple[K, Any]]
    ) -> Iterator[tuple[K, Prepared | InputError]]:
        if not self.workers:
            for key, source in items:
                yield key, self._try(source)
            return
        ahead: deque[tuple[K, Future[Prepared | InputError]]] = deque()
        with ExitStack() as stack:
            # What one thread is told holds for all that begin later, the caller's own among them.
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            pool = ThreadPoolExecutor(self.workers, "adte-views", lambda: torch.set_num_threads(1))
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            given: Iterator[tuple[K, Any]] = iter(items)
            problem: Exception | None = None
            while True:
                try:
                    key, source = next(given)
                except StopIteration:
                    break
                except Exception as error:  # those that came before it are done first
                    problem = error
                    break
                ahead.append((key, pool.submit(self._try, source)))
                if len(ahead) > 2 * self.workers:  # bounds the memory, not the speed
                    done, future = ahead.popleft()
                    yield done, future.result()
            while ahead:
                done, future = ahead.popleft()
                yield done, future.result()
            if problem is not None:
                raise problem

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
        if self.auto:
            for key, image in self._prepared(items):
                if isinstance(image, InputError):
                    refused(key, image, failed)
                else:
                    encoded = self._in_rounds(image, context, adjustment)
                    yield joined([Encoded(key, *encoded)], context)
            return
        images = self(items, failed, at_once=min(size, self._size))
        for group in _cut(images, lambda group: len(group) == size):
            yield joined(group, context)

    def _in_rounds(
        self, image: Prepared, context: Context, adjustment: Callable[[Tensor], Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Features (V, D) of as many views as the answer needs, and their pixels if kept."""
        assert self.preprocess is not None
        most = self.views.count
        made = None if isinstance(image, Picture) else self.pixels([image])[0]
        features: list[Tensor] = []
        pixels: list[Tensor] = []
        for some in rounds(most):
            if made is None:
                with threads(1):
                    views = self.views(image, self.preprocess, some=some)
                views = views.to(self.model.device, self.model.dtype)
            else:
                views = made[some.start : some.stop]
            features.append(self.encode(views[None], 1)[0])
            pixels.append(views)
            drawn = torch.cat(features)
            logits = context.batch(drawn[None]).logits[0]
            if enough(logits, most, adjustment(logits)):
                break
        return drawn, torch.cat(pixels) if self.keep_pixels else None


def _distinct(views: Tensor) -> tuple[Tensor, Tensor | None]:
    """Views (V, 3, S, S) without those that are there already, and where each of the V went.

    So it is with small images, whose crops are the whole of them (see `Views.enlarge`). What tells
    views apart is looked for in a few hundred pixels first. More than `FEW` are left as they are: a
    compiled tower keeps to one shape.
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
    """What to do about an image that cannot be read: `failed` is told, or it is an error."""
    if failed is None:
        raise error
    failed(key, error)


def _readable(group: _Group[Any]) -> list[Any]:
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
