"""Evaluate one method, compare many, sweep over options: runs with seeds, kept and resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from adte.evaluate import metrics
from adte.evaluate.cache import Cache
from adte.evaluate.features import FeatureStream, Live
from adte.evaluate.results import Results, protocol_of, summarise
from adte.evaluate.runner import Protocol, Run, run
from adte.methods import create_method, list_methods, method_info
from adte.options import parse

__all__ = ["Task", "aggregate", "evaluate", "grid", "method_tasks", "run_tasks"]


@dataclass(frozen=True)
class Task:
    """One method with its options, under a protocol, on one shuffle of the stream."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    protocol: Protocol = "online"
    seed: int = 0
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or self.method


def evaluate(
    stream: FeatureStream, task: Task, tick: Callable[[], None] = lambda: None
) -> tuple[Run, dict[str, Any]]:
    """Run a task; the figures and the whole protocol."""
    method = create_method(task.method, **task.options)
    done = run(method, stream, task.protocol, tick)
    domains, groups = [d for _, d, _ in stream.seen], [g for _, _, g in stream.seen]
    skipped = [asdict(s) for s in stream.skipped] if isinstance(stream, Live) else []
    return done, {
        "title": task.name,
        "metrics": summarise(done, stream.frequency, domains, groups),
        "protocol": protocol_of(
            done, stream.facts, seed=task.seed, stateful=method.stateful, skipped=skipped
        ),
    }


def shuffled(stream: FeatureStream, seed: int) -> FeatureStream:
    """A cache in an order of its own for every seed but 0, which keeps the order it has."""
    if seed == 0 or not isinstance(stream, Cache):
        return stream
    return stream.ordered(np.random.default_rng(seed).permutation(len(stream)))


def run_tasks(
    stream: FeatureStream,
    tasks: Sequence[Task],
    results: Results | None = None,
    tick: Callable[[], None] = lambda: None,
    begin: Callable[[Task], None] = lambda task: None,
) -> list[dict[str, Any]]:
    """Every task in turn; with a results folder, finished ones are taken from it.

    A result is written when its task is done, so an interrupted comparison goes on where it was.
    """
    out = []
    for task in tasks:
        asked = {**asdict(task), "stream": {k: stream.facts.get(k) for k in ASKED}}
        key = Results.key(asked)
        begin(task)
        known = results.get(key) if results is not None else None
        if known is None:
            done, known = evaluate(shuffled(stream, task.seed), task, tick)
            if results is not None:
                known = results.put(key, done, known)
        else:
            for _ in range(len(stream) * (2 if task.protocol == "two-pass" else 1)):
                tick()
        out.append(known)
    return out


ASKED = ("model", "fingerprint", "prompts", "views", "data", "classes")


def method_tasks(
    names: Sequence[str], protocols: Sequence[Any], seeds: Iterable[int]
) -> list[Task]:
    """Tasks for methods by name; without names, for all that need no image tower."""
    chosen = list(names) or [
        n for n in list_methods() if not method_info(n).cls.needs & {"image tower", "pixels"}
    ]
    seeds = list(seeds)
    return [
        Task(name, {}, protocol, seed)
        for name in chosen
        for protocol in (protocols if method_info(name).row()["stateful"] else protocols[:1])
        for seed in seeds
    ]


def grid(method: str, texts: Iterable[str], protocol: Protocol, seeds: Sequence[int]) -> list[Task]:
    """Tasks for "name=a,b,c" texts: every combination of the values."""
    names, choices = [], []
    for text in texts:
        name, _, values = text.partition("=")
        names.append(name.strip())
        choices.append([v.strip() for v in values.split(",")])
    tasks = []
    for combination in product(*choices):
        pairs = dict(zip(names, combination, strict=True))
        options = parse(method_info(method).cls, pairs)
        title = " ".join([method, *(f"{n}={v}" for n, v in pairs.items())])
        tasks += [Task(method, options, protocol, seed, title) for seed in seeds]
    return tasks


def aggregate(records: Sequence[dict[str, Any]], baseline: str = "se") -> list[dict[str, Any]]:
    """Rows over seeds: mean, 95 % interval of the mean (t), and the gain over the baseline."""
    by_title: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in records:
        by_title.setdefault((r["title"], r["protocol"]["protocol"]), []).append(r)
    means = {
        title: float(np.mean([r["metrics"]["accuracy"] for r in group]))
        for (title, _), group in by_title.items()
    }
    reference = means.get(baseline)
    rows = []
    for (title, protocol), group in by_title.items():
        values = np.array([r["metrics"]["accuracy"] for r in group])
        row: dict[str, Any] = {
            "method": title,
            "protocol": protocol if group[0]["protocol"]["stateful"] else "stateless",
            "accuracy": float(values.mean()),
            "ci95": metrics.seed_interval(values),
            "gain": None if reference is None else float(values.mean() - reference),
            "seeds": len(values),
        }
        for key in ("ece", "head", "middle", "tail", "images_per_s"):
            known = [r["metrics"][key] for r in group if key in r["metrics"]]
            row[key] = float(np.mean(known)) if known else None
        row["options"] = group[0]["protocol"]["options"]
        rows.append(row)
    return rows
