"""Times by turns, and the conditions they hold under: device, dtype, threads, processor."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from adte.core.errors import InputError
from adte.images import Views

__all__ = ["check_counts", "conditions", "finish", "medians", "processor", "seconds"]


def check_counts(**counts: int) -> None:
    """Refuse to time nothing."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name}={value} leaves nothing to time; ask for at least 1")


def finish(device: torch.device | None) -> None:
    """Wait until a CUDA device has done its work."""
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
    return {name: statistics.median(t) for name, t in times.items()}


def conditions(
    device: torch.device | None = None, dtype: torch.dtype = torch.float32, threads: int = 0
) -> dict[str, Any]:
    """A figure of speed is worth nothing without these."""
    gpu = device is not None and device.type == "cuda"
    return {
        "device": str(device or "cpu"),
        **({"gpu": torch.cuda.get_device_name(device)} if gpu else {}),
        "dtype": str(dtype).removeprefix("torch."),
        "kernel": Views().kernel(),
        "threads": threads or torch.get_num_threads(),
        "processor": processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor in words, with its cores and the kernels that torch uses of it."""
    lines = _output("lscpu") or "Model name:" + _output("sysctl", "-n", "machdep.cpu.brand_string")
    named = re.search(r"^Model name:\s*([^-\s].*)$", lines, re.M)
    name = named[1].strip() if named else platform.processor() or "unknown processor"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {os.cpu_count()} cores, {platform.machine()}, torch's kernels: {kernels}"


def _output(*command: str) -> str:
    """The output of a command; nothing where the system has no such command."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
