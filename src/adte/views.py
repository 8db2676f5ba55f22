"""An image becomes views: the base view first, then random resized crops, resized and normalised.

The crops of an image depend on its key and the seed alone, so they are the same in every batch,
order and worker, and its first k views are the same however many are asked for.

Resizing agrees with Pillow's `crop(box).resize(…)` to within two grey levels. Pillow itself makes
the base view and bicubic crops. Bilinear crops, the common case, are made as products with banded
matrices, by torch's uint8 kernels where the processor has AVX, or by its float kernels on a device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from adte.errors import InputError, unknown
from adte.images import Pixels, load_image
from adte.options import option

__all__ = ["Crop", "Preprocess", "Views", "base_view", "load_image"]

Floats = npt.NDArray[np.float32]

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
TRIES = 10  # draws of a crop before the central one is taken, as in torchvision
KERNELS = ("uint8", "bands", "float", "pillow")  # of the crops


def _check(good: bool, name: str, value: object, mend: str) -> None:
    if not good:
        raise InputError(f"{name}={value!r} cannot be used; {mend}")


@dataclass(frozen=True)
class Preprocess:
    """What a model expects of its input; the defaults are CLIP's."""

    size: int = option(224, "side of the square input")
    mean: tuple[float, float, float] = option((0.48145466, 0.4578275, 0.40821073), "channel means")
    std: tuple[float, float, float] = option((0.26862954, 0.26130258, 0.27577711), "and deviations")
    interpolation: Literal["bilinear", "bicubic"] = option("bicubic", "filter of the base view")
    resize: Literal["shortest", "squash"] = option("shortest", "centre square, or squashed whole")
    crop: float = option(1.0, "share of that square's side that the base view shows")

    def __post_init__(self) -> None:
        _check(self.size >= 1, "size", self.size, "give at least one pixel")
        _check(len(self.mean) == 3, "mean", self.mean, "give one number for each of R, G and B")
        _check(len(self.std) == 3 and min(self.std) > 0, "std", self.std, "give three above 0")
        good = self.interpolation in FILTERS
        _check(good, "interpolation", self.interpolation, "choose bilinear or bicubic")
        good = self.resize in ("shortest", "squash")
        _check(good, "resize", self.resize, "choose shortest or squash")
        _check(0 < self.crop <= 1, "crop", self.crop, "give a share in (0, 1]")

    def normalise(self, levels: Tensor) -> Tensor:
        """Grey levels 0…255 (…, 3, H, W) to what the model expects, in place."""
        mean, std = levels.new_tensor([self.mean, self.std])[..., None, None]  # (3, 1, 1)
        return levels.mul_(1 / (255 * std)).sub_(mean / std)


