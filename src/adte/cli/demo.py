"""`demo`."""

from __future__ import annotations

import click

from adte import console
from adte.cli._group import COUNT, JSON, main


@main.command()
@click.option("--out", default="adte-demo", show_default=True, metavar="FOLDER",
              help="Folder for report.html and the runs.")  # fmt: skip
@click.option("--limit", type=COUNT, help="Use only the first images.")
@click.option(
    "--cache", metavar="FOLDER", help="Features of `tiny-longtail` instead of the bundle's."
)
@JSON
def demo(out: str, limit: int | None, cache: str | None, json_to: str | None) -> None:
    """The main job: compare the methods on real photographs, and write a report.

    Replays features of 64 views of held-out photographs, made with the embedded model
    `tiny-longtail`, whose training was imbalanced in a known way. Needs no network, and no labels
    but to score.
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
    if json_to:
        console.emit_json(done.facts(), json_to)
    if json_to != "-":
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
