"""The figures of a run, one entry per metric.

A metric is a function of a run, with the heading, direction and caption that tables give it. It is
registered by decorator, by other packages too; every run is measured by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        """What was registered, by which the registry tells its origin."""
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


@metric("accuracy", column="acc.", direction="up", kind="percent", caption="accuracies in %")
def _accuracy(run: Run) -> float:
    return accuracy(run.correct)


@metric("ece", column="ECE", direction="down", kind="percent",
        caption="ECE: expected calibration error in 15 bins, in %")  # fmt: skip
def _ece(run: Run) -> float:
    return ece(run.confidence, run.correct)


THIRDS = {"head": "head", "middle": "mid", "tail": "tail"}  # metric → heading


def _of_third(run: Run, third: int, values: ArrayLike, frequency: ArrayLike | None) -> float | None:
    """The mean over images whose class is in a third of the classes by frequency."""
    if frequency is None:
        return None
    mine = thirds(frequency)[run.labels] == third
    return float(np.asarray(values, float)[mine].mean()) if mine.any() else None


def _estimated(run: Run) -> NDArray[np.float64]:
    """What the method holds for the classes' log prior, else how often it predicted each."""
    if run.log_prior is not None:
        return run.log_prior
    most = int(max(run.labels.max(initial=0), run.predicted.max(initial=0))) + 1
    return np.bincount(run.predicted, minlength=max(run.classes, most)).astype(float)


def _thirds_of(third: int, name: str, heading: str) -> None:
    """The metrics of one third."""
    caption = "head, mid, tail: thirds of the classes by training frequency"

    @metric(name, column=heading, direction="up", kind="percent", caption=caption)
    def by_frequency(run: Run) -> float | None:
        return _of_third(run, third, run.correct, run.frequency)

    @metric(f"{name}_confidence", kind="percent")
    def confidence(run: Run) -> float | None:
        return _of_third(run, third, run.confidence, run.frequency)

    @metric(f"{name}_entropy")
    def entropy(run: Run) -> float | None:
        return _of_third(run, third, run.entropy, run.frequency)

    @metric(f"{name}_estimated", direction="up", kind="percent")
    def by_estimate(run: Run) -> float | None:
        return _of_third(run, third, run.correct, _estimated(run))


for _third, (_name, _heading) in enumerate(THIRDS.items()):
    _thirds_of(_third, _name, _heading)


@metric("seconds", column="ms", kind="ms",
        caption="ms: milliseconds per image, its views already encoded")  # fmt: skip
def _seconds(run: Run) -> float:
    return run.seconds / max(1, len(run.labels))


@metric("peak_memory", column="MB", kind="MB", caption="MB: peak memory above the start")
def _peak_memory(run: Run) -> int | None:
    return run.peak_memory


@metric("images_per_s", direction="up", kind="count")
def _images_per_s(run: Run) -> float:
    return run.images_per_s


@metric("images", kind="count")
def _images(run: Run) -> int:
    return len(run.labels)


@metric("top5", direction="up", kind="percent")
def _top5(run: Run) -> float:
    return accuracy(run.rank < 5)


@metric("mean_per_class", direction="up", kind="percent")
def _mean_per_class(run: Run) -> float:
    return mean_per_class(run.correct, run.labels)


@metric("aurc", direction="down", kind="percent")
def _aurc(run: Run) -> float:
    return aurc(run.confidence, run.correct)


@metric("nll", direction="down")
def _nll(run: Run) -> float:
    return nll(run.truth)


@metric("confidence", kind="percent")
def _confidence(run: Run) -> float:
    return float(run.confidence.mean())


@metric("first_tenth", direction="up", kind="percent")
def _first_tenth(run: Run) -> float:
    return accuracy(run.correct[: max(1, len(run.labels) // 10)])


@metric("entropy")
def _entropy(run: Run) -> float:
    return float(run.entropy.mean())


@metric("tcr", kind="curve")
def _tcr(run: Run) -> list[float] | None:
    return None if run.tcr is None else [float(x) for x in run.tcr]


def _by(run: Run, keys: Sequence[str] | Sequence[int] | None) -> dict[str, float] | None:
    """Accuracy for each key, where there are several."""
    if not keys or len(set(keys)) < 2:
        return None
    array = np.array(keys)
    return {str(k): accuracy(run.correct[array == k]) for k in sorted(set(keys), key=str)}


@metric("by_domain", direction="up", kind="parts", caption="Accuracy by domain, %")
def _by_domain(run: Run) -> dict[str, float] | None:
    return _by(run, run.domains)


@metric("by_group", direction="up", kind="parts", caption="Accuracy by group, %")
def _by_group(run: Run) -> dict[str, float] | None:
    return _by(run, run.groups)


@metric("worst_domain", direction="up", kind="percent")
def _worst_domain(run: Run) -> float | None:
    return min((_by(run, run.domains) or {}).values(), default=None)


@metric("worst_group", direction="up", kind="percent")
def _worst_group(run: Run) -> float | None:
    return min((_by(run, run.groups) or {}).values(), default=None)


def _bias_of(name: str, direction: Literal["up"] | None = None) -> None:
    """A figure of the bias that the method held at the end."""

    @metric(name, direction=direction)
    def figure(run: Run) -> float | None:
        known = run.log_prior
        return None if known is None else bias_statistics(known, run.frequency).get(name)


for _name in ("bias_mean", "bias_variance", "bias_std"):
    _bias_of(_name)
_bias_of("spearman", "up")
