"""How fast are 64 views? Ours beside the usual way: Pillow view by view, then torchvision's steps.

Both make the same crops of the same image, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from adte.bench import timing
from adte.bench.conditions import conditions
from adte.core.machine import threads
from adte.images import Crop, Preprocess, Views
from adte.images.decode import Pixels, load_image

__all__ = ["photo", "run", "usual"]


def photo(height: int = 375, width: int = 500, seed: int = 0) -> Pixels:
    """A picture with the 1/f spectrum of photographs, and some edges (H, W, 3)."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)) + 1 / width
    noise = np.fft.rfft2(rng.standard_normal((3, height, width)), axes=(1, 2)) / frequency
    image = np.fft.irfft2(noise, (height, width), axes=(1, 2))
    image = 128 + 45 * image / image.std()
    for _ in range(12):
        top, left = rng.integers(height), rng.integers(width)
        image[:, top : top + rng.integers(80), left : left + rng.integers(80)] += rng.normal(0, 60)
    return np.ascontiguousarray(image.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def usual(image: Image.Image, crops: list[Crop], preprocess: Preprocess) -> Tensor:
    """The views as torchvision's transforms make them (V, 3, S, S)."""
    side = preprocess.size
    short = min(image.size)
    base = image.resize([int(side * n / short) for n in image.size], Image.Resampling.BICUBIC)
    left, top = (round((n - side) / 2) for n in base.size)
    views = [base.crop((left, top, left + side, top + side))]
    for top, left, h, w, flip in crops:
        view = image.crop((left, top, left + w, top + h))
        view = view.resize((side, side), Image.Resampling.BILINEAR)
        views.append(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view)
    return torch.stack([_normalise(_to_tensor(view), preprocess) for view in views])


def _to_tensor(view: Image.Image) -> Tensor:
    levels = torch.from_numpy(np.array(view, np.uint8, copy=True))
    return levels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def _normalise(view: Tensor, preprocess: Preprocess) -> Tensor:
    view = view.clone()
    mean, std = torch.as_tensor(preprocess.mean), torch.as_tensor(preprocess.std)
    return view.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


def run(image: Any = None, repeats: int = 15) -> dict[str, Any]:
    """Time both ways on one thread; `image` is anything that `load_image` reads."""
    pixels = photo() if image is None else load_image(image)
    views, preprocess = Views(enlarge=0.0), Preprocess()  # as the usual way crops small images
    height, width = pixels.shape[:2]
    crops = views.boxes(height, width, preprocess, key=0)
    pillow = Image.fromarray(pixels)
    slow, fast = "usual way (Pillow, view by view)", "adte.Views"
    candidates: dict[str, Callable[[], Tensor]] = {
        slow: lambda: usual(pillow, crops, preprocess),
        fast: lambda: views(pixels, preprocess, key=0),
    }
    with threads(1):
        theirs, ours = (call() for call in candidates.values())
        error = (theirs - ours).abs() * torch.tensor(preprocess.std).view(3, 1, 1) * 255
        seconds = timing.medians(candidates, repeats)
    rows = [{"name": n, "seconds": s, "ratio": seconds[slow] / s} for n, s in seconds.items()]
    return timing.result(
        rows,
        seconds[slow] / seconds[fast],
        "times faster than the usual way",
        **conditions(threads=1),
        max_level_error=float(error.max()),
        views=views.count,
        image=[height, width],
        repeats=repeats,
    )