class Crop(NamedTuple):
    """A box of the image in pixels, and whether it is mirrored left to right afterwards."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


@dataclass(frozen=True)
class Views:
    """Random views of an image: call it with an image and a `Preprocess`.

    >>> image = np.full((40, 60, 3), 128, np.uint8)
    >>> Views(count=4)(image, Preprocess(size=8), key="photo.jpg").shape
    torch.Size([4, 3, 8, 8])
    """

    count: int = option(64, "views an image, the base view among them")
    scale: tuple[float, float] = option((0.08, 1.0), "area of a crop, as a share of the image")
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "width of a crop over its height")
    flip: float = option(0.5, "probability that a crop is mirrored")
    interpolation: Literal["bilinear", "bicubic"] = option("bilinear", "filter of the crops")
    augmix: bool = option(False, "mix chains of distortions into the crops, as TPT does")
    seed: int = option(0, "seed of the crops; an image's own key is added to it")

    def __post_init__(self) -> None:
        _check(self.count >= 1, "count", self.count, "ask for at least one view")
        low, high = self.scale
        _check(0 < low <= high <= 1, "scale", self.scale, "give 0 < low ≤ high ≤ 1")
        low, high = self.ratio
        _check(0 < low <= high < math.inf, "ratio", self.ratio, "give 0 < low ≤ high")
        _check(0 <= self.flip <= 1, "flip", self.flip, "give a probability")
        good = self.interpolation in FILTERS
        _check(good, "interpolation", self.interpolation, "choose bilinear or bicubic")

    def __call__(
        self,
        image: Any,
        preprocess: Preprocess,
        key: int | str | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The views (count, 3, S, S) in float32, normalised, of whatever `load_image` reads.

        Args:
            key: names the image; None takes a digest of its pixels.
            device: where to resize the crops and leave the views; None stays on the CPU.
        """
        pixels = load_image(image)
        seed = self._digest(pixels, key)
        crops = self._crops(pixels.shape[0], pixels.shape[1], seed)
        out = torch.empty(self.count, 3, preprocess.size, preprocess.size, device=device)
        out[0] = base_view(pixels, preprocess)
        kernel = self.kernel(device)
        if kernel == "pillow" or not crops:
            _resize_pillow(pixels, crops, preprocess, out[1:], self.interpolation)
        elif kernel == "bands":
            _resize_bands(pixels, crops, preprocess, out[1:])
        else:
            dtype = torch.uint8 if kernel == "uint8" else torch.float32
            _resize_torch(pixels, crops, preprocess, out[1:], dtype)
        if self.augmix:
            for i in range(1, self.count):
                _augmix(out[i], preprocess, _generator(seed, i))
        return out

    def kernel(self, device: torch.device | str | None = None) -> str:
        """What resizes the crops there: the fastest for the processor that is faithful to Pillow.

        The environment variable ADTE_VIEWS forces one of them on the CPU; results record which.
        """
        forced = os.environ.get("ADTE_VIEWS", "")
        if forced and forced not in KERNELS:
            raise unknown("kernel of the views in ADTE_VIEWS", forced, KERNELS)
        if device is not None and torch.device(device).type != "cpu":
            return "pillow" if self.interpolation == "bicubic" else "float"
        if self.interpolation == "bicubic":
            return "pillow"
        return forced or ("uint8" if "AVX" in torch.backends.cpu.get_cpu_capability() else "bands")

    def boxes(self, height: int, width: int, key: int | str) -> list[Crop]:
        """The count − 1 crops of an image of this size under this key."""
        return self._crops(height, width, self._digest(None, key))

    def plan(self, image: Any) -> list[Crop]:
        """The count − 1 crops of an image that has no key, as a call makes them."""
        pixels = load_image(image)
        return self._crops(pixels.shape[0], pixels.shape[1], self._digest(pixels, None))

    def _digest(self, pixels: Pixels | None, key: int | str | None) -> int:
        if key is None and pixels is not None:
            text = f"{self.seed}:pixels:{pixels.shape}:".encode() + pixels.tobytes()
        else:
            _check(
                isinstance(key, str | int | np.integer), "key", key, "give an integer or a string"
            )
            text = f"{self.seed}:{'str' if isinstance(key, str) else 'int'}:{key}".encode()
        return int.from_bytes(blake2b(text, digest_size=16).digest(), "little")

    def _crops(self, height: int, width: int, seed: int) -> list[Crop]:
        # Every crop takes the same number of draws, so a longer list begins with the shorter one.
        draws = _generator(seed, 0).random((self.count - 1, 2 * TRIES + 3))  # (V, 23)
        low, high = np.log(self.ratio)
        area = height * width * (self.scale[0] + np.ptp(self.scale) * draws[:, :TRIES])
        ratio = np.exp(low + (high - low) * draws[:, TRIES : 2 * TRIES])
        w = np.rint(np.sqrt(area * ratio)).astype(int)  # (V, TRIES)
        h = np.rint(np.sqrt(area / ratio)).astype(int)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first = np.arange(len(fits)), fits.argmax(1)
        w, h = w[first], h[first]  # (V,)
        top = (draws[:, -3] * (height - h + 1)).astype(int)
        left = (draws[:, -2] * (width - w + 1)).astype(int)
        boxes = np.stack([top, left, h, w], 1)
        boxes[~fits.any(1)] = self._central(height, width)
        flips = (draws[:, -1] < self.flip).tolist()
        return [Crop(*box) for box in zip(*boxes.T.tolist(), flips, strict=True)]

    def _central(self, height: int, width: int) -> tuple[int, int, int, int]:
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        h = min(height, max(1, round(width / shape)))
        w = min(width, max(1, round(height * shape)))
        return (height - h) // 2, (width - w) // 2, h, w


