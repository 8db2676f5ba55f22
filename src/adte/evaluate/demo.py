"""The demo: the paper's ladder on the embedded bundle of real photographs, as an ordinary run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.core.machine import threads
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.stream import FeatureStream, Held, Tick, silent
from adte.evaluate.report.demo import lessons
from adte.evaluate.report.runs import runs_report
from adte.evaluate.running import figures
from adte.evaluate.running.aggregate import aggregate
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import LADDER, Outcome, passes, run_tasks
from adte.methods import PriorMethod, create_method
from adte.methods.prior import Belief
from adte.models.tiny import tiny_classes

__all__ = ["Demo", "estimators", "known_frequency", "learned", "length", "run_demo"]

PLAIN = {"adjust": "after", "smoothing": 0.0, "smoothing_total": 0.0, "clip": 0.0}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "fixed point, all items": {"estimator": "fixed-point", "bank": "all"},
    "fixed point, last 10 per class": {"estimator": "fixed-point", "bank": "fifo"},
    "fixed point, surest 10 per class": {"estimator": "fixed-point", "bank": "gap-larger"},
    "marginal": {"estimator": "marginal"},
}
BATCH = 64


def length() -> int:
    """How many times the demo goes over the stream."""
    return passes(LADDER) + len(ESTIMATORS)


@dataclass
class Demo:
    """What the demo found, and where it is kept."""

    stream: FeatureStream
    outcomes: list[Outcome]
    estimators: list[dict[str, Any]]
    folder: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return aggregate(self.outcomes)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        recipe = self.stream.recipe
        long = ("classes", "class_ids", "frequency")
        return {
            "rows": self.rows,
            "estimators": [
                {k: v for k, v in e.items() if k != "log_prior"} for e in self.estimators
            ],
            "images": len(self.stream),
            "views": recipe.views.count,
            "classes": len(recipe.classes),
            "bundle": {k: v for k, v in asdict(recipe).items() if k not in long},
        }

    def report(self) -> Path:
        """Write report.html into the folder: the page of its runs, and what only the demo shows."""
        adte, _ = learned(self.stream, "adte-released")
        return runs_report(
            [self.folder / "runs"],
            self.folder / "report.html",
            title="adte demo: methods on real photographs",
            only={o.record.key for o in self.outcomes},
            extra=lessons(self.stream, self.outcomes, self.estimators, adte),
        )[0]


def run_demo(cache: Cache, folder: str | os.PathLike[str], tick: Tick = silent) -> Demo:
    """Every row of the ladder, kept in FOLDER/runs, then the estimators."""
    results = Results(Path(folder) / "runs")
    stream = Held.of(cache)  # small enough; each row then pays for its method alone
    stream.recipe = replace(stream.recipe, frequency=tuple(known_frequency(cache).tolist()))
    outcomes = run_tasks(stream, LADDER, results, tick)
    return Demo(stream, outcomes, estimators(stream, tick), Path(folder))


def known_frequency(cache: Cache) -> NDArray[np.float64]:
    """How often the model saw each class in training: as the cache says, or the model's card."""
    if cache.frequency is not None:
        return cache.frequency
    counts = {c["wnid"]: c["count"] for c in tiny_classes()}
    ids = cache.recipe.class_ids
    if cache.recipe.model != "tiny-longtail" or not set(ids) <= counts.keys():
        raise InputError(
            f"the cache {str(cache.folder)!r} does not say how often the model saw each class in "
            "training; the demo needs one that does"
        )
    return np.array([counts[i] for i in ids], dtype=np.float64)


def estimators(stream: FeatureStream, tick: Tick = silent) -> list[dict[str, Any]]:
    """How well each estimate of the prior, from the unlabelled stream, ranks the true frequency."""
    found = []
    for name, options in ESTIMATORS.items():
        _, prior = learned(stream, "zero-shot", tick, **PLAIN, **options)
        log_prior = prior.log_prior.cpu().numpy()
        found.append(
            {
                "name": name,
                "spearman": figures.spearman(log_prior, stream.frequency),  # type: ignore[arg-type]
                "bias_std": float(log_prior.std()),
                "log_prior": log_prior,
            }
        )
    return found


def learned(
    stream: FeatureStream, method: str, tick: Tick = silent, **options: Any
) -> tuple[PriorMethod, Belief]:
    """A method that has learned from the whole stream, and its class prior."""
    made = create_method(method, **options)
    assert isinstance(made, PriorMethod)
    with threads(1):  # without a tower to run, more only get in the way
        for batch, images in stream.batches(BATCH):
            made.learn(batch)
            tick(len(images))
    prior = made.class_prior
    assert prior is not None
    return made, prior
