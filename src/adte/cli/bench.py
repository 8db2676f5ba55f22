"""`bench`: speed and memory on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, get_type_hints

import click

from adte.bench import cost, encode, growth, head, pipeline, prior, rate, step, stream, views
from adte.cli._group import COUNT, JSON, main
from adte.cli._options import OptionsOf
from adte.core.errors import InputError
from adte.core.loading import DEFAULT_MODEL
from adte.evaluate.source import Source
from adte.files import console

MODEL = OptionsOf(
    Source, only=("model", "weights", "device", "dtype"), model=DEFAULT_MODEL,
    helps={"model": "model to measure; `adte models` lists them",
           "weights": "checkpoint file, or 'random', which is enough to measure speed"},
)  # fmt: skip
RUNTIME = OptionsOf(
    Source, only=("runtime",), helps={"runtime": "code that computes the image tower"}
)

HELP = {
    "batch": "Images to process at a time.",
    "classes": "Number of classes.",
    "folder": "Folder of images; by default JPEGs are made up.",
    "images": "Number of images.",
    "method": "Method to measure; `adte methods` lists them.",
    "repeats": "Calls to take the median of.",
    "views": "Views per image.",
}
KNOWN = "Number of classes; 200 by default."


def flags(run: Callable[..., Any], *names: str, **helps: str) -> Callable[[Any], Any]:
    """Options for parameters of a benchmark, by their types and with their defaults."""
    hints, parameters = get_type_hints(run), signature(run).parameters
    said = {**{name: HELP[name] for name in names}, **helps}

    def add(command: Any) -> Any:
        for name, text in reversed(said.items()):
            hint, default = hints[name], parameters[name].default
            flag, how = f"--{name}", dict[str, Any]()
            if hint is bool:
                flag = f"--{name}/--no-{name}"
            elif hint == Sequence[int]:
                default, how = ",".join(map(str, default)), {"callback": _numbers}
            elif hint in (int, int | None):
                how = {"type": click.IntRange(min=0) if name == "workers" else COUNT}
            elif name in ("folder", "image"):
                how = {"type": click.Path()}
            shown = default is not None and hint is not bool
            command = click.option(flag, default=default, show_default=shown, help=text, **how)(
                command
            )
        return command

    return add


def _numbers(ctx: click.Context, param: click.Parameter, text: str) -> list[int]:
    try:
        found = [int(n) for n in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"--{param.name} {text!r} is no list of numbers; write it as 1,4,16")
    return found


@main.group()
def bench() -> None:
    """Measure speed and memory on this machine.

    Candidates take turns, so that other load hurts all alike; figures are medians.

    \b
    adte bench rate       images per second from JPEG to label, and the limit
    adte bench growth     time per image as views, classes and the stream grow
    adte bench stream     time and memory over a stream of a million images
    adte bench views      making 64 views of a photo, compared with Pillow
    adte bench head       ADTE's entropy, selection and mean, compared with Shannon's
    adte bench step       a method's whole step on the features of an image
    adte bench prior      updating the class prior, compared with rebuilding it
    adte bench encode     images per second through the image tower, by batch size
    adte bench pipeline   decode, views, encode, method: where the time goes
    adte bench cost       zero-shot, Zero, ADTE and TPT: seconds and peak memory
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
    if not console.told(result, json_to):
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


@bench.command("rate")
@MODEL
@RUNTIME
@flags(
    rate.run, "views", "method", "images", "folder", batch="Images to process at a time, our way.",
    workers="Threads that decode and crop, both ways.", classes=KNOWN,
    repeats="Turns to take the median of.",
)  # fmt: skip
@JSON
def bench_rate(json_to: str | None, **options: Any) -> None:
    """Measure images per second from JPEG to label: the usual way, our way, the image tower alone,
    and the limit of the machine.

    The usual way makes each view with Pillow, and sends one image at a time through the library's
    tower in float32. The limit is how many passes of the tower fit into the rate at which this
    machine multiplies matrices.
    """
    result = rate.run(report=_said, **options)
    _show(f"{_title(result)}, {result['method']}, runtime {result['runtime']}", result, json_to)


@bench.command("growth")
@MODEL
@RUNTIME
@flags(
    growth.run, "views", "repeats", classes="Numbers of classes, separated by commas.",
    images="Length of the simulated stream.",
)  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False),
              help="Also draw a plot, as an SVG, PNG or PDF file.")  # fmt: skip
