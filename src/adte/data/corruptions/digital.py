"""Digital: contrast, elastic, pixelate, JPEG, saturate. Planes (3, H, W) in 0…255."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from adte.data.corruptions.planes import Floats, gaussian, sample, to_pixels, to_planes

__all__ = ["contrast", "elastic_transform", "jpeg_compression", "pixelate", "saturate"]


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
