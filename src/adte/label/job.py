"""Labelling images: each has one row and is learned from once, whatever interrupts the run.

A `Job` says what to label and where the results go. Outputs are checked before any work. Images
that are known beforehand are worked on in a shuffled order (`adte.files.order`). Rows are written
as they come, and put into the listing's order at the end. The state that belongs to them is saved
every few seconds and at the end, so that the same job goes on where it stopped
(`adte.files.journal`). Each output is finished by itself: one that fails costs no other.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from adte.classifier import Classifier
from adte.classifier.facts import read_state
from adte.classifier.fit import check_fit, read_learned
from adte.core.errors import InputError, LockedError
from adte.data.places import Listing, expand, listing, local_path
from adte.files.claims import Target, claim
from adte.files.devices import StrPath
from adte.files.inputs import Item, is_archive, is_pipe
from adte.files.journal import Journal, Mark, Stream, form_of, is_stream
from adte.files.locks import Lock
from adte.files.order import Order, watched
from adte.files.rows import rows_of
from adte.files.states import is_state, load_state
from adte.files.whole import make_folder
from adte.label.back import LIST, WAYS
from adte.label.report import Listener, Report, counted
from adte.label.run import Run, Saving
from adte.label.saved import Saved, Wanted, check_file, open_classifier
from adte.label.sorting import Sorting
from adte.label.tables import check_table, write_table

__all__ = ["Job"]


@dataclass
class Job:
    """Images to label, the classifier to label them with, and where the results go.

    Call `run`. If it is interrupted, the same job continues where it stopped.

    Attributes:
        inputs: files, folders, archives, Parquet files, addresses in object stores, or "-" for
            standard input.
        wanted: the classifier.
        out: file for one row per image, written as images are labelled: .csv, .jsonl, .json or
            .parquet. The last two are made at the end, from rows beside them in OUT.jsonl, from
            which an interrupted job continues.
        json_to: JSON file for all results of this run, written at the end.
        state: file for what is learned: loaded if it exists, then updated. With `out` and no
            `state`, it is OUT.adte.
        start: state to begin with if `state` does not exist yet; it is not changed.
        learn: only learn, without labels; a frozen state is then an error.
        freeze: do not learn; `state` is then not changed.
        force: overwrite files that adte did not write, and start `out` over.
        top: number of classes to report per image.
        min_confidence: images below this confidence get no label.
        batch: images to process together; None takes what is fastest.
        workers: threads that decode in advance; None takes what is fastest.
        sort_into: folder to sort the images into, one folder per label, at the end.
        sort: whether sorting copies the images, links to them or moves them.
        wait: seconds to wait for another process that uses the state, or sorts into the folder.
        order: of the work. "shuffled" follows from the names of images and the seed, and takes
            folders, files and .zip archives; pipes, tar archives and Parquet files are read as they
            come. "listed" is the order of the inputs, and of the names in a folder.
        report: how far the job came, also after an error.
    """

    inputs: Sequence[str]
    wanted: Wanted
    out: str | None = None
    json_to: str | None = None
    state: str | None = None
    start: str | None = None
    learn: bool = False
    freeze: bool = False
    force: bool = False
    top: int = 5
    min_confidence: float = 0.0
    batch: int | None = None
    workers: int | None = None
    sort_into: str | None = None
    sort: str = "copy"
    wait: float = 60.0
    order: Order = "shuffled"
    report: Report = field(default_factory=Report)

    def run(self, listener: Listener | None = None) -> Report:
        """Label the images.

        Args:
            listener: is told of each image.

        Returns:
            What became of the images and outputs. After an error, `report` has it.

        Raises:
            InputError: if an input or output cannot be used. An image that cannot be read is no
                error; it is listed in the report.
        """
        listener = listener or Listener()
        self._check()
        images = self._listed()
        keep = self._keep()
        self._claim(keep)
        sorting = None
        if self.sort_into is not None:
            sorting = Sorting(self.sort_into, self.sort, self.inputs)
        with ExitStack() as stack:
            if keep is not None:
                self._lock(keep.path, stack, listener)
            if self._rows_file is not None:
                stack.enter_context(Lock(self._rows_file, 0))
            clf, marks = self._classifier(keep, listener)
            was_frozen = clf.frozen
            if was_frozen and self.learn:
                raise InputError(
                    f"the state {self.state!r} is frozen, so nothing would be learned; give "
                    "another one, or in Python load it, call unfreeze() and save it"
                )
            if was_frozen and not self.freeze:
                listener.note("this state is frozen: images are labelled, nothing is learned")
            clf.frozen = was_frozen or self.freeze
            self._ready(clf, stack)
            if sorting is not None:
                sorting.check(clf.classes)
            out = self._output(clf, keep, marks, listener)
            names, items = self._in_order(images, clf.views.seed, listener)
            run = Run(
                clf, out,
                Saving(clf, keep.path, marks, out, was_frozen) if keep else None,
                self.report,
                top=self.top,
                min_confidence=self.min_confidence,
                pipes=frozenset(filter(is_pipe, self.inputs)),
                listing=None if images is None else images.names,
                sorts=sorting is not None,
            )  # fmt: skip
            listener.begin(clf, names)
            run.go(items, listener, self.batch, self.workers, self.json_to)
            if newer := self.report.newer:
                listener.note(
                    f"{counted(newer, 'image')} {'is' if newer == 1 else 'are'} newer than "
                    f"{self.out!r}, where the old labels stay; --force labels all anew"
                )
            if self.out is not None and self._rows_file not in (None, self.out):
                self._write_table(self.out)
        if sorting is not None:
            self._sort(sorting, run.labels, clf.classes, listener)
        return self.report

    @property
    def _rows_file(self) -> str | None:
        """The file that rows are kept in as they come, if there is one."""
        return None if self.out is None or is_stream(self.out) else rows_of(self.out)

    # ------------------------------------------------------------------ before any work

    def _check(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise InputError(
                f"a confidence of {self.min_confidence} is not between 0 and 1; give 0 to 1"
            )
        if self.wait < 0:
            raise InputError(f"a wait of {self.wait:g} s is not possible; give 0 or more")
        if self.start is not None:  # also where it is not needed any more
            load_state(self.start)

    def _listed(self) -> Listing | None:
        """The images, where those can be known without reading them; one that is not there is
        refused.
        """
        images = listing(self.inputs)
        if images is not None and len(images.names) == 1 and not is_archive(images.names[0]):
            (source,) = images.sources
            if isinstance(source, InputError):
                raise source
        return images

    def _in_order(
        self, images: Listing | None, seed: int, listener: Listener
    ) -> tuple[list[str] | None, Iterable[Item]]:
        """The images' names, where they are known, and the images in the order of the work."""
        if images is None:
            names = list(self.inputs) if all(map(is_pipe, self.inputs)) else None  # an image each
            return names, watched(expand(self.inputs), listener.note)
        if self.order == "listed" or not images.can_shuffle:
            return images.names, watched(images.items(None), listener.note)
        if self.out is not None and is_stream(self.out):
            listener.note(
                "rows come in the shuffled order of the work, not in that of the names; --order "
                "listed changes that, at a cost in accuracy where folders or names are sorted"
            )
        return images.names, images.items(seed)

    def _ready(self, clf: Classifier, stack: ExitStack) -> None:
        """What is needed before rows are opened, which may empty a file."""

    def _keep(self) -> Saved | None:
        """The state that is written: the one that was named, else the one beside the output."""
        if self.state is None or self.freeze:
            return Saved.beside(self.out) if self.out and not is_stream(self.out) else None
        check_file("--state", self.state)
        return Saved.by_option(self.state)

    def _claim(self, keep: Saved | None) -> None:
        read: list[StrPath] = [local_path(name) for name in self.inputs]
        read += [] if self.start is None else [self.start]
        option, rows, known = "--state", self._rows_file, False
        if self.state is None or self.freeze:
            option = "the state of --out"
            read += [] if self.state is None else [self.state]
        if rows is not None and keep is not None and is_state(keep.path):
            marks = read_state(load_state(keep.path)[1], keep.path)["outputs"] or {}
            known = Mark.among(marks, rows, keep.path) is not None
        state = "" if keep is None else keep.path
        targets = [
            _rows_target(rows or self.out, state, known),
            Target("--json", self.json_to),
            Target(option, state or None, "state"),
        ]
        if self.out is not None and rows not in (None, self.out):
            check_table(self.out)
            targets.append(Target("--out", self.out))
        if self.sort_into is not None:
            listing = os.path.join(self.sort_into, LIST)
            for target in targets:
                path = target.path
                if path is not None and os.path.realpath(path) == os.path.realpath(listing):
                    raise InputError(
                        f"{target.option} {os.fspath(path)!r} is the list that --sort-into keeps; "
                        "give another name"
                    )
        claim(targets, read, self.force)
        if self.out is not None:
            form_of(rows or self.out, 0)  # of a name that says it
            self._check_rows(known)

    def _check_rows(self, known: bool) -> None:
        """Refuse a table without the rows that it was made of: another run would write over it."""
        out, rows = self.out or "", self._rows_file
        if self.force or rows in (None, out) or not (os.path.exists(out) and os.path.getsize(out)):
            return
        if not (known and rows is not None and os.path.exists(rows)):
            raise InputError(
                f"{out!r} holds rows, but {rows!r}, from which a run continues, is gone; put it "
                "back, give another --out, or --force to begin again"
            )

    def _lock(self, path: StrPath, stack: ExitStack, listener: Listener) -> None:
        try:
            stack.enter_context(Lock(path, 0))
        except LockedError as error:
            if not self.wait:
                raise
            listener.note(f"{error.problem}; waiting up to {self.wait:g} s for it")
            stack.enter_context(Lock(path, self.wait))

    def _classifier(
        self, keep: Saved | None, listener: Listener
    ) -> tuple[Classifier, dict[str, Any]]:
        """The classifier to begin with, and what its state knows of outputs."""
        there = keep is not None and is_state(keep.path)
        state = self.state
        if self.freeze and self.start is not None and not os.path.exists(state or ""):
            state = None  # it would only be read
        if state is not None and self.freeze:
            clf, _ = open_classifier(self.wanted, Saved.by_option(state))
            self._pass_over_start(state, listener)
            marks = self._marks(clf, keep) if keep and there and not self.force else {}
            return clf, marks
        if keep and there and (state is not None or not self.force):
            clf, marks = open_classifier(self.wanted, keep)
            self._pass_over_start(keep.path, listener)
            return clf, marks
        if self.start is not None:
            clf, _ = open_classifier(self.wanted, Saved(self.start, f"--start {self.start!r}"))
            clf.begin()
            return clf, {}
        return self.wanted.new(), {}

    def _pass_over_start(self, state: str, listener: Listener) -> None:
        """Say that a state goes on and nothing begins."""
        if self.start is not None:
            new = "--out" if self.state is None else "--state"
            listener.note(
                f"--start {self.start!r} is not used: {state!r} exists and is continued; give a "
                f"new {new} to begin with it"
            )

    def _marks(self, clf: Classifier, keep: Saved) -> dict[str, Any]:
        """What the state beside an output knows of it, if it is the state that this run has."""
        then, facts = read_learned(keep.path)
        check_fit(repr(keep.path), facts, clf.facts)
        now = {name: value.cpu() for name, value in clf.method.state_dict().items()}
        same = then.keys() == now.keys() and all(torch.equal(then[k], now[k]) for k in now)
        if not same or facts["temperature"] != clf.temperature:
            raise InputError(
                f"{self.out!r} was written with another state than {self.state!r} "
                f"({facts['seen']} images seen then, {clf.seen} now); {keep.mend} to begin again"
            )
        return facts["outputs"] or {}

    def _output(
        self, clf: Classifier, keep: Saved | None, marks: dict[str, Any], listener: Listener
    ) -> Stream | None:
        """Where rows go. What does not go together with earlier rows is refused, or noted."""
        if self.out is None:
            return None
        top, rows = min(self.top, len(clf.classes)), self._rows_file
        if rows is None:
            return Stream(self.out, top)
        assert keep is not None
        asked = f"--top {top} --min-confidence {self.min_confidence}"
        mark = None if self.force else Mark.among(marks, rows, keep.path)
        if mark and mark.rows and mark.asked not in ("", asked):
            raise InputError(
                f"{self.out!r} was written with {mark.asked}, not {asked}; ask for the same, give "
                "another --out, or --force to begin again"
            )
        if mark is None and not self.force:  # another process may have made it meanwhile
            claim([_rows_target(rows, keep.path, False)])
        journal = Journal(rows, top, mark, asked)
        if journal.lost and clf.seen and not clf.frozen:
            gone = f"{rows!r} is gone or empty, but its state has seen {clf.seen} images"
            if self.state is None:
                raise InputError(
                    f"{gone}, which would be learned from again; give --force to start over, or "
                    f"--state {keep.path} to continue from what was learned"
                )
            listener.note(f"{gone}; images that are given again are learned from again")
        return journal

    # ------------------------------------------------------------------ after the work

    def _write_table(self, out: str) -> None:
        try:
            rows = write_table(rows_of(out), out)
            self.report.written.append(f"{out} ({counted(rows, 'row')})")
        except InputError as error:
            self.report.failed.append(str(error))

    def _sort(
        self,
        sorting: Sorting,
        labels: dict[str, list[str | None]],
        classes: Sequence[str],
        listener: Listener,
    ) -> None:
        done = False
        try:
            make_folder(sorting.folder)  # an undo may have removed it meanwhile
            with ExitStack() as stack:
                self._lock(sorting.path, stack, listener)
                sorting.fill(expand(self.inputs), labels, classes)
        except InputError as error:
            self.report.failed += [*sorting.left, str(error)]
        else:
            self.report.failed += sorting.left
            done = not sorting.left
        finally:
            if done or sorting.count:  # an interrupt, too, leaves what is to be told of
                listing = shlex.quote(str(sorting.path))  # to be copied, blanks and all
                number = counted(sorting.count, "image")
                how = f"{number} {WAYS[self.sort]}; `adte undo {listing}` undoes it"
                self.report.written.append(f"{self.sort_into} ({how})")


def _rows_target(rows: str | None, state: str, known: bool) -> Target:
    wanted = f"an output of adte that the state {state!r} knows of"
    return Target("--out", rows, ours=known, wanted=wanted)
