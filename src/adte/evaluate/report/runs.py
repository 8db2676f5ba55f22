"""Kept runs as one self-contained HTML page, with their tables as CSV and Markdown."""

from __future__ import annotations

import html
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from adte._version import __version__
from adte.core.errors import MissingExtra
from adte.core.page import page
from adte.evaluate.report.sections import Entry, Section, read_sections
from adte.evaluate.report.tables import Column, Grid, rows_table, save_table
from adte.evaluate.running.metrics import list_metrics
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
    extra: str = "",
    baseline: str | None = None,
) -> list[Path]:
    """Write the page of one results folder or several, and their tables as CSV and Markdown.

    The page goes to `out`, by default `report.html` in the first folder. The tables lie beside it:
    `table.csv` and `table.md`, or `NAME-table.csv` and `NAME-table.md` where `out` is NAME.html; of
    a page that goes to a device they are in the first folder. Without matplotlib the page has no
    plots and says so. `only` names the runs to show, by key; all by default. `extra` is HTML for
    the end of the page. `baseline` is the row that gains are over, as a table names it; SE, or
    zero-shot where that did not run, by default.
    """
    sections = read_sections(folders, only, baseline)
    target, for_computing, for_documents = report_files(folders, out)
    grids = [_table(s) for s in sections]
    parts = [_summary(sections)]
    for number, section in enumerate(sections, 1):
        parts += _section(section, f"s{number}", target.parent)
    parts.append(
        f"{extra}<footer><p>Made by adte {__version__}. The tables lie in "
        f"<code>{html.escape(for_computing.name)}</code>, for computing, and "
        f"<code>{html.escape(for_documents.name)}</code>, for documents.</p></footer>\n"
    )
    return [
        write_whole(target, page(title, parts)),
        save_table(for_computing, grids),
        save_table(for_documents, grids),
    ]


def _summary(sections: Sequence[Section]) -> str:
    """One line, and with several sections what won in each."""
    runs = sum(len(e.outcomes) for s in sections for e in s.entries)
    if len(sections) == 1:
        return f'<p class="lead">{_winner(sections[0])} {runs} runs.</p>\n'
    items = "".join(
        f'<li><a href="#s{i}">{html.escape(s.title)}</a>: {_winner(s)}</li>\n'
        for i, s in enumerate(sections, 1)
    )
    return f'<p class="lead">{runs} runs in {len(sections)} comparisons.</p>\n<ul>{items}</ul>\n'


def _winner(section: Section) -> str:
    best = section.entries[0]
    text = f"{html.escape(best.name)} is right on {100 * best.row['accuracy']:.1f} % of images"
    gain, interval = best.row["gain"], best.row["gain_ci95"]
    if gain is not None and interval is not None:
        said, low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in (gain, *interval))
        over = "SE" if best.row["over"] == "se" else html.escape(best.row["over"])
        text += f", {said} points over {over} (95 %: {low} to {high})"
    return f"{text}."


def _table(section: Section) -> Grid:
    best = section.best_baseline
    rows = [e.row for e in section.entries]
    return rows_table(rows, section.title, best.name if best else "")


def _section(section: Section, anchor: str, beside: Path) -> list[str]:
    c = section.conditions
    about = [
        f"{c.images:,} images",
        f"{c.classes} classes",
        f"prompts: {c.prompts.get('name', 'not known')}",
    ]
    about += [
        f"{k}: {c.data[k]}" for k in ("order", "imbalance") if c.data.get(k, "none") != "none"
    ]
    if len(counts := c.data.get("domain_counts", {})) > 1:
        about.append(f"{len(counts)} domains, {c.data.get('domains', '')}")
    table = _table(section)
    table = replace(table, caption=f"{table.caption} Best bold, second underlined.")
    parts = [
        f'<section id="{anchor}"><h2>{html.escape(section.title)}</h2>\n',
        f"<p>{html.escape(' · '.join(about))}</p>\n",
        table.to_html(),
        _plots(section, anchor),
        *_parts(section),
    ]
    parts.append('<div class="screen"><h3>Runs and their protocols</h3>\n')
    parts += [_protocol(e, beside) for e in section.entries]
    parts.append("</div>\n")
    if skipped := section.skipped:
        items = "".join(
            f"<li><code>{html.escape(str(s.get('id')))}</code>: "
            f"{html.escape(str(s.get('reason', '')))}</li>\n"
            for s in skipped[:50]
        )
        more = f"<li>and {len(skipped) - 50} more</li>" if len(skipped) > 50 else ""
        parts.append(
            f"<h3>Images that could not be read: {len(skipped)}</h3>\n<ul>{items}{more}</ul>\n"
        )
    return [*parts, "</section>\n"]


def _parts(section: Section) -> list[str]:
    """A table for each metric that falls into parts, such as accuracy by domain."""
    out = []
    for m in list_metrics():
        if m.kind != "parts":
            continue
        if known := [(e, e.row[m.name]) for e in section.entries if e.row[m.name]]:
            worst = max if m.direction == "down" else min
            rows = [
                {"method": e.name, "aside": e.row["aside"], **parts, "worst": worst(parts.values())}
                for e, parts in known
            ]
            names = dict.fromkeys(name for _, parts in known for name in parts)
            columns = [Column(k, k, "percent", m.direction) for k in (*names, "worst")]
            grid = Grid((Column("method"), *columns), rows, m.caption)
            out.append(f"<h3>{html.escape(m.caption)}</h3>\n{grid.to_html()}")
    return out


def _plots(section: Section, anchor: str) -> str:
    try:
        from adte.evaluate.report.plots import section_plots

        return f'<div class="plots">{"".join(section_plots(section, anchor))}</div>\n'
    except MissingExtra as error:
        return f"<p>No plots: {html.escape(str(error))}.</p>\n"


def _protocol(entry: Entry, beside: Path) -> str:
    """What decided the figures of an entry, folded up, with links to its runs."""
    links = ", ".join(
        f'<a href="{quote(Path(os.path.relpath(path, beside)).as_posix())}">'
        f"seed {o.record.conditions.order_seed}</a>"
        for o in entry.outcomes
        if (path := o.record.path) is not None
    )
    hidden = ("skipped", "order_seed", "view_seed") if len(entry.outcomes) > 1 else ("skipped",)
    items = "".join(
        f"<dt>{html.escape(k.replace('_', ' '))}</dt><dd>{_value(v)}</dd>\n"
        for k, v in asdict(entry.first.record.conditions).items()
        if k not in hidden and v not in ("", None)
    )
    accuracy = f"{100 * entry.row['accuracy']:.1f} %"
    return (
        f"<details><summary>{html.escape(entry.name)}<small>{accuracy}</small></summary>\n"
        f"<dl><dt>results</dt><dd>{links}</dd>\n{items}</dl></details>\n"
    )


def _value(value: Any) -> str:
    """A fact as text; what is inside a mapping as name=value."""
    if isinstance(value, dict):
        return ", ".join(f"{html.escape(str(k))}={_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        between = "; " if value and isinstance(value[0], dict) else ", "
        return f"[{between.join(map(_value, value))}]"
    return html.escape(str(value))
