"""The figures of a run, one entry per metric.

A metric is a function of a run, with the heading, direction and caption that tables give it. It is
registered by decorator, by other packages too; every run is measured by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import unknown
from adte.core.registry import Registry, check_name
from adte.evaluate.running.figures import (
    accuracy,
    aurc,
    bias_statistics,
    ece,
    mean_per_class,
    nll,
    thirds,
)

if TYPE_CHECKING:
    from adte.evaluate.running.protocol import Run

__all__ = ["METRICS", "Metric", "averages", "list_metrics", "metric"]


Kind = Literal["percent", "points", "number", "count", "ms", "MB", "interval", "parts", "curve"]
Value = float | Mapping[str, float] | Sequence[float] | None
F = TypeVar("F", bound=Callable[["Run"], Value])


@dataclass(frozen=True)
class Metric:
    """A figure of a run: how it is computed, and how tables show and explain it.

    Attributes:
        name: name of the metric, in CSV and JSON.
        function: computes it from a `Run`; None if it does not apply.
        column: heading in tables. Without one, the metric is in CSV and JSON only.
        direction: whether large ("up") or small ("down") values are good, so that tables can mark
            the best; None marks none.
        caption: explanation below a table.
        kind: how tables show it. The function returns shares as fractions, times in seconds and
            memory in bytes; "percent", "points", "ms" and "MB" convert them. An "interval" is a
            pair of shares, "parts" a mapping from names to shares, a "curve" a list.
    """

    name: str
    function: Callable[[Run], Value]
    column: str = ""
    direction: Literal["up", "down"] | None = None
    caption: str = ""
    kind: Kind = "number"

    @property
    def cls(self) -> Callable[[Run], Value]:
        """The function; the registry names its origin by it."""
        return self.function

    @property
    def plain(self) -> bool:
        """Whether it is a single number or interval, which has a place in a row."""
        return self.kind not in ("parts", "curve")


METRICS: Registry[Metric] = Registry("metric")


def metric(
    name: str,
    *,
    column: str = "",
    direction: Literal["up", "down"] | None = None,
    caption: str = "",
    kind: Kind = "number",
) -> Callable[[F], F]:
    """Decorator that registers a function of a `Run` as a metric.

    Every run is then measured by it, and tables show its column after the built-in ones. The
    function returns None if the metric does not apply to a run.

        @metric("sure", column="sure", kind="percent", caption="sure: confidence above 90 %")
        def sure(run):
            return float((run.confidence > 0.9).mean())

    Args:
        name: name of the metric, in CSV and JSON.
        column: heading in tables; without one the metric is in CSV and JSON only.
        direction: whether large ("up") or small ("down") values are good; None marks no best.
        caption: explanation below a table.
        kind: how tables show it, see `Metric`.
    """
    check_name(name, '@metric("my-metric")')
    if kind not in get_args(Kind):
        raise unknown("kind of metric", kind, get_args(Kind))
    if direction not in ("up", "down", None):
        raise unknown("direction of a metric", str(direction), ("up", "down"))

    def add(function: F) -> F:
        METRICS.add(name, Metric(name, function, column, direction, caption, kind))
        return function

    return add


def list_metrics() -> list[Metric]:
    """All metrics, those of plug-ins too, in the order of registration."""
    return [METRICS[name] for name in METRICS]


def averages(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over runs of every metric but curves; None where no run has it."""
    out: dict[str, Any] = {}
    for m in list_metrics():
        known = [f[m.name] for f in figures if f.get(m.name) is not None]
        if m.kind == "parts" and known:  # of those that all runs have: others were skipped in some
            names = [n for n in known[0] if all(n in parts for parts in known)]
            out[m.name] = {n: float(np.mean([parts[n] for parts in known])) for n in names}
        elif m.kind != "curve":
            out[m.name] = np.mean(known, axis=0).tolist() if known else None
    return out


# --------------------------------------------------------------------------- the metrics


def _third(third: int, what: str, estimated: bool = False) -> Callable[[Run], float | None]:
    """The mean over images whose class is in a third of the classes, by training frequency or by
    what the method estimates of it.
    """

    def mean(run: Run) -> float | None:
        frequency = _estimated(run) if estimated else run.frequency
        if frequency is None:
            return None
        mine = thirds(frequency)[run.labels] == third
        return float(np.asarray(getattr(run, what), float)[mine].mean()) if mine.any() else None

    return mean


