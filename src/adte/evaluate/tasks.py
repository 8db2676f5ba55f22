"""Tasks: a method under a protocol on a stream; many of them with seeds, kept and resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.errors import InputError, StateError
from adte.evaluate import metrics
from adte.evaluate.cache import Cache
from adte.evaluate.features import FeatureStream, Live, shuffle
from adte.evaluate.results import Results, protocol_of, summarise
from adte.evaluate.runner import Protocol, Run, run
from adte.machine import PeakMemory, threads
from adte.methods import Method, PriorMethod, create_method, list_methods, method_info
from adte.options import parse

__all__ = [
    "LADDER",
    "SAME_PRIOR",
    "Outcome",
    "Task",
    "aggregate",
    "grid",
    "key_of",
    "method_tasks",
    "passes",
    "perform",
    "right_by_image",
    "run_tasks",
]


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

    @property
    def passes(self) -> int:
        """How often it goes over the stream."""
        return 2 if self.protocol == "two-pass" else 1


# The prior that `adte` has by default, for rows that are to differ from it in nothing else.
SAME_PRIOR: dict[str, Any] = {
    "estimator": "marginal",
    "smoothing": 1.0,
    "smoothing_total": 20.0,
    "clip": 2.0,
}


def _ladder() -> Iterable[Task]:
    prior = SAME_PRIOR
    yield from (Task(name) for name in ("zero-shot", "average", "se", "te", "zero"))
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("zero-shot", {"adjust": "after", **prior}, "zero-shot + LA"),
        ("se", {"adjust": "before", **prior}, "se + LA"),
        ("adte", {"adjust": "none"}, "adte, no LA"),
        ("adte", {}, ""),
        ("adte-paper", {}, ""),
        ("adte-released", {}, ""),
    )
    protocols: tuple[Protocol, ...] = ("online", "two-pass")
    for protocol in protocols:
        yield from (Task(name, options, protocol, title=title) for name, options, title in rows)


# The paper's ladder, with logit adjustment given to the baselines too, so that it is a fair one.
LADDER: tuple[Task, ...] = tuple(_ladder())


@dataclass
class Outcome:
    """What came of a task: every image's prediction, the record of it, and the method as it ended
    (None where the run was read back).
    """

    task: Task
    run: Run
    record: dict[str, Any]
    method: Method | None = None

    @property
    def learned(self) -> Method:
        """The method as it ended, for an outcome of this process."""
        if self.method is None:
            raise StateError(f"the run {self.task.name!r} was read back and has no method; redo it")
        return self.method


def passes(tasks: Iterable[Task]) -> int:
    """How often all tasks together go over the stream."""
    return sum(t.passes for t in tasks)


def perform(
    stream: FeatureStream,
    task: Task,
    tick: Callable[[], None] = lambda: None,
    memory: bool = False,
) -> Outcome:
    """Run one task: the figures and the whole protocol. Peak memory takes ¼ s more to measure."""
    method = create_method(task.method, **task.options)
    lacking = method.needs & {"features", "class weights", "text tower"}
    if stream.facts.get("fixed_classes") and lacking:
        raise InputError(
            f"method {task.method!r} needs {', '.join(sorted(lacking))}, which model "
            f"{stream.facts['model']!r} of fixed classes does not have; choose a vision-language "
            "model"
        )
    stream = stream.shuffled(task.seed)
    peak = PeakMemory(None if stream.model is None else stream.model.device)
    tower = isinstance(stream, Live) or any("tower" in need for need in method.needs)
    # The tensors of one image are small: without a tower to run, threads only get in the way.
    with peak if memory else nullcontext(), nullcontext() if tower else threads(1):
        done = run(method, stream, task.protocol, tick)
    domains, groups = [d for _, d, _ in stream.seen], [g for _, _, g in stream.seen]
    skipped = [asdict(s) for s in stream.skipped] if isinstance(stream, (Live, Cache)) else []
    prior = method.prior if isinstance(method, PriorMethod) else None
    log_prior = None if prior is None else prior.log_prior.cpu().numpy()
    figures = summarise(done, stream.frequency, domains, groups, log_prior)
    figures["peak_memory"] = peak.bytes if memory else None
    if log_prior is not None:
        figures |= metrics.bias_statistics(log_prior, stream.frequency)
    record = {
        "title": task.name,
        "metrics": figures,
        "protocol": protocol_of(
            done, stream.facts, seed=task.seed, stateful=method.stateful, skipped=skipped
        ),
    }
    return Outcome(task, done, record, method)


def run_tasks(
    stream: FeatureStream,
    tasks: Sequence[Task],
    results: Results | None = None,
    tick: Callable[[], None] = lambda: None,
    begin: Callable[[Task], None] = lambda task: None,
    end: Callable[[dict[str, Any]], None] = lambda record: None,
    again: bool = False,
    memory: bool = False,
) -> list[Outcome]:
    """Every task in turn; with a results folder, finished ones are taken from it unless `again`.

    A result is written when its task is done, so an interrupted comparison goes on where it was.
    """
    out = []
    for task in tasks:
        key = key_of(stream, task)
        begin(task)
        known = results.get(key) if results is not None and not again else None
        if known is not None and results is not None:
            outcome = Outcome(task, results.run(known), known)
            for _ in range(len(stream) * task.passes):
                tick()
        else:
            outcome = perform(stream, task, tick, memory)
            if results is not None:
                outcome.record = results.put(key, outcome.run, outcome.record)
        end(outcome.record)
        out.append(outcome)
    return out


ASKED = ("model", "fingerprint", "scale", "bias", "preprocess", "prompts", "views", "data",
         "classes", "frequency", "part")  # fmt: skip


def key_of(stream: FeatureStream, task: Task) -> str:
    """The name of a run: a digest of the task, of every option of the method and of what the stream
    says of itself. Images of the same names are taken for the same images.
    """
    about = {k: stream.facts.get(k) for k in ASKED}
    options = create_method(task.method, **task.options).params  # defaults too: they may change
    asked = {**asdict(task), "title": task.name, "options": options, "adte": version("adte")}
    return Results.key({**asked, "stream": about, "images": len(stream)})


def method_tasks(
    names: Sequence[str], protocols: Sequence[Any], seeds: Iterable[int]
) -> list[Task]:
    """Tasks for methods by name; without names, for all that need no image tower."""
    chosen = list(dict.fromkeys(names)) or [
        n for n in list_methods() if not method_info(n).cls.needs & {"image tower", "pixels"}
    ]
    seeds = list(seeds)
    tasks = []
    for name in chosen:
        learns = method_info(name).row()["stateful"]  # else order and protocol make no difference
        for protocol in protocols if learns else protocols[:1]:
            tasks += [Task(name, {}, protocol, seed) for seed in (seeds if learns else seeds[:1])]
    return tasks


def grid(method: str, texts: Iterable[str], protocol: Protocol, seeds: Sequence[int]) -> list[Task]:
    """Tasks for "name=a,b,c" texts: every combination of the values."""
    names, choices = [], []
    for text in texts:
        name, _, values = text.partition("=")
        if name.strip() in names:
            raise InputError(f"option {name.strip()!r} was given twice; list its values as in a,b")
        names.append(name.strip())
        choices.append(list(dict.fromkeys(v.strip() for v in values.split(","))))
    tasks = []
    for combination in product(*choices):
        pairs = dict(zip(names, combination, strict=True))
        options = parse(method_info(method).cls, pairs)
        title = " ".join([method, *(f"{n}={v}" for n, v in pairs.items())])
        tasks += [Task(method, options, protocol, seed, title) for seed in seeds]
    return tasks


AVERAGED = ("ece", "nll", "top5", "mean_per_class", "head", "middle", "tail", "spearman")
COSTS = ("images_per_s", "seconds", "peak_memory")


def right_by_image(outcomes: Sequence[Outcome]) -> NDArray[np.float64] | None:
    """How often each image was right over the seeds, in the order of seed 0.  (N,)

    None where images were skipped in a shuffled stream, since then nobody knows which is which.
    """
    if any(o.task.seed and o.record["protocol"].get("skipped") for o in outcomes):
        return None
    total: NDArray[np.float64] = np.zeros(len(outcomes[0].run.labels))
    for o in outcomes:
        total[shuffle(len(total), o.task.seed)] += o.run.correct
    return total / len(outcomes)


def aggregate(outcomes: Sequence[Outcome], baseline: str = "se") -> list[dict[str, Any]]:
    """Rows over seeds.

    `ci95` is the 95 % interval of the accuracy over seeds (Student's t; None for one seed), and
    `gain_ci95` that of the gain over the baseline, paired by image (bootstrap).
    """
    grouped: dict[tuple[str, str], list[Outcome]] = {}
    for o in outcomes:
        grouped.setdefault((o.task.name, o.task.protocol), []).append(o)
    reference = next(
        (right_by_image(g) for (title, _), g in grouped.items() if title == baseline), None
    )
    rows = []
    for (title, protocol), group in grouped.items():
        figures = [o.record["metrics"] for o in group]
        values = np.array([f["accuracy"] for f in figures])
        right = right_by_image(group)
        row: dict[str, Any] = {
            "method": title,
            "protocol": protocol if group[0].record["protocol"]["stateful"] else "stateless",
            "accuracy": float(values.mean()),
            "ci95": metrics.seed_interval(values),
            "gain": None,
            "gain_ci95": None,
            "seeds": len(values),
        }
        if reference is not None and right is not None and len(reference) == len(right):
            row["gain"] = float(right.mean() - reference.mean())
            row["gain_ci95"] = list(metrics.bootstrap_difference(right, reference))
        for key in (*AVERAGED, *COSTS):
            known = [f[key] for f in figures if f.get(key) is not None]
            row[key] = float(np.mean(known)) if known else None
        row["options"] = group[0].record["protocol"]["options"]
        rows.append(row)
    return rows
