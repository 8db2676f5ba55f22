"""The conditions of a figure of speed: processor, device, threads, kernel, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from adte.images import Views

__all__ = ["conditions", "processor"]


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor in words, with its cores and what torch uses of it."""
    uses = torch.backends.cpu.get_cpu_capability()
    return f"{_name()}, {os.cpu_count()} cores, {platform.machine()}, torch's kernels: {uses}"


def _name() -> str:
    """As the system calls it: from /proc, lscpu or sysctl, else the architecture."""
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = _field(lines, "model name") or _field(_said("lscpu"), "model name")
    else:
        found = _said("sysctl", "-n", "machdep.cpu.brand_string").strip()
    return found or platform.processor() or "unknown processor"


def _field(text: str, name: str) -> str:
    """The value behind the first "name: value"."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == name and value.strip() not in ("", "-"):
            return " ".join(value.split())
    return ""


def _said(*command: str) -> str:
    """What a command prints; nothing where it is not there."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def conditions(
    device: torch.device | None = None, dtype: torch.dtype = torch.float32, threads: int = 0
) -> dict[str, Any]:
    """What a figure of speed is worth nothing without."""
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
