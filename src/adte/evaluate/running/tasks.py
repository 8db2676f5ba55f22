"""Tasks: a method under a protocol on a stream; many of them with seeds, kept and resumable."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

import numpy as np

from adte._version import __version__
from adte.core.errors import InputError, brief, unknown
from adte.core.machine import PeakMemory, threads
from adte.core.options import parse
from adte.core.schema import written
from adte.data.streams import order_digest
from adte.evaluate.features.cache import extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import PIXELS, TOWERS, FeatureStream, Held, Tick, silent
from adte.evaluate.running.protocol import BATCH, PROTOCOLS, Protocol, Run, run
from adte.evaluate.running.results import Conditions, Record, Results, summarise
from adte.methods import Method, create_method, list_methods, method_info
from adte.methods.prompt_tuning import PromptMethod

__all__ = [
    "LADDER",
    "Outcome",
    "Task",
    "check_needs",
    "grid",
    "key_of",
    "known_run",
    "once",
    "passes",
    "perform",
    "protocol_of",
    "run_tasks",
    "tasks_for",
    "ticks",
]


HELD = 1 << 30  # bytes of features that are held in memory rather than in a temporary cache


@dataclass(frozen=True)
class Task:
    """One run to make: a method with its options, under a protocol, on one order of the stream.

    Attributes:
        method: name of the method.
        options: options of the method.
        protocol: one of `PROTOCOLS`.
        seed: number of the shuffle of the stream; 0 keeps its own order. It seeds nothing else.
        title: name of the row in tables; by default that of the method.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    protocol: Protocol = "online"
    seed: int = 0
    title: str = ""

    @property
    def name(self) -> str:
        """Name of the row in tables."""
        return self.title or self.method

    @property
    def passes(self) -> int:
        """How many times the task goes over the stream."""
        return 2 if self.protocol == "two-pass" else 1

    def create(self) -> Method:
        """Make the method, with nothing learned."""
        return create_method(self.method, **self.options)


def _ladder() -> Iterable[Task]:
    yield from (Task(name) for name in ("zero-shot", "average", "se", "te", "zero"))
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("zero-shot", {"adjust": "after"}, "zero-shot + LA"),
        ("se", {"adjust": "before"}, "se + LA"),
        ("adte", {"adjust": "none"}, "adte, no LA"),
        ("adte", {}, ""),
        ("adte-released", {}, ""),
        ("tilt", {}, ""),
    )
    protocols: tuple[Protocol, ...] = ("online", "two-pass")
    for protocol in protocols:
        yield from (Task(name, options, protocol, title=title) for name, options, title in rows)


UNKNOWN = "unknown"  # the source of a method from elsewhere, if it has no file

# The paper's ladder, with logit adjustment for the baselines too, so that it is a fair one.
LADDER: tuple[Task, ...] = tuple(_ladder())


@dataclass
class Outcome:
    """The result of a task: every image's prediction, and the record of it."""

    task: Task
    run: Run
    record: Record


def passes(tasks: Iterable[Task]) -> int:
    """How often all tasks together go over the stream."""
    return sum(t.passes for t in tasks)


def perform(
    stream: FeatureStream,
    task: Task,
    tick: Tick = silent,
    memory: bool = False,
    batch: int = BATCH,
) -> Outcome:
    """Run one task: the figures and the whole protocol. Peak memory takes ¼ s more to measure."""
    method = task.create()
    check_needs(method, stream)
    ordered = stream.shuffled(task.seed)
    peak = PeakMemory(None if stream.model is None else stream.model.device)
    tower = isinstance(stream, Live) or any("tower" in need for need in method.needs)
    # The tensors of one image are small: without a tower to run, threads only get in the way.
    with peak if memory else nullcontext(), nullcontext() if tower else threads(1):
        done = run(method, ordered, task.protocol, tick, batch)
    if not done.ids:
        why = f"; the first: {ordered.skipped[0].reason}" if ordered.skipped else ""
        raise InputError(f"none of the {len(stream)} images could be read{why}")
    done.peak_memory = peak.bytes if memory else None
    prior = method.class_prior
    done.log_prior = None if prior is None else prior.log_prior.cpu().numpy()
    r = stream.recipe
    same = ("model", "fingerprint", "dtype", "device", "kernel", "runtime", "prompts", "part")
    conditions = Conditions(
        **{name: getattr(r, name) for name in same},
        protocol=task.protocol,
        method=task.method,
        options=done.options,
        own_prompt=_own_prompt(method, r.prompts),
        views=written(r.views),
        view_seed=r.views.seed,
        preprocess=asdict(r.preprocess),
        data=_of_order(r.data, done) if task.seed else r.data,
        order=str(r.data.get("order", "as given")),
        order_seed=task.seed,
        images=len(done.labels),
        classes=len(r.classes),
        stateful=method.stateful,
        skipped=[asdict(x) for x in ordered.skipped],
        stream=_digest(done, stream),
        content=list(r.content),
        source=_source(type(method)),
    )
    return Outcome(task, done, Record(task.name, summarise(done), conditions))


