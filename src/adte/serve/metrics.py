"""The figures of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import prometheus_client as prometheus

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
GAUGES = {
    "streams": "Streams.",
    "damaged_streams": "Streams whose state could not be restored.",
    "waiting_images": "Images accepted and not yet answered.",
    "waiting_bytes": "Bytes of requests under way.",
    "writable": "1 if the last group of updates could be written, and its file is still there.",
    "database_bytes": "Size of the database and its log.",
    "resident_bytes": "Memory of the process.",
    "largest_drift": "The largest drift of the prior among the streams.",
}

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The figures of one service, in a registry of its own.

    Labels come from the program, never from a request.
    """

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        count, seconds = self._counter, self._histogram
        self.requests = count("requests", "Requests answered, by route and status.",
                              "route", "status")  # fmt: skip
        self.images = count("images", "Images predicted, by whether they were learned from.",
                            "learned")  # fmt: skip
        self.repeated = count("repeated", "Requests whose idempotency key was known: answered, "
                              "not taught again.")  # fmt: skip
        self.refused = count("refused", "Requests refused, by code.", "code")
        self.errors = count("errors", "Errors that nobody foresaw; the log has them.")
        self.storage_errors = count("storage_errors", "Groups of updates that could not be "
                                    "written, and were taken back.")  # fmt: skip
        self.snapshots = count("snapshots", "Snapshots written.")
        self.request_seconds = seconds("request_seconds", "Seconds from the first byte of a "
                                       "predict request to its answer.")  # fmt: skip
        self.encode_seconds = seconds("encode_seconds", "Seconds of a pass through the image "
                                      "tower.")  # fmt: skip
        self.commit_seconds = seconds("commit_seconds", "Seconds until a group of updates was on "
                                      "the disk.")  # fmt: skip
        self.group_size = self._histogram("group_size", "Images of a pass through the image "
                                          "tower.", SIZES)  # fmt: skip

    def _counter(self, name: str, text: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"adte_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, bounds: Sequence[float] = SECONDS
    ) -> prometheus.Histogram:
        return prometheus.Histogram(f"adte_{name}", text, buckets=bounds, registry=self.registry)

    def measure(self, **gauges: Callable[[], float]) -> None:
        """Read these gauges by calls, whenever the figures are asked for."""
        for name, call in gauges.items():
            gauge = prometheus.Gauge(f"adte_{name}", GAUGES[name], registry=self.registry)
            gauge.set_function(call)

    def text(self) -> bytes:
        """All figures in Prometheus's text format."""
        return prometheus.generate_latest(self.registry)
