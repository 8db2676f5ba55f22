"""The work of `paper` and `study`; it needs torch, and their options do not."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from adte.cli._options import was_given
from adte.cli._outputs import check_writable
from adte.cli.paper import LIMIT, SOURCE, VIEWS
from adte.core.errors import InputError, MissingExtra, unknown
from adte.core.loading import DEFAULT_MODEL
from adte.evaluate.features.stream import Tick
from adte.evaluate.report.tables import check_suffix, save_table
from adte.evaluate.source import FEATURES, Source
from adte.files import console, make_folder, write_whole
from adte.files.lists import read_templates
from adte.methods import method_info
from adte.models.prompts import Prompts
from adte.paper.lab import PRESETS, Settings
from adte.paper.ours import verdict
from adte.paper.render import findings_page, grids, keep_findings, kept_findings, to_markdown
from adte.paper.sources import PUBLISHED, planned, prepare
from adte.paper.study import Finding, Study, chosen, conduct, studies
from adte.pipeline import default_workers

PAGE = "index.html"
Done = list[tuple[Study, Finding]]


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
    dry_run: bool = False,
    **options: Any,
) -> None:
    verb = "study" if ours else "paper"
    if listing or not names:
        _list(studies(ours), verb, json_to)
        return
    wanted = chosen(names, ours)
    home = Path(out or f"adte-{verb}")
    source, settings = _settings(home, **options)
    if dry_run:
        _show_plan(wanted, planned(wanted, source, settings), json_to)
        return
    folder = make_folder(home)
    _claim(folder, wanted)
    if source.data:
        settings = _encoded(source, settings, folder, ours, options["descriptions"])
    found: dict[str, Finding | Exception] = {}
    with console.progress("studies", len(wanted)) as bar:
        for study, finding in conduct(wanted, settings, jobs or default_workers() + 1):
            bar.advance()
            bar.update(study.name)
            found[study.name] = finding
    done = [(s, f) for s in wanted if isinstance(f := found[s.name], Finding)]
    if settings.caches and not settings.block:
        click.echo(f"no difference to the published numbers: {settings.unlike}", err=True)
    facts = [{**s.facts(f), **(verdict(f) if s.name == "robust" else {})} for s, f in done]
    if console.told(facts, json_to):
        _show(done)
    if done and table_to:
        _save_tables(table_to, done)
    if done:
        click.echo(f"page: {_page(folder, ours, done, settings)}", err=json_to == "-")
    failed = {name: error for name, error in found.items() if isinstance(error, Exception)}
    for name, error in failed.items():
        click.echo(f"{name} was not run: {error}", err=True)
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


def _show(done: Done) -> None:
    for study, finding in done:
        head = Text.assemble("\n", (study.title, "bold"), f" ({study.name}): {finding.setting}")
        console.out.print(head)
        for grid in grids(study, finding):
            console.grid(grid)
        for note in finding.notes:
            console.out.print(f"  {note}", style="dim", markup=False)


def _save_tables(path: str, done: Done) -> None:
    if check_suffix(path) in (".md", ".markdown"):
        write_whole(path, to_markdown(done))
        return
    save_table(path, [replace(g, title=f"{s.name}: {g.title}")
                      for s, f in done for g in grids(s, f)])  # fmt: skip


def _page(folder: Path, ours: bool, done: Done, settings: Settings) -> Path:
    """The page of all studies that the folder holds."""
    lead = (
        "The studies of the paper in small: the embedded model on its own photographs. "
        "Published numbers are of another model and other data."
    )
    if not settings.small:
        lead = f"Model {settings.model} on {', '.join(settings.caches)}; " + (
            f"no difference to the published numbers: {settings.unlike}."
            if settings.unlike
            else "its weights are the published ones by their SHA-256."
        )
    title = "adte study" if ours else "The tables and figures of the paper"
    keep_findings(folder, done, lead)
    kept = kept_findings(folder, ours)
    for sentence in kept.damaged:
        click.echo(sentence, err=True)
    try:
        text = findings_page(title, kept.lead, kept.done)
    except MissingExtra as error:
        text = findings_page(title, kept.lead, kept.done, plots=False)
        click.echo(f"no plots: {error}", err=True)
    return write_whole(folder / PAGE, text)


def _list(found: list[Study], verb: str, json_to: str | None) -> None:
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


def _settings(home: Path, *, preset: str | None, protocol: Any, descriptions: tuple[str, ...],
              templates: tuple[str, ...], skip: tuple[str, ...], seeds: int | None = None,
              **values: Any) -> tuple[Source, Settings]:  # fmt: skip
    """The data, and what a lab will hold; nothing is loaded yet."""
    limit = LIMIT.given(values)
    images = any(not spec.startswith(FEATURES) for spec in values["data"])
    words = tuple(read_templates(templates if was_given("templates", images) else ()))
    source = Source(
        **SOURCE.given(values),
        views=VIEWS.given(values),
        stream=limit,
        prompts=Prompts.of(words[0] if len(words) == 1 else words) if words else None,
    )
    preset = preset or ("full" if source.data else "small")
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    amount: dict[str, Any] = dict(PRESETS[preset])
    few = [n for n in (amount.pop("images"), limit.get("limit")) if n is not None]
    settings = Settings(
        **{**amount, "seeds": seeds or amount["seeds"]},
        images=min(few, default=None),
        protocol=protocol,
        skip=tuple(method_info(name).name for name in skip),
        batch=source.batch,
        runs=str(home / "runs"),
        **asdict(source.loading),
    )
    if not source.data:
        unused = {"model": source.model not in (None, DEFAULT_MODEL), "weights": source.weights,
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
    """The views are encoded first, into OUT/caches."""
    with console.progress("encoding", 1) as bar:

        def begin(name: str, images: int) -> Tick:
            bar.restart(name, images)
            return bar.advance

        return prepare(source, settings, folder, descriptions, begin,
                       crops={} if ours else PUBLISHED,
                       seeds=1 if ours else settings.seeds)  # fmt: skip
