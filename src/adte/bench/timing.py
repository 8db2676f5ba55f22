"""What benchmarks share: candidates in turns, medians, one thread, a device that finishes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from adte.core.errors import InputError

__all__ = ["check_counts", "finish", "median_times", "medians", "result", "seconds"]


def check_counts(**counts: int) -> None:
    """Refuse to time nothing."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name}={value} leaves nothing to time; ask for at least 1")


def finish(device: torch.device | None) -> None:
    """Wait until a CUDA device has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device | None = None) -> float:
    """The time of one call, with all that the device does for it."""
    finish(device)
    start = time.perf_counter()
    call()
    finish(device)
    return time.perf_counter() - start


def medians(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    device: torch.device | None = None,
) -> dict[str, float]:
    """Median seconds of each candidate after one call that does not count.

    They take turns, so that a busy moment of the machine meets all of them, and every other turn
    goes backwards, so that none always follows the same one.
    """
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats):
        for name in list(candidates)[:: -1 if turn % 2 else 1]:
            times[name].append(seconds(candidates[name], device))
    return median_times(times)


def median_times(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(t) for name, t in times.items()}


def result(rows: list[dict[str, Any]], ratio: float, meaning: str, **facts: Any) -> dict[str, Any]:
    """What every benchmark returns; `facts` begin with the conditions that it ran under."""
    return {"rows": rows, "ratio": ratio, "meaning": meaning, **facts}