def _of_order(data: dict[str, Any], run: Run) -> dict[str, Any]:
    """The facts of a stream, those that follow from its order for the one that a run had."""
    changes = int((np.diff(run.labels) != 0).sum())
    own = {"changes": changes, "digest": order_digest(zip(run.ids, run.domains, strict=True))}
    return {**data, **{k: own[k] for k in own.keys() & data.keys()}}


def _own_prompt(method: Method, prompts: dict[str, Any]) -> str:
    """The template that a tuner of prompts starts from, unless it is what the prompts are."""
    if not isinstance(method, PromptMethod) or not prompts:
        return ""
    own = f"{method.context} {{}}."
    same = prompts.get("templates") == [own] and prompts.get("use", "templates") == "templates"
    return "" if same else own


def check_needs(method: Method, stream: FeatureStream) -> None:
    """Refuse a method that needs what the stream's model does not have."""
    if stream.model is None and (towers := method.needs & TOWERS):
        raise InputError(
            f"method {method.name!r} needs the {min(towers)}, and these are features without a "
            "model; leave it out, or give images, as in folder:PATH"
        )
    lacking = method.needs & {"features", "class weights", "text tower"}
    if stream.recipe.fixed_classes and lacking:
        raise InputError(
            f"method {method.name!r} needs {', '.join(sorted(lacking))}, which model "
            f"{stream.recipe.model!r} of fixed classes does not have; choose a vision-language "
            "model"
        )
    if stream.model is not None:
        stream.model.require(method.needs, by=f"method {method.name!r}")


def run_tasks(
    stream: FeatureStream,
    tasks: Sequence[Task],
    results: Results | None = None,
    tick: Tick = silent,
    begin: Callable[[Task], None] = lambda task: None,
    end: Callable[[Record], None] = lambda record: None,
    again: bool = False,
    memory: bool = False,
    batch: int = BATCH,
) -> list[Outcome]:
    """Every task in turn; with a results folder, finished ones are taken from it unless `again`.

    A result is written when its task is done, so an interrupted comparison goes on where it was.
    Images are encoded once and shared, however many tasks and passes look at them, unless a task
    needs their pixels; `tick` counts each image then too, see `ticks`.
    """
    keys = [key_of(stream, t) for t in tasks]
    known = [None if results is None or again else known_run(stream, results, k) for k in keys]
    missing = [t for t, record in zip(tasks, known, strict=True) if record is None]
    if isinstance(stream, Live) and results is not None:
        paths = [r.path for r in known if r is not None and r.path is not None]
        oldest = sorted(paths, key=lambda path: path.stat().st_mtime_ns)[:1]
        mend = "run with --again (in Python again=True)"
        kept = [(path, stream.order) for path in oldest]
        stream.note_newer(kept, f"runs in {str(results.folder)!r}", mend)
    out = []
    with once(stream, missing, tick) as shared:
        if memory and missing and not isinstance(shared, Live):
            run(create_method("zero-shot"), shared.first(1))  # what torch sets up is no method's
        for task, key, record in zip(tasks, keys, known, strict=True):
            begin(task)
            if record is not None and results is not None:
                outcome = Outcome(task, results.run(record), record)
                tick(len(stream) * task.passes)
            else:
                outcome = perform(shared, task, tick, memory, batch)
                if results is not None:
                    outcome.record = results.put(key, outcome.run, outcome.record)
            end(outcome.record)
            out.append(outcome)
    return out


def known_run(stream: FeatureStream, results: Results, key: str) -> Record | None:
    """A finished run on these images; none that had to skip one which can be read by now."""
    record = results.get(key)
    skipped = record.conditions.skipped if record is not None else ()
    mended = isinstance(stream, Live) and any(stream.readable(s["position"]) for s in skipped)
    return None if mended else record


def ticks(stream: FeatureStream, tasks: Sequence[Task]) -> int:
    """How many images `run_tasks` goes over, where no result is known: encoding, then each pass."""
    return (passes(tasks) + _shares(stream, tasks)) * len(stream)


def _shares(stream: FeatureStream, tasks: Sequence[Task]) -> bool:
    """Whether several passes look at features of images, which are then encoded once."""
    pixels = any(t.create().needs & PIXELS for t in tasks)
    return isinstance(stream, Live) and passes(tasks) > 1 and not pixels


@contextmanager
def once(
    stream: FeatureStream, tasks: Sequence[Task], tick: Tick = silent
) -> Iterator[FeatureStream]:
    """The stream, encoded once if several passes look at features of images: in memory if they are
    few or a part of a stream, else in a temporary cache.
    """
    if not isinstance(stream, Live) or not _shares(stream, tasks):
        yield stream
        return
    r = stream.recipe
    if stream.is_part or len(stream) * r.views.count * r.dim * 2 <= HELD:
        yield Held.of(stream, tick)
        return

    with TemporaryDirectory(prefix="adte-") as folder:
        cache = extract(stream, folder, tick=tick)
        cache.model = stream.model
        yield cache


