"""Tables, bars, progress and JSON for the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from adte.state import write_whole

__all__ = ["bars", "bench_table", "emit_json", "out", "progress", "table"]

out = Console(highlight=False)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    text: bool = False,
) -> None:
    """Print a table; the first column is text, the rest figures, unless all is text."""
    t = Table(
        title=title,
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    for i, column in enumerate(columns):
        t.add_column(
            column, justify="left" if i == 0 or text else "right", no_wrap=i == 0 or not text
        )
    for row in rows:
        t.add_row(*row)
    out.print(t)


def bench_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows over seeds, as `adte.evaluate.tasks.aggregate` makes them."""

    def percent(x: float | None, sign: str = "") -> str:
        return "" if x is None else f"{100 * x:{sign}.1f}"

    cells = [
        [
            r["method"],
            "—" if r["protocol"] == "stateless" else r["protocol"],
            percent(r["accuracy"]),
            "" if r["ci95"] is None else "±" + percent(r["ci95"][1] - r["accuracy"]),
            percent(r["gain"], "+"),
            percent(r["ece"]),
            *(percent(r[k]) for k in ("head", "middle", "tail")),
            f"{1e3 / r['images_per_s']:.1f}",
        ]
        for r in rows
    ]
    columns = ("method", "protocol", "acc.", "95 %", "vs SE", "ECE", "head", "mid", "tail", "ms")
    caption = "Accuracies in %, over seeds; ms: milliseconds an image."
    table(title, columns, cells, caption)


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
