"""`bench`: speed and memory on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from adte import console
from adte.cli._group import COUNT, JSON, main
from adte.cli._options import options_of
from adte.errors import InputError
from adte.evaluate.source import Source
from adte.models.runtime import RUNTIMES

MODEL_OPTIONS = options_of(
    Source, only=("model", "weights", "device", "dtype"), model="tiny",
    helps={"model": "see `adte models`",
           "weights": "a checkpoint file, or 'random': speed needs no trained ones"},
)  # fmt: skip
RUNTIME = click.option(
    "--runtime", default="auto", type=click.Choice(list(RUNTIMES)), show_default=True,
    help="What computes the image tower.",
)  # fmt: skip
VIEWS = click.option("--views", default=64, type=COUNT, show_default=True, help="Views per image.")


@main.group()
def bench() -> None:
    """Measure speed and memory on this machine, candidates in turns, medians.

    \b
    adte bench rate       JPEG to label: ours, the usual way, the tower, the limit
    adte bench growth     the time of an image by views, classes and stream, drawn
    adte bench stream     a million images: is their time flat, and the memory?
    adte bench views      64 views of a photo, beside Pillow view by view
    adte bench head       ADTE's entropy, selection and mean, beside Shannon's
    adte bench step       a method's whole step on an image's features
    adte bench prior      one more item for the class prior, beside starting anew
    adte bench encode     images per second through the image tower, by batch
    adte bench pipeline   decode, views, encode, method: where the time goes
    adte bench cost       zero-shot, Zero, ADTE and TPT: seconds and peak memory
    adte bench serve      the service under load, beside the bare pipeline
    """


# columns beyond name, seconds and ratio: heading and how a value is shown
EXTRA: dict[str, tuple[str, Callable[[Any], str]]] = {
    "peak_memory": ("MB", lambda x: f"{x / 2**20:,.0f}"),
    "head_seconds": ("head ms", lambda x: f"{1e3 * x:,.1f}"),
    "images_per_s": ("images/s", lambda x: f"{x:,.1f}"),
    "of_limit": ("of limit", lambda x: f"{x:.1%}"),
    "resident_bytes": ("MB", lambda x: f"{x / 2**20:,.0f}"),
    "state_bytes": ("state kB", lambda x: f"{x / 2**10:,.1f}"),
    "p50": ("p50 ms", lambda x: f"{1e3 * x:,.0f}"),
    "p95": ("p95 ms", lambda x: f"{1e3 * x:,.0f}"),
    "p99": ("p99 ms", lambda x: f"{1e3 * x:,.0f}"),
    "published_seconds": ("A100 s", str),
    "published_gb": ("A100 GB", str),
}


def _cells(row: dict[str, Any], extra: Sequence[str]) -> list[str]:
    more = ("" if row.get(k) is None else EXTRA[k][1](row[k]) for k in extra)
    return [f"{row['seconds']:.4g}", f"{row['ratio']:.2f}", *more]


def _show(title: str, result: dict[str, Any], json_to: str | None) -> None:
    if json_to:
        console.emit_json(result, json_to)
    if json_to == "-":
        return
    rows = result["rows"]
    columns = ["", "s", "ratio"]
    used = [k for k in EXTRA if any(r.get(k) is not None for r in rows)]
    cells = [[r["name"], *_cells(r, used)] for r in rows]
    caption = f"{result['meaning']}: {result['ratio']:.3f}"
    if "published_gb" in used:
        caption += ". A100: as published, another machine."
    columns += [EXTRA[k][0] for k in used]
    console.table(title, columns, cells, caption)


def _said(text: str) -> None:
    click.echo(f"… {text}", err=True)


@bench.command()
@MODEL_OPTIONS
@RUNTIME
@VIEWS
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@click.option("--images", default=32, type=COUNT, show_default=True, help="Number of images.")
@click.option("--batch", default=16, type=COUNT, show_default=True, help="Images at once, ours.")
@click.option("--workers", type=click.IntRange(min=0), help="Threads that decode and crop, both.")
@click.option("--folder", type=click.Path(), help="Where images lie; made-up JPEGs by default.")
@click.option("--classes", type=COUNT, help="Number of classes; 200 by default.")
@click.option("--repeats", default=3, type=COUNT, show_default=True, help="Turns, for the median.")
@JSON
def rate(json_to: str | None, **options: Any) -> None:
    """Images a second from JPEG to label: the usual way, ours, the tower alone and the limit.

    The usual way is Pillow view by view, one image at a time through the library's tower in
    float32. The limit is the rate of matrix products here over the tower's operations.
    """
    from adte.bench.rate import run

    result = run(report=_said, **options)
    _show(f"{_title(result)}, {result['method']}, runtime {result['runtime']}", result, json_to)


@bench.command()
@MODEL_OPTIONS
@RUNTIME
@click.option("--views", default="1,4,16,64,128", show_default=True, help="Views per image.")
@click.option(
    "--classes", default="10,100,1000,5000,20000", show_default=True, help="Numbers of classes."
)
@click.option(
    "--images",
    default=100_000,
    type=COUNT,
    show_default=True,
    help="Length of the simulated stream.",
)
@click.option("--repeats", default=5, type=COUNT, show_default=True, help="Calls, for the median.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw it: an SVG, PNG or PDF file.")
@JSON
def growth(
    views: str, classes: str, plot: str | None, json_to: str | None, **options: Any
) -> None:  # fmt: skip
    """The time of an image as views, classes and the stream grow."""
    from adte.bench.growth import draw, run

    counts = _numbers(views, "--views"), _numbers(classes, "--classes")
    result = run(views=counts[0], classes=counts[1], report=_said, **options)
    if plot:
        draw(result, plot)
    _show(_title(result), result, json_to)


@bench.command()
@click.option("--images", default=1_000_000, type=COUNT, show_default=True, help="Its length.")
@click.option("--classes", default=10, type=COUNT, show_default=True, help="Number of classes.")
@click.option("--views", default=4, type=COUNT, show_default=True, help="Views per image.")
@click.option("--batch", default=64, type=COUNT, show_default=True, help="Images at once.")
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@JSON
def stream(json_to: str | None, **options: Any) -> None:
    """A long simulated stream: time of an image and memory at 1,000, 10,000, … images.

    Features are simulated; a million images take a few minutes.
    """
    from adte.bench.stream import run

    result = run(report=_said, **options)
    title = f"{result['method']}, {result['classes']} classes, {result['views']} views"
    _show(title, result, json_to)


def _numbers(text: str, name: str) -> list[int]:
    try:
        found = [int(n) for n in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"{name} {text!r} is no list of numbers; write it as 1,4,16")
    return found


@bench.command()
@click.option("--image", type=click.Path(), help="A photo; a made-up one of 500×375 by default.")
@click.option("--repeats", default=15, type=COUNT, show_default=True, help="Calls, for the median.")
@JSON
def views(image: str | None, repeats: int, json_to: str | None) -> None:
    """64 views of a photo: ours beside Pillow view by view, the same crops, one thread."""
    from adte.bench.views import run

    result = run(image, repeats)
    height, width = result["image"]
    result["meaning"] += f" (pixels differ by {result['max_level_error']:.2f} of 255 levels)"
    _show(f"{result['views']} views of a {width}×{height} photo, one thread", result, json_to)


@bench.command()
@VIEWS
@click.option("--classes", default=1000, type=COUNT, show_default=True, help="Number of classes.")
@click.option(
    "--repeats", default=301, type=COUNT, show_default=True, help="Calls, for the median."
)
@JSON
def head(views: int, classes: int, repeats: int, json_to: str | None) -> None:
    """Entropy, selection and mean of one image's logits: ADTE beside Shannon, one thread."""
    from adte.bench.head import run

    _show(f"{views} × {classes} logits, one thread", run(views, classes, repeats), json_to)


