"""Tables, bars, progress and JSON for the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from adte.state import write_whole

if TYPE_CHECKING:
    from adte.evaluate.tables import Grid

__all__ = ["bars", "emit_json", "grid", "out", "progress", "table"]

out = Console(highlight=False)


def _frame(title: str, caption: str) -> Table:
    return Table(
        title=title or None,
        caption=caption or None,
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
            column, justify="left" if i == 0 or text else "right", no_wrap=i == 0 or not text
        )
    for row in rows:
        t.add_row(*row)
    out.print(t)


def grid(grid: Grid) -> None:
    """Print a table of results; the best figure of a column is bold, the second underlined."""
    t = _frame(grid.title, grid.caption)
    cells = grid.cells()
    for i, column in enumerate(grid.shown):
        # The name of a row and every figure stay whole; headings give way in a narrow terminal.
        figures = [len(text) + (len(interval) + 1 if interval else 0)
                   for text, interval, _ in (row[i] for row in cells)]  # fmt: skip
        t.add_column(
            column.title or column.key,
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


def bars(title: str, values: Sequence[tuple[str, float]], width: int = 40) -> None:
    """Print a bar a name for probabilities."""
    out.print(f"[bold]{escape(title)}[/bold]")
    longest = max((len(name) for name, _ in values), default=0)
    for name, value in values:
        bar = "█" * round(value * width)
        out.print(f"  {escape(name):{longest}s}  [cyan]{bar:{width}s}[/cyan] {100 * value:5.1f} %")


def emit_json(data: Any, path: str) -> None:
    """Write JSON to a file, whole or not at all, or to standard output for `-`."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return

    def write(name: str) -> None:
        with open(name, "w", encoding="utf-8") as f:
            f.write(text)

    write_whole(path, write)


@contextmanager
def progress(description: str, total: int, show: bool = True) -> Iterator[Progress]:
    """A progress bar on standard error, with one task, of id 0."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as bar:
        bar.add_task(description, total=total)
        yield bar
