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
    help="Cache of features made with `tiny-longtail`, to use instead of the embedded bundle.",
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
    from adte.evaluate.demo import length, run_demo
    from adte.evaluate.features.cache import Cache
    from adte.evaluate.report.runs import report_files
    from adte.evaluate.report.tables import terminal_table
    from adte.files.claims import claim_folder

    replay = Cache(cache).first(limit)
    folder = claim_folder("--out", out)
    for path in report_files([folder / "runs"], folder / "report.html"):
        check_writable(click.get_current_context(), "--out", path)
    with console.progress("replaying", length() * len(replay)) as bar:
        done = run_demo(replay, folder, bar.advance)
    if console.told(done.facts(), json_to):
        facts = done.facts()
        title = (
            f"{facts['images']} photographs, {facts['classes']} classes, "
            f"{facts['views']} views, model {replay.recipe.model}"
        )
        console.grid(terminal_table(done.rows, title))
        console.table(
            "Estimated class prior against the true training frequency",
            ("estimator", "Spearman"),
            [[e["name"], f"{e['spearman']:.3f}"] for e in done.estimators],
        )
    click.echo(f"report: {done.report()}", err=json_to == "-")
