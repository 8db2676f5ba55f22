"""`eval`, `compare`, `sweep`, `extract`, `replay` and `simulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from adte import console
from adte.cli._group import COUNT, JSON, SEED, SET, main, read_settings, writable
from adte.errors import InputError

if TYPE_CHECKING:
    from adte.evaluate.build import Source
    from adte.evaluate.features import FeatureStream
    from adte.evaluate.tasks import Task

PROTOCOL = click.option(
    "--protocol", default="online", show_default=True,
    type=click.Choice(["online", "two-pass", "episodic", "frozen"]), help="How the stream is used.",
)  # fmt: skip
DEVICE = click.option("--device", help="cpu, cuda, …; the best there is by default.")
SEEDS = click.option(
    "--seeds", default=1, type=COUNT, show_default=True, help="Shuffles of the stream."
)


def table_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a table that cannot be written, before any work is done for it."""
    from adte.evaluate.tables import check_suffix

    if value is not None:
        check_suffix(value)
    return writable(ctx, param, value)


RUN_OPTIONS = (
    click.option("--runs", metavar="FOLDER",
                 help="Keep one JSON a run there, for `adte report` and to resume."),
    click.option("--skip-existing/--again", "skip", default=True, show_default=True,
                 help="Whether runs that --runs holds already are taken from there."),
    click.option("--table", "table_to", metavar="FILE", callback=table_file,
                 help="Write the table too: .csv, .md or .html."),
    click.option("--log", "log_to", metavar="WHERE",
                 help="Log every run to tensorboard:FOLDER or wandb:PROJECT."),
    JSON,
)  # fmt: skip


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the results of runs go."""
    for add in reversed(RUN_OPTIONS):
        command = add(command)
    return command


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which images, which model and which views."""
    for add in reversed((
        click.option("--model", default="tiny", show_default=True, help="See `adte models`."),
        click.option("--weights", help="A checkpoint file, or 'random'."),
        DEVICE,
        click.option("--data", "data", multiple=True, metavar="NAME:PATH",
                     help="A data set, as in folder:photos; may be repeated. See `adte datasets`."),
        click.option("--views", type=COUNT,
                     help="Views of each image; 64 by default, or what a cache holds."),
        click.option("--seed", default=0, type=SEED, show_default=True,
                     help="Seed of views and stream."),
        click.option("--limit", type=COUNT, help="Only the first images of the stream."),
        click.option("--order", default="shuffled", show_default=True,
                     type=click.Choice(["file", "shuffled", "class-ordered", "correlated"]),
                     help="Order of the images."),
        click.option("--domains", default="sequence", show_default=True,
                     type=click.Choice(["sequence", "mixed", "gradual"]),
                     help="How several sets or corruptions follow each other."),
        click.option("--imbalance", default="none", show_default=True,
                     type=click.Choice(["none", "exponential", "zipf"]), help="Thin out classes."),
        click.option("--ratio", "imbalance_ratio", default=10.0, show_default=True,
                     help="Most over least frequent class, with --imbalance."),
        click.option("--shared-labels", is_flag=True, help="Several sets share one label space."),
        click.option("--corrupt", default="", metavar="TYPES",
                     help="Corruptions made on the fly, as in 'fog,jpeg_compression' or 'common'."),
        click.option("--severity", default="5", show_default=True, help="1 to 5, as in 3 or 1-5."),
        click.option("--clean/--no-clean", default=True, help="Keep the clean images as a domain."),
        click.option("--prompts", "templates", default=None, metavar="SET|TEXT",
                     help="Template set (single, seven, eighty, …) or a text with {}; by default "
                     "the data set's own."),
        click.option("--descriptions", metavar="FILE", help="Sentences a class, as CuPL's files."),
        click.option("--workers", default=None, type=SEED, help="Processes that decode and crop."),
        click.option("--strict", is_flag=True, help="Stop at an unreadable image."),
    )):  # fmt: skip
        command = add(command)
    return command


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What says where images come from, and what says where results go."""
    goes = {"runs", "skip", "table_to", "log_to", "json_to"}
    to = {k: v for k, v in options.items() if k in goes}
    return {k: v for k, v in options.items() if k not in goes}, to


def make_source(o: dict[str, Any]) -> Source:
    """What the options of `source_options` say."""
    from adte.data import StreamOptions
    from adte.evaluate.build import Source
    from adte.evaluate.features import default_workers
    from adte.prompts import Prompts
    from adte.views import Views

    prompts = None
    if o["templates"] or o["descriptions"]:
        prompts = Prompts.of(o["templates"] or "single", o["descriptions"])
    return Source(
        data=o["data"],
        model=o["model"],
        weights=o["weights"],
        device=o["device"],
        prompts=prompts,
        views=None if o["views"] is None else Views(count=o["views"], seed=o["seed"]),
        stream=StreamOptions(
            order=o["order"],
            domains=o["domains"],
            imbalance=o["imbalance"],
            ratio=o["imbalance_ratio"],
            labels="shared" if o["shared_labels"] else "own",
            limit=o["limit"],
            seed=o["seed"],
        ),
        corrupt=o["corrupt"],
        severity=o["severity"],
        clean=o["clean"],
        workers=default_workers() if o["workers"] is None else o["workers"],
        strict=o["strict"],
    )


def run_and_show(
    stream: FeatureStream,
    tasks: Sequence[Task],
    *,
    runs: str | None,
    skip: bool,
    table_to: str | None,
    log_to: str | None,
    json_to: str | None,
) -> None:
    """Run tasks with progress, print the table, write what was asked for."""
    from adte.evaluate.logs import open_log
    from adte.evaluate.results import Results
    from adte.evaluate.tables import rows_table, save_table, terminal_table
    from adte.evaluate.tasks import aggregate, passes, run_tasks

    with (
        open_log(log_to) as log,
        console.progress("", passes(tasks) * len(stream)) as bar,
    ):
        outcomes = run_tasks(
            stream,
            tasks,
            Results(runs) if runs else None,
            lambda: bar.advance(bar.task_ids[0]),
            lambda task: bar.update(bar.task_ids[0], description=task.name),
            log.record,
            again=not skip,
            memory=True,
        )
    rows, records = aggregate(outcomes), [o.record for o in outcomes]
    if table_to:
        save_table(table_to, rows_table(rows))
    if json_to:
        single = len(records) == 1
        extra = {k: records[0][k] for k in ("metrics", "protocol")} if single else {"runs": records}
        console.emit_json({"rows": rows, **extra}, json_to)
    if json_to != "-":
        seen, model = records[0]["metrics"]["images"], stream.facts["model"]
        about = f"{seen} images, {len(stream.classes)} classes, model {model}"
        console.grid(terminal_table(rows, about))
        if skipped := records[0]["protocol"]["skipped"]:
            console.out.print(f"{len(skipped)} images could not be read and were skipped, the "
                              f"first: {skipped[0]['reason']}", markup=False)  # fmt: skip


def _needs_pixels(tasks: Sequence[Task]) -> bool:
    from adte.evaluate.build import needs_pixels
    from adte.methods import create_method

    return needs_pixels([create_method(t.method, **t.options) for t in tasks])


@main.command("eval")
@source_options
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@PROTOCOL
@SET
@run_options
def eval_(method: str, protocol: Any, settings: tuple[str, ...], **options: Any) -> None:
    """Evaluate one method on labelled images, live or from a cache (--data cache:FOLDER)."""
    from adte.evaluate.tasks import Task

    source, to = split_options(options)
    task = Task(method, read_settings(method, settings), protocol)
    run_and_show(make_source(source).open(_needs_pixels([task])), [task], **to)


@main.command()
@source_options
@click.option(
    "--methods",
    "names",
    default="",
    metavar="NAMES",
    help="Methods with commas between them; all that features suffice for by default.",
)
@click.option("--protocols", default="online", show_default=True, help="With commas between them.")
@SEEDS
@run_options
def compare(names: str, protocols: str, seeds: int, **options: Any) -> None:
    """Compare methods on one stream, by default the embedded bundle.

    Methods that tune prompts or towers take seconds an image; --limit and --methods shorten the
    run. With --runs FOLDER an interrupted comparison goes on where it was.
    """
    from adte.evaluate.tasks import method_tasks

    source, to = split_options(options)
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    tasks = method_tasks(wanted, [p.strip() for p in protocols.split(",")], range(seeds))
    run_and_show(_data_or_bundle(source, _needs_pixels(tasks)), tasks, **to)


def _data_or_bundle(source: dict[str, Any], pixels: bool = False) -> FeatureStream:
    """What --data names, or the bundle that ships."""
    from adte.evaluate.cache import Cache
    from adte.models import load_model

    if source["data"] or pixels:
        return make_source(source).open(pixels)
    bundled = {"model": ("tiny",), "weights": (None,), "views": (None, 64), "templates": (None,),
               "descriptions": (None,)}  # fmt: skip
    for name, known in bundled.items():
        if source[name] not in known:
            option = "prompts" if name == "templates" else name
            raise InputError(
                f"--{option} {source[name]} needs --data: without it the embedded bundle is used, "
                "64 views encoded by tiny; name images as in --data folder:PATH"
            )
    make_source(source).check_cache("the embedded bundle")
    return (
        Cache(model=load_model("tiny", device=source["device"]))
        .first(source["limit"])
        .shuffled(source["seed"])
    )


@main.command()
@click.argument("grid_texts", nargs=-1, required=True, metavar="NAME=A,B,C...")
@source_options
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@PROTOCOL
@SEEDS
@run_options
def sweep(grid_texts: tuple[str, ...], method: str, protocol: Any, seeds: int,
          **options: Any) -> None:  # fmt: skip
    """Run a method over every combination of option values, as in `adte sweep beta=0.5,0.9`."""
    from adte.evaluate.tasks import grid

    for text in grid_texts:
        if "=" not in text:
            raise InputError(f"{text!r} is not NAME=VALUES; write it as in beta=0.5,0.9")
    tasks = grid(method, grid_texts, protocol, range(seeds))
    source, to = split_options(options)
    run_and_show(_data_or_bundle(source, _needs_pixels(tasks)), tasks, **to)


@main.command()
@source_options
@click.option("--out", required=True, metavar="FOLDER", help="The cache; resumed if unfinished.")
@click.option("--prompt-set", default="default", show_default=True, help="Name for these prompts.")
def extract(out: str, prompt_set: str, **source: Any) -> None:
    """Encode the views of a data set once, into a cache that `replay` and `compare` read."""
    from adte.evaluate.cache import extract as write_cache
    from adte.evaluate.features import Live

    live = make_source(source).open()
    if not isinstance(live, Live):
        raise InputError("extract reads images, but --data names a cache; give it a data set")
    size = len(live) * live.views.count * live.model.dim * 2 / 1e6
    console.out.print(f"{len(live)} images, {live.views.count} views: about {size:,.0f} MB")
    with console.progress("encoding", len(live)) as bar:
        cache = write_cache(live, out, prompt_set, tick=lambda n: bar.advance(bar.task_ids[0], n))
    console.out.print(f"{len(cache)} images in {out}", markup=False)
    for s in live.skipped:
        console.out.print(f"skipped {s.id}: {s.reason}", markup=False)


@main.command()
@click.argument("cache")
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@click.option("--prompt-set", default="default", show_default=True, help="Prompts in the cache.")
@click.option("--limit", type=COUNT, help="Only the first images.")
@click.option("--seed", default=0, type=SEED, show_default=True,
              help="0 keeps the order; others shuffle it.")  # fmt: skip
@PROTOCOL
@SET
@DEVICE
@run_options
def replay(cache: str, method: str, prompt_set: str, limit: int | None, seed: int, protocol: Any,
           settings: tuple[str, ...], device: str | None, **to: Any) -> None:  # fmt: skip
    """Run a method on the features in CACHE, without the image tower."""
    from adte.evaluate.cache import Cache
    from adte.evaluate.tasks import Task
    from adte.methods import create_method
    from adte.models import load_model

    task = Task(method, read_settings(method, settings), protocol, seed)
    needs = create_method(method, **task.options).needs
    if needs & {"image tower", "pixels"}:
        raise InputError(
            f"method {method!r} needs the image tower, and a cache holds features only; "
            "use `adte eval` on images"
        )
    stream = Cache(cache, prompt_set).first(limit)
    if "text tower" in needs:
        stream.model = load_model(stream.facts["model"], device=device)
    run_and_show(stream, [task], **to)


@main.command()
@click.option("--images", default=1000, show_default=True, help="Length of the stream.")
@click.option("--classes", default=100, show_default=True, help="Number of classes.")
@click.option("--views", default=64, show_default=True, help="Views an image.")
@click.option(
    "--imbalance", default=20.0, show_default=True, help="Most over least favoured class."
)
@click.option(
    "--labels",
    default="balanced",
    show_default=True,
    type=click.Choice(["balanced", "long-tailed", "sorted"]),
    help="Labels of the stream.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the stream.")
@JSON
def simulate(json_to: str | None, **options: Any) -> None:
    """Run the methods on a simulated stream whose class prior is known."""
    from adte.evaluate.features import Held
    from adte.evaluate.tables import terminal_table
    from adte.evaluate.tasks import LADDER, aggregate, passes, perform
    from adte.simulate import SimulatedStream

    stream = SimulatedStream(**options)
    names = [f"class {i}" for i in range(stream.classes)]
    facts = {"model": "simulated", "classes": names, "frequency": stream.prior.tolist()}
    held = Held(list(stream), facts)
    with console.progress("simulating", passes(LADDER) * len(held)) as bar:
        tick = lambda: bar.advance(bar.task_ids[0])  # noqa: E731
        table = aggregate([perform(held, task, tick) for task in LADDER])
    if json_to:
        console.emit_json({"stream": options, "rows": table}, json_to)
    if json_to != "-":
        title = (
            f"Simulated stream: {stream.images} images, {stream.classes} classes, prior "
            f"{stream.imbalance:g} : 1"
        )
        console.grid(terminal_table(table, title))
        best = max((r for r in table if r["spearman"] is not None), key=lambda r: r["spearman"])
        console.out.print(
            f"Estimated against true prior: Spearman {best['spearman']:.3f} "
            f"({best['method']}, {best['protocol']})."
        )
