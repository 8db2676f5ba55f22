"""`paper` and `study`: the paper's tables and figures, and our own studies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from adte.cli._group import COUNT, JSON, main
from adte.cli._options import OptionsOf
from adte.cli._outputs import table_file
from adte.cli._source import MODEL, TEMPLATE
from adte.data.streams import StreamOptions
from adte.evaluate.asked import Asked
from adte.images import Views

SOURCE = OptionsOf(
    Asked, only=("data", *MODEL, "batch", "workers", "strict"),
    helps={"data": "your data, as in imagenet:PATH or cache:FOLDER; repeat for more sets; without "
                   "it, the embedded bundles are used",
           "model": "model to use with --data; `adte models` lists them; `lite` by default"},
)  # fmt: skip
VIEWS = OptionsOf(
    Views, only=("count",), names={"count": "views"}, prefix="view_", count=None,
    helps={"count": "views per image to use with --data; 64 by default"},
)  # fmt: skip
LIMIT = OptionsOf(StreamOptions, only=("limit",), prefix="stream_")
OPTIONS = (
    click.argument("names", nargs=-1, metavar="[NAME...|all]"),
    click.option("--list", "listing", is_flag=True, help="List the studies and exit."),
    click.option("--preset", default=None, metavar="small|tiny|full",
                 help="How much data to use: tiny for a quick look, small (default without "
                 "--data), full (default with --data)."),
    click.option("--out", default=None, metavar="FOLDER",
                 help="Folder for the page, tables and runs.  [default: adte-paper or adte-study]"),
    SOURCE,
    VIEWS,
    LIMIT,
    TEMPLATE,
    click.option("--descriptions", multiple=True, metavar="SET=FILE|FILE",
                 help="JSON file of sentences that describe each class of a data set, for the rows "
                 "of CuPL (repeat for more), or one file for all sets; needs --data."),
    click.option("--skip", multiple=True, metavar="METHOD",
                 help="Leave out the rows of this method, as in tpt (repeat for more)."),
    click.option("--protocol", default="online", show_default=True,
                 type=click.Choice(["online", "two-pass"]),
                 help="Whether methods that learn do so in the one pass that predicts (online), or "
                 "in a first pass (two-pass)."),
    click.option("--jobs", default=None, type=COUNT,
                 help="Studies to run in parallel.  [default: one per CPU core, at most 9]"),
    click.option("--table", "table_to", metavar="FILE", callback=table_file,
                 help="Also write all tables to FILE: .md, .csv, .html or .tex."),
    JSON,
)  # fmt: skip
SEEDS = click.option(
    "--seeds", default=None, type=COUNT,
    help="Runs that figures are means of. A seed draws the order of the images and, with --data, "
    "their crops.  [default: 3; 2 with --preset tiny]",
)  # fmt: skip
DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would run and its cost in passes through the model's towers; do nothing.",
)


def study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(OPTIONS):
        command = add(command)
    return command


@main.command()
@study_options
@SEEDS
@DRY_RUN
def paper(**options: Any) -> None:
    """Reproduce tables and figures of the paper by NAME, with our numbers beside the published.

    Without --data every study runs in small, on the embedded bundles. The published numbers are
    then shown for orientation only: they are for another model and other data. With --data and
    --model the studies run on your data; if the model is one of the paper's with its published
    weights (their SHA-256 is compared), the difference to the published numbers is shown. Figures
    are means over three seeds, as in the paper; ± is half of the 95 % interval. `adte paper all`
    runs everything. The results go on one page. Runs are saved, so that an interrupted command
    continues where it stopped.

    The rows "ADTE" are the paper's method. The column `method` names what ran, as `adte methods`
    lists it, with the options that differ from it.
    """
    from adte.cli._studies import run_studies

    run_studies(ours=False, **options)


@main.command("study")
@study_options
def study_(**options: Any) -> None:
    """Run our own studies by NAME: questions that the paper leaves open, and on which streams its
    claims hold.

    `adte study --list` names them, and `adte study all` runs them all.
    """
    from adte.cli._studies import run_studies

    run_studies(ours=True, **options)
