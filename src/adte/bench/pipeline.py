"""The whole way of an image, and each stage's share: decode, views, encode, method."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from PIL import Image

from adte.bench import subject, timing
from adte.bench.views import photo
from adte.core.batch import Context
from adte.images import Views
from adte.images.decode import find_images
from adte.methods import create_method
from adte.models.prompts import class_weights
from adte.pipeline import Pipeline

__all__ = ["STAGES", "photographs", "run"]

STAGES = ("decode", "views", "encode", "method")


def run(
    model: str = "tiny",
    weights: str | None = None,
    method: str = "tilt",
    images: int = 16,
    batch: int = 1,
    folder: str | os.PathLike[str] | None = None,
    views: int = 64,
    classes: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
) -> dict[str, Any]:
    """Median seconds per image of each stage over a stream of images, `batch` at a time.

    The images are those of `folder`, or made-up photographs of 500×375 pixels as JPEG.
    """
    timing.check_counts(images=images, batch=batch)
    net = subject.load(model, weights, device, dtype, runtime)
    names, rule = subject.class_names(net, classes), create_method(method)
    net.require(rule.needs, f"method {method!r}")
    text = class_weights(net, names).to(net.device)
    context = Context.of(net, text, names)
    pipeline = Pipeline(net, Views(views))
    files = photographs(images, folder)
    groups = [files[i : i + batch] for i in range(0, len(files), batch)]
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for turn, group in enumerate([groups[0], *groups]):
        at: dict[str, Any] = {"decode": group}

        def decode(at: dict[str, Any] = at) -> None:
            at["views"] = [pipeline.decode(file) for file in at["decode"]]

        def render(at: dict[str, Any] = at) -> None:
            at["encode"] = torch.stack([pipeline.render(image) for image in at["views"]])

        def encode(at: dict[str, Any] = at) -> None:
            at["encode"] = at["encode"].to(net.device, net.dtype)
            at["method"] = pipeline.encode(at["encode"], batch)

        def decide(at: dict[str, Any] = at) -> None:
            pixels = at["encode"] if "pixels" in rule.needs else None
            rule.step(context.batch(at["method"], pixels))

        for stage, call in zip(STAGES, (decode, render, encode, decide), strict=True):
            taken = timing.seconds(call, net.device)
            if turn:  # the first group only warms up
                times[stage].append(taken / len(group))
    each = timing.median_times(times)
    total = sum(each.values())
    rows = [{"name": s, "seconds": each[s], "ratio": each[s] / total} for s in STAGES]
    rows.append({"name": "an image", "seconds": total, "ratio": 1.0})
    facts = subject.facts(
        net, views, method=method, images=len(files), batch=batch, classes=len(names)
    )
    meaning = "all stages over encoding alone; ratios of rows are shares of the time"
    return timing.result(rows, total / each["encode"], meaning, **facts)


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
