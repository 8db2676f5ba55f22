"""`report`."""

from __future__ import annotations

import os

import click

from adte.cli._group import main
from adte.cli._outputs import check_writable, writable
from adte.files import console


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option("--out", metavar="FILE.html", callback=writable,
              help="Page to write.  [default: report.html in the first folder]")  # fmt: skip
@click.option("--baseline", metavar="ROW",
              help="Row that gains are measured against, named as in the table.  [default: se, or "
              "zero-shot if se was not run]")  # fmt: skip
@console.notes()
def report(runs: tuple[str, ...], out: str | None, baseline: str | None) -> None:
    """Write one HTML page, and tables as CSV and Markdown, from the results in the folders RUNS.

    Such folders are written by `adte eval`, `compare`, `sweep` and `replay` with --runs FOLDER.
    """
    from adte.evaluate.report.runs import report_files, runs_report

    if os.path.isdir(runs[0]):  # else the report says it
        page, *tables = report_files(runs, out)
        for option, path in (("--out", page), *(("the table of --out", t) for t in tables)):
            check_writable(click.get_current_context(), option, path)
    for path in runs_report(runs, out, baseline=baseline):
        console.out.print(str(path), markup=False, soft_wrap=True)
