"""Kept runs as one self-contained HTML page, with their tables as CSV and Markdown."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from adte._version import __version__
from adte.core.errors import MissingExtra
from adte.core.page import page
from adte.evaluate.report.sections import Section, read_sections
from adte.evaluate.report.tables import Column, Grid, render, rows_table, save_table
from adte.evaluate.running.metrics import list_metrics
from adte.evaluate.running.rows import Entry
from adte.files import write_whole
from adte.files.devices import is_special

__all__ = ["report_files", "runs_report"]


def report_files(
    folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> tuple[Path, Path, Path]:
    """Where `runs_report` writes: the page, its tables as CSV and Markdown."""
    home = Path(folders[0])
    page = home / "report.html" if out is None else Path(out)
    tables = home / "table"
    if out is not None and not is_special(out):
        tables = page.with_name(f"{page.stem}-table")
    return page, Path(f"{tables}.csv"), Path(f"{tables}.md")


def runs_report(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    title: str = "Results",
    only: Collection[str] | None = None,
    baseline: str | None = None,
) -> list[Path]:
    """Write the page of one results folder or several, and their tables as CSV and Markdown.

    The page goes to `out`, by default `report.html` in the first folder. The tables lie beside it:
    `table.csv` and `table.md`, or `NAME-table.csv` and `NAME-table.md` where `out` is NAME.html; of
    a page that goes to a device they are in the first folder. Without matplotlib the page has no
    plots and names the extra. `only` names the runs to show, by key; all by default.
    `baseline` is the row that gains are over, as a table names it; SE, or zero-shot where that did
    not run, by default.
    """
    sections = read_sections(folders, only, baseline)
    target, for_computing, for_documents = report_files(folders, out)
    no_plots, plots = "", [[""] for _ in sections]
    try:
        from adte.evaluate.report.plots import section_plots

        plots = [section_plots(s, f"s{number}") for number, s in enumerate(sections, 1)]
    except MissingExtra as error:
        no_plots = str(error)
    body = render(
        "report.html",
        runs=sum(len(e.outcomes) for s in sections for e in s.entries),
        sections=[
            _facts(s, drawn, target.parent) for s, drawn in zip(sections, plots, strict=True)
        ],
        no_plots=no_plots,
        version=__version__,
        csv=for_computing.name,
        markdown=for_documents.name,
    )
    grids = [_table(s) for s in sections]
    return [
        write_whole(target, page(title, [body])),
        save_table(for_computing, grids),
        save_table(for_documents, grids),
    ]


def _table(section: Section) -> Grid:
    best = section.best_baseline
    rows = [e.row for e in section.entries]
    return rows_table(rows, section.title, best.name if best else "")


def _facts(section: Section, plots: list[str], beside: Path) -> dict[str, Any]:
    """The facts of a section that the template shows."""
    c = section.conditions
    about = [f"{c.images:,} images", f"{c.classes} classes",
             f"prompts: {c.prompts.get('name', 'not known')}"]  # fmt: skip
    about += [
        f"{k}: {c.data[k]}" for k in ("order", "imbalance") if c.data.get(k, "none") != "none"
    ]
    if len(counts := c.data.get("domain_counts", {})) > 1:
        about.append(f"{len(counts)} domains, {c.data.get('domains', '')}")
    table = _table(section)
    table = replace(table, caption=f"{table.caption} Best bold, second underlined.")
    return {
        "title": section.title,
        "winner": _winner(section),
        "about": about,
        "table": table.to_html(),
        "plots": plots,
        "parts": [(grid.title, grid.to_html()) for grid in _parts(section)],
        "entries": [_protocol(e, beside) for e in section.entries],
        "skipped": [
            {"id": str(s.get("id")), "reason": str(s.get("reason", ""))} for s in section.skipped
        ],
    }


def _winner(section: Section) -> str:
    best = section.entries[0]
    text = f"{best.name} is right on {100 * best.row['accuracy']:.1f} % of images"
    gain, interval = best.row["gain"], best.row["gain_ci95"]
    if gain is not None and interval is not None:
        more, low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in (gain, *interval))
        over = "SE" if best.row["over"] == "se" else best.row["over"]
        text += f", {more} points over {over} (95 %: {low} to {high})"
    return f"{text}."


def _parts(section: Section) -> list[Grid]:
    """A table for each metric that falls into parts, such as accuracy by domain."""
    out = []
    for m in list_metrics():
        known = [(e, e.row[m.name]) for e in section.entries if m.kind == "parts" and e.row[m.name]]
        if not known:
            continue
        worst = max if m.direction == "down" else min
        rows = [
            {"method": e.name, "aside": e.row["aside"], **parts, "worst": worst(parts.values())}
            for e, parts in known
        ]
        names = dict.fromkeys(name for _, parts in known for name in parts)
        columns = [Column(k, k, "percent", m.direction) for k in (*names, "worst")]
        out.append(Grid((Column("method"), *columns), rows, m.caption))
    return out


def _protocol(entry: Entry, beside: Path) -> dict[str, Any]:
    """The conditions of an entry, with links to its runs."""
    hidden = ("skipped", "order_seed", "view_seed") if len(entry.outcomes) > 1 else ("skipped",)
    facts = asdict(entry.first.record.conditions)
    paths = [(o.record.conditions.order_seed, o.record.path) for o in entry.outcomes]
    return {
        "name": entry.name,
        "row": entry.row,
        "links": [(seed, quote(Path(os.path.relpath(path, beside)).as_posix()))
                  for seed, path in paths if path is not None],
        "facts": [(k.replace("_", " "), _value(v)) for k, v in facts.items()
                  if k not in hidden and v not in ("", None)],
    }  # fmt: skip


def _value(value: Any) -> str:
    """A fact as text; what is inside a mapping as name=value."""
    if isinstance(value, dict):
        return ", ".join(f"{k}={_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        between = "; " if value and isinstance(value[0], dict) else ", "
        return f"[{between.join(map(_value, value))}]"
    return str(value)
