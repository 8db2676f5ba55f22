"""Tables of results: one value, written as Markdown, CSV or HTML.

Markdown and HTML are for reading: percent with one decimal, the best figure of a column bold and
the second in italics or underlined. CSV is for computing: fractions, in full precision.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from adte.errors import InputError
from adte.state import write_whole

__all__ = ["Column", "Grid", "check_suffix", "rows_table", "save_table", "terminal_table"]

Kind = Literal["text", "protocol", "percent", "change", "count", "number", "seconds", "bytes", "p"]
Mark = Literal["", "best", "second"]


def _scaled(factor: float, digits: int, sign: str = "") -> Callable[[Any], str]:
    def show(x: float) -> str:
        return f"{round(factor * x, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no minus nought

    return show


_SHOW: dict[Kind, Callable[[Any], str]] = {
    "text": str,
    "protocol": lambda name: "—" if name == "stateless" else str(name),
    "percent": _scaled(100, 1),
    "change": _scaled(100, 1, "+"),
    "count": _scaled(1, 0),
    "number": _scaled(1, 3),
    "seconds": _scaled(1e3, 1),  # milliseconds
    "bytes": _scaled(1e-6, 0),  # megabytes
    "p": lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}",
}


@dataclass(frozen=True)
class Column:
    """A column: where its values lie in a row, its heading, and how they are shown.

    Attributes:
        best: whether large ("up") or small ("down") figures are good; None marks nothing.
        interval: key of a pair (low, high) that is shown behind the figure.
        shown: False for what only the CSV has.
        interval_kind: how the interval is shown, where it is not of the figure itself.
    """

    key: str
    title: str = ""
    kind: Kind = "text"
    best: Literal["up", "down"] | None = None
    interval: str | None = None
    shown: bool = True
    interval_kind: Kind | None = None

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "protocol")

    def show(self, value: Any) -> str:
        return "" if _missing(value) else _SHOW[self.kind](value)

    def show_interval(self, row: Mapping[str, Any]) -> str:
        """As in 41.2…43.0, or nothing."""
        pair = row.get(self.interval) if self.interval else None
        show = _SHOW[self.interval_kind or self.kind]
        return "" if pair is None else "…".join(show(x) for x in pair)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True)
class Grid:
    """Rows, as mappings, under columns.

    >>> columns = (Column("method"), Column("accuracy", "acc.", "percent", best="up"))
    >>> rows = [{"method": "se", "accuracy": 0.504}, {"method": "adte", "accuracy": 0.5149}]
    >>> print(Grid(columns, rows).to_markdown(), end="")
    | method | acc. |
    |:--|--:|
    | se | *50.4* |
    | adte | **51.5** |
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    caption: str = ""

    @property
    def shown(self) -> list[Column]:
        return [c for c in self.columns if c.shown]

    def marks(self, column: Column) -> list[Mark]:
        """Best and second of a column, by the figures as shown; equal ones share the mark.

        A column whose figures are all equal has neither, nor has a row that is `aside`.
        """
        values = [
            None if row.get("aside") else _figure(column, row.get(column.key)) for row in self.rows
        ]
        ranked = sorted({v for v in values if v is not None}, reverse=column.best == "up")
        if column.best is None or len(ranked) < 2:
            return [""] * len(values)
        names: dict[float | None, Mark] = {ranked[0]: "best", ranked[1]: "second"}
        return [names.get(v, "") for v in values]

    def cells(self) -> list[list[tuple[str, str, Mark]]]:
        """For every row and shown column: the figure, its interval, its mark."""
        columns = [(c, self.marks(c)) for c in self.shown]
        return [
            [(c.show(row.get(c.key)), c.show_interval(row), marks[i]) for c, marks in columns]
            for i, row in enumerate(self.rows)
        ]

    def to_markdown(self) -> str:
        def cell(text: str, interval: str, mark: Mark) -> str:
            star = {"": "", "second": "*", "best": "**"}[mark]
            around = f" ({interval})" if interval else ""
            return (star + text + star + around).replace("|", "\\|").replace("\n", " ")

        titles = [cell(c.title or c.key, "", "") for c in self.shown]
        rules = [":--" if c.is_text else "--:" for c in self.shown]
        lines = [f"### {self.title}\n"] if self.title else []
        lines += [f"| {' | '.join(titles)} |", f"|{'|'.join(rules)}|"]
        lines += [f"| {' | '.join(cell(*c) for c in row)} |" for row in self.cells()]
        lines += [f"\n{self.caption}"] if self.caption else []
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        return _csv([self])

    def to_html(self) -> str:
        """A table in a box of its own that scrolls; the first column heads the rows.

        Intervals have cells of their own beside the figures, so that both line up.
        """
        cells = self.cells()
        paired = [any(row[i][1] for row in cells) for i in range(len(self.shown))]
        head = "".join(
            f'<th scope="col"{_text_class(c)}{" colspan=2" if two else ""}>'
            f"{html.escape(c.title or c.key)}</th>"
            for c, two in zip(self.shown, paired, strict=True)
        )
        body = ""
        for row in cells:
            tag = "th scope=row"
            body += "<tr>"
            for c, two, (text, interval, mark) in zip(self.shown, paired, row, strict=True):
                inner = html.escape(text if c.is_text else _minus(text))
                if mark:
                    how = "strong" if mark == "best" else "em"
                    inner = f"<{how}>{inner}</{how}>"
                body += f"<{tag}{_text_class(c)}>{inner}</{tag[:2]}>"
                body += f'<td class="interval">{_minus(interval)}</td>' if two else ""
                tag = "td"
            body += "</tr>\n"
        title = html.escape(self.title or "Results", quote=True)
        note = f'<p class="note">{html.escape(self.caption)}</p>\n' if self.caption else ""
        return (
            f'<div class="wide" role="region" tabindex="0" aria-label="{title}">'
            f"<table><caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{body}</tbody></table></div>\n{note}"
        )


