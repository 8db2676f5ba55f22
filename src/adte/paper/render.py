"""Findings as tables and pages: ours, the published beside, and the difference where it is fair.

Findings are kept beside their page, one JSON per study, so that a page shows all that were found.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from adte._version import __version__
from adte.core.page import COLOURS, figure, legend, page
from adte.core.schema import read
from adte.evaluate.report.tables import Column, Grid, Kind
from adte.files import make_folder, write_whole
from adte.paper.study import Cell, Figure, Finding, Row, Study, studies

__all__ = ["Kept", "findings_page", "grids", "keep_findings", "kept_findings", "to_markdown"]

FORMAT = 2
Done = tuple[Study, Finding]


def _value(cell: Cell, unit: str) -> tuple[Any, tuple[float, float] | None]:
    """What a cell shows and its interval. Pairs are text; of three the last two are an interval."""
    if not isinstance(cell, tuple):
        return cell, None
    if len(cell) == 3:
        return cell[0], (cell[1], cell[2])
    if unit == "percent":
        return f"{100 * cell[0]:.1f} ± {100 * cell[1]:.1f}", None
    return ", ".join(f"{x:.2f}" for x in cell), None


def _grid(
    columns: Sequence[str],
    units: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Cell]]],
    title: str,
    best: Literal["up", "down"] | None = None,
    caption: str = "",
    ours: Sequence[Row] = (),
) -> Grid:
    """`ours` are the rows of a finding, whose methods and spreads are shown, too."""
    rows = list(rows)
    shown: list[Column] = [Column("row", " ")]
    table: list[dict[str, Any]] = [{"row": name} for name, _ in rows]
    if any(row.method for row in ours):
        shown.append(Column("method"))
    for line, row in zip(table, ours, strict=False):
        line |= {"method": row.variant, "aside": row.aside}
    for i, (column, unit) in enumerate(zip(columns, units, strict=True)):
        pair = half = False
        for line, (_, cells) in zip(table, rows, strict=True):
            line[column], line[f"{column} 95 %"] = _value(cells[i], unit)
        for line, row in zip(table, ours, strict=False):
            if row.spread and (spread := row.spread[i]):
                mean, half = line[column], True
                line[f"{column} 95 %"] = mean - spread, mean + spread
        pair = any(line[f"{column} 95 %"] is not None for line in table)
        kind: Kind = "percent" if unit == "percent" else "number"
        if any(isinstance(line[column], str) for line in table):
            for line in table:
                if isinstance(line[column], float):
                    line[column] = f"{100 * line[column]:.1f}" if unit == "percent" else (
                        f"{line[column]:.2f}"
                    )  # fmt: skip
            kind = "text"
        mark = best if kind == "percent" else None
        interval = f"{column} 95 %" if pair else None
        around: Kind | None = None if half else "points"
        shown.append(Column(column, column, kind, mark, interval, True, around, half=half))
    return Grid(shown, table, title, caption)


def grids(study: Study, finding: Finding) -> list[Grid]:
    """Ours; what the paper printed; and the difference, where nothing is unlike."""
    rows = [(r.name, r.cells) for r in finding.rows]
    best: Literal["up", "down"] | None = "down" if finding.lower else "up"
    best = best if finding.ranked else None
    columns: dict[str, list[str]] = {}
    for column, method in finding.methods.items():
        columns.setdefault(method, []).append(column)
    named = "; ".join(f"{method}: {', '.join(some)}" for method, some in columns.items())
    about = f"Columns by method: {named}." if named else ""
    ours = _grid(finding.columns, finding.units, rows, "Ours", best, about, finding.rows)
    out = [ours] if rows else []
    printed, unlike = study.published, study.unlike(finding)
    if printed is None:
        return out
    if not unlike:
        places = range(len(finding.columns))
        every = [(r.name, [study.difference(finding, r, i) for i in places]) for r in finding.rows]
        gaps = [(name, cells) for name, cells in every if any(c is not None for c in cells)]
        grid = _grid(finding.columns, finding.units, gaps, "Ours less published")
        out.append(Grid([Column(c.key, c.title, "points" if c.kind == "percent" else c.kind)
                         for c in grid.columns], grid.rows, grid.title))  # fmt: skip
    names = [(f"{r.name}, {r.block}" if r.block else r.name, r.cells) for r in printed.rows]
    scaled = [
        (name, [printed.fraction(c, n) for c, n in zip(cells, printed.columns, strict=True)])
        for name, cells in names
    ]
    why = f"No difference is shown: {unlike}." if unlike else (
        "Ours ran with the published weights (SHA-256 compared)."
    )  # fmt: skip
    about = f"Published: {printed.model}; {printed.data}. {why}"
    title = "Published (not to be compared)" if unlike else "Published"
    out.append(_grid(printed.columns, printed.units, scaled, title, best, about))
    return out


def draw(plot: Figure, ax: Any) -> str:
    """A figure on matplotlib's axes; returns the caption."""
    percent = plot.y in ("accuracy", "share")
    scale = 100 if percent else 1
    palette = [COLOURS[n][0] for n in ("mark", "cool", "warm", "plum", "grey", "mint", "ink",
                                       "faint", "soft")]  # fmt: skip
    for i, s in enumerate(plot.series):
        colour = COLOURS["grey"][0] if s.dashed else palette[i % len(palette)]
        y = [scale * v for v in s.y]
        many = len(s.x) > 40
        ax.plot(s.x, y, "--" if s.dashed else "-", color=colour, label=s.name,
                marker=None if many or s.dashed else "o", ms=3.5, lw=1.4)  # fmt: skip
        if s.low is not None and s.high is not None:
            low, high = [scale * v for v in s.low], [scale * v for v in s.high]
            ax.fill_between(s.x, low, high, color=colour, alpha=0.15, linewidth=0)
    if plot.log_x:
        ax.set_xscale("log")
        at = sorted({x for s in plot.series for x in s.x})
        if len(at) <= 8:  # what was tried, and no numbers between
            ax.set_xticks(at, [f"{x:g}" for x in at])
            ax.minorticks_off()
        else:
            ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel=plot.x, ylabel=f"{plot.y}, %" if percent else plot.y)
    legend(ax)
    return plot.title


