"""Figures of merit: pure functions of labels and confidences, then one entry per metric.

A metric is a function of a run, with the heading, direction and caption that tables give it. It is
registered by decorator, by other packages too; every run is measured by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from adte.errors import unknown
from adte.models._torchvision import import_late
from adte.registry import Registry

if TYPE_CHECKING:
    from adte.evaluate.running.protocol import Run

__all__ = [
    "METRICS",
    "Coverage",
    "Metric",
    "accuracy",
    "aurc",
    "average_precision",
    "averages",
    "bias_statistics",
    "bootstrap_difference",
    "ece",
    "list_metrics",
    "mcnemar",
    "mean_per_class",
    "metric",
    "nll",
    "risk_coverage",
    "seed_interval",
    "spearman",
    "thirds",
]


def accuracy(correct: ArrayLike) -> float:
    """Share of correct predictions."""
    return float(np.asarray(correct, float).mean())


def mean_per_class(correct: ArrayLike, labels: ArrayLike) -> float:
    """Accuracy of each class that occurs, averaged over classes."""
    correct, labels = np.asarray(correct, float), np.asarray(labels)
    counts = np.bincount(labels)
    right = np.bincount(labels, weights=correct)
    return float((right[counts > 0] / counts[counts > 0]).mean())


class Coverage(NamedTuple):
    """What is left where images below a threshold get no label; (K,) each, the surest first.

    Attributes:
        threshold: of the confidence; coverage: the share of the images that get a label then;
        risk: the share of those labels that are wrong.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> Coverage:
    """The risk at every threshold that parts the images (El-Yaniv and Wiener, JMLR 2010).

    >>> risk_coverage([0.9, 0.5, 0.9, 0.7], [True, False, True, True]).risk
    array([0.  , 0.  , 0.25])
    """
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    order = np.argsort(-confidence, kind="stable")
    sure = confidence[order]
    last = np.flatnonzero(np.append(sure[1:] != sure[:-1], True))  # of equals, all or none
    wrong = np.cumsum(1 - correct[order])[last]
    return Coverage(sure[last], (last + 1) / len(sure), wrong / (last + 1))


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the curve of risk over coverage: small where those labels are wrong that are the
    least sure (Geifman et al., ICLR 2019).
    """
    _, coverage, risk = risk_coverage(confidence, correct)
    return float(np.diff(coverage, prepend=0.0) @ risk)


def nll(truth: ArrayLike) -> float:
    """Mean negative log-probability of the true class, in nats; at most 69 per image (1e-30)."""
    return float(-np.log(np.clip(np.asarray(truth, float), 1e-30, 1)).mean())


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided p-value that two methods are right equally often, paired by image."""
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    n, k = only_a + only_b, min(only_a, only_b)
    log_terms = [
        lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) - n * log(2) for i in range(k + 1)
    ]
    return min(1.0, 2 * sum(exp(t) for t in log_terms))


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error over equal-width bins of confidence (Guo et al. 2017)."""
    confidence, correct = np.asarray(confidence, float), np.asarray(correct, float)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def thirds(frequency: ArrayLike) -> NDArray[np.int64]:
    """0, 1 or 2 for every class: head, middle or tail third of the classes by frequency.

    Ties go to the class of lower index. Where L is not divisible by three the middle is larger.
    """
    frequency = np.asarray(frequency, float)
    rank = np.empty(len(frequency), int)
    rank[np.argsort(-frequency, kind="stable")] = np.arange(len(frequency))
    size = len(frequency) // 3
    return np.where(rank < size, 0, np.where(rank < len(frequency) - size, 1, 2))


def bootstrap_difference(
    a: ArrayLike, b: ArrayLike, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Interval of mean(a) − mean(b), paired by image, by the percentile bootstrap."""
    difference = np.asarray(a, float) - np.asarray(b, float)
    rng = np.random.default_rng(seed)
    # Only the values −1, 0, 1 occur for right and wrong, but any paired values are taken.
    values, counts = np.unique(difference, return_counts=True)
    samples = rng.multinomial(len(difference), counts / len(difference), size=draws)
    means = samples @ values / len(difference)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, near enough by a formula.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
      2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
      2.052, 2.048, 2.045, 2.042)  # fmt: skip


def seed_interval(values: ArrayLike) -> list[float] | None:
    """95 % interval of the mean over seeds; None for a single one."""
    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return None
    t = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1)
    half = t * float(values.std(ddof=1)) / n**0.5
    return [float(values.mean()) - half, float(values.mean()) + half]


def bias_statistics(log_prior: ArrayLike, frequency: ArrayLike | None = None) -> dict[str, float]:
    """Mean, variance and standard deviation of the bias −log p̃ over classes, and, where the
    classes' training frequency is known, how well p̃ ranks them by it.
    """
    bias = -np.asarray(log_prior, float)
    out = {
        "bias_mean": float(bias.mean()),
        "bias_variance": float(bias.var()),
        "bias_std": float(bias.std()),
    }
    return out if frequency is None else {**out, "spearman": spearman(-bias, frequency)}


def average_precision(scores: ArrayLike, targets: ArrayLike) -> float:
    """Mean over classes of average precision, for several labels per image.  (N, L), (N, L)

    By torchmetrics. Classes without a positive image do not count.
    """
    name = "torchmetrics.functional.classification"
    found = import_late(name, "torchmetrics", "studies", "average precision")
    targets = np.asarray(targets)
    present = targets.any(0)
    value = found.multilabel_average_precision(
        torch.as_tensor(np.asarray(scores)[:, present]),
        torch.as_tensor(targets[:, present].astype(np.int64)),
        num_labels=int(present.sum()),
    )
    return float(value)


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation, with mean ranks for ties; 0 where one side is constant."""

    def ranks(x: ArrayLike) -> NDArray[np.float64]:
        _, inverse, counts = np.unique(
            np.asarray(x, float), return_inverse=True, return_counts=True
        )
        last = np.cumsum(counts)
        return (last - (counts - 1) / 2)[inverse]

    ra, rb = ranks(a), ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    size = float(np.sqrt((ra @ ra) * (rb @ rb)))
    return float(ra @ rb / size) if size > 0 else 0.0


# --------------------------------------------------------------------------- one entry per metric

Kind = Literal["percent", "points", "number", "count", "ms", "MB", "interval", "parts", "curve"]
Value = float | Mapping[str, float] | Sequence[float] | None
F = TypeVar("F", bound=Callable[["Run"], Value])


@dataclass(frozen=True)
class Metric:
    """A figure of a run: how it is computed, and how tables show and explain it.

    Attributes:
        column: its heading. Without one it is in CSV and JSON, and not in tables for reading.
        direction: whether large ("up") or small ("down") is good, so that tables mark the best;
            None marks nothing, as for what a method costs.
        caption: what a reader of the table is told.
        kind: how it is shown. Shares are fractions, times seconds, memory bytes; "percent",
            "points", "ms" and "MB" say what tables make of them. An "interval" is a pair of shares,
            "parts" a mapping from names to shares, a "curve" a list.
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
    """Decorator: make a function of a `Run` known as a metric, as `Metric` describes.

    It returns None where it does not apply. Every run is then measured by it, and tables have its
    column after ours.

        @metric("sure", column="sure", kind="percent", caption="sure: confidence above 90 %")
        def sure(run):
            return float((run.confidence > 0.9).mean())
    """
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
    """The mean over runs of every metric that has a place in a row; None where no run has it."""
    out: dict[str, Any] = {}
    for m in list_metrics():
        if m.plain:
            known = [f[m.name] for f in figures if f.get(m.name) is not None]
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