def key_of(stream: FeatureStream, task: Task) -> str:
    """The name of a run: a digest of the task, of every option of the method and of what the stream
    says of itself, with digests of a few images. The code of a method that is not ours counts too,
    for its version does not.
    """
    method = task.create()
    recipe = {**asdict(stream.recipe), "views": written(stream.recipe.views)}
    asked = {
        **asdict(task),
        "title": task.name,
        "options": method.params,  # defaults too: they may change
        "adte": __version__,
        "stream": {k: v for k, v in recipe.items() if k not in ("shard", "device")},
        "images": len(stream),
        "labels": blake2b(stream.labels.astype("<i8").tobytes(), digest_size=8).hexdigest(),
    }
    if source := _source(type(method)):
        asked["source"] = source if source != UNKNOWN else uuid4().hex  # of a kind with no other
    return Results.key(asked)


def _source(cls: type) -> str:
    """A digest of the source of a method from elsewhere; nothing for ours."""
    if cls.__module__.partition(".")[0] == "adte":
        return ""
    try:
        text = inspect.getsource(sys.modules[cls.__module__])
    except (OSError, TypeError, KeyError):
        return UNKNOWN
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(run: Run, stream: FeatureStream) -> str:
    """Of the images with their labels, in whatever order, the classes and how logits are made."""
    r = stream.recipe
    images = sorted(zip(run.ids, run.domains, run.labels.tolist(), strict=True))
    text = json.dumps([images, r.classes, r.scale, r.bias])
    return blake2b(text.encode(), digest_size=8).hexdigest()


# --------------------------------------------------------------------------- which tasks


def protocol_of(method: str) -> Protocol:
    """The protocol under which a method was published."""
    return cast(Protocol, method_info(method).protocol)


def tasks_for(
    methods: str | Task | Method | Sequence[str | Task | Method] | None,
    protocols: Protocol | Sequence[Protocol] | None,
    seeds: Sequence[int],
    lacking: frozenset[str] = frozenset(),
) -> list[Task]:
    """Every method under every protocol on every shuffle; those that do not learn, once.

    Without methods it is all but those that need the image tower, or what is `lacking`. Without
    protocols each has the one it was published under.
    """
    protocols = [protocols] if isinstance(protocols, str) else protocols
    if methods is None:
        without = lacking | PIXELS
        methods = [n for n in list_methods() if not method_info(n).cls.needs & without]
    several = [methods] if isinstance(methods, str | Task | Method) else methods
    for name, values in (("methods", several), ("protocols", protocols or ())):
        if not isinstance(values, Sequence):
            raise InputError(f"{name}={brief(values)} cannot be run; give names in a list")
    for protocol in protocols or ():
        if protocol not in PROTOCOLS:
            raise unknown("protocol", protocol, PROTOCOLS)
    if not several:
        raise InputError("no methods were given; name methods, or leave them out for all")
    if protocols is not None and not protocols:
        raise InputError("no protocols were given; name at least one, such as online")
    out: list[Task] = []
    for one in several:
        task = (
            one if isinstance(one, Task) else _task(one) if isinstance(one, Method) else Task(one)
        )
        if task == Task(task.method, task.options, title=task.title):
            out += _expanded(task, protocols, seeds)
        else:  # it has a protocol or a seed of its own
            out.append(task)
    return list({repr(t): t for t in out}.values())  # none twice


def _expanded(task: Task, protocols: Sequence[Protocol] | None, seeds: Sequence[int]) -> list[Task]:
    """A task under every protocol on every shuffle, or once if it does not learn."""
    ways = [(p, s) for p in protocols or [protocol_of(task.method)] for s in seeds]
    ways = ways if task.create().stateful else ways[:1]
    return [replace(task, protocol=p, seed=s) for p, s in ways]


def _task(method: Method) -> Task:
    """The task that makes a method anew, with its options."""
    if method.name not in list_methods() or method_info(method.name).cls is not type(method):
        raise InputError(
            f"{type(method).__name__} is a method that is not registered; put @register(NAME) on "
            "its class, so that runs know it"
        )
    return Task(method.name, method.params)


def grid(method: str, texts: Iterable[str], protocol: Protocol, seeds: Sequence[int]) -> list[Task]:
    """Tasks for "name=a,b,c" texts: every combination of the values; those that make a method that
    does not learn, once.
    """
    choices: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name.strip() in choices:
            raise InputError(f"option {name.strip()!r} was given twice; list its values as in a,b")
        choices[name.strip()] = list(dict.fromkeys(v.strip() for v in values.split(",")))
    tasks = []
    for combination in product(*choices.values()):
        pairs = dict(zip(choices, combination, strict=True))
        title = " ".join([method, *(f"{n}={v}" for n, v in pairs.items())])
        task = Task(method, parse(method_info(method).cls, pairs), title=title)
        tasks += _expanded(task, [protocol], seeds)
    return tasks
