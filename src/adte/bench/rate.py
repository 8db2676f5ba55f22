"""Images a second, from JPEG to label: ours, the usual way, the tower alone, and the limit.

The usual way is how methods of this kind are published: each image is decoded and cropped by Pillow
in threads, view by view, and goes through the library's tower by itself, in float32 (on CUDA under
autocast to bfloat16, as their code does). Ours is `Pipeline` as `predict` on a folder runs it. Both
run the same method on the same photographs with as many threads. The tower alone takes pixels that
are in memory. The limit is the rate of matrix products, measured here, over the tower's operations.
"""

from __future__ import annotations

import io
import os
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from adte.bench import timing
from adte.core.batch import Context
from adte.core.errors import InputError
from adte.images import Crop, Preprocess, Views
from adte.images.decode import Pixels, find_images
from adte.methods import create_method
from adte.models import load_model
from adte.models.base import Model
from adte.models.prompts import class_weights
from adte.pipeline import Pipeline, default_workers

__all__ = ["ahead", "class_names", "limit", "noise", "photo", "photographs", "run", "usual"]

T = TypeVar("T")


def run(
    model: str = "tiny",
    weights: str | None = None,
    method: str = "tilt",
    images: int = 32,
    batch: int = 16,
    workers: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    views: int = 64,
    classes: int = 200,
    repeats: int = 3,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Seconds per image of each; the ratio is ours over the usual way, in images a second."""
    timing.check_counts(images=images, batch=batch, views=views)
    workers = default_workers() if workers is None else workers
    report(f"loading {model}")
    net = load_model(model, weights=weights, device=device, dtype=dtype, runtime=runtime)
    net.require({"text tower"}, by="a benchmark")
    plain = load_model(model, weights=weights, device=device, dtype="float32", runtime="torch")
    plain.load_state_dict(net.state_dict())
    names = class_names(classes)
    context = Context.of(net, class_weights(net, names).to(net.device), names)
    files = photographs(images, folder)
    pipeline, rule = Pipeline(net, Views(views), workers=workers), create_method(method)

    def ours() -> None:
        for part in pipeline.batches(((str(i), f) for i, f in enumerate(files)), context, batch):
            rule.step(part)

    other, drawn, lone = create_method(method), Views(views, enlarge=0.0), Pipeline(plain)

    def theirs() -> None:
        for pixels in ahead(lambda f: _views(f, drawn, plain), files, workers):
            with torch.autocast(net.device.type, torch.bfloat16, enabled=net.device.type == "cuda"):
                features = lone.encode(pixels[None], 1)
            other.step(context.batch(features))

    size = min(batch, len(files)) if net.device.type != "cpu" else 1
    pixels = noise(net, views, size)
    calls = {
        "usual way": (theirs, len(files)),
        "ours": (ours, len(files)),
        "tower alone": (lambda: pipeline.encode(pixels, size), size),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, (call, count) in calls.items():
            taken = timing.seconds(call, net.device)
            report(f"turn {turn} of {repeats}: {name}, {taken:.3g} s")
            if turn:  # the first only warms up
                times[name].append(taken / count)
    bound = limit(net, views)
    each = {name: statistics.median(t) for name, t in times.items()}
    each["limit"] = bound.pop("seconds")
    rows = [
        {
            "name": name,
            "seconds": taken,
            "ratio": each["usual way"] / taken,
            "images_per_s": 1 / taken,
            "of_limit": each["limit"] / taken,
        }
        for name, taken in each.items()
    ]
    of_tower = each["tower alone"] / each["ours"]
    return {
        "rows": rows, "ratio": rows[1]["ratio"],
        "meaning": f"ours, times the usual way ({of_tower:.0%} of the tower's rate)",
        "model": net.name, "views": views, **timing.conditions(net.device, net.dtype),
        "method": method, "images": len(files), "batch": batch, "workers": workers,
        "classes": len(names), "of_tower": of_tower,
        "runtime": "torch" if net.runner is None else net.runner.name, **bound,
    }  # fmt: skip


# --------------------------------------------------------------------------- the usual way


def ahead(work: Callable[[T], Tensor], files: Sequence[T], workers: int) -> Iterator[Tensor]:
    """Results in order, made by threads a few images ahead."""
    if not workers:
        yield from map(work, files)
        return
    waiting: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(1)) as pool:
        for file in files:
            waiting.append(pool.submit(work, file))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _views(file: bytes, views: Views, model: Model) -> Tensor:
    """The views of a JPEG as torchvision's transforms make them (V, 3, S, S), on the model."""
    image = Image.open(io.BytesIO(file)).convert("RGB")
    crops = views.boxes(image.height, image.width, model.preprocess, key=0)
    return usual(image, crops, model.preprocess).to(model.device)


def usual(image: Image.Image, crops: list[Crop], preprocess: Preprocess) -> Tensor:
    """The views as torchvision's transforms make them, one by one (V, 3, S, S)."""
    side, short = preprocess.size, min(image.size)
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (preprocess.mean, preprocess.std))
    base = image.resize([int(side * n / short) for n in image.size], Image.Resampling.BICUBIC)
    left, top = (round((n - side) / 2) for n in base.size)
    views = [base.crop((left, top, left + side, top + side))]
    for top, left, h, w, flip in crops:
        view = image.crop((left, top, left + w, top + h))
        view = view.resize((side, side), Image.Resampling.BILINEAR)
        views.append(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view)
    levels = (torch.from_numpy(np.array(v, np.uint8)).permute(2, 0, 1) for v in views)
    return torch.stack([(x.float().div(255) - mean) / std for x in levels])