@JSON
def bench_growth(plot: str | None, json_to: str | None, **options: Any) -> None:
    """Measure the time per image as the number of views, of classes and of images grows."""
    result = growth.run(report=_said, **options)
    if plot:
        growth.draw(result, plot)
    _show(_title(result), result, json_to)


@bench.command("stream")
@flags(stream.run, "classes", "views", "batch", "method", images="Length of the stream.")
@JSON
def bench_stream(json_to: str | None, **options: Any) -> None:
    """Measure time per image and memory over a long stream, after 1,000, 10,000, … images.

    Features are simulated; a million images take a few minutes.
    """
    result = stream.run(report=_said, **options)
    title = f"{result['method']}, {result['classes']} classes, {result['views']} views"
    _show(title, result, json_to)


@bench.command("views")
@flags(views.run, "repeats", image="Photo to use; by default one of 500×375 is made up.")
@JSON
def bench_views(json_to: str | None, **options: Any) -> None:
    """Measure making 64 views of a photo, compared with Pillow view by view.

    Both make the same crops, on one thread.
    """
    result = views.run(**options)
    height, width = result["image"]
    result["meaning"] += f" (pixels differ by {result['max_level_error']:.2f} of 255 levels)"
    _show(f"{result['views']} views of a {width}×{height} photo, one thread", result, json_to)


@bench.command("head")
@flags(head.run, "views", "classes", "repeats")
@JSON
def bench_head(json_to: str | None, **options: Any) -> None:
    """Measure entropy, selection and mean of one image's logits, ADTE's compared with Shannon's.

    On one thread.
    """
    result = head.run(**options)
    _show(f"{result['views']} × {result['classes']} logits, one thread", result, json_to)


@bench.command("step")
@flags(step.run, "views", "classes", "batch", "repeats", dim="Dimension of the features.")
@JSON
def bench_step(json_to: str | None, **options: Any) -> None:
    """Measure predicting and learning from an image's features: SE, the paper's ADTE, the default.

    On one thread.
    """
    result = step.run(**options)
    many = f"{result['batch']} images at once" if result["batch"] > 1 else "one at a time"
    _show(f"{result['views']} views, {result['classes']:,} classes, {many}", result, json_to)


@bench.command("prior")
@flags(prior.run, "classes", "repeats", size="Items per class in the bank.")
@JSON
def bench_prior(json_to: str | None, **options: Any) -> None:
    """Measure adding one item to the class prior: updated from the last solution, compared with
    rebuilt from the start.

    On one thread.
    """
    result = prior.run(**options)
    _show(f"{result['classes']} classes, {result['size']} items each", result, json_to)


@bench.command("encode")
@MODEL
@RUNTIME
@flags(encode.run, "views", "repeats", batches="Images to encode at a time, separated by commas.")
@JSON
def bench_encode(json_to: str | None, **options: Any) -> None:
    """Measure images per second through the image tower, by how many go through it together.

    A large model on a CPU takes long: `--model ViT-B-16 --weights random --batches 1,2`.
    """
    result = encode.run(**options)
    _show(_title(result), result, json_to)


@bench.command("pipeline")
@MODEL
@RUNTIME
@flags(pipeline.run, "views", "method", "images", "batch", "folder", classes=KNOWN)
@JSON
def bench_pipeline(json_to: str | None, **options: Any) -> None:
    """Measure the whole way of an image, and each stage's share of the time."""
    result = pipeline.run(**options)
    _show(f"{_title(result)}, {result['method']}", result, json_to)


@bench.command("cost")
@MODEL
@flags(
    cost.run, "views", classes=KNOWN,
    repeats="Turns to take the median of; by default 7 for tiny, 2 for other models.",
    chunks="Also measure TPT with its gradient in chunks.",
)  # fmt: skip
@JSON
def bench_cost(json_to: str | None, **options: Any) -> None:
    """Measure what an image costs under zero-shot, Zero, ADTE and TPT: seconds and peak memory.

    All include encoding the views. Ratios are to zero-shot; in the table of TPT's gradient, to the
    gradient all at once. `--model ViT-B-16 --weights random` takes minutes on a CPU; `--classes
    1000` is ImageNet's number.
    """
    result = cost.run(report=_said, **options)
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


def _title(result: dict[str, Any]) -> str:
    where = f"{result['device']}, {result['dtype']}, {result['threads']} threads"
    return f"{result['model']} ({where}), {result['views']} views"
