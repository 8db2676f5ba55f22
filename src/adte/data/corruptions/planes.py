"""What the corruptions are made of: filters of float planes (…, H, W), grey levels 0…255.

Every function takes any size down to one pixel; what lies beyond the border is said by each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

__all__ = [
    "Floats", "Pixels", "convolve", "gaussian", "line_blur", "sample", "to_pixels", "to_planes",
    "zoom",
]  # fmt: skip

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)
Floats = npt.NDArray[np.float32]
Border = Literal["edge", "symmetric", "reflect"]  # aa|abc, ba|abc, cb|abc

BAND = 128  # rows of a filtered band
FEW = 25  # taps of a kernel; with more, a Fourier transform is faster
HAIR = 1e-3  # grey levels; float32 rounding must not cost a flat area a whole level


def to_planes(image: Pixels) -> Floats:
    """(H, W, 3) bytes to (3, H, W) floats."""
    return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32)


def to_pixels(planes: Floats) -> Pixels:
    """(3, H, W) floats to (H, W, 3) bytes: clipped, then cut to whole levels as published."""
    clipped = np.minimum(np.maximum(planes, 0) + np.float32(HAIR), 255)
    return np.ascontiguousarray(clipped.astype(np.uint8).transpose(1, 2, 0))


def gaussian(x: Floats, sigma: float, border: Border = "edge", truncate: float = 4.0) -> Floats:
    """Gaussian of σ pixels, cut at `truncate`·σ and normalised, along both axes."""
    down = _gaussian_rows(x, sigma, border, truncate)
    return _gaussian_rows(down.swapaxes(-1, -2), sigma, border, truncate).swapaxes(-1, -2)


def _gaussian_rows(x: Floats, sigma: float, border: Border, truncate: float) -> Floats:
    n, radius = x.shape[-2], int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    padded = torch.from_numpy(_pad(x, (radius, radius), (0, 0), border))
    band = _gaussian_band(sigma, radius)  # (BAND, BAND + 2·radius)
    out = np.empty(x.shape, np.float32)
    for i in range(0, n, BAND):  # torch's product: NumPy's cannot be told to use fewer threads
        m = min(BAND, n - i)
        strip = padded[..., i : i + m + 2 * radius, :]
        out[..., i : i + m, :] = (band[:m, : m + 2 * radius] @ strip).numpy()
    return out


@lru_cache(maxsize=32)
def _gaussian_band(sigma: float, radius: int) -> torch.Tensor:
    taps = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    band = np.zeros((BAND, BAND + 2 * radius), np.float32)
    for i in range(BAND):
        band[i, i : i + 2 * radius + 1] = taps / taps.sum()
    return torch.from_numpy(band)


def _pad(x: Floats, rows: tuple[int, int], cols: tuple[int, int], border: Border) -> Floats:
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [rows, cols], border)


def line_blur(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """Smear in one direction: half a Gaussian of 2·radius + 1 taps, one pixel apart on a line.

    y(p) = Σ_i w_i x(p + round(i·(sin θ, cos θ))) with w_i ∝ exp(−i²/2σ²), i = 0 … 2·radius; the
    edge goes on for ever. ImageMagick's motion blur has these taps, so this stands in for it.
    """
    i = np.arange(2 * radius + 1)
    taps = np.exp(-0.5 * (i / sigma) ** 2)
    dy = np.ceil(i * np.sin(np.deg2rad(degrees)) - 0.5).astype(int)
    dx = np.ceil(i * np.cos(np.deg2rad(degrees)) - 0.5).astype(int)
    top, left = max(0, -dy.min()), max(0, -dx.min())
    padded = _pad(x, (top, max(0, dy.max())), (left, max(0, dx.max())), "edge")
    h, w = x.shape[-2:]
    out = np.zeros_like(x)
    for tap, a, b in zip((taps / taps.sum()).astype(np.float32), top + dy, left + dx, strict=True):
        out += tap * padded[..., a : a + h, b : b + w]
    return out


def convolve(x: Floats, kernel: Floats) -> Floats:
    """y(p) = Σ_d k(d) x(p + d) for a kernel of odd side, mirrored about the border pixels: tap by
    tap where there are few, else by Fourier transform."""
    (h, w), r = x.shape[-2:], len(kernel) // 2
    padded = _pad(x, (r, r), (r, r), "reflect")
    taps = np.argwhere(kernel)
    if len(taps) <= FEW:
        out = np.zeros_like(x)
        for i, j in taps:
            out += kernel[i, j] * padded[..., i : i + h, j : j + w]
        return out
    size = [-n % 32 + n for n in padded.shape[-2:]]  # what wraps round is not read
    flipped = torch.from_numpy(kernel[::-1, ::-1].copy())
    spectrum = torch.fft.rfft2(torch.from_numpy(padded), s=size) * torch.fft.rfft2(flipped, s=size)
    result: Floats = torch.fft.irfft2(spectrum, s=size).numpy()
    return result[..., 2 * r : 2 * r + h, 2 * r : 2 * r + w]


def zoom(x: Floats, factor: float) -> Floats:
    """The centre, magnified bilinearly to the old size. The first and last rows and columns of the
    cut centre stay on the border, as in `scipy.ndimage.zoom`."""
    size = x.shape[-2:]
    cut = [int(np.ceil(n / factor)) for n in size]
    full = [max(n, round(c * factor)) for n, c in zip(size, cut, strict=True)]
    top, left = ((n - c) // 2 for n, c in zip(size, cut, strict=True))
    planes = torch.from_numpy(x).reshape(1, -1, *size)[
        ..., top : top + cut[0], left : left + cut[1]
    ]
    large: Floats = F.interpolate(planes, full, mode="bilinear", align_corners=True).numpy()
    top, left = ((f - n) // 2 for n, f in zip(size, full, strict=True))
    return large[..., top : top + size[0], left : left + size[1]].reshape(x.shape)


def sample(x: Floats, rows: Floats, cols: Floats, border: Border) -> Floats:
    """Planes (C, H, W) read bilinearly at (rows, cols), each (H, W) in pixels."""
    h, w = x.shape[-2:]
    corners = border == "reflect"  # torch's name for a mirror through the border pixels' centres
    if corners:
        place = 2 * cols / max(w - 1, 1) - 1, 2 * rows / max(h - 1, 1) - 1
    else:
        place = (2 * cols + 1) / w - 1, (2 * rows + 1) / h - 1
    grid = torch.from_numpy(np.stack(place, -1).astype(np.float32))[None]
    mode = "border" if border == "edge" else "reflection"
    planes = torch.from_numpy(x)[None]
    read = F.grid_sample(planes, grid, padding_mode=mode, align_corners=corners)
    result: Floats = read[0].numpy()
    return result
