"""How fast are 64 views? Ours beside the usual way: Pillow view by view, then torchvision's steps.

Both make the same crops of the same image, on one thread.

    python benchmarks/views.py [--image PATH] [--repeats N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from adte.views import Crop, Preprocess, Views, load_image


def photo(height: int = 375, width: int = 500) -> np.ndarray:
    """A picture with the 1/f spectrum of photographs, and some edges (H, W, 3)."""
    rng = np.random.default_rng(0)
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


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run(image: Any = None, repeats: int = 15) -> dict[str, Any]:
    """Time both ways on one thread; `image` is anything that `load_image` reads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pixels = photo() if image is None else load_image(image)
        views, preprocess = Views(), Preprocess()
        crops = views.boxes(*pixels.shape[:2], key=0)
        pillow = Image.fromarray(pixels)
        theirs, ours = usual(pillow, crops, preprocess), views(pixels, preprocess, key=0)  # warm
        error = (theirs - ours).abs() * torch.tensor(preprocess.std).view(3, 1, 1) * 255
        # One call of each in turn, so that a busy moment of the machine meets both.
        pairs = [
            (
                _seconds(lambda: usual(pillow, crops, preprocess)),
                _seconds(lambda: views(pixels, preprocess, key=0)),
            )
            for _ in range(repeats)
        ]
    finally:
        torch.set_num_threads(threads)
    slow, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "rows": [
            {"name": "usual way (Pillow, view by view)", "seconds": slow, "ratio": 1.0},
            {"name": "adte.Views", "seconds": fast, "ratio": slow / fast},
        ],
        "ratio": slow / fast,
        "max_level_error": float(error.max()),
        "threads": 1,
        "views": views.count,
        "image": list(pixels.shape[:2]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, help="a photo; a synthetic 500×375 one by default")
    parser.add_argument("--repeats", type=int, default=15, help="calls to take the median of")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    result = run(options.image, options.repeats)
    height, width = result["image"]
    print(f"{result['views']} views of a {width}×{height} image, one thread")
    for row in result["rows"]:
        print(f"  {row['name']:<34} {row['seconds']:.4f} s   {row['ratio']:.2f}×")
    print(f"  largest difference: {result['max_level_error']:.2f} of 255 grey levels")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
