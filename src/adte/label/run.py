"""The run of a job: encode, learn, write the row; save the state every few seconds.

Signals wait while an image is learned from and while its row is written. On a GPU the rows of a
group are written after the next one was learned from, so that the device never waits for the host;
what is behind is caught up with before anything is saved, and at the end, whatever ends the run. So
the state and the rows that are saved always tell of the same images.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, NamedTuple

from adte.classifier import Classifier, Unread
from adte.classifier.arguments import refusing
from adte.core.batch import Batch
from adte.core.errors import InputError
from adte.core.machine import head_device
from adte.core.prediction import Prediction
from adte.files.inputs import Item
from adte.files.journal import Journal, Stream
from adte.files.order import put_back
from adte.files.rows import escape_name
from adte.label.report import Labelled, Listener, Report, counted
from adte.label.signals import Deferred
from adte.pipeline import default_group, default_workers

__all__ = ["Run", "Saving", "behind"]

EVERY = 5.0  # seconds between two saves of the state


@dataclass
class Saving:
    """The state of a run on its way to disk, with what it covers of the output.

    Attributes:
        marks: of outputs, as the state had them.
        frozen: as the state was, whether or not this run learns.
        error: why the last save failed; the next may go well.
    """

    clf: Classifier
    path: str
    marks: Mapping[str, Any]
    out: Stream | None
    frozen: bool
    error: InputError | None = None
    _due: float = 0.0

    def __post_init__(self) -> None:
        self._seen = self.clf.seen

    @property
    def is_idle(self) -> bool:
        """Nothing was learned, and there is neither a state to keep nor a row to cover."""
        learned = self.clf.seen != self._seen
        return not learned and self.out is None and not os.path.exists(self.path)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def now(self) -> None:
        """Save, or keep the `error`."""
        if self.is_idle:
            return
        begin = time.monotonic()
        marks = self.out.mark(self.path, self.marks) if self.out else dict(self.marks)
        try:
            self.clf.checkpoint(self.path, force=True, outputs=marks, frozen=self.frozen)
            self.error = None
        except InputError as error:
            self.error = error
        end = time.monotonic()
        self._due = end + max(EVERY, 20 * (end - begin))

    def check(self) -> None:
        """Save, or say why not."""
        self.now()
        if self.error:
            raise self.error


class _Learned(NamedTuple):
    """Images that were learned from, the unreadable between them, and what fetches the answers."""

    group: list[tuple[str, InputError | None]]
    answers: Callable[[], list[Prediction]]


def behind(clf: Classifier) -> int:
    """Groups whose rows may wait for the next one's learning."""
    return 0 if head_device(clf.model.device).type == "cpu" else 1


