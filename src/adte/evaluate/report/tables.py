"""Tables of results: one class, written as Markdown, CSV, HTML or LaTeX.

All but CSV are for reading: percent with one decimal, the best figure of a column bold and the
second in italics or underlined; each is a template beside this file. CSV is for computing:
fractions, in full precision. Headings, directions and captions of figures are those of the metrics.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from adte.core.errors import InputError
from adte.evaluate.running import metrics
from adte.evaluate.running.metrics import Metric, list_metrics
from adte.files import write_whole
from adte.files.rows import escape_cell

__all__ = [
    "Column",
    "Grid",
    "check_suffix",
    "domains_table",
    "render",
    "row_name",
    "rows_table",
    "save_table",
    "terminal_table",
]

Kind = metrics.Kind | Literal["text", "protocol", "p"]
Mark = Literal["", "best", "second"]
SUFFIXES = {".csv": "csv", ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html",
            ".tex": "tex"}  # fmt: skip


def _scaled(factor: float, digits: int, sign: str = "") -> Callable[[Any], str]:
    def show(x: float) -> str:
        return f"{round(factor * x, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no minus zero

    return show


_points = _scaled(100, 1, "+")

_SHOW: dict[Kind, Callable[[Any], str]] = {
    "text": str,
    "protocol": lambda name: "—" if name == "stateless" else str(name),
    "percent": _scaled(100, 1),
    "points": _points,
    "count": _scaled(1, 0),
    "number": _scaled(1, 3),
    "ms": _scaled(1e3, 1),
    "MB": _scaled(1e-6, 0),
    "p": lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}",
    "interval": lambda pair: "…".join(map(_points, pair)),
    "parts": str,
    "curve": str,
}


@dataclass(frozen=True)
class Column:
    """A column: where its values lie in a row, its heading, and how they are shown.

    Attributes:
        best: whether large ("up") or small ("down") figures are good; None marks nothing.
        interval: key of a pair (low, high) that is shown behind the figure.
        half: show half its width, as in ± 0.4, instead of both ends.
        shown: False for what only the CSV has.
        interval_kind: how the interval is shown, where it is not of the figure itself.
        caption: explanation below the table.
    """

    key: str
    title: str = ""
    kind: Kind = "text"
    best: Literal["up", "down"] | None = None
    interval: str | None = None
    shown: bool = True
    interval_kind: Kind | None = None
    caption: str = ""
    half: bool = False

    @classmethod
    def of(cls, m: Metric) -> Column:
        """The column of a metric; one without a heading is in the CSV alone."""
        shown = bool(m.column)
        return cls(m.name, m.column, m.kind, m.direction, shown=shown, caption=m.caption)

    @property
    def heading(self) -> str:
        return self.title or self.key

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "protocol", "interval")

    def show(self, value: Any) -> str:
        return "" if _missing(value) else _SHOW[self.kind](value)

    def show_interval(self, row: Mapping[str, Any]) -> str:
        """As in 41.2…43.0 or ± 0.9, or nothing."""
        pair = row.get(self.interval) if self.interval else None
        show = _SHOW[self.interval_kind or self.kind]
        if pair is not None and self.half:
            return f"± {show((pair[1] - pair[0]) / 2)}" if pair[1] > pair[0] else ""
        return "" if pair is None else "…".join(show(x) for x in pair)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True)
class Grid:
    """Rows, as mappings, under columns.

    >>> columns = (Column("method"), Column("accuracy", "acc.", "percent", best="up"))
    >>> rows = [{"method": "se", "accuracy": 0.504}, {"method": "tilt", "accuracy": 0.5149}]
    >>> print(Grid(columns, rows).to_markdown(), end="")
    | method | acc. |
    |:--|--:|
    | se | *50.4* |
    | tilt | **51.5** |
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

        def figure(row: Mapping[str, Any]) -> float | None:
            value = row.get(column.key)
            ranked = column.best is not None and not column.is_text and not row.get("aside")
            return float(column.show(value)) if ranked and not _missing(value) else None

        values = [figure(row) for row in self.rows]
        best = sorted({v for v in values if v is not None}, reverse=column.best == "up")[:2]
        if len(best) < 2:
            return [""] * len(values)
        names: dict[float | None, Mark] = {best[0]: "best", best[1]: "second"}
        return [names.get(v, "") for v in values]

    def cells(self) -> list[list[tuple[str, str, Mark]]]:
        """For every row and shown column: the figure, its interval, its mark."""
        columns = [(c, self.marks(c)) for c in self.shown]
        return [
            [(c.show(row.get(c.key)), c.show_interval(row), marks[i]) for c, marks in columns]
            for i, row in enumerate(self.rows)
        ]

    def paired(self, number: int) -> bool:
        """Whether a shown column has intervals, which have cells of their own in HTML."""
        return any(self.shown[number].show_interval(row) for row in self.rows)

    def to_markdown(self) -> str:
        return render("table.md", grid=self)

    def to_csv(self) -> str:
        return _csv([self])

    def to_latex(self) -> str:
        """A `table` for a paper, with the rules of the package booktabs."""
        return render("table.tex", grid=self)

    def to_html(self) -> str:
        """A table in a box of its own that scrolls; the first column heads the rows."""
        return render("table.html", grid=self)


