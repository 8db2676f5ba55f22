"""The demo: the paper's ladder on the embedded bundle of real photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.errors import InputError
from adte.evaluate import metrics
from adte.evaluate.cache import Cache
from adte.evaluate.features import Held
from adte.evaluate.runner import Stream
from adte.evaluate.tasks import LADDER, Outcome, aggregate, passes, perform
from adte.methods import Sample, create_method
from adte.models.tiny import tiny_classes

__all__ = ["Demo", "estimators", "length", "run_demo"]


def length() -> int:
    """How many times the demo goes over the stream."""
    return passes(LADDER) + len(ESTIMATORS)


ESTIMATORS: dict[str, dict[str, Any]] = {
    "fixed point, all items": {"estimator": "fixed-point", "bank": "all"},
    "fixed point, last 10 a class": {"estimator": "fixed-point", "bank": "fifo"},
    "fixed point, surest 10 a class": {"estimator": "fixed-point", "bank": "gap-larger"},
    "marginal": {"estimator": "marginal"},
}


@dataclass
class Demo:
    """Everything that the table and the report show."""

    replay: Cache
    outcomes: list[Outcome]
    rows: list[dict[str, Any]]
    estimators: list[dict[str, Any]]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        long = ("classes", "class_ids", "frequency")
        about = {k: v for k, v in self.replay.facts.items() if k not in long}
        return {
            "rows": self.rows,
            "estimators": [
                {k: v for k, v in e.items() if k != "log_prior"} for e in self.estimators
            ],
            "images": len(self.replay),
            "views": self.replay.facts["views"]["count"],
            "classes": len(self.replay.classes),
            "bundle": about,
        }


def known_frequency(replay: Cache) -> NDArray[np.float64]:
    """How often the model saw each class in training: as the cache says, or as `tiny`'s card."""
    if replay.frequency is not None:
        return replay.frequency
    counts = {c["wnid"]: c["count"] for c in tiny_classes()}
    ids = replay.facts["class_ids"]
    if replay.facts["model"] != "tiny" or not set(ids) <= counts.keys():
        raise InputError(
            f"the cache {str(replay.folder)!r} does not say how often the model saw each class in "
            "training; the demo needs one that does"
        )
    return np.array([counts[i] for i in ids], dtype=np.float64)


def estimators(
    replay: Cache, data: Stream, tick: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """How well each estimate of the prior, from the unlabelled stream, ranks the true frequency."""
    found = []
    truth = np.log(known_frequency(replay))
    for name, options in ESTIMATORS.items():
        method = create_method("zero-shot", adjust="after", **options)
        for sample, _ in data:
            method.learn(Sample(sample.logits[:1]))
            tick()
        log_prior = method.prior.log_prior.numpy()  # type: ignore[attr-defined]
        found.append(
            {
                "name": name,
                "spearman": metrics.spearman(log_prior, truth),
                "bias_std": float(log_prior.std()),
                "log_prior": log_prior,
            }
        )
    return found


def run_demo(replay: Cache, tick: Callable[[], None] = lambda: None) -> Demo:
    """Every row of the ladder, then the estimators."""
    held = Held.of(replay)  # small enough; each row then pays for its method alone
    held.facts = {**held.facts, "frequency": known_frequency(replay).tolist()}
    outcomes = [perform(held, task, tick) for task in LADDER]
    rows = aggregate(outcomes)
    for row in rows:
        row["ci95"] = row["gain_ci95"]  # one pass has no other interval
    return Demo(replay, outcomes, rows, estimators(replay, held, tick))
