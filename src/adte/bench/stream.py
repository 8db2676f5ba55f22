"""A long simulated stream: are memory and the time of an image flat, from 10⁴ to 10⁶ images?

Features are drawn as the stream goes, a batch at a time, from class vectors with noise; what is
timed is what a method does with them, logits included. A row is a decade: the time of an image over
the batches of its last tenth, the memory of the process at its end, and the size of the state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import normalize

from adte.bench import timing
from adte.bench.conditions import conditions
from adte.core.batch import Context
from adte.core.machine import resident
from adte.methods import create_method

__all__ = ["decades", "run"]

FIRST = 1000  # images of the first decade


def decades(images: int) -> list[int]:
    """Where the stream is looked at: powers of ten, and its end.

    >>> decades(25_000)
    [1000, 10000, 25000]
    """
    marks = [10**k for k in range(len(str(FIRST)) - 1, 10) if 10**k < images]
    return [*marks, images]


def run(
    images: int = 1_000_000,
    classes: int = 10,
    views: int = 4,
    dim: int = 16,
    batch: int = 64,
    method: str = "tilt",
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Rows by length of the stream; the ratio is the last decade's time over the first one's."""
    timing.check_counts(images=images, batch=batch, views=views, dim=dim)
    rule, g = create_method(method), torch.Generator().manual_seed(0)
    weights = normalize(torch.randn(max(classes, 2), dim, generator=g), dim=-1)
    context = Context(weights, 20.0)
    rows: list[dict[str, Any]] = []
    done, marks, times = 0, decades(images), list[float]()
    for mark in marks:
        late = done + 9 * (mark - done) // 10
        times.clear()
        while done < mark:
            n = min(batch, mark - done)
            labels = torch.randint(len(weights), (n, 1), generator=g)
            noise = torch.randn(n, views, dim, generator=g)
            features = normalize(weights[labels] + noise * dim**-0.5, dim=-1)
            start = time.perf_counter()
            rule.step(context.batch(features))
            if done >= late or done + n >= mark:
                times.append((time.perf_counter() - start) / n)
            done += n
        row: dict[str, Any] = {
            "name": f"{done:,} images",
            "images": done,
            "seconds": statistics.median(times),
            "resident_bytes": resident(),
            "state_bytes": sum(v.nbytes for v in rule.state_dict().values()),
        }
        rows.append(row)
        report(f"{row['name']}: {1e3 * row['seconds']:.3f} ms an image, "
               f"{row['resident_bytes'] / 2**20:.0f} MB")  # fmt: skip
    for row in rows:
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
        row["grown_bytes"] = row["resident_bytes"] - rows[0]["resident_bytes"]
    facts = {"method": method, "classes": len(weights), "views": views, "batch": batch}
    meaning = f"time of an image after {done:,} over that after {rows[0]['images']:,}"
    return timing.result(rows, rows[-1]["ratio"], meaning, **conditions(), **facts)
