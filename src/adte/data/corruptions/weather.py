"""Weather: snow, frost, fog, brightness, spatter. Planes (3, H, W) in 0…255."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from adte.data.corruptions.planes import Floats, convolve, gaussian, line_blur, zoom
from adte.data.files import need_scipy

__all__ = ["brightness", "fog", "frost", "plasma", "snow", "spatter"]

GREY = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]

# Channel means and deviations of the five textures that ImageNet-C draws from; two are alike.
PLATES = (
    ((78, 149, 166), (27, 17, 15)),
    ((201, 205, 215), (21, 22, 23)),
    ((201, 205, 215), (21, 22, 23)),
    ((138, 153, 165), (29, 29, 30)),
    ((112, 123, 135), (44, 43, 42)),
)

WATER = np.array([175, 238, 238], np.float32)[:, None, None]  # pale turquoise
MUD = np.array([63, 42, 20], np.float32)[:, None, None]
FAR = 20  # pixels; distances beyond are alike
MEAN = np.full((3, 3), 1 / 9, np.float32)
SLOPE = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)  # light from the top left


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


def frost(x: Floats, rng: np.random.Generator, weight: float, cover: float, scale: float) -> Floats:
    """Weighted sum with needles and clouds of ice, which have the channel means and deviations of
    one of the published textures: those are photographs that we do not ship.
    """
    ice = _needles((x.shape[1], x.shape[2]), scale, rng)
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


def _rims(x: Floats, low: float, high: float) -> npt.NDArray[np.bool_]:
    """Canny's edges: ridges of the Sobel gradient |gx| + |gy| above `high`, and those above `low`
    that touch them."""
    ndimage = need_scipy("ndimage", "the corruption spatter")
    h, w = x.shape
    gy, gx = (ndimage.sobel(x, axis, mode="nearest") for axis in (0, 1))
    size = np.pad(np.abs(gx) + np.abs(gy), 1)
    here = size[1:-1, 1:-1]

    def beside(dy: int, dx: int) -> Floats:
        return size[1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w]

    def ridge(dy: int, dx: int, strict: bool) -> npt.NDArray[np.bool_]:
        after = here > beside(dy, dx) if strict else here >= beside(dy, dx)
        result: npt.NDArray[np.bool_] = (here > beside(-dy, -dx)) & after
        return result

    flat = np.abs(gy) < np.tan(np.pi / 8) * np.abs(gx)
    steep = np.abs(gy) > np.tan(3 * np.pi / 8) * np.abs(gx)
    slanted = np.where(gx * gy < 0, ridge(1, -1, True), ridge(1, 1, True))
    crest = np.where(flat, ridge(0, 1, False), np.where(steep, ridge(1, 0, False), slanted))
    weak = crest & (here > low)
    edges: npt.NDArray[np.bool_] = ndimage.binary_propagation(
        weak & (here > high), np.ones((3, 3)), weak
    )
    return edges


def _distance(rims: npt.NDArray[np.bool_]) -> Floats:
    """Euclidean distance to the nearest rim, at most FAR."""
    if not rims.any():
        return np.full(rims.shape, FAR, np.float32)
    ndimage = need_scipy("ndimage", "the corruption spatter")
    distance: Floats = np.minimum(ndimage.distance_transform_edt(~rims), FAR).astype(np.float32)
    return distance


def _equalise(x: npt.NDArray[np.uint8]) -> Floats:
    """Grey levels by rank; the lowest becomes 0. A flat image stays."""
    counts = np.bincount(x.ravel(), minlength=256)
    first = counts[x.min()]
    if first == x.size:
        return x.astype(np.float32)
    ranks = np.rint((counts.cumsum() - first) * (255 / (x.size - first)))
    equalised: Floats = ranks.clip(0, 255).astype(np.float32)[x]
    return equalised