# --------------------------------------------------------------------------- formats


@cache
def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=jinja2.select_autoescape(("html",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "markdown": _markdown,
        "latex": lambda text: "".join(_LATEX.get(c, c) for c in text),
        "figure": lambda text: text.replace("-", "$-$"),
        "minus": lambda text: text.replace("-", "−"),
    }
    return environment


def render(template: str, **facts: Any) -> str:
    """A template of this room, filled in; what goes into HTML is escaped."""
    text: str = _environment().get_template(template).render(**facts)
    return text


def _markdown(text: str) -> str:
    """A name as Markdown shows it: in one line, and no letter of it is markup."""
    return re.sub(r"([\\`*|]|<(?! ))", r"\\\1", " ".join(text.split("\n")))


_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ",
    "…": r"\,\ldots\,", "—": "---", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "→": r"$\to$",
}  # fmt: skip


def _csv(grids: Sequence[Grid]) -> str:
    """Raw values under keys; a pair takes two columns. Several grids get a column of their
    titles, and the union of their columns.
    """
    lines = []
    for grid in grids:
        for row in grid.rows:
            line: dict[str, Any] = {"table": grid.title} if len(grids) > 1 else {}
            for c in grid.columns:
                pair = c.key if c.kind == "interval" else c.interval
                if c.kind != "interval":
                    line[c.key] = _raw(row.get(c.key))
                if pair:
                    low, high = row.get(pair) or (None, None)
                    line |= {f"{pair}_low": _raw(low), f"{pair}_high": _raw(high)}
            lines.append({escape_cell(k): escape_cell(v) for k, v in line.items()})
    out = io.StringIO()
    names = dict.fromkeys(name for line in lines for name in line)
    writer = csv.DictWriter(out, list(names), lineterminator="\n")
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
    if suffix not in SUFFIXES:
        raise InputError(
            f"cannot tell the format of the table {str(path)!r} from its suffix; "
            "name it .csv, .md, .html or .tex"
        )
    return suffix


def save_table(path: str | os.PathLike[str], grids: Grid | Sequence[Grid]) -> Path:
    """Write one table or several to a file, in the format of its suffix: .csv, .md, .html, .tex."""
    grids = [grids] if isinstance(grids, Grid) else list(grids)
    form = SUFFIXES[check_suffix(path)]
    if form == "csv":
        text = _csv(grids)
    elif form == "html":
        from adte.core.page import page

        text = page(grids[0].title or "Results", [g.to_html() for g in grids])
    else:
        text = "\n".join(render(f"table.{form}", grid=g) for g in grids)
    return write_whole(path, text)


# --------------------------------------------------------------------------- rows of methods

NAMES = (Column("method"), Column("protocol", kind="protocol"))
OVER = "SE"  # the usual baseline; a table names its own
# Gains over other rows; metrics have the other columns.
COMPARED = (
    Column("gain", f"over {OVER}", "points", None, "gain_ci95", caption=
           f"over {OVER}: gain in points with its 95 % interval (bootstrap, paired by image)"),
    Column("p", "p", "p", caption="p: McNemar's, exact, the largest over seeds, not corrected for "
           "the number of rows"),
    Column("gain_best", "over best", "points", None, "gain_best_ci95",
           caption="over best: likewise over the best baseline"),
    Column("p_best", "p", "p"),
)  # fmt: skip
SMALL = (  # in the width of a terminal
    Column("half", "±", "percent", caption="±: 95 % over seeds (shuffles of the stream)"),
    Column("gain_ci95", f"vs {OVER}, 95 %", "interval",
           caption=f"vs {OVER}: the gain, bootstrap paired by image"),
)  # fmt: skip


