"""How a job goes: what it tells of each image, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from adte.classifier import Classifier, Share, Unread
from adte.prediction import Prediction

__all__ = ["Labelled", "Listener", "Report", "counted"]


def counted(number: int, name: str) -> str:
    """
    >>> counted(1, "row"), counted(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


class Labelled(NamedTuple):
    """One image of a job as it comes out: its row (`adte.files.rows`), and what it is from."""

    name: str
    row: dict[str, Any]
    prediction: Prediction | None

    @property
    def unsure(self) -> bool:
        return bool(self.row["abstained"])


@dataclass
class Report:
    """How a job went.

    Attributes:
        verb: what was done to images, in words.
        labelled: images, those that were unsure among them.
        before: images that have a label from an earlier run.
        newer: of these, images that were changed after the rows were written.
        unread: images that could not be read.
        seen: images that the classifier has learned from, all in all.
        shares: what those are made of, largest first, where the method estimates it.
        written, failed: what became of each output, in words.
    """

    verb: str = "labelled"
    labelled: int = 0
    unsure: int = 0
    before: int = 0
    newer: int = 0
    seen: int = 0
    shares: list[Share] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.unread and not self.failed

    def __str__(self) -> str:
        parts = [f"{counted(self.labelled, 'image')} {self.verb}"]
        if self.unsure:
            parts[0] += f" ({self.unsure} unsure)"
        if self.before:
            parts.append(f"{self.before} done before")
        if self.unread:
            parts.append(f"{len(self.unread)} could not be read")
        return ", ".join(parts)


class Listener:
    """Who wants to know how a job goes; this one does not."""

    def begin(self, clf: Classifier, names: Sequence[str] | None) -> None:
        """The classifier is ready, these images are to come; None where nobody knows yet."""

    def show(self, image: Labelled) -> None:
        """An image has its row."""

    def skip(self, name: str) -> None:
        """An image has a row from an earlier run."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
