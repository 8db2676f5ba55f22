"""Evaluation on a cluster: methods × seeds × settings as tasks over shared features.

Features are made once, here or by `adte extract --engine ray`, and shared by all tasks: a cache by
its folder, which every machine has to see, or images in memory through Ray's object store. The
results go to the same folder as ever, written by this process alone, each as it comes: so an
interrupted sweep goes on, here or on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from adte.cluster.connect import RETRIES, ClusterOptions, connected, gave_up
from adte.cluster.worker import unfit
from adte.core.errors import InputError
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.stream import FeatureStream, Tick, silent
from adte.evaluate.running.protocol import BATCH
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import Task, key_of, known_run, once, passes, perform
from adte.evaluate.source import Source, needs_of
from adte.files import console

__all__ = ["run_tasks", "spread"]


@contextmanager
def spread(
    source: Source,
    tasks: Sequence[Task],
    runs: str | os.PathLike[str] | None,
    again: bool = False,
    options: ClusterOptions | None = None,
) -> Iterator[str]:
    """Run tasks on a cluster with one bar; within the block, the folder holds all of them.

    Without a folder for the runs it is a temporary one.
    """
    needs = needs_of([t.create() for t in tasks])
    with ExitStack() as stack:
        folder = runs or stack.enter_context(TemporaryDirectory(prefix="adte-"))
        stream = source.or_bundle(needs)
        ray = stack.enter_context(connected(options))
        with console.progress("encoding", 1) as bar:
            run_tasks(
                ray, stream, tasks, Results(folder), again, source.batch,
                tick=bar.advance, total=lambda n: bar.update("tasks", total=n),
            )  # fmt: skip
        yield os.fspath(folder)


def run_tasks(
    ray: Any,
    stream: FeatureStream,
    tasks: Sequence[Task],
    results: Results,
    again: bool = False,
    batch: int | None = None,
    tick: Tick = silent,
    total: Tick = silent,
) -> int:
    """Run those that the results lack, side by side; how many they were.

    `tick` gets the images of each task that is done.
    """
    keys = {key_of(stream, t): t for t in tasks}
    missing = {k: t for k, t in keys.items() if again or known_run(stream, results, k) is None}
    if not missing:
        return 0
    with once(stream, list(missing.values())) as shared:
        if isinstance(shared, Cache):
            shared._opened = {}  # made anew where it is read
        total(len(shared) * passes(missing.values()))
        work = ray.put([shared, batch or BATCH])
        one = ray.remote(num_cpus=1, max_retries=RETRIES)(_one)
        waiting = {one.remote([work], task): key for key, task in missing.items()}
        while waiting:
            (ref,), _ = ray.wait(list(waiting), num_returns=1)
            done, key = _got(ray, ref), waiting.pop(ref)
            if isinstance(done, str):
                raise InputError(done)
            results.put(key, *done)
            tick(len(shared) * passes([missing[key]]))
    return len(missing)


def _one(work: list[Any], task: Task) -> Any:
    """One task, where a worker is: its run and its record, or why it cannot be."""
    import ray

    try:
        stream, batch = ray.get(work[0])
        done = perform(stream, task, memory=True, batch=batch)
    except Exception as error:
        return unfit(error)
    return done.run, done.record


def _got(ray: Any, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        raise gave_up(error) from error