@bench.command()
@VIEWS
@click.option("--classes", default=1000, type=COUNT, show_default=True, help="Number of classes.")
@click.option("--dim", default=512, type=COUNT, show_default=True, help="Width of the features.")
@click.option("--batch", default=1, type=COUNT, show_default=True, help="Images at once.")
@click.option(
    "--repeats", default=301, type=COUNT, show_default=True, help="Calls, for the median."
)
@JSON
def step(json_to: str | None, **options: Any) -> None:
    """Predict and learn from an image's features: SE, the paper's ADTE, the default, one thread."""
    from adte.bench.step import run

    result = run(**options)
    many = f"{result['batch']} images at once" if result["batch"] > 1 else "one at a time"
    _show(f"{result['views']} views, {result['classes']:,} classes, {many}", result, json_to)


@bench.command()
@click.option("--classes", default=1000, type=COUNT, show_default=True, help="Number of classes.")
@click.option("--size", default=10, type=COUNT, show_default=True, help="Bank items per class.")
@click.option("--repeats", default=31, type=COUNT, show_default=True, help="Calls, for the median.")
@JSON
def prior(classes: int, size: int, repeats: int, json_to: str | None) -> None:
    """One more item for the class prior: updated and warm beside rebuilt and cold, one thread."""
    from adte.bench.prior import run

    _show(f"{classes} classes, {size} items each", run(classes, size, repeats), json_to)