def to_markdown(done: Iterable[Done]) -> str:
    """Every finding as a section of Markdown, without the plots."""
    parts = []
    for study, finding in done:
        lines = [f"## {study.title}", "", f"`{study.name}`: {study.about}", "",
                 f"Ran on: {finding.setting}.", ""]  # fmt: skip
        for grid in grids(study, finding):
            lines += [grid.to_markdown()]
        lines += [f"- {note}" for note in finding.notes]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def findings_page(
    title: str,
    lead: str,
    done: Sequence[Done],
    plots: bool = True,
) -> str:
    """One self-contained page of all findings."""
    said = html.escape
    links = " · ".join(f'<a href="#{s.name}">{said(s.name)}</a>' for s, _ in done)
    parts = [f'<p class="lead">{said(lead)}</p>\n<p><small>{links}</small></p>\n']
    for study, finding in done:
        parts.append(
            f'<section id="{study.name}"><h2>{said(study.title)}</h2>\n'
            f"<p><code>{study.name}</code>. {said(study.about)}</p>\n"
            f"<p><small>Ran on: {said(finding.setting)}.</small></p>\n"
        )
        if plots and finding.figures:
            drawn = [figure(lambda ax, f=f: draw(f, ax)) for f in finding.figures]  # type: ignore[misc]
            parts.append('<div class="plots">' + "".join(drawn) + "</div>\n")
        tables = grids(study, finding)
        parts += [grid.to_html() for grid in tables[:1]]
        for grid in tables[1:]:
            parts.append(f"<details open><summary>{said(grid.title)}</summary>"
                         f"{grid.to_html()}</details>\n")  # fmt: skip
        parts += [f'<p class="note">{said(note)}</p>\n' for note in finding.notes]
        parts.append("</section>\n")
    return page(title, parts)


# --------------------------------------------------------------------------- kept beside the page


@dataclass(frozen=True)
class Kept:
    """Findings as they lie beside a page.

    Attributes:
        done: studies, in the paper's order, with what they found.
        lead: what they ran on, in words.
        damaged: a sentence for each file that cannot be read.
    """

    done: list[Done]
    lead: str
    damaged: list[str]


def keep_findings(folder: Path, done: Iterable[Done], lead: str = "") -> None:
    """Write each finding to FOLDER/findings; what was found before under its name goes."""
    home = make_folder(folder / "findings")
    for study, finding in done:
        facts = {"format": FORMAT, "adte": __version__, "study": study.name,
                 "lead": lead, "finding": asdict(finding)}  # fmt: skip
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        write_whole(home / f"{study.name}.json", text)


def kept_findings(folder: Path, ours: bool) -> Kept:
    """All findings that were kept there, of our own studies or of the paper's."""
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
