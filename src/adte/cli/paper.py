"""`paper` and `study`: the paper's tables and figures, and our own studies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from adte import console
from adte.cli._group import COUNT, JSON, main
from adte.cli._options import OptionsOf, was_given
from adte.cli._outputs import check_writable, table_file
from adte.cli._source import MODEL, TEMPLATE
from adte.data import StreamOptions
from adte.errors import InputError, MissingExtra, unknown
from adte.evaluate.features.stream import Tick
from adte.evaluate.report.tables import check_suffix, save_table
from adte.evaluate.source import FEATURES, Source
from adte.evaluate.studies.conduct import (
    PUBLISHED,
    Settings,
    chosen,
    conduct,
    facts,
    planned,
    prepare,
)
from adte.evaluate.studies.lab import PRESETS
from adte.evaluate.studies.render import (
    findings_page,
    grids,
    keep_findings,
    kept_findings,
    to_markdown,
)
from adte.evaluate.studies.study import Finding, Study, studies
from adte.files import make_folder, write_whole
from adte.files.lists import read_templates
from adte.methods import method_info
from adte.pipeline import default_workers
from adte.prompts import Prompts
from adte.views import Views

PAGE = "index.html"
SOURCE = OptionsOf(
    Source, only=("data", *MODEL, "batch", "workers", "strict"),
    helps={"data": "your data, as in imagenet:PATH or cache:FOLDER; repeat for more sets; without "
                   "it, the embedded bundles are used",
           "model": "model to use with --data; `adte models` lists them; `tiny` by default"},
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
    click.option("--descriptions", multiple=True, metavar="SET=FILE|FOLDER|FILE",
                 help="JSON file of sentences that describe each class of a data set, for the rows "
                 "of CuPL (repeat for more); or a folder of files named by their sets, or one file "
                 "for all sets; needs --data."),
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
    _studies(ours=False, **options)


@main.command("study")
@study_options
def study_(**options: Any) -> None:
    """Run our own studies by NAME: questions that the paper leaves open, and on which streams its
    claims hold.

    `adte study --list` names them, and `adte study all` runs them all.
    """
    _studies(ours=True, **options)


@console.notes()
def _studies(
    *,
    ours: bool,
    names: tuple[str, ...],
    listing: bool,
    out: str | None,
    jobs: int | None,
    table_to: str | None,
    json_to: str | None,
    dry_run: bool = False,
    **options: Any,
) -> None:
    verb = "study" if ours else "paper"
    if listing or not names:
        _list(studies(ours), verb, json_to)
        return
    wanted = chosen(names, ours)
    home = Path(out or f"adte-{verb}")
    source, settings = _asked(home, **options)
    if dry_run:
        _show_plan(wanted, planned(wanted, source, settings), json_to)
        return
    folder = make_folder(home)
    _claim(folder, wanted)
    settings = _encoded(source, settings, folder, ours, options["descriptions"])
    done, failed = [], []
    with console.progress("studies", len(wanted)) as bar:
        for study, found in conduct(wanted, settings, jobs or default_workers() + 1):
            bar.advance()
            bar.update(study.name)
            if isinstance(found, Finding):
                done.append((study, found))
            else:
                failed.append((study, found))
    rank = {s.name: i for i, s in enumerate(wanted)}
    done.sort(key=lambda pair: rank[pair[0].name])
    if settings.caches and not settings.block:
        click.echo(f"no difference to the published numbers: {settings.unlike}", err=True)
    if console.told(facts(done), json_to):
        for study, finding in done:
            head = Text.assemble("\n", (study.title, "bold"), f" ({study.name}): {finding.setting}")
            console.out.print(head)
            for grid in grids(study, finding):
                console.grid(grid)
            for note in finding.notes:
                console.out.print(f"  {note}", style="dim", markup=False)
    if done and table_to:
        _save_tables(table_to, done)
    if done:
        click.echo(f"page: {_page(folder, ours, done, settings)}", err=json_to == "-")
    for study, reason in failed:
        click.echo(f"{study.name} was not run: {reason}", err=True)
    if failed:
        raise InputError(f"{len(failed)} of {len(wanted)} studies could not be run; see above")


def _claim(folder: Path, wanted: list[Study]) -> None:
    """Refuse to write over a page or findings of others. Findings beside a page of ours are ours,
    damaged ones too."""
    ctx, page = click.get_current_context(), folder / PAGE
    check_writable(ctx, "--out", page)
    home = make_folder(folder / "findings")
    for study in wanted if not page.exists() else ():
        check_writable(ctx, "--out", home / f"{study.name}.json")


def _save_tables(path: str, done: list[tuple[Study, Finding]]) -> None:
    if check_suffix(path) in (".md", ".markdown"):
        write_whole(path, to_markdown(done))
        return
    save_table(path, [replace(g, title=f"{s.name}: {g.title}")
                      for s, f in done for g in grids(s, f)])  # fmt: skip


def _page(folder: Path, ours: bool, done: list[tuple[Study, Finding]], settings: Settings) -> Path:
    """The page of all studies that the folder holds by now."""
    lead = (
        "The studies of the paper in small: the embedded model on its own photographs. "
        "Published numbers are of another model and other data."
        if settings.caches == {}
        else f"Model {settings.model} on {', '.join(settings.caches)}; "
        + (
            f"no difference to the published numbers: {settings.unlike}."
            if settings.unlike
            else "its weights are the published ones by their SHA-256."
        )
    )
    title = "adte study" if ours else "The tables and figures of the paper"
    keep_findings(folder, done, lead)
    there = kept_findings(folder, ours)
    for sentence in there.damaged:
        click.echo(sentence, err=True)
    try:
        text = findings_page(title, there.lead, there.done)
    except MissingExtra as error:
        text = findings_page(title, there.lead, there.done, plots=False)
        click.echo(f"no plots: {error}", err=True)
    return write_whole(folder / PAGE, text)


def _list(found: list[Any], verb: str, json_to: str | None) -> None:
    rows = [{"name": s.name, "title": s.title, "kind": s.kind, "about": s.about,
             "published": s.published is not None} for s in found]  # fmt: skip
    if console.told(rows, json_to):
        cells = [[str(r["name"]), str(r["kind"]), str(r["about"])] for r in rows]
        how = f"Run with `adte {verb} NAME...` or `adte {verb} all`."
        console.table("Studies", ("name", "kind", "what it shows"), cells, how, text=True)


def _show_plan(wanted: list[Study], plan: list[dict[str, object]], json_to: str | None) -> None:
    every = sum(int(str(row["passes"])) for row in plan)
    if console.told({"studies": [s.name for s in wanted], "passes": every, "rows": plan}, json_to):
        click.echo(f"studies: {', '.join(s.name for s in wanted)}")
        for row in plan:
            click.echo(f"{row['name']}: {row['how']} = {row['passes']:,} ({row['tower']})")
        click.echo(
            f"{every:,} passes of one view or one prompt through a tower, less those whose views "
            "lie in --out already; nothing was run"
        )


def _asked(home: Path, *, preset: str | None, protocol: Any, descriptions: tuple[str, ...],
           templates: tuple[str, ...], skip: tuple[str, ...], seeds: int | None = None,
           **values: Any) -> tuple[Source, Settings]:  # fmt: skip
    """Which data, and what a lab will hold; nothing is loaded yet."""
    limit = LIMIT.given(values)
    images = any(not spec.startswith(FEATURES) for spec in values["data"])
    words = tuple(read_templates(templates if was_given("templates", images) else ()))
    source = Source(
        **SOURCE.given(values),
        views=VIEWS.given(values),
        stream=limit,
        prompts=Prompts.of(words[0] if len(words) == 1 else words) if words else None,
    )
    settings = Settings(
        preset=preset or ("full" if source.data else "small"),
        protocol=protocol,
        seeds=seeds,
        limit=limit.get("limit"),
        skip=tuple(method_info(name).name for name in skip),
        **asdict(source.loading),
        batch=source.batch,
        runs=str(home / "runs"),
    )
    if settings.preset not in PRESETS:
        raise unknown("preset", settings.preset, PRESETS)
    if not source.data:
        unused = {"model": source.model not in (None, "tiny"), "weights": source.weights,
                  "tokenizer": source.tokenizer, "runtime": source.runtime != "auto",
                  "views": source.views, "workers": source.workers is not None,
                  "strict": source.strict, "descriptions": descriptions,
                  "template": words}  # fmt: skip
        if found := [name for name, value in unused.items() if value]:
            raise InputError(
                f"--{found[0]} needs --data: without it the studies run on the embedded bundles, "
                "64 views encoded by tiny; name your data as in --data imagenet:PATH"
            )
    return source, settings


def _encoded(source: Source, settings: Settings, folder: Path, ours: bool,
             descriptions: tuple[str, ...]) -> Settings:  # fmt: skip
    """With --data the views are encoded first, into OUT/caches."""
    if not source.data:
        return settings
    with console.progress("encoding", 1) as bar:

        def begin(name: str, images: int) -> Tick:
            bar.restart(name, images)
            return bar.advance

        return prepare(source, settings, folder, descriptions, begin,
                       crops={} if ours else PUBLISHED,
                       seeds=1 if ours else settings.amount.seeds)  # fmt: skip
