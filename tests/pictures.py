"""Pictures for tests of views, and what Pillow and torchvision make of them."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageOps

from adte.images import Crop, Preprocess

KINDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
TOLERANCE = 2.001  # two grey levels, and the rounding of normalised floats


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Black and white noise: the hardest picture for a filter that overshoots."""
    return np.random.default_rng(seed).choice(np.array([0, 255], np.uint8), (height, width, 3))


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Soft shapes, hard edges and grain."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(small).resize((width, height), KINDS["bicubic"])).astype(int)
    image[height // 3 :, width // 2 :] += 80
    return (image + rng.integers(-20, 20, image.shape)).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(file, kind, **options)
    return file.getvalue()


def levels(views: torch.Tensor, preprocess: Preprocess) -> np.ndarray:
    """Normalised values (…, 3, S, S) back to grey levels, by the definition."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    return ((views.float().cpu() * std + mean) * 255).numpy()


def pillow(
    pixels: np.ndarray, crop: Crop, side: int, kind: str = "bilinear", columns_first: bool = False
) -> np.ndarray:
    """Cut out, then resized (3, S, S); newer versions of Pillow may begin with the rows."""
    top, left, h, w, flip = crop
    view = Image.fromarray(pixels).crop((left, top, left + w, top + h))
    view = view.resize((side, h), KINDS[kind]) if columns_first else view
    view = view.resize((side, side), KINDS[kind])
    return np.asarray(ImageOps.mirror(view) if flip else view, np.float64).transpose(2, 0, 1)


def base(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """torchvision's Resize and CenterCrop (3, S, S)."""
    image, side = Image.fromarray(pixels), preprocess.size
    full, short = int(side / preprocess.crop + 1e-6), min(image.size)
    squash = preprocess.resize == "squash"
    grid = [full if squash else int(full * n / short) for n in image.size]
    image = image.resize(grid, KINDS[preprocess.interpolation])
    left, top = (round((n - side) / 2.0) for n in grid)
    image = image.crop((left, top, left + side, top + side))
    return np.asarray(image, np.float64).transpose(2, 0, 1)
