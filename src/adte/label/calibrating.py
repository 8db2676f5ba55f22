"""Calibrating a state file with labelled images."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from unicodedata import normalize

from adte.classifier import Classifier, Unread
from adte.classifier.calibration import Calibration
from adte.core.errors import InputError
from adte.data import Example, load_dataset
from adte.files.claims import Target, claim
from adte.files.locks import Lock
from adte.files.rows import holds_rows
from adte.files.states import is_state
from adte.label.report import counted
from adte.label.saved import Saved, Wanted, check_file, open_classifier
from adte.pipeline import default_workers

__all__ = ["Calibrating"]

FEW = 20  # images that a temperature is hardly found by
LISTED = 10  # classes that are named


@dataclass
class Calibrating:
    """Calibrates a state file on labelled images: what `adte calibrate` does. Call `run`.

    Attributes:
        data: labelled images, as `load_dataset` takes them.
        wanted: the classifier.
        state: state file to calibrate; created if it does not exist. Its classes are those of the
            data, unless `wanted` names others.
        limit: maximum number of images, drawn at random.
        workers: threads that decode in advance; None takes what is fastest.
        json_to: file that the caller will write the result to; it is checked with the rest.
        force: overwrite files that adte did not write.
    """

    data: str
    wanted: Wanted
    state: str
    limit: int | None = None
    workers: int | None = None
    json_to: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        check_file("--state", self.state)
        self._set = load_dataset(self.data)
        examples = list(self._set)
        read = [e.source for e in examples if isinstance(e.source, str | os.PathLike)]
        targets = Target("--state", self.state, "state"), Target("--json", self.json_to)
        claim(targets, read, self.force)
        if holds_rows(self.data.partition(":")[2]):
            warnings.warn(
                f"{self.data!r} has the labels that adte gave, by which it seems better than it "
                "is; give labels of a person, such as checked.csv of `adte look`",
                stacklevel=3,
            )
        shuffled = random.Random(0).sample(examples, len(examples))  # as images come in use
        self.examples: list[Example] = shuffled[: self.limit]
        if (count := len(self.examples)) < FEW:
            warnings.warn(
                f"calibrated with {counted(count, 'image')} alone; give fifty or more",
                stacklevel=3,
            )

    def run(self, tick: Callable[[int], object]) -> tuple[Calibration, list[Unread]]:
        """Calibrate and save the state.

        Args:
            tick: called with the number of images that were just read.

        Returns:
            The calibration, and the images that could not be read.
        """
        saved = Saved.by_option(self.state)
        with Lock(self.state, 0):
            if is_state(self.state):
                clf, outputs = open_classifier(self.wanted, saved)
            else:
                classes = self.wanted.classes or self._set.classes
                clf, outputs = replace(self.wanted, classes=classes).new(), {}
                if self.wanted.classes is None:
                    first = ", ".join(classes[:LISTED]) + ", …" * (len(classes) > LISTED)
                    warnings.warn(
                        f"the classes of {self.state!r} are those of the data, {len(classes)}: "
                        f"{first}",
                        stacklevel=2,
                    )
            ahead = default_workers() if self.workers is None else self.workers
            labels = self._labels(clf)
            calibration = clf.calibrate([e.source for e in self.examples], labels, workers=ahead,
                                  errors="skip", tick=tick)  # fmt: skip
            clf.save(self.state, force=True, outputs=outputs)
        return calibration, clf.unread

    def _labels(self, clf: Classifier) -> list[str | int]:
        """By index where both have the same classes, which may share names; by name otherwise.

        Folders from a Mac have é as two characters where a list of classes has one.
        """
        composed = {normalize("NFC", name): name for name in clf.classes}
        names = [n if n in clf.classes else composed.get(normalize("NFC", n), n)
                 for n in self._set.classes]  # fmt: skip
        if tuple(names) == clf.classes:
            return [e.label for e in self.examples]
        if missing := next((names[e.label] for e in self.examples
                            if names[e.label] not in clf.classes), None):  # fmt: skip
            raise InputError(
                f"{self.data!r} has images of {missing!r}, which is none of the classes of "
                f"{os.fspath(self.state)!r}; leave them out, or name the class as the state does"
            )
        return [names[e.label] for e in self.examples]
