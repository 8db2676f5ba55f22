"""Spatter: drops of water or mud on the lens. Planes (3, H, W) in 0…255.

Water wants the rims of the drops, how far each pixel is from one, and some shading. The published
code calls OpenCV for each step; these are the same steps in array form.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from adte.data.corruptions.planes import Floats, convolve, gaussian

__all__ = ["spatter"]

Mask = npt.NDArray[np.bool_]

WATER = np.array([175, 238, 238], np.float32)[:, None, None]  # pale turquoise
MUD = np.array([63, 42, 20], np.float32)[:, None, None]
FAR = 20  # pixels; distances beyond are alike
MEAN = np.full((3, 3), 1 / 9, np.float32)
SLOPE = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)  # light from the top left


def spatter(
    x: Floats, rng: np.random.Generator,
    mean: float, std: float, sigma: float, threshold: float, strength: float, mud: float,
) -> Floats:  # fmt: skip
    """Where smooth noise is above the threshold lies liquid: mud covers, water adds light."""
    noise = mean + std * rng.standard_normal(x.shape[-2:], np.float32)
    layer = gaussian(noise.astype(np.float32), sigma)
    layer = np.where(layer < threshold, np.float32(0), layer)
    if mud:
        cover = gaussian((layer > threshold).astype(np.float32), strength)
        cover = np.where(cover < 0.8, np.float32(0), cover)
        return x * (1 - cover) + MUD * cover
    liquid = np.trunc(np.clip(255 * layer, 0, 255))
    shade = liquid * _relief(liquid)
    top = float(shade.max())
    return x if top == 0 else x + WATER * (shade * np.float32(strength / top))


def _relief(liquid: Floats) -> Floats:
    """Height of the water by its distance to a rim, equalised, seen under slanting light."""
    depth = np.trunc(convolve(_distance(_rims(liquid, 50, 150)), MEAN)).astype(np.uint8)
    lit = np.clip(np.rint(convolve(_equalise(depth), SLOPE)), 0, 255)
    return np.rint(convolve(lit.astype(np.float32), MEAN))


def _rims(x: Floats, low: float, high: float) -> Mask:
    """Canny's edges: ridges of the Sobel gradient |gx| + |gy| above `high`, and those above `low`
    that touch them."""
    h, w = x.shape
    p = np.pad(x, 1, "edge")
    smooth_down = p[:-2] + 2 * p[1:-1] + p[2:]
    smooth_across = p[:, :-2] + 2 * p[:, 1:-1] + p[:, 2:]
    gx = smooth_down[:, 2:] - smooth_down[:, :-2]
    gy = smooth_across[2:] - smooth_across[:-2]
    size = np.pad(np.abs(gx) + np.abs(gy), 1)
    here = size[1:-1, 1:-1]

    def beside(dy: int, dx: int) -> Floats:
        return size[1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w]

    def ridge(dy: int, dx: int, strict: bool) -> Mask:
        after = here > beside(dy, dx) if strict else here >= beside(dy, dx)
        result: Mask = (here > beside(-dy, -dx)) & after
        return result

    flat = np.abs(gy) < np.tan(np.pi / 8) * np.abs(gx)
    steep = np.abs(gy) > np.tan(3 * np.pi / 8) * np.abs(gx)
    slanted = np.where(gx * gy < 0, ridge(1, -1, True), ridge(1, 1, True))
    crest = np.where(flat, ridge(0, 1, False), np.where(steep, ridge(1, 0, False), slanted))
    weak = crest & (here > low)
    return _grow(weak & (here > high), weak)


def _grow(seed: Mask, within: Mask) -> Mask:
    """The seed and all of `within` that is joined to it, diagonals included."""
    while True:
        p = np.pad(seed, 1)
        rows = p[:-2] | p[1:-1] | p[2:]
        grown = (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]) & within
        if (grown == seed).all():
            return seed
        seed = grown


def _distance(rims: Mask) -> Floats:
    """Euclidean distance to the nearest rim, at most FAR: d² = min_k k² + (distance in column)²."""
    squared = np.where(rims, 0, FAR**2).astype(np.int16)
    for _ in range(2):  # down, then across
        h = len(squared)
        padded = np.pad(squared, ((FAR, FAR), (0, 0)), constant_values=FAR**2)
        nearest = squared
        for k in range(-FAR, FAR + 1):
            nearest = np.minimum(nearest, padded[FAR + k : FAR + k + h] + np.int16(k * k))
        squared = np.ascontiguousarray(nearest.T)
    return np.sqrt(squared, dtype=np.float32)


def _equalise(x: npt.NDArray[np.uint8]) -> Floats:
    """Grey levels by rank; the lowest becomes 0. A flat image stays."""
    counts = np.bincount(x.ravel(), minlength=256)
    first = counts[x.min()]
    if first == x.size:
        return x.astype(np.float32)
    ranks = np.rint((counts.cumsum() - first) * (255 / (x.size - first)))
    equalised: Floats = ranks.clip(0, 255).astype(np.float32)[x]
    return equalised
