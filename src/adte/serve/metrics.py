"""Figures in the text format of Prometheus: counters, gauges and histograms, and nothing else."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import ClassVar

__all__ = ["Histogram", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
PREFIX = "adte_"


class Histogram:
    """How often a value was at most so much.

    >>> h = Histogram((1, 2))
    >>> h.see(1.5)
    >>> h.counts, h.total
    ([0, 1, 0], 1.5)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def see(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        out, below = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            out.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*out, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


class Metrics:
    """All figures of a process; any thread may count."""

    HELP: ClassVar = {
        "requests_total": "Requests answered, by route and status.",
        "images_total": "Images predicted, by whether they were learned from.",
        "repeated_total": "Requests whose idempotency key was known: answered, not taught again.",
        "refused_total": "Requests refused, by code.",
        "errors_total": "Errors that nobody foresaw; the log has them.",
        "storage_errors_total": "Groups of updates that could not be written, and were taken back.",
        "snapshots_total": "Snapshots written.",
        "request_seconds": "Seconds from the first byte of a predict request to its answer.",
        "encode_seconds": "Seconds of a pass through the image tower.",
        "commit_seconds": "Seconds until a group of updates was on the disk.",
        "group_size": "Images of a pass through the image tower.",
    }
    GAUGES: ClassVar = {
        "streams": "Streams.",
        "damaged_streams": "Streams whose state could not be restored.",
        "waiting_images": "Images accepted and not yet answered.",
        "waiting_bytes": "Bytes of requests under way.",
        "writable": "1 if the last group of updates could be written, and its file is still there.",
        "database_bytes": "Size of the database and its log.",
        "resident_bytes": "Memory of the process.",
        "largest_drift": "The largest drift of the prior among the streams.",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._histograms = {
            "request_seconds": Histogram(SECONDS),
            "encode_seconds": Histogram(SECONDS),
            "commit_seconds": Histogram(SECONDS),
            "group_size": Histogram(SIZES),
        }
        self.gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, by: int = 1, **labels: object) -> None:
        """Add to a counter; labels come from the program, never from a request."""
        key = ",".join(f'{k}="{v}"' for k, v in labels.items())
        with self._lock:
            of = self._counts.setdefault(name, {})
            of[key] = of.get(key, 0) + by

    def see(self, name: str, value: float) -> None:
        """Add to a histogram."""
        with self._lock:
            self._histograms[name].see(value)

    def value(self, name: str) -> int:
        """A counter over all its labels."""
        with self._lock:
            return sum(self._counts.get(name, {}).values())

    def text(self) -> str:
        """All of it, as it is scraped."""
        out: list[str] = []
        with self._lock:
            for name, text in self.HELP.items():
                full = PREFIX + name
                kind = "histogram" if name in self._histograms else "counter"
                out += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
                if name in self._histograms:
                    out += self._histograms[name].lines(full)
                    continue
                for labels, n in sorted(self._counts.get(name, {"": 0}).items()):
                    out.append(f"{full}{{{labels}}} {n}" if labels else f"{full} {n}")
        for name, get in self.gauges.items():
            full = PREFIX + name
            out += [f"# HELP {full} {self.GAUGES[name]}", f"# TYPE {full} gauge"]
            out.append(f"{full} {get():.15g}")
        return "\n".join(out) + "\n"
