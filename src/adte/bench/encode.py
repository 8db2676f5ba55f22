"""The image tower alone: images a second, by how many images go through it together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from adte.bench import subject, timing
from adte.pipeline import Pipeline

__all__ = ["run"]


def run(
    model: str = "tiny",
    weights: str | None = None,
    views: int = 64,
    batches: Sequence[int] = (1, 4, 16),
    repeats: int = 5,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
) -> dict[str, Any]:
    """Seconds per image of `views` views, and what larger batches give over the first one."""
    net = subject.load(model, weights, device, dtype, runtime)
    pipeline, pixels = Pipeline(net), subject.noise(net, views, max(batches))
    names = {n: f"{n} image{'s' if n > 1 else ''} at once ({n * views} views)" for n in batches}
    calls = {names[n]: partial(pipeline.encode, pixels[:n], n) for n in batches}
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
    meaning = f"times faster at best than {names[batches[0]]}; seconds are per image"
    return timing.result(rows, best, meaning, **subject.facts(net, views))