def base_view(image: Any, preprocess: Preprocess) -> Tensor:
    """The whole image, or its central square, as the model expects it (3, S, S)."""
    pixels = load_image(image)
    height, width = pixels.shape[:2]
    side, short = preprocess.size, min(height, width)
    image, kind = Image.fromarray(pixels), FILTERS[preprocess.interpolation]
    full = int(side / preprocess.crop + 1e-6)  # the square before it is cut
    if preprocess.resize == "squash":
        edge = round((full - side) / 2)
        image = image.resize((full, full), kind).crop((edge, edge, edge + side, edge + side))
    else:
        # torchvision resizes to (wide, tall) and cuts; here, with its rounding, only what stays is
        # resized. One axis at a time: of a cut box Pillow may take them in the other order.
        wide, tall = int(full * width / short), int(full * height / short)
        left, top = round((wide - side) / 2), round((tall - side) / 2)
        x, y = width / wide, height / tall  # pixels of the image for one of the view
        box = left * x, 0, min((left + side) * x, width), height
        image = image.resize((side, height), kind, box)
        image = image.resize((side, side), kind, (0, top * y, side, min((top + side) * y, height)))
    return preprocess.normalise(_levels(image))


def _levels(view: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().float()  # (3, H, W)


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed, counter=stream << 128))


def _resize_pillow(
    pixels: Pixels, crops: list[Crop], preprocess: Preprocess, out: Tensor, interpolation: str
) -> None:
    """Resize as Pillow does, which clips between its two passes, in an order that it chooses."""
    image, size = Image.fromarray(pixels), (preprocess.size, preprocess.size)
    for view, (top, left, h, w, flip) in zip(out, crops, strict=True):
        crop = image.crop((left, top, left + w, top + h)).resize(size, FILTERS[interpolation])
        view.copy_(preprocess.normalise(_levels(ImageOps.mirror(crop) if flip else crop)))


class _Bands(NamedTuple):
    """One axis of a resize as a stack of small matrix products.

    Output is cut into blocks of B neighbours; a block needs a window of K inputs. Windows start at
    `start` plus the block's digits, in a mixed radix, times `steps`: places that plain strides can
    reach, so that no window is copied. A window may run `margin` past the axis, at weight 0.
    """

    weights: Floats  # (*radices, B, K)
    start: int
    steps: tuple[int, ...]
    margin: int


