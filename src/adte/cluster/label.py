"""Labelling on a cluster: workers encode, one owner learns in the order of the images.

The owner is this process. It takes features in key order, whatever order workers finish in, and
does with them what a job on one machine does (`adte.labelling`): so labels, rows, state and what an
interrupted run goes on from are those of one machine, image by image, online.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from adte.classifier import Classifier
from adte.cluster.connect import ClusterOptions, connected
from adte.cluster.pool import Pool, Pooled
from adte.cluster.worker import Tower, Work
from adte.data.remote import expand, is_place
from adte.errors import InputError, MissingExtra
from adte.files.inputs import is_archive
from adte.files.whole import write_whole
from adte.labelling import Job, Listener, Report
from adte.labelling.job import listed
from adte.labelling.saved import Saved

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
            return super().run(listener)
        rows = replace(self, out=f"{self.out}.jsonl")
        self._claim_parquet(self.out, rows._keep())
        rows.run(listener)
        self.report.written.append(f"{self.out} ({to_parquet(f'{self.out}.jsonl', self.out)} rows)")
        return self.report

    # ------------------------------------------------------------------ before any work

    def _check(self) -> None:
        super()._check()
        if self.sort_into is not None:
            raise InputError(
                "--sort-into moves files of this machine; label with --engine ray first, then sort"
            )

    def _listed(self) -> tuple[Iterable[Any], list[str] | None]:
        items = expand(self.inputs)
        archives = any(is_archive(name) and not is_place(name) for name in self.inputs)
        return (items, None) if archives else listed(items)

    def _ready(self, clf: Classifier, stack: ExitStack) -> None:
        _check_fit(clf)
        ray = stack.enter_context(connected(self.cluster))
        clf.pipeline = self._pooled(ray, clf, stack)
        self.batch, self.workers = self.batch or self.cluster.chunk, 0

    def _claim(self, keep: Saved | None) -> None:
        """An input by an address of this machine is the file that it leads to."""
        Job._claim(replace(self, inputs=[_path(name) for name in self.inputs]), keep)

    def _claim_parquet(self, out: str, keep: Saved | None) -> None:
        """The file that rows become, refused as theirs is; one of an earlier run may go."""
        ours = _is_ours(out)
        read = [n for n in map(_path, self.inputs) if not (ours and os.path.isdir(n))]
        replace(self, inputs=read, force=self.force or ours)._claim(keep)

    def _pooled(self, ray: Any, clf: Classifier, stack: ExitStack) -> Pooled:
        tower = self.tower or Tower.of(clf.model, self.wanted)
        roots = [str(Path(n).absolute()) for n in self.inputs if not is_place(n) and n != "-"]
        seen = [root for root in roots if Path(root).is_dir()]
        pool = Pool(ray, Work(tower, clf.views, clf.model.preprocess, roots=seen), self.cluster)
        stack.callback(pool.close)
        return Pooled(clf.model, clf.views, pool=pool)


def _path(name: str) -> str:
    """The path that an address of this machine stands for; other names as they are."""
    return url2pathname(urlsplit(name).path) if name.startswith("file://") else name


def _check_fit(clf: Classifier) -> None:
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


def _schema(pyarrow: Any) -> Any:
    return pyarrow.schema({
        "path": pyarrow.string(), "label": pyarrow.string(), "confidence": pyarrow.float64(),
        "index": pyarrow.int64(), "learned": pyarrow.bool_(), "error": pyarrow.string(),
        "classes": pyarrow.list_(pyarrow.string()),
        "probabilities": pyarrow.list_(pyarrow.float64()),
    })  # fmt: skip


def _is_ours(path: str) -> bool:
    """Whether a file is there that has the columns of ours."""
    pyarrow = _arrow()
    try:
        with open(path, "rb") as file:
            names: list[str] = pyarrow.parquet.read_schema(file).names
    except (OSError, ValueError):
        return False
    return names == list(_schema(pyarrow).names)


def to_parquet(rows: str, path: str) -> int:
    """Rows of JSON lines as a Parquet file, written whole; how many they are."""
    pyarrow = _arrow()
    schema = _schema(pyarrow)
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