def rows_table(rows: Sequence[Mapping[str, Any]], title: str = "", best: str = "") -> Grid:
    """The rows of `adte.evaluate.running.rows` as a table, with a caption that explains its
    columns; `best` names the best baseline.

    Columns that no row has a value for are left out, and `seeds` is shown if several.
    Rows that are `aside`, for they lack draws that others have, are named below the table.
    """
    head, *rest = (Column.of(m) for m in list_metrics() if m.plain)
    if _some(rows, "ci95"):
        behind = f"{head.caption}; behind them 95 % intervals over seeds (Student's t)"
        head = replace(head, interval="ci95", caption=behind)
    more = {"gain_best": f", {best}" if best else ""}
    if sum(_missing(r.get("gain")) for r in rows) > 1:  # the baseline has none either
        more["gain"] = ", left out where the two did not run on the same images and views"
    compared = [replace(c, caption=c.caption + more.get(c.key, "")) for c in COMPARED]
    about = "seeds: shuffles of the stream, or other draws of its images and views"
    if any(1 < r.get("draws", 1) < r.get("seeds", 1) for r in rows):
        about += ", each draw counting once"
    several = any(r.get("seeds") != 1 for r in rows)
    seeds = Column("seeds", "seeds", "count", shown=several, caption=about)
    hidden = (Column(key, shown=False) for key in ("over", "by_domain", "options"))
    grid = _explained((*NAMES, head, *compared, *rest, seeds, *hidden), rows, title)
    if lacking := [row_name(r) for r in rows if r.get("aside")]:
        note = f"Not ranked, for they lack draws of images and views: {'; '.join(lacking)}."
        grid = replace(grid, caption=f"{grid.caption} {note}")
    return grid


def terminal_table(rows: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """The same rows in the width of a terminal."""
    lines = []
    for r in rows:
        ci95 = r.get("ci95")  # one of its ends may be cut off, at 0 or 1
        half = None if ci95 is None else max(abs(x - r["accuracy"]) for x in ci95)
        lines.append({**r, "half": half})
    head, *rest = (Column.of(m) for m in list_metrics() if m.plain and m.column)
    return _explained((*NAMES, head, *SMALL, *rest), lines, title)


def _explained(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]], title: str) -> Grid:
    """A grid of the columns that some row has a value for, with a caption that explains them."""
    over = next((r["over"] for r in rows if r.get("over")), "se")
    over = OVER if over == "se" else over
    known = [
        replace(c, title=c.title.replace(OVER, over), caption=c.caption.replace(OVER, over))
        if c.key in ("gain", "gain_ci95") else c
        for c in columns
        if _some(rows, c.key)
    ]  # fmt: skip
    about = "; ".join(dict.fromkeys(c.caption for c in known if c.shown and c.caption))
    sentences = [f"{about[:1].upper()}{about[1:]}."] if about else []
    own: dict[str, dict[str, None]] = {}  # methods that did not run under the prompts of the table
    for r in rows:
        own.setdefault(r.get("own_prompt") or "", {})[row_name(r)] = None
    sentences += [
        f"Not under the prompts of the data, but from {prompt!r} on: {'; '.join(names)}."
        for prompt, names in own.items()
        if prompt
    ]
    return Grid(known, rows, title, " ".join(sentences))


def domains_table(rows: Sequence[Mapping[str, Any]], images: Mapping[str, int]) -> Grid | None:
    """Accuracy on each domain by the same rows; None for a single domain. Whichever are more,
    domains or methods, are the rows.

    >>> row = {"method": "se", "protocol": "stateless", "by_domain": {"clean": 1.0, "fog/3": 0.5}}
    >>> print(domains_table([row], {"clean": 2, "fog/3": 4}).to_markdown(), end="")
    ### Accuracy by domain, %
    <BLANKLINE>
    | domain | images | se |
    |:--|--:|--:|
    | clean | 2 | 100.0 |
    | fog/3 | 4 | 50.0 |
    """
    parts = [r.get("by_domain") or {} for r in rows]
    domains = [d for d in images if any(d in p for p in parts)]
    if len(domains) < 2:
        return None
    title = "Accuracy by domain, %"
    if len(domains) < len(rows):
        shown = [Column(d, f"{d} ({images[d]})", "percent", "up") for d in domains]
        lines = [{**r, **p} for r, p in zip(rows, parts, strict=True)]
        return Grid((*NAMES, *shown), lines, title, "Behind a domain, its images.")
    one_protocol = len({r["protocol"] for r in rows} - {"stateless"}) < 2
    names = [r["method"] if one_protocol else row_name(r) for r in rows]
    shown = [Column(str(i), name, "percent") for i, name in enumerate(names)]
    lines = [{"domain": d, "images": images[d], **{str(i): p.get(d) for i, p in enumerate(parts)}}
             for d in domains]  # fmt: skip
    columns = (Column("domain"), Column("images", kind="count"), *shown)
    return Grid(columns, lines, title)


def row_name(row: Mapping[str, Any]) -> str:
    """The method of a row, with its protocol if it learns."""
    method, protocol = str(row["method"]), row["protocol"]
    return method if protocol == "stateless" else f"{method}, {protocol}"


def _some(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(not _missing(r.get(key)) for r in rows)
