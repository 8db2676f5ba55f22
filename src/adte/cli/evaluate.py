"""`eval`, `replay`, `compare`, `sweep`, `extract`, `report` and `simulate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from adte.cli._group import COUNT, JSON, RARE, SEED, SET, main, read_settings
from adte.cli._options import Engine, OptionsOf, Section
from adte.cli._outputs import check_writable, writable
from adte.cli._results import run_and_show, run_options, taken, unseen
from adte.cli._source import SourceOptions, no_method_settings
from adte.core.errors import InputError
from adte.evaluate.simulate import SimulatedStream
from adte.files import console

SOURCE, CACHE = SourceOptions(), SourceOptions(replay=True)
SIMULATED = OptionsOf(SimulatedStream)

METHOD = click.option(
    "--method", default="tilt", show_default=True,
    help="Method to evaluate; `adte methods` lists them.",
)  # fmt: skip
PROTOCOL = click.option(
    "--protocol", type=click.Choice(["online", "two-pass", "episodic", "frozen"]),
    help="How the method learns: from each image as it comes (online), from all in a first pass "
    "(two-pass), from one image alone (episodic), or not at all (frozen).  [default: online; "
    "two-pass for adte-released, as its authors ran it]",
)  # fmt: skip
SHUFFLE = click.option(
    "--shuffle", default=0, type=SEED, show_default=True,
    help="Number of another order of the same kind: a shuffle, which keeps domains and classes "
    "together where the stream does; 0 keeps its own order.",
)  # fmt: skip
SEEDS = click.option(
    "--seeds", default=1, type=COUNT, show_default=True, metavar="N",
    help="Run methods that learn on N orders: that of --shuffle, by default the stream's own, and "
    "the next N−1.",
)  # fmt: skip
METHODS = click.option(
    "--methods", "names", metavar="NAMES", multiple=True,
    help="Methods, separated by commas; may be repeated.  [default: all that do not run the image "
    "tower again]",
)  # fmt: skip
PROTOCOLS = click.option(
    "--protocols", multiple=True, metavar="NAMES",
    help="Protocols, separated by commas: online, two-pass, episodic, frozen; may be repeated.  "
    "[default: online; two-pass for adte-released]",
)  # fmt: skip
BASELINE = click.option(
    "--baseline", metavar="ROW",
    help="Row that gains are measured against.  [default: se, or zero-shot if se is not run]",
)  # fmt: skip
RUN = Section("Method", METHOD, PROTOCOL, SHUFFLE, SET)
ENGINE = Engine()  # tasks go wherever there is room
WORKERS = Engine("workers", "gpus", "chunk")


@main.command("eval")
@SOURCE
@RUN
@run_options
@ENGINE
def eval_(**values: Any) -> None:
    """Evaluate one method on labelled images, as in `adte eval --data folder:labelled`, or on
    features that were computed before (--data cache:FOLDER or npz:FILE).
    """
    source = SOURCE.take(values)
    if not source.data:
        raise InputError("no data was given; name it as in --data folder:PATH")
    _one(source, **values)


@main.command()
@click.argument("cache")
@CACHE
@RUN
@run_options
@ENGINE
def replay(cache: str, **values: Any) -> None:
    """Evaluate a method on the features in the folder CACHE, which `adte extract` made.

    It is the same as `adte eval --data cache:CACHE`.
    """
    source = CACHE.take(values, data=(f"cache:{cache}",))  # it takes its --set out of the values
    _one(source, **values)


def _one(
    source: Any, *, method: str, protocol: Any, shuffle: int, settings: tuple[str, ...], **to: Any
) -> None:
    from adte.evaluate.running.tasks import Task, protocol_of

    protocol = protocol or protocol_of(method)
    _run(source, [Task(method, read_settings(method, settings), protocol, shuffle)], to)


def _run(source: Any, tasks: Any, values: dict[str, Any]) -> None:
    """Run tasks and show them; on a cluster, the tasks side by side."""
    baseline = values.pop("baseline", None)
    cluster, to = ENGINE.take(values), {**taken(values), "baseline": baseline}
    if cluster is None:
        run_and_show(source, tasks, to)
        return
    from adte.cluster.tasks import spread

    with spread(source, tasks, to["runs"], again=not to["skip"], options=cluster) as runs:
        run_and_show(source, tasks, {**to, "runs": runs, "skip": True})


@main.command()
@SOURCE
@Section("Method", METHODS, PROTOCOLS, SHUFFLE, SEEDS, BASELINE)
@RARE
@run_options
@ENGINE
def compare(
    names: tuple[str, ...], protocols: tuple[str, ...], shuffle: int, seeds: int, **values: Any
) -> None:
    """Compare several methods on one stream of labelled images.

    Without --data the stream is the embedded bundle: features of 1,200 photographs. Methods that
    tune prompts or towers take seconds per image; --limit and --methods make the run shorter. With
    --runs FOLDER an interrupted comparison continues where it stopped.
    """
    from adte.evaluate.running.tasks import tasks_for

    wanted = _words(names) if names else None
    if wanted == []:
        raise InputError("--methods is empty; name methods, or leave --methods out for all")
    source = SOURCE.take(values)
    no_method_settings(values)
    ways = _words(protocols) if protocols else None
    orders = range(shuffle, shuffle + seeds)
    _run(source, tasks_for(wanted, ways, orders, source.lacking), values)


def _words(texts: Sequence[str]) -> Any:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


@main.command()
@click.argument("grid_texts", nargs=-1, required=True, metavar="NAME=A,B,C...")
@SOURCE
@Section("Method", METHOD, PROTOCOL, SHUFFLE, SEEDS, BASELINE)
@RARE
@run_options
@ENGINE
def sweep(
    grid_texts: tuple[str, ...],
    method: str,
    protocol: Any,
    shuffle: int,
    seeds: int,
    **values: Any,
) -> None:
    """Evaluate a method with every combination of the given option values.

    For example, `adte sweep smoothing=20,50,100 likeness=0,0.5` makes six runs. Without --data they
    are on the embedded bundle.
    """
    from adte.evaluate.running.tasks import grid, protocol_of

    for text in grid_texts:
        if "=" not in text:
            raise InputError(f"{text!r} is not NAME=VALUES; write it as in smoothing=20,50")
    protocol = protocol or protocol_of(method)
    tasks = grid(method, grid_texts, protocol, range(shuffle, shuffle + seeds))
    source = SOURCE.take(values)
    no_method_settings(values)
    _run(source, tasks, values)


@main.command()
@SOURCE
@RARE
@click.option("--out", required=True, metavar="FOLDER",
              help="Folder of the cache; an unfinished one is continued.")  # fmt: skip
@JSON
@WORKERS
def extract(out: str, json_to: str | None, **values: Any) -> None:
    """Encode the views of a data set once, into a cache of features.

    `adte replay`, and other commands with --data cache:FOLDER, then need not encode them again.
    Data in an object store can be given too, as parquet:PLACE or remote:s3://…; see the guide
    "Past one machine".
    """
    from adte.evaluate.features.cache import begun
    from adte.evaluate.features.cache import extract as write_cache
    from adte.evaluate.features.live import Live
    from adte.label.report import counted

    cluster, source = WORKERS.take(values), SOURCE.take(values)
    no_method_settings(values)
    if source.cache is not None or source.npz is not None:
        kind = "a cache" if source.npz is None else "features"
        raise InputError(f"extract reads images, but --data names {kind}; give it a data set")
    source = replace(source, views={**begun(out), **source.asked("views")})
    with console.notes():
        live = source.open()
    assert isinstance(live, Live)
    if note := unseen(live):
        console.say(f"note: {note}")
    size = len(live) * live.views.count * live.model.dim * 2 / 1e6
    about = f"{counted(len(live), 'image')}, {counted(live.views.count, 'view')}"
    click.echo(f"{about}: about {size:,.0f} MB", err=True)
    with console.notes(), console.progress("encoding", len(live)) as bar:
        if cluster is None:
            cache = write_cache(live, out, source.prompt_set, tick=bar.advance)
        else:
            from adte.cluster.extract import extract as spread_out
            from adte.cluster.worker import Tower

            tower = Tower.of(live.model, source)
            cache = spread_out(
                live, out, source.prompt_set, tick=bar.advance, tower=tower, options=cluster
            )
    if json_to:
        skipped = [asdict(s) for s in live.skipped]
        facts = {"cache": out, "images": len(cache), "skipped": skipped}
        console.emit_json({**facts, "recipe": cache.recipe.to_json()}, json_to)
    if json_to != "-":
        console.out.print(f"{len(cache)} images in {out}", markup=False)
        for s in live.skipped:
            console.out.print(f"skipped {s.id}: {s.reason}", markup=False)


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


@main.command()
@SIMULATED
@JSON
@console.notes()
def simulate(json_to: str | None, **values: Any) -> None:
    """Run the methods on a simulated stream whose class prior is known.

    No images and no model are needed: features are drawn at random around class vectors.
    """
    from adte.evaluate.compare import Comparison, Listener, compare_tasks
    from adte.evaluate.features.recipe import Recipe
    from adte.evaluate.features.stream import Samples
    from adte.evaluate.running.tasks import LADDER, ticks
    from adte.images import Views

    stream = SimulatedStream(**SIMULATED.given(values))
    recipe = Recipe(
        model="simulated",
        classes=tuple(f"class {i}" for i in range(stream.classes)),
        frequency=tuple(stream.prior.tolist()),
        views=Views(count=stream.views),
        data={"images": stream.images, "seed": stream.seed},
    )
    given = Samples(stream, recipe)
    with console.progress("simulating", ticks(given, LADDER)) as bar:
        done = compare_tasks(given, LADDER, listener=Listener(bar.advance))
    if not console.told({"stream": asdict(stream), "rows": list(done)}, json_to):
        return
    title = (
        f"Simulated stream: {stream.images} images, {stream.classes} classes, prior "
        f"{stream.imbalance:g} : 1"
    )
    console.grid(Comparison(done, title).small)
    if known := [r for r in done if r["spearman"] is not None]:
        best = max(known, key=lambda r: r["spearman"])
        console.out.print(
            f"Estimated against true prior: Spearman {best['spearman']:.3f} "
            f"({best['method']}, {best['protocol']})."
        )
