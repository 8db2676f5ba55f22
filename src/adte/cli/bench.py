"""`bench rate`: images per second on this machine."""

from __future__ import annotations

from typing import Any

import click

from adte.cli._group import COUNT, JSON, main
from adte.cli._options import OptionsOf
from adte.core.loading import DEFAULT_MODEL
from adte.evaluate.asked import Asked
from adte.files import console

MODEL = OptionsOf(
    Asked, only=("model", "weights", "device", "dtype", "runtime"), model=DEFAULT_MODEL,
    helps={"model": "model to measure; `adte models` lists them",
           "weights": "checkpoint file, or 'random', which is enough to measure speed",
           "runtime": "code that computes the image tower"},
)  # fmt: skip
COUNTS = {
    "images": (32, "Number of images."),
    "batch": (16, "Images to process at a time, our way."),
    "views": (64, "Views per image."),
    "classes": (200, "Number of classes."),
    "repeats": (3, "Turns to take the median of."),
}


def counts(command: Any) -> Any:
    for name, (default, text) in reversed(COUNTS.items()):
        add = click.option(f"--{name}", default=default, type=COUNT, show_default=True, help=text)
        command = add(command)
    return command


@main.group()
def bench() -> None:
    """Measure speed on this machine.

    \b
    adte bench rate       images per second from JPEG to label, and the limit
    """


@bench.command()
@MODEL
@click.option("--method", default="tilt", show_default=True,
              help="Method to measure; `adte methods` lists them.")  # fmt: skip
@counts
@click.option("--workers", type=click.IntRange(min=0),
              help="Threads that decode and crop, both ways.")  # fmt: skip
@click.option("--folder", type=click.Path(), help="Folder of images; by default JPEGs are made up.")
@JSON
def rate(json_to: str | None, **options: Any) -> None:
    """Measure images per second from JPEG to label: the usual way, our way, the image tower alone,
    and the limit of the machine.

    The usual way makes each view with Pillow, and sends one image at a time through the library's
    tower in float32. The limit is how many passes of the tower fit into the rate at which this
    machine multiplies matrices. Candidates take turns, so that other load hurts all alike; figures
    are medians.
    """
    from adte.bench.rate import run

    done = run(report=lambda text: click.echo(f"… {text}", err=True), **options)
    if not console.told(done, json_to):
        return
    cells = [
        [r["name"], f"{r['seconds']:.4g}", f"{r['ratio']:.2f}", f"{r['images_per_s']:,.1f}",
         f"{r['of_limit']:.1%}"] for r in done["rows"]
    ]  # fmt: skip
    where = f"{done['device']}, {done['dtype']}, {done['threads']} threads"
    title = f"{done['model']} ({where}), {done['views']} views, {done['method']}, {done['runtime']}"
    caption = f"{done['meaning']}: {done['ratio']:.3f}"
    console.table(title, ["", "s", "ratio", "images/s", "of limit"], cells, caption)
