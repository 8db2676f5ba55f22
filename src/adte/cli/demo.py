"""`demo`."""

from __future__ import annotations

import click

from adte.cli._group import COUNT, JSON, main
from adte.files import console


@main.command()
@click.option("--out", default="adte-demo", show_default=True, metavar="FOLDER",
              help="Folder to write report.html and the runs to.")  # fmt: skip
@click.option("--limit", type=COUNT, help="Use only this many images, from the first on.")
@click.option(
    "--cache",
    metavar="FOLDER",
    help="Cache of features to use instead of the embedded bundle.",
)
@JSON
@console.notes()
def demo(out: str, limit: int | None, cache: str | None, json_to: str | None) -> None:
    """Compare the methods on real photographs, and write a report: the place to start.

    The demo uses features of 64 views of 1,200 held-out photographs, made with the embedded model
    `tiny-longtail`, whose training set was imbalanced in a known way. It needs no network. Labels
    are used for scoring only.
    """
    from adte.cli._outputs import check_writable
    from adte.evaluate.features.cache import Cache
    from adte.evaluate.features.stream import Held
    from adte.evaluate.report.runs import report_files, runs_report
    from adte.evaluate.report.tables import terminal_table
    from adte.evaluate.running.results import Results
    from adte.evaluate.running.rows import aggregate
    from adte.evaluate.running.tasks import LADDER, passes, run_tasks
    from adte.files.claims import claim_folder

    stream = Held.of(Cache(cache).first(limit))  # each row then pays for its method alone
    folder = claim_folder("--out", out)
    runs, page = folder / "runs", folder / "report.html"
    for path in report_files([runs], page):
        check_writable(click.get_current_context(), "--out", path)
    with console.progress("replaying", passes(LADDER) * len(stream)) as bar:
        outcomes = run_tasks(stream, LADDER, Results(runs), bar.advance)
    rows, views = aggregate(outcomes), stream.recipe.views.count
    facts = {"images": len(stream), "views": views, "classes": len(stream.classes)}
    if console.told({"rows": rows, **facts}, json_to):
        about = ", ".join(f"{count} {name}" for name, count in facts.items())
        console.grid(terminal_table(rows, f"{about}, model {stream.recipe.model}"))
    runs_report([runs], page, title="adte demo: methods on real photographs",
                only={o.record.key for o in outcomes})  # fmt: skip
    click.echo(f"report: {page}", err=json_to == "-")
