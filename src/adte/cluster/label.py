"""Labelling on a cluster: workers encode, one owner learns in the order of the images.

The owner is this process. It takes features in key order, whatever order workers finish in, and
does with them what a job on one machine does (`adte.label`): so labels, rows, state and what an
interrupted run goes on from are those of one machine, image by image, online, as far as features
are equal (`adte.cluster`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adte.classifier import Classifier
from adte.cluster.connect import ClusterOptions, connected
from adte.cluster.pool import Pool, Pooled
from adte.cluster.worker import Tower, Work
from adte.core.errors import InputError
from adte.data.places import is_place
from adte.label import Job

__all__ = ["ClusterJob"]


@dataclass
class ClusterJob(Job):
    """A job whose images are encoded by a cluster."""

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    tower: Tower | None = None

    # ------------------------------------------------------------------ before any work

    def _check(self) -> None:
        super()._check()
        if self.sort_into is not None:
            raise InputError(
                "--sort-into moves files of this machine; label with --engine ray first, then sort"
            )

    def _ready(self, clf: Classifier, stack: ExitStack) -> None:
        _check_fit(clf)
        ray = stack.enter_context(connected(self.cluster))
        clf.pipeline = self._pooled(ray, clf, stack)
        self.batch, self.workers = self.batch or self.cluster.chunk, 0

    def _pooled(self, ray: Any, clf: Classifier, stack: ExitStack) -> Pooled:
        tower = self.tower or Tower.of(clf.model, self.wanted)
        roots = [str(Path(n).absolute()) for n in self.inputs if not is_place(n) and n != "-"]
        seen = [root for root in roots if Path(root).is_dir()]
        pool = Pool(ray, Work(tower, clf.views, clf.model.preprocess, roots=seen), self.cluster)
        stack.callback(pool.close)
        return Pooled(clf.model, clf.views, pool=pool)


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
