"""What methods take for an image once it is encoded: predict and learn, from its features."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch

from adte.bench import timing
from adte.bench.conditions import conditions
from adte.core.batch import Context
from adte.core.machine import threads
from adte.methods import create_method

__all__ = ["METHODS", "run"]

METHODS = ("se", "adte", "tilt")
IMAGES = 32  # that come again and again


def run(
    views: int = 64, classes: int = 1000, dim: int = 512, batch: int = 1, repeats: int = 301
) -> dict[str, Any]:
    """Seconds an image by SE, by the paper's ADTE and by the default, in steps of some images."""
    g = torch.Generator().manual_seed(0)
    texts = torch.nn.functional.normalize(torch.randn(classes, dim, generator=g), dim=-1)
    context = Context(class_weights=texts, scale=100.0)

    def images() -> Any:
        own = texts[torch.randint(classes, (batch, 1), generator=g)]
        x = 0.3 * own + 0.05 * torch.randn(batch, views, dim, generator=g)
        return context.batch(torch.nn.functional.normalize(x, dim=-1))

    some = [images() for _ in range(max(1, IMAGES // batch))]

    def steps(name: str) -> Any:
        method, next_one = create_method(name), cycle(some)
        return lambda: method.step(next(next_one))

    with threads(1):
        taken = timing.medians({name: steps(name) for name in METHODS}, repeats)
    each = {name: seconds / batch for name, seconds in taken.items()}
    base = each["adte"]
    rows = [{"name": n, "seconds": s, "ratio": s / base} for n, s in each.items()]
    facts = {"views": views, "classes": classes, "dim": dim, "batch": batch, "repeats": repeats}
    meaning = "tilt over adte"
    return timing.result(rows, each["tilt"] / base, meaning, **conditions(threads=1), **facts)
