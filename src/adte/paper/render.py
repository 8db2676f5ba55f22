"""Findings as tables and pages: ours, the published beside, and the difference where it is fair.

Findings are kept beside their page, one JSON per study, so that a page shows all of them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from adte._version import __version__
from adte.core.page import COLOURS, figure, legend, page
from adte.core.schema import read
from adte.evaluate.report.tables import Column, Grid
from adte.files import make_folder, write_whole
from adte.paper.study import Cell, Finding, Plot, Row, Study, studies

__all__ = ["Kept", "findings_page", "grids", "keep_findings", "kept_findings", "to_markdown"]

FORMAT = 3
Done = tuple[Study, Finding]
Best = Literal["up", "down"] | None


def _text(cell: Cell, percent: bool) -> str | None:
    """A cell of a column that has pairs."""
    if isinstance(cell, tuple) and percent:
        return f"{100 * cell[0]:.1f} ± {100 * cell[1]:.1f}"
    values = cell if isinstance(cell, tuple) else () if cell is None else (cell,)
    return ", ".join(f"{100 * x:.1f}" if percent else f"{x:.2f}" for x in values) or None


def _grid(
    columns: Sequence[str], units: Sequence[str], rows: Sequence[Row], title: str, best: Best = None
) -> Grid:
    """Rows as a table. Pairs are text; of three numbers the last two are an interval."""
    head = [Column("row", " ")]
    table: list[dict[str, Any]] = [{"row": row.name, "aside": row.aside} for row in rows]
    if any(row.method for row in rows):
        head.append(Column("method"))
        for line, row in zip(table, rows, strict=True):
            line["method"] = row.variant
    for i, (name, unit) in enumerate(zip(columns, units, strict=True)):
        cells = [row.cells[i] for row in rows]
        ends, percent = f"{name} 95 %", unit == "percent"
        if any(isinstance(c, tuple) and len(c) == 2 for c in cells):
            head.append(Column(name, name, "text"))
            for line, cell in zip(table, cells, strict=True):
                line[name] = _text(cell, percent)
            continue
        halves = [row.spread[i] if row.spread else None for row in rows]
        for line, cell, half in zip(table, cells, halves, strict=True):
            line[name] = cell[0] if isinstance(cell, tuple) else cell
            line[ends] = cell[1:] if isinstance(cell, tuple) else None
            if half and not isinstance(cell, tuple):
                line[ends] = line[name] - half, line[name] + half
        head.append(Column(
            name, name, "percent" if percent else "number", best if percent else None,
            ends if any(line[ends] for line in table) else None, half=any(halves),
            interval_kind=None if any(halves) else "points",
        ))  # fmt: skip
    return Grid(head, table, title)


def grids(study: Study, finding: Finding) -> list[Grid]:
    """Ours; the paper's; and the difference, where nothing is unlike."""
    best: Best = ("down" if finding.lower else "up") if finding.ranked else None
    by_method: dict[str, list[str]] = {}
    for column, method in finding.methods.items():
        by_method.setdefault(method, []).append(column)
    named = "; ".join(f"{method}: {', '.join(some)}" for method, some in by_method.items())
    ours = _grid(finding.columns, finding.units, finding.rows, "Ours", best)
    out = [replace(ours, caption=f"Columns by method: {named}." if named else "")]
    printed, unlike = study.published, study.unlike(finding)
    if printed is None:
        return out
    if not unlike:
        places = range(len(finding.columns))
        gaps = [Row(r.name, tuple(study.difference(finding, r, i) for i in places))
                for r in finding.rows]  # fmt: skip
        gaps = [r for r in gaps if any(c is not None for c in r.cells)]
        grid = _grid(finding.columns, finding.units, gaps, "Ours less published")
        out.append(replace(grid, columns=[
            replace(c, kind="points") if c.kind == "percent" else c for c in grid.columns
        ]))  # fmt: skip
    rows = [
        Row(f"{r.name}, {r.block}" if r.block else r.name,
            tuple(printed.fraction(c, n) for c, n in zip(r.cells, printed.columns, strict=True)))
        for r in printed.rows
    ]  # fmt: skip
    why = f"No difference is shown: {unlike}." if unlike else (
        "Ours ran with the published weights (SHA-256 compared)."
    )  # fmt: skip
    title = "Published (not to be compared)" if unlike else "Published"
    theirs = _grid(printed.columns, printed.units, rows, title, best)
    about = f"Published: {printed.model}; {printed.data}. {why}"
    return [*out, replace(theirs, caption=about)]


