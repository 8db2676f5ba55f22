"""Labelling on a cluster: workers encode, one owner learns in the order of the images.

The owner is this process. It takes features in key order, whatever order workers finish in, and
does with them what a job on one machine does (`adte.labelling`): so labels, rows, state and what an
interrupted run goes on from are those of one machine, image by image, online.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adte.classifier import Classifier
from adte.cluster.connect import ClusterOptions, connected
from adte.cluster.pool import Pool, Pooled
from adte.cluster.worker import Tower, Work
from adte.data.remote import expand, is_place
from adte.errors import InputError, MissingExtra
from adte.files.claims import Target, claim
from adte.files.inputs import is_archive
from adte.files.whole import write_whole
from adte.labelling import Job, Listener, Report
from adte.labelling.run import Run, Saving

__all__ = ["ClusterJob"]

BATCH = 1024  # rows that are put into a Parquet file together


@dataclass
class ClusterJob(Job):
    """A job whose images are encoded by a cluster.

    Inputs may lie in object stores or Parquet files too. `out` may end in .parquet: rows are then
    kept beside it as they come, in OUT.jsonl, which an interrupted run goes on from.
    """

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    tower: Tower | None = None

    def run(self, listener: Listener | None = None) -> Report:
        """Label what is to be labelled; see `Job.run`."""
        if self.out is None or not self.out.endswith(".parquet"):
            return self._run(listener or Listener())
        claim_parquet(self.out, self.force)
        rows = replace(self, out=f"{self.out}.jsonl")
        rows._run(listener or Listener())
        self.report.written.append(f"{self.out} ({to_parquet(f'{self.out}.jsonl', self.out)} rows)")
        return self.report

    def _run(self, listener: Listener) -> Report:
        if self.sort_into is not None:
            raise InputError(
                "--sort-into moves files of this machine; label with --engine ray first, then sort"
            )
        items: Iterable[Any] = expand(self.inputs)
        names = None  # what lies in an archive of this machine is read as it comes
        if not any(is_archive(name) and not is_place(name) for name in self.inputs):
            items = list(items)
            names = [name for name, _ in items]
        keep = self._keep()
        self._claim(keep)
        with ExitStack() as stack:
            if keep is not None:
                self._lock(keep, stack, listener)
            clf, marks = self._classifier(keep)
            was_frozen = clf.frozen
            clf.frozen = was_frozen or self.freeze
            rows = self._rows(clf, keep, marks)
            saving = Saving(clf, keep.path, marks, rows.out, was_frozen) if keep else None
            run = Run(clf, rows, saving, self.report, self.top, self.min_confidence)
            _check(clf)
            ray = stack.enter_context(connected(self.cluster))
            clf.pipeline = self._pooled(ray, clf, stack)
            listener.begin(clf, names)
            run.go(items, listener, self.batch or self.cluster.chunk, 0, self.json_to)
        return self.report

    def _pooled(self, ray: Any, clf: Classifier, stack: ExitStack) -> Pooled:
        tower = self.tower or Tower.of(clf.model, self.wanted.weights, self.wanted.device)
        roots = [str(Path(n).absolute()) for n in self.inputs if not is_place(n) and n != "-"]
        seen = [root for root in roots if Path(root).is_dir()]
        pool = Pool(ray, Work(tower, clf.views, clf.model.preprocess, roots=seen), self.cluster)
        stack.callback(pool.close)
        return Pooled(clf.model, clf.views, pool=pool)


def _check(clf: Classifier) -> None:
    """Refuse what workers cannot do, before any is started."""
    if clf.pipeline.keep_pixels:
        raise InputError(
            f"method {clf.method.name!r} needs the pixels of every view, which do not travel; "
            "leave --engine ray out, or choose a method of features such as adte"
        )
    if clf.auto:
        raise InputError(
            "views='auto' stops by what was learned so far, which workers do not know; give a "
            "number of --views with --engine ray"
        )


# --------------------------------------------------------------------------- Parquet


def _arrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("pyarrow", "ray", "writing Parquet") from error
    return pyarrow


def claim_parquet(path: str, force: bool = False) -> None:
    """Refuse, before any work, a Parquet file that cannot be written or is another's."""
    pyarrow = _arrow()
    there = Path(path)
    if there.exists() and not force:
        try:
            names = pyarrow.parquet.read_schema(path).names
        except (OSError, ValueError):
            names = []
        if names[:2] != ["path", "label"]:
            raise InputError(
                f"--out {path!r} exists and is not an output of adte; give another name, or "
                "--force to write over it"
            )
    claim([Target("--out", f"{path}.part")])


def to_parquet(rows: str, path: str) -> int:
    """Rows of JSON lines as a Parquet file, written whole; how many they are."""
    pyarrow = _arrow()
    schema = pyarrow.schema({
        "path": pyarrow.string(), "label": pyarrow.string(), "confidence": pyarrow.float64(),
        "index": pyarrow.int64(), "learned": pyarrow.bool_(), "error": pyarrow.string(),
        "classes": pyarrow.list_(pyarrow.string()),
        "probabilities": pyarrow.list_(pyarrow.float64()),
    })  # fmt: skip
    count = 0

    def write(name: str) -> None:
        nonlocal count
        with pyarrow.parquet.ParquetWriter(name, schema) as writer:
            for some in _batches(rows):
                writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
                count += len(some)

    write_whole(path, write)
    return count


def _batches(rows: str) -> Iterator[list[dict[str, Any]]]:
    some: list[dict[str, Any]] = []
    with open(rows, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            top = row.pop("top", [])
            row["classes"] = [t["class"] for t in top]
            row["probabilities"] = [t["probability"] for t in top]
            some.append(row)
            if len(some) == BATCH:
                yield some
                some = []
    if some:
        yield some