class Run:
    """One run over images, once.

    Args:
        out: where rows go, not begun yet.
        pipes: names of inputs that give another image each time.
        listing: names of all images in the order that rows have at the end; None leaves them as
            they come.
        sorts: whether `labels` are asked for.

    Attributes:
        labels: of the images of each name, those of earlier runs too; None is unsure.
    """

    def __init__(
        self,
        clf: Classifier,
        out: Stream | None = None,
        saving: Saving | None = None,
        report: Report | None = None,
        *,
        top: int = 5,
        min_confidence: float = 0.0,
        pipes: frozenset[str] = frozenset(),
        listing: Sequence[str] | None = None,
        sorts: bool = False,
    ) -> None:
        self.clf, self.out, self.saving, self.report = clf, out, saving, report or Report()
        self.top, self.min_confidence, self.sorts = top, min_confidence, sorts
        self.pipes, self.listing = pipes, listing
        self.labels: dict[str, list[str | None]] = {}
        self._begun = False
        self._all: list[dict[str, Any]] = []  # rows, for the JSON at the end
        self._learned: deque[_Learned] = deque()  # groups whose rows are yet to be written
        self._done: list[Labelled] = []  # images whose rows were written and not shown
        self._torn: set[str] = set()  # what was being changed when something failed

    def go(
        self,
        items: Iterable[Item],
        listener: Listener,
        batch: int | None = None,
        workers: int | None = None,
        json_to: str | None = None,
    ) -> None:
        """Label all; whatever ends it, each output is finished by itself."""
        signals = Deferred()
        with signals.installed():
            try:
                if self.out is not None:
                    with signals:
                        if self.saving:  # a state knows of the file before there is one
                            self.saving.check()
                        self.out.begin()
                        self._begun = True
                for group, encoded in self._groups(items, listener, batch, workers):
                    with self._showing(listener), signals:
                        self._take_in(group, encoded, json_to is not None)
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                    raise
                raise InputError(
                    f"the memory is not enough for {self.clf.views.count} views per image; give "
                    "fewer --views, or a smaller --batch"
                ) from error
            finally:
                try:
                    with self._showing(listener), signals:
                        self._catch_up(json_to is not None)
                finally:
                    with signals:
                        self._finish(json_to)

    @contextmanager
    def _showing(self, listener: Listener) -> Iterator[None]:
        """Tell of the images whose rows were written, whatever became of the others."""
        try:
            yield
        finally:
            done, self._done = self._done, []
            for image in done:
                listener.show(image)

    def _groups(
        self, items: Iterable[Item], listener: Listener, batch: int | None, workers: int | None
    ) -> Iterator[tuple[list[tuple[str, InputError | None]], Batch | None]]:
        """Images in order, as many as are encoded together, and the unreadable between them."""
        names: dict[int, str] = {}
        errors: dict[int, InputError] = {}
        number = count()

        def todo() -> Iterator[tuple[str, Any]]:
            for name, source in items:
                done = None if self.out is None or name in self.pipes else self.out.take(name)
                if done is not None:
                    assert self.out is not None
                    self.report.before += 1
                    self.report.newer += self.out.is_older(source)
                    self._keep(name, done.label)
                    listener.skip(name)
                    continue
                i = next(number)
                names[i] = name
                yield str(i), refusing(source) if isinstance(source, InputError) else source

        def failed(key: str, error: InputError) -> None:
            errors[int(key)] = error

        size = batch or default_group(self.clf.model)
        ahead = default_workers() if workers is None else workers
        start = 0
        for encoded in self.clf.encode(todo(), size, ahead, failed):
            end = int(encoded.keys[-1]) + 1
            yield [(names.pop(i), errors.pop(i, None)) for i in range(start, end)], encoded
            start = end
        if names:
            yield [(names[i], errors[i]) for i in sorted(names)], None

    def _take_in(
        self, group: list[tuple[str, InputError | None]], encoded: Batch | None, keep: bool
    ) -> None:
        with self._mending("state"):
            answers = list if encoded is None else self.clf.start(encoded)
            self._learned.append(_Learned(group, answers))
        due = self.saving is not None and self.saving.is_due
        self._catch_up(keep, 0 if due else behind(self.clf))
        if due:
            assert self.saving is not None
            self.saving.now()

    def _catch_up(self, keep: bool, behind: int = 0) -> None:
        """Write the rows of what was learned, but for the last groups; none behind a failure."""
        while len(self._learned) > behind and "rows" not in self._torn:
            with self._mending("rows"):
                group, answers = self._learned.popleft()
                predictions = iter(answers())
                for name, error in group:
                    image = self._labelled(name, next(predictions) if error is None else str(error))
                    self._done.append(image)
                    if keep:
                        self._all.append(image.row)
                    if self.out is not None:
                        self.out.write(image.row)

    @contextmanager
    def _mending(self, what: Literal["state", "rows"]) -> Iterator[None]:
        """What ends in between leaves the state and the rows torn apart."""
        self._torn.add(what)
        yield
        self._torn.remove(what)

    @property
    def _whole(self) -> bool:
        """Whether the state and the rows tell of the same images."""
        return not (self._torn or self._learned)

    def _labelled(self, name: str, answer: Prediction | str) -> Labelled:
        row: dict[str, Any] = {"path": name, "label": None, "confidence": None, "index": None,
                               "learned": False, "error": None, "top": [], "abstained": False,
                               "kept": []}  # fmt: skip
        if isinstance(answer, str):
            row["error"] = answer
            self.report.unread.append(Unread(name, answer))
            return Labelled(name, row, None)
        p = replace(answer, source=name)
        unsure = p.confidence < self.min_confidence
        row.update(
            label=None if unsure else p.label,
            confidence=p.confidence,
            index=p.index,
            learned=not self.clf.frozen,
            top=[{"class": c, "probability": x} for c, x in p.top(self.top)],
            abstained=unsure,
            kept=[] if p.kept is None else p.kept.tolist(),
        )
        self._keep(name, row["label"])
        self.report.labelled += 1
        self.report.unsure += unsure
        return Labelled(name, row, p)

    def _keep(self, name: str, label: str | None) -> None:
        if self.sorts:
            self.labels.setdefault(name, []).append(label)

    # ------------------------------------------------------------------ the end

    def _finish(self, json_to: str | None) -> None:
        self.report.seen = self.clf.seen
        with suppress(InputError):  # not every method estimates them
            self.report.shares = self.clf.shares
        saved = self.saving is not None and self._end(self._save, not self.saving.is_idle)
        if self.out is not None and self._begun:
            listing = self.listing if saved else None  # rows change places if all are covered
            self._end(lambda: self._close(listing), self._whole or self.out.rows > 0)
        if json_to is not None:
            self._end(lambda: self._write_json(json_to))

    def _end(self, finish: Callable[[], str], say: bool = True) -> bool:
        try:
            written = finish()
            self.report.written += [written] if say else []
        except (InputError, BrokenPipeError) as error:
            self.report.failed.append(str(error))
            return False
        return True

    def _save(self) -> str:
        assert self.saving is not None
        path = self.saving.path
        if not self._whole and not self.clf.frozen:
            goes_on = "learns again what it had learned by then"
            if isinstance(self.out, Journal):
                goes_on = "continues from there"
            raise InputError(f"{path!r} is as it was at its last save; the same command {goes_on}")
        self.saving.check()
        return f"{path} ({counted(self.clf.seen, 'image')} seen)"

    def _close(self, listing: Sequence[str] | None) -> str:
        assert self.out is not None
        self.out.close(listing)
        return f"{_called(self.out.path)} ({counted(self.out.rows, 'row')})"

    def _write_json(self, path: str) -> str:
        from adte.files.console import emit_json

        order = put_back([row["path"] for row in self._all], self.listing or ())
        facts = {
            "model": self.clf.model.name,
            "method": self.clf.method.name,
            "classes": self.clf.classes,
            "seen": self.clf.seen,
            "labelled": self.report.labelled,
            "unsure": self.report.unsure,
            "before": self.report.before,
            "shares": [s._asdict() for s in self.report.shares],
            "unread": [{"path": escape_name(u.source), "error": u.reason}
                       for u in self.report.unread],
            "rows": [{**self._all[i], "path": escape_name(self._all[i]["path"])} for i in order],
        }  # fmt: skip
        emit_json(facts, path)
        return _called(path)


def _called(path: str) -> str:
    return "standard output" if path == "-" else path
