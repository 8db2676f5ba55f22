"""Blur: defocus, glass, motion, zoom, gaussian. Planes (3, H, W) in 0…255."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from adte.data.corruptions.planes import Floats, convolve, gaussian, line_blur, zoom

__all__ = ["defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"]

Indices = npt.NDArray[np.int64]


def gaussian_blur(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """Gaussian of σ pixels; the edge goes on for ever."""
    return gaussian(x, sigma)


def defocus_blur(x: Floats, rng: np.random.Generator, radius: float, rim: float) -> Floats:
    """Convolution with a disk whose rim is softened by a small Gaussian."""
    return convolve(x, _disk(radius, rim))


@lru_cache(maxsize=32)
def _disk(radius: float, rim: float) -> Floats:
    """On 17 × 17 pixels up to radius 8; the rim's Gaussian has 3 taps, beyond that 5."""
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    i = np.arange(-half, half + 1)
    disk = (i[:, None] ** 2 + i**2 <= radius**2).astype(np.float32)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / rim) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    return convolve(disk / disk.sum(), np.outer(taps, taps))


def motion_blur(x: Floats, rng: np.random.Generator, radius: float, sigma: float) -> Floats:
    """One-sided smear along an angle of U(−45°, 45°)."""
    return line_blur(x, int(radius), sigma, rng.uniform(-45, 45))


def zoom_blur(x: Floats, rng: np.random.Generator, stop: float, step: float) -> Floats:
    """Mean of the image and its centre-zoomed copies, by 1 … stop. The image counts twice."""
    factors = np.arange(1, stop, step)
    total = x.copy()
    for factor in factors:
        total += zoom(x, float(factor))
    return total / np.float32(len(factors) + 1)


def glass_blur(
    x: Floats, rng: np.random.Generator, sigma: float, shift: float, sweeps: float
) -> Floats:
    """Gaussian, then pixels displaced at random within `shift`, then Gaussian again.

    A sweep goes from the bottom right to the top left; each pixel p takes the present value of
    p + δ, both parts of δ uniform in [−d, d). (The published loop means to swap, but only copies.)
    """
    blurred = np.trunc(gaussian(x, sigma) + np.float32(1e-3))
    h, w = x.shape[-2:]
    flat = blurred.reshape(3, h * w)
    for _ in range(int(sweeps)):
        flat = flat[:, _sweep(h, w, int(shift), rng)]
    return gaussian(flat.reshape(x.shape), sigma)


def _sweep(h: int, w: int, d: int, rng: np.random.Generator) -> Indices:
    """For each pixel, whose old value it holds after one sweep: the loop, without the loop.

    p copies from s = p + δ. If s comes later in raster order it has already been swept, so p holds
    what s now holds; otherwise p holds the old value of s. Let node p stand for "now at p" and
    node n + p for "before at p". Each p then points at one node, and jumping pointers to pointers
    (p ← next[next[p]]) ends all chains at "before" nodes after log₂ of the longest chain's steps.
    """
    n = h * w
    source = np.arange(n).reshape(h, w)
    rows, cols = slice(d + 1, h - d + 1), slice(d + 1, w - d + 1)  # the published sweep's range
    moved = source[rows, cols]
    dy, dx = rng.integers(-d, d, (2, *moved.shape))
    target = moved + dy * w + dx
    following = source.ravel() + n  # unswept pixels hold their old value
    following[moved] = np.where(target > moved, target, target + n)
    following = np.concatenate([following, np.arange(n, 2 * n)])
    while (following[:n] < n).any():
        following = following[following]
    held: Indices = following[:n] - n
    return held
