"""The image tower alone: images a second, by how many images go through it together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adte.bench import subject, timing
from adte.models.base import Model

__all__ = ["run"]


def run(
    model: str = "tiny",
    weights: str | None = None,
    views: int = 64,
    batches: Sequence[int] = (1, 4, 16),
    repeats: int = 5,
    device: str | None = None,
    dtype: str | None = None,
) -> dict[str, Any]:
    """Seconds an image of `views` views, and what larger batches give over one image at a time."""
    net = subject.load(model, weights, device, dtype)
    pixels = subject.noise(net, views, max(batches))
    names = {n: f"{n} image{'s' if n > 1 else ''} at once ({n * views} views)" for n in batches}
    calls = {names[n]: partial(_encode, net, pixels[: n * views]) for n in batches}
    taken = timing.medians(calls, repeats, net.device)
    each = {n: taken[names[n]] / n for n in batches}
    rows = [
        {
            "name": names[n],
            "seconds": each[n],
            "ratio": each[batches[0]] / each[n],
            "images_per_s": 1 / each[n],
        }
        for n in batches
    ]
    best = each[batches[0]] / min(each.values())
    meaning = f"times faster at best than {names[batches[0]]}; seconds are an image's"
    return timing.result(rows, best, meaning, **subject.facts(net, views))


@torch.no_grad()
def _encode(model: Model, pixels: Tensor) -> Tensor:
    return model.encode_image(pixels)
