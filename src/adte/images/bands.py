"""Bilinear crops as products with banded matrices, for processors without AVX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adte.images.boxes import Crop
from adte.images.decode import Pixels
from adte.images.preprocess import Preprocess

__all__ = ["Bands", "bands_of", "resize_bands"]

Floats = npt.NDArray[np.float32]


class Bands(NamedTuple):
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
def bands_of(size: int, side: int, flip: bool = False) -> Bands:
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
    return Bands(weights, int(starts[0]), tuple(steps.tolist()), margin)


def resize_bands(
    pixels: Pixels, crops: Sequence[Crop], preprocess: Preprocess, out: Iterable[Tensor]
) -> None:
    """Resize in two passes of banded products: first the columns, then the rows.

    Normalising is linear and is done once, on the source. The source lies column by column, so the
    first pass reads rows of a matrix; the second reads its result transposed, at little cost.
    """
    height, width, side = *pixels.shape[:2], preprocess.size
    plans = [(bands_of(c.width, side, c.flip), bands_of(c.height, side)) for c in crops]
    pad = height * max(x.margin for x, _ in plans)
    source = np.zeros(pixels.size + 2 * pad, np.float32)
    planes = source[pad : pad + pixels.size].reshape(3, width, height)
    planes[:] = pixels.transpose(2, 1, 0)
    preprocess.normalise(torch.from_numpy(planes))
    edge = max(y.margin for _, y in plans)
    middle = np.zeros(3 * side * max(c.height for c in crops) + 2 * edge, np.float32)
    for view, (top, left, h, _, _), (x, y) in zip(out, crops, plans, strict=True):
        at = pad + (left + x.start) * height + top
        columns = _windows(source, at, x, h, width * height, height, 1)  # (3, …, K, h)
        shape = 3, *x.weights.shape[:-1], h  # (3, …, B, h) is (3, S, h)
        np.matmul(x.weights, columns, out=middle[edge : edge + 3 * side * h].reshape(shape))
        rows = _windows(middle, edge + y.start, y, side, side * h, 1, h)  # (3, …, K, S)
        np.matmul(y.weights, rows, out=view.numpy().reshape(3, *y.weights.shape[:-1], side))


def _windows(data: Floats, at: int, bands: Bands, count: int, *strides: int) -> Floats:
    """The windows (3, …, K, count) of flat data from `at` on; strides of channel, K and count."""
    channel, along, across = strides
    *radices, _, length = bands.weights.shape
    steps = channel, *(step * along for step in bands.steps), along, across
    shape, item = (3, *radices, length, count), data.itemsize
    return np.ndarray(shape, data.dtype, data, at * item, [step * item for step in steps])
