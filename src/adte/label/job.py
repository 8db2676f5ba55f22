"""Labelling images: each has one row and is learned from once, whatever interrupts the run.

A `Job` says what to label and where the results go. Outputs are checked before any work. Images
that are known beforehand are worked on in a shuffled order (`adte.files.order`). Rows are written
as they come, and put into the listing's order at the end. The state that belongs to them is saved
every few seconds and at the end, so that the same job goes on where it stopped
(`adte.files.ledger`). Each output is finished by itself: one that fails costs no other.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from adte.classifier import Classifier
from adte.classifier.fit import check_fit, read_learned, read_method
from adte.core.errors import InputError, LockedError, StateError
from adte.data.places import Listing, expand, listing, local_path
from adte.files.claims import Lock, Target, claim, kind_of
from adte.files.devices import StrPath
from adte.files.inputs import Item, is_archive, is_pipe
from adte.files.ledger import Ledger, check_saved
from adte.files.order import Order, watched
from adte.files.outputs import Mark, format_of, is_stream, open_output, part_of
from adte.files.states import load_state
from adte.files.whole import make_folder
from adte.label.parquet import is_ours, to_parquet
from adte.label.report import Listener, Report, counted
from adte.label.run import Rows, Run, Saving
from adte.label.saved import Saved, Wanted, check_file, open_classifier
from adte.label.sorting import LIST, WAYS, Sorting

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
            .parquet. The rows of a .parquet are also kept beside it, in OUT.jsonl, from which an
            interrupted job continues.
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
        if self.out and self.out.lower().endswith(".parquet") and not is_stream(self.out):
            return self._run_to_parquet(self.out, listener)
        listener = listener or Listener()
        self._check()
        images = self._listed()
        keep = self._keep()
        self._claim(keep)
        self._check_format()
        sorting = None
        if self.sort_into is not None:
            sorting = Sorting(self.sort_into, self.sort, self.inputs)
        with ExitStack() as stack:
            if keep is not None:
                self._lock(keep.path, stack, listener)
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
            rows = self._rows(clf, keep, marks, listener)
            names, items = self._in_order(images, clf.views.seed, rows, listener)
            saving = Saving(clf, keep.path, marks, rows.out, was_frozen) if keep else None
            sorts = sorting is not None
            run = Run(clf, rows, saving, self.report, self.top, self.min_confidence, sorts)
            listener.begin(clf, names)
            run.go(items, listener, self.batch, self.workers, self.json_to)
            if newer := self.report.newer:
                # Rows that become Parquet have a longer name.
                shown = re.sub(r"(\.parquet)\.jsonl$", r"\1", self.out or "", flags=re.IGNORECASE)
                listener.note(
                    f"{counted(newer, 'image')} {'is' if newer == 1 else 'are'} newer than "
                    f"{shown!r}, where the old labels stay; --force labels all anew"
                )
        if sorting is not None:
            self._sort(sorting, run.labels, clf.classes, listener)
        return self.report

    def _run_to_parquet(self, out: str, listener: Listener | None) -> Report:
        rows = replace(self, out=f"{out}.jsonl")
        ours = is_ours(out)  # of an earlier run, and may go: its rows are in OUT.jsonl, too
        if ours and not self.force and not os.path.exists(f"{out}.jsonl"):
            raise InputError(
                f"{out!r} holds rows, but {f'{out}.jsonl'!r}, from which a run continues, is gone; "
                "put it back, give another --out, or --force to begin again"
            )
        read = [n for n in map(local_path, self.inputs) if not (ours and os.path.isdir(n))]
        replace(self, inputs=read, force=self.force or ours)._claim(rows._keep())
        rows.run(listener)
        self.report.written.append(f"{out} ({to_parquet(f'{out}.jsonl', out)} rows)")
        return self.report

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

    def _check_format(self) -> None:
        if self.out and format_of(self.out) == "json" and not is_stream(self.out):
            part_of(self.out)  # its rows have a longer name until it is put together

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
        self, images: Listing | None, seed: int, rows: Rows, listener: Listener
    ) -> tuple[list[str] | None, Iterable[Item]]:
        """The images' names, where they are known, and the images in the order of the work."""
        if images is None:
            names = list(self.inputs) if all(map(is_pipe, self.inputs)) else None  # an image each
            return names, watched(expand(self.inputs), listener.note)
        rows.listing = images.names
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
        said = "--state"
        if self.state is None or self.freeze:
            said = "the state of --out"
            read += [] if self.state is None else [self.state]
        targets = (
            Target("--out", self.out),
            Target("--json", self.json_to, "facts"),
            Target(said, keep.path if keep else None, "state"),
        )
        if self.sort_into is not None:
            listing = os.path.join(self.sort_into, LIST)
            for option, path, _ in targets:
                if path is not None and os.path.realpath(path) == os.path.realpath(listing):
                    raise InputError(
                        f"{option} {os.fspath(path)!r} is the list that --sort-into keeps; give "
                        "another name"
                    )
        if self.out is not None and not self.force:
            check_saved(self.out)
        claim(targets, read, self.force)

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
        there = keep is not None and kind_of(keep.path) == "state"
        state = self.state
        if self.freeze and self.start is not None and not os.path.exists(state or ""):
            state = None  # it would only be read
        if state is not None and self.freeze:
            clf, _ = open_classifier(self.wanted, Saved.by_option(state))
            self._pass_over_start(clf, state, listener)
            marks = self._marks(clf, keep) if keep and there and not self.force else {}
            return clf, marks
        if keep and there and (state is not None or not self.force):
            clf, marks = open_classifier(self.wanted, keep)
            self._pass_over_start(clf, keep.path, listener)
            return clf, marks
        if self.start is not None:
            clf, _ = open_classifier(self.wanted, Saved(self.start, f"--start {self.start!r}"))
            clf.begin()
            return clf, {}
        return self.wanted.new(), {}

    def _pass_over_start(self, clf: Classifier, state: str, listener: Listener) -> None:
        """Say that a state goes on and nothing begins; refuse a start that it cannot have had."""
        if self.start is None:
            return
        new = "--out" if self.state is None else "--state"
        _, facts = read_learned(self.start)
        options = read_method(self.start, facts).params
        try:
            check_fit(f"--start {self.start!r}", {**facts, "options": options}, clf.facts)
        except StateError as error:
            raise InputError(
                f"{error.problem}, and {state!r} is continued; leave --start out, or give a new "
                f"{new}"
            ) from error
        listener.note(
            f"--start {self.start!r} is not used: {state!r} exists and is continued; give a new "
            f"{new} to begin with it"
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

    def _rows(
        self, clf: Classifier, keep: Saved | None, marks: dict[str, Any], listener: Listener
    ) -> Rows:
        if self.out is None:
            return Rows()
        top = min(self.top, len(clf.classes))
        if self.force:
            return Rows(open_output(self.out, top=top))
        ledger = Ledger(self.out, top=top)
        mark = Mark()
        if keep is not None:
            mark = ledger.covered(keep.path, marks)
            self._check_past(ledger, clf, ledger.lost(keep.path, marks), listener)
        return Rows(ledger.resume(mark), ledger, frozenset(filter(is_pipe, self.inputs)))

    def _check_past(self, ledger: Ledger, clf: Classifier, lost: int, listener: Listener) -> None:
        """Refuse, or say, what does not go together with what earlier runs did."""
        good = [row for row in ledger.done if not row.failed]
        least, top = self.min_confidence, ledger.top
        if any(row.top not in (None, top) for row in good):
            raise InputError(
                f"{self.out!r} has rows of another --top than {top}; ask for the same number of "
                "classes per image, give another --out, or --force to begin again"
            )
        if any(
            (row.label is None) != (row.confidence < least)
            for row in good
            if row.confidence is not None
        ):
            raise InputError(
                f"{self.out!r} has rows of another --min-confidence than {least:g}; give the "
                "one that it was written with, another --out, or --force to begin again"
            )
        learned = sum(row.learned for row in good)
        if self.freeze and learned:
            listener.note(
                f"{counted(learned, 'image')} of {self.out!r} {'was' if learned == 1 else 'were'} "
                "learned from in an earlier run; --freeze applies to the others"
            )
        if lost and clf.seen and not clf.frozen:
            said = f"{self.out!r} is gone or empty, but its state has seen {clf.seen} images"
            if self.state is None:
                raise InputError(
                    f"{said}, which would be learned from again; give --force to start over, or "
                    f"--state {self.out}.adte to continue from what was learned"
                )
            listener.note(f"{said}; images that are given again are learned from again")

    # ------------------------------------------------------------------ after the work

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
