"""Images a second, from JPEG to label: ours, the usual way, the tower alone, and the limit.

The usual way is how methods of this kind are published: each image is decoded and cropped by Pillow
in threads, view by view, and goes through the library's tower by itself, in float32 (on CUDA under
autocast to bfloat16, as their code does). Ours is `Pipeline` as `predict` on a folder runs it. Both
run the same method on the same photographs with as many threads. The tower alone takes pixels that
are there. The limit is the rate of matrix products, measured here, over the tower's operations.
"""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from adte.bench import subject, timing
from adte.bench.limit import limit
from adte.bench.pipeline import photographs
from adte.bench.views import usual
from adte.core.batch import Context
from adte.images import Views
from adte.methods import create_method
from adte.models.base import Model
from adte.models.prompts import class_weights
from adte.pipeline import Pipeline, default_workers

__all__ = ["ahead", "run"]

T = TypeVar("T")

NAMES = ("usual way", "ours", "tower alone", "limit")


def run(
    model: str = "tiny",
    weights: str | None = None,
    method: str = "tilt",
    images: int = 32,
    batch: int = 16,
    workers: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    views: int = 64,
    classes: int | None = None,
    repeats: int = 3,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Seconds per image of each; the ratio is ours over the usual way, in images a second."""
    timing.check_counts(images=images, batch=batch)
    workers = default_workers() if workers is None else workers
    report(f"loading {model}")
    net = subject.load(model, weights, device, dtype, runtime)
    plain = subject.load(model, weights, device, "float32", "torch")
    plain.load_state_dict(net.state_dict())
    names = subject.class_names(net, classes)
    text = class_weights(net, names).to(net.device)
    context = Context.of(net, text, names)
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
    pixels = subject.noise(net, views, size)
    calls = {
        "usual way": (theirs, len(files)),
        "ours": (ours, len(files)),
        "tower alone": (lambda: pipeline.encode(pixels, size), size),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, (call, count) in calls.items():
            start = time.perf_counter()
            taken = timing.seconds(call, net.device) / count
            report(f"turn {turn} of {repeats}: {name}, {time.perf_counter() - start:.3g} s")
            if turn:  # the first only warms up
                times[name].append(taken)
    bound = limit(net, views)
    each = timing.median_times(times) | {"limit": bound.pop("seconds")}
    rows = [
        {
            "name": name,
            "seconds": each[name],
            "ratio": each["usual way"] / each[name],
            "images_per_s": 1 / each[name],
            "of_limit": each["limit"] / each[name],
        }
        for name in NAMES
    ]
    runner = "torch" if net.runner is None else net.runner.name
    facts = subject.facts(
        net, views, method=method, images=len(files), batch=batch, workers=workers,
        classes=len(names), runtime=runner, of_tower=each["tower alone"] / each["ours"], **bound,
    )  # fmt: skip
    meaning = f"ours, times the usual way ({facts['of_tower']:.0%} of the tower's own rate)"
    return timing.result(rows, rows[1]["ratio"], meaning, **facts)


def _views(file: bytes, views: Views, model: Model) -> Tensor:
    """The views of a JPEG as torchvision's transforms make them (V, 3, S, S), on the model."""
    image = Image.open(io.BytesIO(file)).convert("RGB")
    width, height = image.size
    crops = views.boxes(height, width, model.preprocess, key=0)
    return usual(image, crops, model.preprocess).to(model.device)


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