def _factors(number: int) -> tuple[int, ...]:
    for p in range(2, number):
        if number % p == 0:
            return *_factors(number // p), p
    return (number,)


@lru_cache(maxsize=2048)
def _bands(size: int, side: int, flip: bool = False) -> _Bands:
    """The bands that resize `size` pixels to `side`, with Pillow's bilinear filter."""
    scale = size / side
    support = max(scale, 1.0)  # wider than a pixel where the image shrinks: antialiasing
    centre = (np.arange(side) + 0.5) * scale
    centre = centre[::-1] if flip else centre
    low = (centre - support + 0.5).astype(int).clip(0)  # Pillow's rounding
    high = (centre + support + 0.5).astype(int).clip(max=size)
    # Long blocks multiply by many zeros, short ones pay for each product; eight is a fair middle.
    block = min((b for b in range(1, side + 1) if side % b == 0), key=lambda b: abs(b - 8))
    radices = _factors(side // block)
    digits = np.indices(radices).reshape(len(radices), -1)  # (digits, blocks)
    units = [block * math.prod(radices[i + 1 :]) for i in range(len(radices))]
    steps = np.rint(np.array(units) * (-scale if flip else scale)).astype(int)

    starts = steps @ digits  # (blocks,)
    first, last = low.reshape(-1, block).min(1), high.reshape(-1, block).max(1)
    starts -= (starts - first).max()
    length = int((last - starts).max())
    taps = starts[:, None, None] + np.arange(length)  # (blocks, 1, K)
    weights = (1 - np.abs(taps + 0.5 - centre.reshape(-1, block, 1)) / support).clip(0)
    weights[(taps < low.reshape(-1, block, 1)) | (taps >= high.reshape(-1, block, 1))] = 0
    weights /= weights.sum(2, keepdims=True)  # (blocks, B, K)
    margin = max(0, -int(starts.min()), int(starts.max()) + length - size)
    weights = weights.astype(np.float32).reshape(*radices, block, length)
    return _Bands(weights, int(starts[0]), tuple(steps.tolist()), margin)


def _resize_bands(pixels: Pixels, crops: list[Crop], preprocess: Preprocess, out: Tensor) -> None:
    """Resize in two passes of banded products: first the columns, then the rows.

    Normalising is linear and is done once, on the source. The source lies column by column, so the
    first pass reads rows of a matrix; the second reads its result transposed, at little cost.
    """
    height, width, side = *pixels.shape[:2], preprocess.size
    plans = [(_bands(c.width, side, c.flip), _bands(c.height, side)) for c in crops]
    pad = height * max(x.margin for x, _ in plans)
    source = np.zeros(pixels.size + 2 * pad, np.float32)
    planes = source[pad : pad + pixels.size].reshape(3, width, height)
    planes[:] = pixels.transpose(2, 1, 0)
    preprocess.normalise(torch.from_numpy(planes))
    edge = max(y.margin for _, y in plans)
    middle = np.zeros(3 * side * max(c.height for c in crops) + 2 * edge, np.float32)
    for view, (top, left, h, _, _), (x, y) in zip(out.numpy(), crops, plans, strict=True):
        at = pad + (left + x.start) * height + top
        columns = _windows(source, at, x, h, width * height, height, 1)  # (3, …, K, h)
        shape = 3, *x.weights.shape[:-1], h  # (3, …, B, h) is (3, S, h)
        np.matmul(x.weights, columns, out=middle[edge : edge + 3 * side * h].reshape(shape))
        rows = _windows(middle, edge + y.start, y, side, side * h, 1, h)  # (3, …, K, S)
        np.matmul(y.weights, rows, out=view.reshape(3, *y.weights.shape[:-1], side))


def _windows(data: Floats, at: int, bands: _Bands, count: int, *strides: int) -> Floats:
    """The windows (3, …, K, count) of flat data from `at` on; strides of channel, K and count."""
    channel, along, across = strides
    *radices, _, length = bands.weights.shape
    steps = channel, *(step * along for step in bands.steps), along, across
    shape, item = (3, *radices, length, count), data.itemsize
    return np.ndarray(shape, data.dtype, data, at * item, [step * item for step in steps])


def _resize_torch(
    pixels: Pixels, crops: list[Crop], preprocess: Preprocess, out: Tensor, dtype: torch.dtype
) -> None:
    """Resize with torch's antialiased kernels, in uint8 or in floats."""
    source = torch.from_numpy(np.require(pixels, requirements="W"))
    source = source.permute(2, 0, 1)[None].to(out.device, dtype)  # (1, 3, H, W), channels last
    for view, (top, left, h, w, flip) in zip(out, crops, strict=True):
        crop = source[:, :, top : top + h, left : left + w]
        crop = F.interpolate(crop, out.shape[2:], mode="bilinear", antialias=True)[0]
        preprocess.normalise(view.copy_(crop.flip(-1) if flip else crop))


def _warp(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


# AugMix at severity 1: the strength u is in ±[0.1, 1], a tenth of each operation's maximum.
_DISTORTIONS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, u: ImageOps.autocontrast(image),
    lambda image, u: ImageOps.equalize(image),
    lambda image, u: ImageOps.posterize(image, 4),
    lambda image, u: image.rotate(int(3 * u), Image.Resampling.BILINEAR),
    lambda image, u: ImageOps.solarize(image, 256 - int(25.6 * abs(u))),
    lambda image, u: _warp(image, 1, 0.03 * u, 0, 0, 1, 0),
    lambda image, u: _warp(image, 1, 0, 0, 0.03 * u, 1, 0),
    lambda image, u: _warp(image, 1, 0, int(image.width * u / 30), 0, 1, 0),
    lambda image, u: _warp(image, 1, 0, 0, 0, 1, int(image.height * u / 30)),
)


def _augmix(view: Tensor, preprocess: Preprocess, random: np.random.Generator) -> None:
    """Blend a crop (3, S, S), in place, with a mix of three chains of distortions of it."""
    black, white = preprocess.normalise(view.new_tensor([0, 255]).repeat(3, 1).T[..., None, None])
    levels = ((view - black) * (255 / (white - black))).round().clamp(0, 255).byte()
    plain = levels.permute(1, 2, 0).cpu().numpy()
    chains = []
    for _ in range(3):
        image = Image.fromarray(plain)
        for _ in range(random.integers(1, 4)):
            strength = random.uniform(0.1, 1) * random.choice((-1, 1))
            image = _DISTORTIONS[random.integers(len(_DISTORTIONS))](image, strength)
        chains.append(np.asarray(image, np.float32))
    mix = np.tensordot(random.dirichlet(np.ones(3)).astype(np.float32), np.stack(chains), 1)
    mixed = torch.from_numpy(mix).permute(2, 0, 1).to(view.device)  # (3, S, S)
    view.lerp_(preprocess.normalise(mixed), 1 - random.beta(1, 1))