# --------------------------------------------------------------------------- what is measured


def limit(model: Model, views: int) -> dict[str, Any]:
    """Seconds of an image of `views` views at the rate of matrix products, and what it is of."""
    rate, flops = matrix_rate(model.device, model.dtype), tower_flops(model)
    return {"seconds": views * flops / rate, "flops_per_view": flops, "matrix_rate": rate}


def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> float:
    """Floating-point operations a second of a large square product in this dtype."""
    n, inner = (8192, 10) if device.type == "cuda" else (1536, 1)
    g = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=g).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> None:
        for _ in range(inner):
            torch.mm(a, b, out=out)

    return 2 * n**3 * inner / timing.medians({"": product}, repeats, device)[""]


def tower_flops(model: Model) -> int:
    """Of one view through the library's own forward: products and convolutions."""
    side = model.preprocess.size
    pixels = torch.zeros(1, 3, side, side, device=model.device, dtype=model.dtype)
    # With gradients on, no fused operator hides what it computes.
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        model.encode_image(pixels)
    return int(counter.get_total_flops())


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


def photographs(count: int, folder: str | os.PathLike[str] | None = None) -> list[bytes]:
    """So many images as they lie on disk: of a folder, or made-up JPEGs of 500×375 pixels."""
    if folder is not None:
        return [path.read_bytes() for path in find_images(folder)[:count]]
    made = []
    for seed in range(count):
        buffer = io.BytesIO()
        Image.fromarray(photo(seed=seed)).save(buffer, "JPEG", quality=90)
        made.append(buffer.getvalue())
    return made


def class_names(count: int) -> list[str]:
    """Names to encode; what they say does not change speed."""
    if count < 2:
        raise InputError(f"{count} classes cannot be told apart; ask for at least 2")
    return [f"object {i}" for i in range(count)]


def noise(model: Model, views: int, images: int = 1) -> Tensor:
    """Pixels (images, views, 3, S, S) where the model is; what they show does not change speed."""
    timing.check_counts(views=views, images=images)
    side, g = model.preprocess.size, torch.Generator().manual_seed(0)
    pixels = torch.randn(images, views, 3, side, side, generator=g)
    return pixels.to(model.device, model.dtype)
