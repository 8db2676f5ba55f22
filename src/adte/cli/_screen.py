"""What `predict` shows: a line per image on standard output, the rest on standard error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.cells import cell_len

from adte.files import console
from adte.files.inputs import STDIN
from adte.files.rows import escape_name
from adte.label import Labelled, Listener, Report
from adte.label.sorting import UNSURE

if TYPE_CHECKING:
    from adte.classifier import Classifier

__all__ = ["TINY", "Screen"]

TINY = (
    "note: `tiny` is a small model that sees 64 pixels, for demonstrations and tests; on everyday "
    "names it is often wrong. For a real one: adte models get ViT-B-16/openai, then add "
    "--model ViT-B-16/openai"
)
WIDEST = 48  # letters that a column is padded to
ENOUGH, SHARES = 20, 8  # images before shares are shown, and how many classes


class Screen(Listener):
    """The terminal of a person.

    Args:
        quiet: only errors and the summary; verbose: the best classes of each image too.
        bars: bars for each image; None shows them for an image alone.
        top: how many classes.
        data: standard output is taken by rows or JSON, for a program to read.
        lines: a line for each image.
    """

    def __init__(
        self,
        quiet: bool,
        verbose: bool,
        bars: bool | None,
        top: int,
        data: bool,
        lines: bool = True,
    ) -> None:
        self.lines = lines
        self.quiet, self.verbose, self.bars, self.top, self.data = quiet, verbose, bars, top, data
        self._talks = not quiet and (not data or console.err.is_terminal)
        self._stack = ExitStack()
        self._progress: console.Bar | None = None
        self._tiny = False
        self._alone = False
        self._widths = 0, 0

    def begin(self, clf: Classifier, names: Sequence[str] | None) -> None:
        total = None if names is None else len(names)
        self._alone = total == 1 and self.lines
        self._tiny = clf.model.name.startswith("tiny")
        self._widths = _widest(map(escape_name, names or [])), _widest(clf.classes)
        show = self._talks and not self._alone and not (self.data and console.out.is_terminal)
        self._progress = self._stack.enter_context(console.progress("labelling", total, show))

    def show(self, image: Labelled) -> None:
        self._advance()
        if self._tiny and self._talks and image.prediction is not None:
            console.say(TINY)
            self._tiny = False
        if self.quiet or self.data or not self.lines:
            return
        name, row, p = escape_name(image.name), image.row, image.prediction
        if p is None:
            if not self._alone:
                self._line(name, "(not read)", "")
            return
        label = UNSURE if image.unsure else str(row["label"])
        if self.bars or (self.bars is None and self._alone):
            title = f"{name}  {UNSURE}" if image.unsure else name
            console.bars(title, p.top(self.top))
            return
        self._line(name, label, f"{100 * p.confidence:5.1f} %")
        if self.verbose:
            for c, x in p.top(self.top):
                share = f"{100 * x:5.1f} %"
                console.line([("", "", 2), (c, "dim", self._widths[1]), (share, "dim", 0)])

    def _line(self, name: str, label: str, confidence: str) -> None:
        console.line([(name, "", self._widths[0]), (label, "bold", self._widths[1]),
                      (confidence, "cyan", 0)])  # fmt: skip

    def skip(self, name: str) -> None:
        self._advance()

    def _advance(self) -> None:
        if self._progress is not None:
            self._progress.advance()

    def note(self, text: str) -> None:
        if not self.quiet:
            console.say(f"note: {text}")

    def close(self, report: Report) -> None:
        """Say what could not be read or written, and sum up."""
        self._stack.close()
        for unread in report.unread:
            name, reason = escape_name(unread.source), unread.reason
            is_said = unread.source in reason or unread.source in STDIN
            said = reason if is_said else f"{name}: {reason}"
            console.say(f"error: {said}")
        for reason in report.failed:
            console.say(f"error: {reason}")
        if self._is_plain(report):
            return
        self._say_shares(report)
        parts = [str(report)]
        if report.written:
            parts.append(f"written: {', '.join(map(escape_name, report.written))}")
        if report.failed:
            parts.append(f"{len(report.failed)} not written, see above")
        console.say("; ".join(parts))

    def _say_shares(self, report: Report) -> None:
        """What the images are made of, once there are enough to tell."""
        shown = [s for s in report.shares[:SHARES] if s.share >= 0.005]
        if report.seen < ENOUGH or not shown or not self._talks:
            return
        rest = sum(s.share for s in report.shares[len(shown) :])
        said = ", ".join([*map(str, shown), *([f"others {rest:.0%}"] if rest >= 0.005 else [])])
        console.say(f"estimated shares of {report.seen} images (95 % interval): {said}")

    def _is_plain(self, report: Report) -> bool:
        """Nothing that the lines above did not say."""
        if report == Report(verb=report.verb):
            return True
        if self.quiet or report.failed:
            return False
        return not self._talks or (self._alone and not report.written)


def _widest(names: Iterable[str]) -> int:
    return min(WIDEST, max(map(cell_len, names), default=0))
