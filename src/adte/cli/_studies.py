"""What `paper` and `study` do; it needs torch, and their options do not."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from adte import console
from adte.cli._outputs import check_writable
from adte.cli.paper import SOURCE, VIEWS
from adte.errors import InputError, MissingExtra, unknown
from adte.evaluate.features.stream import Tick
from adte.evaluate.report.tables import check_suffix, save_table
from adte.evaluate.source import Source
from adte.evaluate.studies.conduct import PUBLISHED, Settings, chosen, conduct, facts, prepare
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
from adte.pipeline import default_workers

PAGE = "index.html"


@console.notes()
def run_studies(
    *,
    ours: bool,
    names: tuple[str, ...],
    listing: bool,
    out: str | None,
    jobs: int | None,
    table_to: str | None,
    json_to: str | None,
    **options: Any,
) -> None:
    verb = "study" if ours else "paper"
    if listing or not names:
        _list(studies(ours), verb, json_to)
        return
    wanted = chosen(names, ours)
    folder = make_folder(out or f"adte-{verb}")
    _claim(folder, wanted)
    settings = _settings(folder, {} if ours else PUBLISHED, **options)
    block = settings.block
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
    if console.told(facts(done, block), json_to):
        for study, finding in done:
            head = Text.assemble("\n", (study.title, "bold"), f" ({study.name}): {finding.setting}")
            console.out.print(head)
            for grid in grids(study, finding, block):
                console.grid(grid)
            for note in finding.notes:
                console.out.print(f"  {note}", style="dim", markup=False)
    if done and table_to:
        _save_tables(table_to, done, block)
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


def _save_tables(path: str, done: list[tuple[Study, Finding]], block: str | None) -> None:
    if check_suffix(path) in (".md", ".markdown"):
        write_whole(path, to_markdown(done, block))
        return
    save_table(path, [replace(g, title=f"{s.name}: {g.title}")
                      for s, f in done for g in grids(s, f, block)])  # fmt: skip


def _page(folder: Path, ours: bool, done: list[tuple[Study, Finding]], settings: Settings) -> Path:
    """The page of all studies that the folder holds by now."""
    lead = (
        "The studies of the paper in small: the embedded model on its own photographs. "
        "Published numbers are of another model and other data."
        if settings.caches == {}
        else f"Model {settings.model} on {', '.join(settings.caches)}."
    )
    title = "adte study" if ours else "The tables and figures of the paper"
    keep_findings(folder, done, settings.block, lead)
    there = kept_findings(folder, ours)
    for sentence in there.damaged:
        click.echo(sentence, err=True)
    try:
        text = findings_page(title, there.lead, there.done, there.blocks)
    except MissingExtra as error:
        text = findings_page(title, there.lead, there.done, there.blocks, plots=False)
        click.echo(f"no plots: {error}", err=True)
    return write_whole(folder / PAGE, text)


def _list(found: list[Any], verb: str, json_to: str | None) -> None:
    rows = [{"name": s.name, "title": s.title, "kind": s.kind, "about": s.about,
             "published": s.published is not None} for s in found]  # fmt: skip
    if console.told(rows, json_to):
        cells = [[str(r["name"]), str(r["kind"]), str(r["about"])] for r in rows]
        how = f"Run with `adte {verb} NAME...` or `adte {verb} all`."
        console.table("Studies", ("name", "kind", "what it shows"), cells, how, text=True)


def _settings(folder: Path, crops: dict[str, Any], *, preset: str | None, variant: str,
              protocol: Any, descriptions: str | None, **values: Any) -> Settings:  # fmt: skip
    """What a lab will hold; with --data the views are encoded first, into OUT/caches."""
    source = Source(**SOURCE.given(values), views=VIEWS.given(values))
    settings = Settings(
        preset=preset or ("full" if source.data else "small"),
        adte=variant,
        protocol=protocol,
        **asdict(source.loading),
        batch=source.batch,
        runs=str(folder / "runs"),
    )
    if settings.preset not in PRESETS:
        raise unknown("preset", settings.preset, PRESETS)
    if not source.data:
        unused = {"model": source.model not in (None, "tiny"), "weights": source.weights,
                  "tokenizer": source.tokenizer, "runtime": source.runtime != "auto",
                  "views": source.views, "workers": source.workers is not None,
                  "strict": source.strict, "descriptions": descriptions}  # fmt: skip
        if found := [name for name, value in unused.items() if value]:
            raise InputError(
                f"--{found[0]} needs --data: without it the studies run on the embedded bundles, "
                "64 views encoded by tiny; name your data as in --data imagenet:PATH"
            )
        return settings
    with console.progress("encoding", 1) as bar:

        def begin(name: str, images: int) -> Tick:
            bar.restart(name, images)
            return bar.advance

        return prepare(source, settings, folder, descriptions, begin, crops=crops)
