"""Random views of an image: drawn, cut, resized, normalised."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adte.core.errors import InputError, unknown
from adte.core.options import check, option
from adte.core.schema import VIEWS
from adte.images.boxes import Crop, coarsest, placed, unit
from adte.images.decode import Picture, read_picture
from adte.images.preprocess import Preprocess

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KERNELS", "Views", "load_picture"]

TRIES = 10  # draws of a crop before the central one is taken, as in torchvision
KERNELS = ("uint8", "bands", "pillow")  # of the crops
MARGIN = 1.5  # decoded pixels for one of a view, along the shortest side of any crop


@dataclass(frozen=True)
class Views:
    """How views of an image are made: the image itself (base view) and random crops of it.

    Call it with an image and a `Preprocess` to get the views as a tensor. The same options, seed
    and image always give the same views.

    >>> image = np.full((40, 60, 3), 128, np.uint8)
    >>> Views(count=4)(image, Preprocess(size=8), key="photo.jpg").shape
    torch.Size([4, 3, 8, 8])
    """

    count: int = option(64, "views per image, the base view included", low=1, high=VIEWS)
    scale: tuple[float, float] = option(
        (0.08, 1.0), "smallest and largest area of a crop, as a share of the image", above=0, high=1
    )
    ratio: tuple[float, float] = option(
        (3 / 4, 4 / 3), "smallest and largest ratio of a crop's width to its height", above=0
    )
    enlarge: float = option(
        2.0,
        "how many times crops of images smaller than the model's input may be enlarged; 0 crops "
        "them like any other, as published",
        low=0,
        before=0.0,
    )
    flip: float = option(0.5, "probability that a crop is mirrored", low=0, high=1)
    interpolation: Literal["bilinear", "bicubic"] = option(
        "bilinear", "filter that resizes the crops"
    )
    augmix: bool = option(False, "mix random distortions into the crops (AugMix), as TPT does")
    seed: int = option(0, "seed of the crops; the key of each image is added to it")

    def __post_init__(self) -> None:
        check(self, "the views")
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if low > high:
                raise InputError(f"{name}={(low, high)} cannot be used; give the smaller one first")

    def __call__(
        self,
        image: Any,
        preprocess: Preprocess,
        key: int | str | None = None,
        some: range | None = None,
    ) -> Tensor:
        """Make the views of an image.

        Args:
            image: an image, as `load_image` takes it.
            preprocess: the model's input size and normalisation.
            key: name of the image, on which its crops depend; by default a digest of the image.
            some: range of the views to make, where 0 is the base view; by default all.

        Returns:
            Normalised views (count, 3, S, S) in float32.
        """
        import torch

        from adte.images.augmix import augmix
        from adte.images.resize import base_view

        picture = load_picture(image, preprocess, self)
        fitted = self.fitted(picture.height, picture.width, preprocess)
        seed = self._digest(picture, key)
        some = range(self.count) if some is None else some
        out = torch.empty(len(some), 3, preprocess.size, preprocess.size, dtype=torch.float32)
        kernel = fitted.kernel()
        crops = self._crops(picture.height, picture.width, preprocess, seed)
        drawn = [(crops[i - 1], view) for i, view in zip(some, out, strict=True) if i]
        if 0 in some:
            out[some.index(0)] = base_view(picture, preprocess, kernel)
        steps = [coarsest(min(c.height, c.width), preprocess.size, picture) for c, _ in drawn]
        for step in sorted(set(steps)):
            views = [view for view, s in zip(drawn, steps, strict=True) if s == step]
            fitted._resize(picture.reduced(step), views, preprocess, kernel)
        if self.augmix:
            for i, view in zip(some, out, strict=True):
                if i:
                    augmix(view, preprocess, _generator(seed, i))
        return out

    def fitted(self, height: int, width: int, preprocess: Preprocess) -> Views:
        """The options that are used for an image of this size.

        An image whose shorter side is below the model's input S is enlarged in every view, and a
        small crop of it would be a blur. So its crops have at least (S / `enlarge`)² pixels, or are
        the largest that `ratio` allows, and are resized with the sharper filter.

        >>> Views().fitted(300, 400, Preprocess()) == Views()
        True
        >>> small = Views().fitted(160, 160, Preprocess())
        >>> small.scale, small.interpolation
        ((0.49, 1.0), 'bicubic')
        """
        if not self.enlarge or min(height, width) >= preprocess.size:
            return self
        return _enlarged(self, height * width, preprocess.size)

    def _resize(
        self,
        picture: Picture,
        views: list[tuple[Crop, Tensor]],
        preprocess: Preprocess,
        kernel: str,
    ) -> None:
        """Fill views with boxes of the image."""
        from adte.images.bands import resize_bands
        from adte.images.resize import resize_pillow, resize_uint8

        crops, out = placed([c for c, _ in views], picture), [v for _, v in views]
        if kernel == "pillow":
            resize_pillow(picture.pixels, crops, preprocess, out, self.interpolation)
        elif kernel == "bands":
            resize_bands(picture.pixels, crops, preprocess, out)
        else:
            large = unit(picture.height, picture.width) > 1
            resize_uint8(picture.pixels, crops, preprocess, out, rows_first=large)

    def kernel(self) -> str:
        """Name of the code that resizes the crops: the fastest here that is faithful to Pillow.

        The environment variable ADTE_VIEWS forces one of them; results record which.
        """
        import torch

        forced = os.environ.get("ADTE_VIEWS", "")
        if forced and forced not in KERNELS:
            raise unknown("kernel of the views in ADTE_VIEWS", forced, KERNELS)
        if self.interpolation == "bicubic":
            return "pillow"
        return forced or ("uint8" if "AVX" in torch.backends.cpu.get_cpu_capability() else "bands")

    def boxes(self, height: int, width: int, preprocess: Preprocess, key: int | str) -> list[Crop]:
        """The count − 1 crops of an image of this size under this key."""
        return self._crops(height, width, preprocess, self._digest(None, key))

    def plan(self, image: Any, preprocess: Preprocess) -> list[Crop]:
        """The count − 1 crops of an image that has no key, as a call makes them."""
        picture = read_picture(image, lambda height, width: unit(height, width))
        seed = self._digest(picture, None)
        return self._crops(picture.height, picture.width, preprocess, seed)

    def placed(
        self, picture: Picture, preprocess: Preprocess, key: int | str | None = None
    ) -> list[Crop]:
        """The same crops as boxes of `picture.pixels`; their corners are whole there too."""
        seed = self._digest(picture, key)
        return placed(self._crops(picture.height, picture.width, preprocess, seed), picture)

    def fraction(self, height: int, width: int, preprocess: Preprocess) -> int:
        """1, 2, 4 or 8: an image of this size may be decoded at 1/n for these views.

        No box then has a side below `MARGIN` × S in decoded pixels, nor the base view.
        """
        n = u = unit(height, width)
        height, width = height // u, width // u
        area = self.scale[0] * height * width
        sides = [math.sqrt(area * self.ratio[0]) - 1, math.sqrt(area / self.ratio[1]) - 1]
        sides += self._central(height, width)[2:]
        sides += [min(height, width) * preprocess.size / preprocess.whole]
        while n > 1 and u * min(sides) < MARGIN * preprocess.size * n:
            n //= 2
        return n

    def _digest(self, picture: Picture | None, key: int | str | None) -> int:
        digest = blake2b(f"{self.seed}:".encode(), digest_size=16)
        if key is None and picture is not None:
            for part in picture.identity():  # nothing is copied
                digest.update(part)
        else:
            if not isinstance(key, str | int | np.integer):
                raise InputError(f"key={key!r} cannot be used; give an integer or a string")
            digest.update(f"{'str' if isinstance(key, str) else 'int'}:{key}".encode())
        return int.from_bytes(digest.digest(), "little")

    def _crops(self, height: int, width: int, preprocess: Preprocess, seed: int) -> list[Crop]:
        # Every crop takes the same number of draws, so a longer list begins with the shorter one.
        fitted = self.fitted(height, width, preprocess)
        u = unit(height, width)
        height, width = height // u, width // u
        draws = _generator(seed, 0).random((self.count - 1, 2 * TRIES + 3))  # (V, 23)
        low, high = np.log(self.ratio)
        least, most = fitted.scale
        area = height * width * (least + (most - least) * draws[:, :TRIES])
        ratio = np.exp(low + (high - low) * draws[:, TRIES : 2 * TRIES])
        w = np.rint(np.sqrt(area * ratio)).astype(int)  # (V, TRIES)
        h = np.rint(np.sqrt(area / ratio)).astype(int)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first = np.arange(len(fits)), fits.argmax(1)
        w, h = w[first], h[first]  # (V,)
        central, misses = self._central(height, width), ~fits.any(1)
        h[misses], w[misses] = central[2:]
        top = (draws[:, -3] * (height - h + 1)).astype(int)
        left = (draws[:, -2] * (width - w + 1)).astype(int)
        boxes = np.stack([top, left, h, w], 1)
        if fitted is self:  # torchvision has them all in the middle
            boxes[misses] = central
        flips = (draws[:, -1] < self.flip).tolist()
        return [Crop._make(box) for box in zip(*(u * boxes).T.tolist(), flips, strict=True)]

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        h = min(height, max(1, round(width / shape)))
        w = min(width, max(1, round(height * shape)))
        return (height - h) // 2, (width - w) // 2, h, w


@lru_cache(maxsize=1024)
def _enlarged(views: Views, area: int, size: int) -> Views:
    (low, high), side = views.scale, size / views.enlarge
    low = min(high, max(low, side * side / area))
    return replace(views, scale=(low, high), interpolation="bicubic", enlarge=0.0)


def load_picture(source: Any, preprocess: Preprocess, views: Views) -> Picture:
    """Any image that `load_image` reads, decoded as far as these views need it.

    >>> load_picture(np.zeros((20, 30, 3), np.uint8), Preprocess(), Views()).width
    30
    """
    return read_picture(source, lambda h, w: views.fraction(h, w, preprocess))


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed, counter=stream << 128))