def _estimated(run: Run) -> NDArray[np.float64]:
    """The method's log class prior, else how often it predicted each class."""
    if run.log_prior is not None:
        return run.log_prior
    most = int(max(run.labels.max(initial=0), run.predicted.max(initial=0))) + 1
    return np.bincount(run.predicted, minlength=max(run.classes, most)).astype(float)


def _by(run: Run, keys: Sequence[str] | Sequence[int]) -> dict[str, float] | None:
    """Accuracy for each key, if the run has several."""
    if len(set(keys)) < 2:
        return None
    array = np.array(keys)
    return {str(k): accuracy(run.correct[array == k]) for k in sorted(set(keys), key=str)}


def _worst(parts: dict[str, float] | None) -> float | None:
    return min((parts or {}).values(), default=None)


def _bias(name: str) -> Callable[[Run], float | None]:
    """A figure of the bias that the method held at the end."""

    def figure(run: Run) -> float | None:
        known = run.log_prior
        return None if known is None else bias_statistics(known, run.frequency).get(name)

    return figure


THIRDS = {"head": "head", "middle": "mid", "tail": "tail"}  # metric → heading
_THIRDS = "head, mid, tail: thirds of the classes by training frequency"

for _metric in (
    Metric("accuracy", lambda r: accuracy(r.correct), "acc.", "up", "accuracies in %", "percent"),
    Metric("ece", lambda r: ece(r.confidence, r.correct), "ECE", "down",
           "ECE: expected calibration error in 15 bins, in %", "percent"),
    *(
        m
        for i, (name, heading) in enumerate(THIRDS.items())
        for m in (
            Metric(name, _third(i, "correct"), heading, "up", _THIRDS, "percent"),
            Metric(f"{name}_confidence", _third(i, "confidence"), kind="percent"),
            Metric(f"{name}_entropy", _third(i, "entropy")),
            Metric(f"{name}_estimated", _third(i, "correct", True), "", "up", kind="percent"),
        )
    ),
    Metric("seconds", lambda r: r.seconds / max(1, len(r.labels)), "ms",
           caption="ms: milliseconds per image, its views already encoded", kind="ms"),
    Metric("peak_memory", lambda r: r.peak_memory, "MB",
           caption="MB: peak memory above the start", kind="MB"),
    Metric("images_per_s", lambda r: r.images_per_s, "", "up", kind="count"),
    Metric("images", lambda r: len(r.labels), kind="count"),
    Metric("top5", lambda r: accuracy(r.rank < 5), "", "up", kind="percent"),
    Metric("mean_per_class", lambda r: mean_per_class(r.correct, r.labels), "", "up",
           kind="percent"),
    Metric("aurc", lambda r: aurc(r.confidence, r.correct), "", "down", kind="percent"),
    Metric("nll", lambda r: nll(r.truth), "", "down"),
    Metric("confidence", lambda r: float(r.confidence.mean()), kind="percent"),
    Metric("first_tenth", lambda r: accuracy(r.correct[: max(1, len(r.labels) // 10)]), "", "up",
           kind="percent"),
    Metric("entropy", lambda r: float(r.entropy.mean())),
    Metric("tcr", lambda r: None if r.tcr is None else [float(x) for x in r.tcr], kind="curve"),
    Metric("by_domain", lambda r: _by(r, r.domains), "", "up", "Accuracy by domain, %", "parts"),
    Metric("by_group", lambda r: _by(r, r.groups), "", "up", "Accuracy by group, %", "parts"),
    Metric("worst_domain", lambda r: _worst(_by(r, r.domains)), "", "up", kind="percent"),
    Metric("worst_group", lambda r: _worst(_by(r, r.groups)), "", "up", kind="percent"),
    *(Metric(name, _bias(name)) for name in ("bias_mean", "bias_variance", "bias_std")),
    Metric("spearman", _bias("spearman"), "", "up"),
):  # fmt: skip
    METRICS.add(_metric.name, _metric)