def _figure(column: Column, value: Any) -> float | None:
    """What figures are compared by: the value rounded as it is shown."""
    return None if column.best is None or _missing(value) else float(column.show(value))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _text_class(column: Column) -> str:
    return ' class="text"' if column.is_text else ""


def _csv(grids: Iterable[Grid]) -> str:
    """Raw values under keys; a pair takes two columns. Several grids get a column that tells them
    apart, and the union of their columns.
    """
    grids = list(grids)
    lines: list[dict[str, Any]] = []
    names: dict[str, None] = {"table": None} if len(grids) > 1 else {}
    for grid in grids:
        for row in grid.rows:
            line: dict[str, Any] = {"table": grid.title} if len(grids) > 1 else {}
            for c in grid.columns:
                line[c.key] = _raw(row.get(c.key))
                if c.interval:
                    low, high = row.get(c.interval) or (None, None)
                    line[f"{c.interval}_low"], line[f"{c.interval}_high"] = _raw(low), _raw(high)
            names |= dict.fromkeys(line)
            lines.append(line)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _raw(value: Any) -> Any:
    if _missing(value):
        return ""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return value


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a table's file, if its format is known."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".md", ".markdown", ".html", ".htm"):
        raise InputError(
            f"cannot tell the format of the table {str(path)!r} from its suffix; "
            "name it .csv, .md or .html"
        )
    return suffix


def save_table(path: str | os.PathLike[str], grids: Grid | Sequence[Grid]) -> Path:
    """Write one table or several to a file, in the format of its suffix: .csv, .md or .html."""
    grids = [grids] if isinstance(grids, Grid) else list(grids)
    suffix = check_suffix(path)
    if suffix == ".csv":
        text = _csv(grids)
    elif suffix in (".md", ".markdown"):
        text = "\n".join(g.to_markdown() for g in grids)
    else:
        from adte.evaluate.page import page

        text = page(grids[0].title or "Results", [g.to_html() for g in grids])
    return write_whole(path, lambda name: Path(name).write_text(text, "utf-8", newline=""))


COLUMNS: tuple[Column, ...] = (
    Column("method"),
    Column("protocol", kind="protocol"),
    Column("accuracy", "accuracy", "percent", "up", "ci95"),
    Column("gain", "over SE", "change", None, "gain_ci95"),
    Column("p", "p", "p"),
    Column("gain_best", "over best", "change", None, "gain_best_ci95"),
    Column("p_best", "p", "p"),
    Column("ece", "ECE", "percent", "down"),
    Column("head", "head", "percent", "up"),
    Column("middle", "middle", "percent", "up"),
    Column("tail", "tail", "percent", "up"),
    Column("seconds", "ms", "seconds"),
    Column("peak_memory", "MB", "bytes"),
    Column("seeds", "seeds", "count"),
    Column("images_per_s", kind="count", shown=False),
    Column("top5", kind="percent", shown=False),
    Column("mean_per_class", kind="percent", shown=False),
    Column("nll", kind="number", shown=False),
    Column("spearman", kind="number", shown=False),
    Column("options", shown=False),
)


def rows_table(rows: Sequence[Mapping[str, Any]], title: str = "", caption: str = "") -> Grid:
    """The rows of `adte.evaluate.tasks.aggregate` as a table.

    Columns that no row has a value for are left out, and `seeds` is shown where there are several.
    `seconds` is the time an image; where a row has none it is one over `images_per_s`.
    """
    full = []
    for row in rows:
        rate = row.get("images_per_s")
        seconds = row.get("seconds")
        if seconds is None and rate:
            seconds = 1 / rate
        full.append({**row, "seconds": seconds})
    known = [c for c in COLUMNS if any(not _missing(r.get(c.key)) for r in full)]
    if all(r.get("seeds") == 1 for r in full):
        known = [replace(c, shown=False) if c.key == "seeds" else c for c in known]
    return Grid(known, full, title, caption)


def terminal_table(rows: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """The same rows in the width of a terminal, with a caption that explains the columns."""
    lines = []
    for r in rows:
        gain = "…".join(f"{100 * x:+.1f}" for x in r["gain_ci95"] or ())
        half = None if r["seeds"] < 2 else r["ci95"][1] - r["accuracy"]
        lines.append({**r, "half": half, "against": gain or None})
    columns = (
        *COLUMNS[:2],
        Column("accuracy", "acc.", "percent", "up"),
        Column("half", "±", "percent"),
        Column("against", "vs SE, 95 %"),
        Column("ece", "ECE", "percent", "down"),
        Column("head", "head", "percent", "up"),
        Column("middle", "mid", "percent", "up"),
        Column("tail", "tail", "percent", "up"),
        Column("seconds", "ms", "seconds"),
        Column("peak_memory", "MB", "bytes"),
    )
    known = {c.key for c in columns if any(line.get(c.key) is not None for line in lines)}
    notes = {
        "accuracy": "Accuracies in %",
        "half": "±: 95 % over seeds (orders of the stream)",
        "against": "vs SE: the gain, bootstrap paired by image",
        "head": "head, mid, tail: thirds of the classes by training frequency",
        "seconds": "ms: milliseconds an image",
        "peak_memory": "MB: peak memory above the start",
    }
    said = "; ".join(note for key, note in notes.items() if key in known) + "."
    return Grid([c for c in columns if c.key in known], lines, title, said)