@bench.command()
@MODEL_OPTIONS
@RUNTIME
@VIEWS
@click.option("--batches", default="1,4,16", show_default=True, help="Images at once.")
@click.option("--repeats", default=5, type=COUNT, show_default=True, help="Calls, for the median.")
@JSON
def encode(batches: str, json_to: str | None, **options: Any) -> None:
    """Images per second through the image tower, by how many go through it together.

    A large model on a CPU takes long: `--model ViT-B-16 --weights random --batches 1,2`.
    """
    from adte.bench.encode import run

    result = run(batches=_numbers(batches, "--batches"), **options)
    _show(_title(result), result, json_to)


@bench.command()
@MODEL_OPTIONS
@RUNTIME
@VIEWS
@click.option("--method", default="adte", show_default=True, help="See `adte methods`.")
@click.option("--images", default=16, type=COUNT, show_default=True, help="Number of images.")
@click.option("--batch", default=1, type=COUNT, show_default=True, help="Images at once.")
@click.option("--folder", type=click.Path(), help="Where images lie; made-up JPEGs by default.")
@click.option("--classes", type=COUNT, help="Number of classes; 200 by default.")
@JSON
def pipeline(json_to: str | None, **options: Any) -> None:
    """The whole way of an image, and each stage's share of the time."""
    from adte.bench.pipeline import run

    result = run(**options)
    _show(f"{_title(result)}, {result['method']}", result, json_to)


@bench.command()
@MODEL_OPTIONS
@VIEWS
@click.option("--classes", type=COUNT, help="Number of classes; 200 by default.")
@click.option("--repeats", type=COUNT, help="Turns; 7 for tiny, 2 for other models.")
@click.option("--chunks/--no-chunks", default=True, help="TPT's gradient in chunks, too.")
@JSON
def cost(json_to: str | None, **options: Any) -> None:
    """What an image costs under zero-shot, Zero, ADTE and TPT: seconds and peak memory.

    All include encoding the views. Ratios are over zero-shot, in the last rows over all at once.
    `--model ViT-B-16 --weights random` takes minutes on a CPU; `--classes 1000` is ImageNet's.
    """
    from adte.bench.cost import run

    result = run(report=_said, **options)
    if json_to != "-":
        tuning = [r for r in result["rows"] if "head_seconds" not in r]
        methods = [r for r in result["rows"] if "head_seconds" in r]
        first = f"{_title(result)}, {result['classes']} classes"
        _show(first, result | {"rows": methods}, None)
        if tuning:
            cells = [[r["name"], *_cells(r, ("peak_memory",))] for r in tuning]
            console.table("TPT's gradient", ("", "s", "ratio", "MB"), cells)
    if json_to:
        console.emit_json(result, json_to)


@bench.command()
@MODEL_OPTIONS
@click.option("--clients", default=16, type=COUNT, show_default=True, help="That ask at a time.")
@click.option("--streams", default=4, type=COUNT, show_default=True, help="That they ask.")
@click.option("--images", default=64, type=COUNT, show_default=True, help="Images of a turn.")
@click.option("--turns", default=3, type=COUNT, show_default=True, help="Turns, for the median.")
@VIEWS
@click.option("--soak", "minutes", type=float, help="Load for so many minutes, with memory.")
@JSON
def serve(json_to: str | None, minutes: float | None, **options: Any) -> None:
    """The service under load beside the bare pipeline, in turns; latencies p50, p95 and p99."""
    from adte.serve import load

    if minutes is None:
        result = load.run(**options)
        _show(f"{_title(result)}, {result['streams']} streams", result, json_to)
        return
    del options["turns"], options["images"]
    result = load.soak(minutes, report=lambda text: click.echo(text, err=True), **options)
    if json_to:
        console.emit_json(result, json_to)
    if json_to != "-":
        click.echo(f"{result['images']} images, p99 {1e3 * result['p99']:,.0f} ms, memory of the "
                   f"last half over the one before {result['growth']:+.1%}, "
                   f"{result['errors']:.0f} errors")  # fmt: skip


def _title(result: dict[str, Any]) -> str:
    where = f"{result['device']}, {result['dtype']}, {result['threads']} threads"
    return f"{result['model']} ({where}), {result['views']} views"
