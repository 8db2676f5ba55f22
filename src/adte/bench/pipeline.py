"""The whole way of an image, and each stage's share: decode, views, encode, method."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from PIL import Image

from adte.bench import subject, timing
from adte.bench.views import photo
from adte.data.images import find_images
from adte.errors import InputError
from adte.methods import create_method
from adte.methods.base import Sample
from adte.prompts import class_weights
from adte.views import Views, load_image

__all__ = ["run"]

STAGES = ("decode", "views", "encode", "method")


def run(
    model: str = "tiny",
    weights: str | None = None,
    method: str = "adte",
    images: int = 16,
    folder: str | os.PathLike[str] | None = None,
    views: int = 64,
    classes: int | None = None,
    crop_on_device: bool = False,
    device: str | None = None,
    dtype: str | None = None,
) -> dict[str, Any]:
    """Median seconds of each stage over a stream of images, one at a time.

    The images are those of `folder`, or made-up photographs of 500×375 pixels as JPEG.
    """
    if images < 1:
        raise InputError(f"{images} images leave nothing to time; ask for at least 1")
    net = subject.load(model, weights, device, dtype)
    names = subject.class_names(net, classes)
    text, rule, cut = class_weights(net, names), create_method(method), Views(views)
    files = _files(images, folder)
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for turn, file in enumerate([files[0], *files]):
        at: dict[str, Any] = {"decode": file}

        def decode(at: dict[str, Any] = at) -> None:
            at["views"] = load_image(at["decode"])

        def crop(at: dict[str, Any] = at) -> None:
            made = cut(at["views"], net.preprocess, 0, net.device if crop_on_device else None)
            at["encode"] = made.to(net.device, net.dtype)

        def encode(at: dict[str, Any] = at) -> None:
            with torch.no_grad():
                at["method"] = net.encode_image(at["encode"])

        def decide(at: dict[str, Any] = at) -> None:
            features = at["method"]
            logits = net.logits(features, text)
            pixels = at["encode"] if "pixels" in rule.needs else None
            rule.step(Sample(logits, features, text, net.logit_scale, pixels, net, names))

        for stage, call in zip(STAGES, (decode, crop, encode, decide), strict=True):
            taken = timing.seconds(call, net.device)
            if turn:  # the first image only warms up
                times[stage].append(taken)
    each = timing.median_times(times)
    total = sum(each.values())
    rows = [{"name": s, "seconds": each[s], "ratio": each[s] / total} for s in STAGES]
    rows.append({"name": "an image", "seconds": total, "ratio": 1.0})
    facts = subject.facts(net, views, method=method, images=len(files), classes=len(names))
    meaning = "all stages over encoding alone; ratios of rows are shares of the time"
    return timing.result(rows, total / each["encode"], meaning, **facts)


def _files(count: int, folder: str | os.PathLike[str] | None) -> list[Any]:
    if folder is not None:
        return [path.read_bytes() for path in find_images(folder)[:count]]
    made = []
    for seed in range(count):
        buffer = io.BytesIO()
        Image.fromarray(photo(seed=seed)).save(buffer, "JPEG", quality=90)
        made.append(buffer.getvalue())
    return made
