"""Noise, blur and digital corruptions. Planes (3, H, W) in 0…255."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from adte.data.corruptions.planes import (
    Floats,
    convolve,
    gaussian,
    line_blur,
    sample,
    to_pixels,
    to_planes,
    zoom,
)  # fmt: skip

__all__ = [
    "contrast", "defocus_blur", "elastic_transform", "gaussian_blur", "gaussian_noise",
    "glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "saturate",
    "shot_noise", "speckle_noise", "zoom_blur",
]  # fmt: skip

Indices = npt.NDArray[np.int64]


def gaussian_noise(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """x + σε, ε ~ N(0, 1)."""
    return x + np.float32(255 * sigma) * rng.standard_normal(x.shape, np.float32)


def shot_noise(x: Floats, rng: np.random.Generator, photons: float) -> Floats:
    """Pois(cx)/c, with c photons at full white."""
    counts: Floats = rng.poisson(x * np.float32(photons / 255)).astype(np.float32)
    return counts * np.float32(255 / photons)


def impulse_noise(x: Floats, rng: np.random.Generator, share: float) -> Floats:
    """A share of the values becomes 0 or 255, evenly; each channel for itself."""
    u = rng.random(x.shape, np.float32)
    struck = np.where(u < share / 2, np.float32(0), np.float32(255))
    return np.where(u < share, struck, x)


def speckle_noise(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """x + xσε, ε ~ N(0, 1)."""
    return x * (1 + np.float32(sigma) * rng.standard_normal(x.shape, np.float32))


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


def contrast(x: Floats, rng: np.random.Generator, factor: float) -> Floats:
    """Towards the mean of each channel."""
    mean = x.mean((1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    result: Floats = (x - mean) * np.float32(factor) + mean
    return result


def elastic_transform(
    x: Floats, rng: np.random.Generator, height: float, sigma: float, jitter: float
) -> Floats:
    """A random affine map, then a smooth random displacement, each read bilinearly.

    The map takes three corners of a central square (a third of the short side each way) to places
    U(−jitter, jitter)² pixels away. The displacement is U(−1, 1) noise under a Gaussian of σ,
    times height, for rows and columns. Beyond the border lies the mirror image.
    """
    h, w = x.shape[-2:]
    third = max(1, min(h, w) // 3)
    centre = np.array([h // 2, w // 2])
    old = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])  # (3, 2) rows and columns
    new = old + rng.uniform(-jitter, jitter, old.shape)
    back = np.linalg.solve(np.c_[new, np.ones(3)], old)  # (3, 2): where each new place is read
    rows, cols = np.mgrid[:h, :w].astype(np.float32)
    read = np.einsum("ihw,ij->jhw", np.stack([rows, cols, np.ones_like(rows)]), back)
    x = sample(x, read[0], read[1], "reflect")
    if height == 0:
        return x
    noise = rng.uniform(-1, 1, (2, h, w)).astype(np.float32)
    dy, dx = np.float32(height) * gaussian(noise, sigma, "symmetric", truncate=3)
    return sample(x, rows + dy, cols + dx, "symmetric")


def pixelate(x: Floats, rng: np.random.Generator, factor: float) -> Floats:
    """Shrunk and enlarged again, both by Pillow's box filter."""
    image = Image.fromarray(to_pixels(x))
    small = max(1, int(image.width * factor)), max(1, int(image.height * factor))
    box = Image.Resampling.BOX
    return to_planes(np.asarray(image.resize(small, box).resize(image.size, box)))


def jpeg_compression(x: Floats, rng: np.random.Generator, quality: float) -> Floats:
    """Through Pillow's JPEG encoder and back."""
    stream = io.BytesIO()
    Image.fromarray(to_pixels(x)).save(stream, "JPEG", quality=int(quality))
    with Image.open(stream) as image:
        return to_planes(np.asarray(image))


def saturate(x: Floats, rng: np.random.Generator, factor: float, added: float) -> Floats:
    """Saturation s of HSV becomes a·s + b, at most 1.

    At fixed hue and value v, v − x scales with s. Grey has no hue: it counts as red, as published,
    so b > 0 tints it.
    """
    value, low = x.max(0), x.min(0)  # (H, W)
    spread = value - low
    old = spread / np.maximum(value, 1)
    new = np.minimum(np.float32(factor) * old + np.float32(added), 1)
    grey = spread == 0
    below = (value - x) * np.where(grey, 0, new / np.where(grey, 1, old))
    red = np.array([0, 1, 1], np.float32)[:, None, None] * np.where(grey, new * value, 0)
    result: Floats = value - below - red
    return result
