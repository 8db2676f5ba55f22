"""Weather: snow, frost, fog, brightness. Planes (3, H, W) in 0…255."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from adte.data.corruptions.planes import Floats, line_blur, to_planes, zoom
from adte.images.decode import find_images

__all__ = ["brightness", "fog", "frost", "plasma", "snow"]

GREY = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]

# Channel means and deviations of the five textures that ImageNet-C draws from; two are alike.
PLATES = (
    ((78, 149, 166), (27, 17, 15)),
    ((201, 205, 215), (21, 22, 23)),
    ((201, 205, 215), (21, 22, 23)),
    ((138, 153, 165), (29, 29, 30)),
    ((112, 123, 135), (44, 43, 42)),
)


def snow(
    x: Floats, rng: np.random.Generator,
    mean: float, std: float, factor: float, threshold: float, radius: float, sigma: float,
    mix: float,
) -> Floats:  # fmt: skip
    """Streaks of thresholded noise, added with their half-turn to a whitened image:
    mix·x + (1 − mix)·max(x, 1.5·grey + ½)."""
    layer = mean + std * rng.standard_normal(x.shape[-2:], np.float32)
    layer = zoom(layer.astype(np.float32), factor)
    layer = np.where(layer < threshold, np.float32(0), np.clip(layer, 0, 1))
    layer = 255 * line_blur(layer, int(radius), sigma, rng.uniform(-135, -45))
    grey = (GREY * x).sum(0)  # (H, W)
    white = np.maximum(x, np.float32(1.5) * grey + np.float32(127.5))
    mixed: Floats = np.float32(mix) * x + np.float32(1 - mix) * white
    return mixed + layer + layer[::-1, ::-1]


def frost(
    x: Floats, rng: np.random.Generator,
    weight: float, cover: float, scale: float, folder: str | os.PathLike[str] | None = None,
) -> Floats:  # fmt: skip
    """Weighted sum with a random cut of a frost texture.

    The published textures are photographs we do not ship. Without `folder` a texture is made up:
    needles and clouds, with the channel means and deviations of one of the published five. With
    `folder`, one of its first five images by name is cut, as published.
    """
    size = x.shape[1], x.shape[2]
    ice = _needles(size, scale, rng) if folder is None else _cut(size, scale, rng, folder)
    return np.float32(weight) * x + np.float32(cover) * ice


def _needles(size: tuple[int, int], scale: float, rng: np.random.Generator) -> Floats:
    """Sparse points smeared in six directions, the strongest shown, over clouds."""
    length = max(2, round(14 * scale))
    margin = 2 * length  # needles grow in from outside
    wide = size[0] + 2 * margin, size[1] + 2 * margin
    needles = np.zeros(wide, np.float32)
    for degrees in rng.uniform(-180, 180, 6):
        points = np.maximum(rng.random(wide, np.float32) - np.float32(0.9), 0)
        needles = np.maximum(needles, line_blur(points, length, length, degrees))
    relief = _standard(needles[margin:-margin, margin:-margin])
    relief = relief + np.float32(0.7) * _standard(plasma(size, 1.7, rng))
    mean, std = (np.array(v, np.float32)[:, None, None] for v in PLATES[rng.integers(len(PLATES))])
    ice: Floats = np.clip(mean + std * _standard(relief), 0, 255)
    return ice


def _standard(x: Floats) -> Floats:
    result: Floats = (x - x.mean()) / (x.std() + np.float32(1e-6))
    return result


def _cut(
    size: tuple[int, int], scale: float, rng: np.random.Generator, folder: str | os.PathLike[str]
) -> Floats:
    files = find_images(folder)[:5]
    texture = _texture(str(files[rng.integers(len(files))]), scale)
    short = max(n / have for n, have in zip(size, texture.shape[1:], strict=True))
    if short > 1:  # the image is larger than the texture
        texture = _resize(texture, short)
    top, left = (
        int(rng.integers(have - n + 1)) for n, have in zip(size, texture.shape[1:], strict=True)
    )
    return texture[:, top : top + size[0], left : left + size[1]]


@lru_cache(maxsize=16)
def _texture(path: str, scale: float) -> Floats:
    with Image.open(path) as image:
        planes = to_planes(np.asarray(image.convert("RGB")))
    return planes if scale == 1 else _resize(planes, scale)


def _resize(x: Floats, factor: float) -> Floats:
    size = [int(np.ceil(n * factor)) for n in x.shape[1:]]
    result: Floats = F.interpolate(torch.from_numpy(x)[None], size, mode="bilinear")[0].numpy()
    return result


def fog(x: Floats, rng: np.random.Generator, strength: float, decay: float) -> Floats:
    """(x + s·plasma)·max/(max + s), with max the image's brightest value."""
    brightest, s = float(x.max()), 255 * strength
    mist = plasma((x.shape[1], x.shape[2]), decay, rng)
    return (x + np.float32(s) * mist) * np.float32(brightest / (brightest + s))


def plasma(size: tuple[int, int], decay: float, rng: np.random.Generator) -> Floats:
    """A random relief in [0, 1] by diamond-square on a torus, cut to size.

    From one point at distance 2^k: the middle of each square is the mean of its corners, then the
    middle of each edge the mean of its four neighbours, each plus U(−a, a); the distance halves
    and a falls by decay². The side of the torus is the next power of two.
    """
    side = 1 << (max(size) - 1).bit_length()
    relief = np.zeros((side, side))
    step, reach = side, 1.0
    while step >= 2:
        half = step // 2
        corners = relief[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        noise = rng.uniform(-reach, reach, (3, *corners.shape))
        centres = (pairs + np.roll(pairs, -1, 1)) / 4 + noise[0]
        relief[half::step, half::step] = centres
        across = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 0)
        down = corners + np.roll(corners, -1, 0) + centres + np.roll(centres, 1, 1)
        relief[::step, half::step] = across / 4 + noise[1]
        relief[half::step, ::step] = down / 4 + noise[2]
        step, reach = half, reach / decay**2
    relief -= relief.min()
    return (relief / (relief.max() or 1))[: size[0], : size[1]].astype(np.float32)


def brightness(x: Floats, rng: np.random.Generator, added: float) -> Floats:
    """Value of HSV plus a constant, at most 1. At fixed hue and saturation, colours scale with the
    value, so x·v′/v does it; black becomes grey."""
    value = x.max(0)  # (H, W)
    raised = np.minimum(value + np.float32(255 * added), 255)
    black = value == 0
    result: Floats = np.where(black, raised, x * (raised / np.where(black, 1, value)))
    return result
