"""Tables, bars, progress and JSON for the command line."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from adte._version import __version__
from adte.files import write_whole
from adte.files.devices import standard_output

if TYPE_CHECKING:
    from adte.evaluate.report.tables import Grid

__all__ = [
    "Bar",
    "bars",
    "can_print",
    "emit_json",
    "err",
    "grid",
    "line",
    "notes",
    "out",
    "progress",
    "say",
    "table",
    "told",
]

out = Console(highlight=False)
err = Console(highlight=False, stderr=True)


def _frame(title: str, caption: str) -> Table:
    return Table(
        title=Text(title, style="table.title") if title else None,
        caption=Text(caption, style="table.caption") if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    text: bool = False,
) -> None:
    """Print a table; the first column is text, the rest figures, unless all is text."""
    t = _frame(title, caption)
    for i, column in enumerate(columns):
        t.add_column(
            Text(column), justify="left" if i == 0 or text else "right", no_wrap=i == 0 or not text
        )
    for row in rows:
        t.add_row(*map(Text, row))  # a name with brackets is no markup
    out.print(t)


def grid(grid: Grid) -> None:
    """Print a table of results; the best figure of a column is bold, the second underlined."""
    t = _frame(grid.title, "")
    cells = grid.cells()
    for i, column in enumerate(grid.shown):
        # The name of a row and every figure stay whole; headings give way in a narrow terminal.
        figures = [len(text) + (len(interval) + 1 if interval else 0)
                   for text, interval, _ in (row[i] for row in cells)]  # fmt: skip
        t.add_column(
            Text(column.title or column.key),
            justify="left" if column.is_text else "right",
            min_width=max(figures, default=1),
            overflow="fold",
        )
    style = {"": "", "best": "bold", "second": "underline"}
    for row in cells:
        shown = []
        for text, interval, mark in row:
            cell = Text(text, style=style[mark])
            shown.append(cell.append(f" {interval}", style="dim") if interval else cell)
        t.add_row(*shown)
    out.print(t, crop=False, overflow="ignore")  # too wide is better than cut
    if grid.caption:
        out.print(grid.caption, style="dim", markup=False)


def bars(title: str, values: Sequence[tuple[str, float]], width: int = 40) -> None:
    """Print a bar per name for probabilities, of # where the terminal lacks a block."""
    out.print(Text(title, style="bold"), soft_wrap=True)
    longest = max((cell_len(name) for name, _ in values), default=0)
    block = "█" if can_print("█") else "#"
    for name, value in values:
        bar = Text(f"{block * round(value * width):{width}s}", style="cyan")
        line = Text.assemble("  ", _padded(name, longest), "  ", bar, f" {100 * value:5.1f} %")
        out.print(line, soft_wrap=True)


def can_print(text: str) -> bool:
    """Whether standard output has these letters."""
    try:
        text.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def line(cells: Sequence[tuple[str, str, int]]) -> None:
    """Print texts on one line, however long: each with its style and at least its width."""
    parts = [Text(_padded(text, width), style=style) for text, style, width in cells]
    shown = Text("  ").join(parts)
    shown.rstrip()
    out.print(shown, soft_wrap=True)


def say(text: str) -> None:
    """Print a line for a person on standard error, above a progress bar if there is one."""
    place = out if out.is_terminal and err.is_terminal else err  # `progress` chooses likewise
    place.print(Text(text), soft_wrap=True)


@contextmanager
def notes(show: bool = True) -> Iterator[None]:
    """Within the block a warning is one line on standard error, shown once."""
    shown: set[str] = set()

    def show_once(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if show and text not in shown:
            shown.add(text)
            say(f"note: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for category in (DeprecationWarning, ResourceWarning):  # for those who write programs
            warnings.filterwarnings("ignore", category=category)
        warnings.filterwarnings("ignore", module=r"PIL\.")  # of a file that it does not name
        # torch's, with a stack trace, where it computes bfloat16 without the processor's help:
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
        warnings.showwarning = show_once
        yield


def emit_json(data: Any, path: str) -> None:
    """Write JSON to a file, whole or not at all, or to standard output for `-`.

    Facts begin with the version, by which they are known for ours.
    """
    if isinstance(data, dict):
        data = {"adte": __version__, **data}
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode((path == "-" and standard_output().encoding) or "utf-8")
    except UnicodeEncodeError:  # a letter that the terminal lacks, or a name that is not UTF-8
        text = json.dumps(data, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()  # what it cannot take is known here, not at the very end
        return
    write_whole(path, text)


def told(data: Any, json_to: str | None) -> bool:
    """Write facts as JSON if they were asked for; whether standard output is left for people."""
    if json_to:
        emit_json(data, json_to)
    return json_to != "-"


class Bar:
    """What a progress bar shows."""

    def __init__(self, progress: Progress, description: str, total: int | None) -> None:
        self._progress, self._task = progress, progress.add_task(description, total=total)

    def advance(self, by: int = 1) -> None:
        self._progress.advance(self._task, by)

    def update(self, description: str, *, total: int | None = None) -> None:
        self._progress.update(self._task, description=description, total=total)

    def restart(self, description: str, total: int) -> None:
        self._progress.reset(self._task, description=description, total=total)

    def download(self, file: str, done: int, total: int | None) -> None:
        """Bytes of a file so far, and in all where that is known."""
        self._progress.update(self._task, description=file, completed=done, total=total)


@contextmanager
def progress(description: str, total: int | None, show: bool = True) -> Iterator[Bar]:
    """A progress bar on standard error.

    Where standard output is a terminal it is on that, and what `out` prints comes out above it.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    place = out if out.is_terminal else err
    show = show and place.is_terminal
    bar = Progress(*columns, console=place, transient=True, disable=not show)
    with bar if show else nullcontext():  # one that is not shown leaves an empty line in rich 13
        yield Bar(bar, description, total)
