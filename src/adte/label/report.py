"""How a job goes: what it tells of each image, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from adte.classifier import Classifier, Share, Unread
from adte.core.prediction import Prediction

__all__ = ["Labelled", "Listener", "Report", "counted"]


def counted(number: int, name: str) -> str:
    """
    >>> counted(1, "row"), counted(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


class Labelled(NamedTuple):
    """One labelled image of a job: its name, its row in the output, and the prediction.

    The prediction is None for an image that could not be read.
    """

    name: str
    row: dict[str, Any]
    prediction: Prediction | None

    @property
    def unsure(self) -> bool:
        """Whether it has no label, being below the job's `min_confidence`."""
        return bool(self.row["abstained"])


@dataclass
class Report:
    """What became of the images and outputs of a job.

    Attributes:
        verb: what was done to the images, in words.
        labelled: number of images labelled in this run, including unsure ones.
        unsure: number of those that were below `min_confidence`, and so got no label.
        before: number of images that had a label from an earlier run.
        newer: number of those that were changed after their rows were written.
        seen: number of images that the classifier has learned from, in all runs.
        shares: estimated share of each class, largest first, if the method estimates it.
        unread: images that could not be read, as (source, reason).
        written: outputs that were written, in words.
        failed: outputs that could not be written, in words.
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
        """Whether all images were read and all outputs written."""
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
    """Is told how a job goes on; derive from it and override what you need."""

    def begin(self, clf: Classifier, names: Sequence[str] | None) -> None:
        """The classifier is ready; `names` are the images to come, or None if not known yet."""

    def show(self, image: Labelled) -> None:
        """An image was labelled, and has its row."""

    def skip(self, name: str) -> None:
        """An image was skipped, as it has a row from an earlier run."""

    def note(self, text: str) -> None:
        """There is something that the user should know."""