def draw(study: Study, finding: Finding, plot: Plot, ax: Any) -> str:
    """A line for every row, with its intervals as a band, on matplotlib's axes; returns the
    caption.
    """
    percent = plot.y in ("accuracy", "share")
    names = ("mark", "cool", "warm", "plum", "grey", "mint", "ink", "faint", "soft")
    for i, row in enumerate(finding.rows):
        values = [c[0] if isinstance(c, tuple) else c for c in row.cells]
        y = np.array(values, dtype=float) * (100 if percent else 1)  # None is a gap
        colour = COLOURS[names[i % len(names)]][0]
        ax.plot(plot.at, y, "o-", color=colour, label=row.name, ms=3.5, lw=1.4)
        if any(half := [s or 0.0 for s in row.spread]):
            band = np.array(half) * (100 if percent else 1)
            ax.fill_between(plot.at, y - band, y + band, color=colour, alpha=0.15, linewidth=0)
    if plot.log_x:
        ax.set_xscale("log")
        if len(plot.at) <= 8:  # those alone, and no numbers between
            ax.set_xticks(plot.at, [f"{x:g}" for x in plot.at])
            ax.minorticks_off()
        else:
            ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel=plot.x, ylabel=f"{plot.y}, %" if percent else plot.y)
    legend(ax)
    return study.title


def to_markdown(done: Iterable[Done]) -> str:
    """Every finding as a section of Markdown, without the plots."""
    parts = []
    for study, finding in done:
        lines = [f"## {study.title}", "", f"`{study.name}`: {study.about}", "",
                 f"Ran on: {finding.setting}.", ""]  # fmt: skip
        lines += [grid.to_markdown() for grid in grids(study, finding)]
        lines += [f"- {note}" for note in finding.notes]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def findings_page(title: str, lead: str, done: Sequence[Done], plots: bool = True) -> str:
    """One self-contained page of all findings."""
    text = html.escape
    links = " · ".join(f'<a href="#{s.name}">{text(s.name)}</a>' for s, _ in done)
    parts = [f'<p class="lead">{text(lead)}</p>\n<p><small>{links}</small></p>\n']
    for study, finding in done:
        parts.append(
            f'<section id="{study.name}"><h2>{text(study.title)}</h2>\n'
            f"<p><code>{study.name}</code>. {text(study.about)}</p>\n"
            f"<p><small>Ran on: {text(finding.setting)}.</small></p>\n"
        )
        if plots and finding.plot:
            parts.append(figure(partial(draw, study, finding, finding.plot)))
        ours, *others = grids(study, finding)
        parts.append(ours.to_html())
        for grid in others:
            parts.append(f"<details open><summary>{text(grid.title)}</summary>"
                         f"{grid.to_html()}</details>\n")  # fmt: skip
        parts += [f'<p class="note">{text(note)}</p>\n' for note in finding.notes]
        parts.append("</section>\n")
    return page(title, parts)


# --------------------------------------------------------------------------- kept beside the page


class Kept(NamedTuple):
    """Findings as they lie beside a page: studies with their findings in the paper's order, what
    they ran on in words, and a sentence for each file that cannot be read.
    """

    done: list[Done]
    lead: str
    damaged: list[str]


def keep_findings(folder: Path, done: Iterable[Done], lead: str = "") -> None:
    """Write each finding to FOLDER/findings, over the one of its study."""
    home = make_folder(folder / "findings")
    for study, finding in done:
        facts = {"format": FORMAT, "adte": __version__, "study": study.name,
                 "lead": lead, "finding": asdict(finding)}  # fmt: skip
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        write_whole(home / f"{study.name}.json", text)


def kept_findings(folder: Path, ours: bool) -> Kept:
    """All findings that are kept in the folder, of our own studies or of the paper's."""
    done: list[Done] = []
    leads: dict[str, None] = {}
    damaged = []
    for study in studies(ours):
        path = folder / "findings" / f"{study.name}.json"
        if not path.is_file():
            continue
        try:
            facts = json.loads(path.read_text("utf-8"))
            if facts["format"] != FORMAT:
                raise ValueError(f"it has format {facts['format']}, not {FORMAT}")
            finding = read(Finding, facts["finding"], "finding")
            if facts["adte"] != __version__:
                finding.setting += f", adte {facts['adte']}"
            leads[str(facts["lead"])] = None
        except (ValueError, TypeError, KeyError, OSError) as error:
            verb = "study" if ours else "paper"
            damaged.append(
                f"the finding {str(path)!r} cannot be read ({error}) and is not on the page; run "
                f"`adte {verb} {study.name}` again"
            )
            continue
        done.append((study, finding))
    return Kept(done, " ".join(leads), damaged)
