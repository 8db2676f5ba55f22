"""How the time of an image grows: with its views, with the classes, with the length of the stream.

Views go through the image tower and the method; for classes and streams the features are there, and
the method alone is timed, beside Zero, which keeps no state. `--plot` draws all three.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.bench import stream, subject, timing
from adte.core.batch import Context
from adte.core.errors import MissingExtra
from adte.methods import create_method
from adte.pipeline import Pipeline

__all__ = ["draw", "run"]

VIEWS = (1, 4, 16, 64, 128)
CLASSES = (10, 100, 1000, 5000, 20_000)


def run(
    model: str = "tiny",
    weights: str | None = None,
    views: Sequence[int] = VIEWS,
    classes: Sequence[int] = CLASSES,
    images: int = 100_000,
    repeats: int = 5,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Rows with the axis they lie on; the ratio is tilt over Zero at the most classes."""
    net = subject.load(model, weights, device, dtype, runtime)
    rows = _by_views(net, views, repeats, report)
    found = _by_classes(net.dim, net.device, classes, repeats, report)
    rows += found
    for row in stream.run(images, report=report)["rows"]:
        rows.append({"axis": "images", "at": row["images"], **row, "method": "tilt"})
    last = {r["method"]: r["seconds"] for r in found if r["at"] == max(classes)}
    meaning = f"tilt over Zero, the method alone, at {max(classes):,} classes"
    facts = subject.facts(net, max(views), classes=max(classes), repeats=repeats)
    return timing.result(rows, last["tilt"] / last["zero"], meaning, **facts)


def _by_views(
    net: Any, counts: Sequence[int], repeats: int, report: Callable[[str], object]
) -> list[dict[str, Any]]:
    pipeline, rows = Pipeline(net), []
    context = _context(200, net.dim, net.device)
    for views in counts:
        rule, pixels = create_method("tilt"), subject.noise(net, views)

        def image(rule: Any = rule, pixels: Tensor = pixels) -> None:
            rule.step(context.batch(pipeline.encode(pixels, 1)))

        row = _row("views", views, "tilt", timing.medians({"": image}, repeats, net.device)[""])
        report(f"{row['name']}: {1e3 * row['seconds']:.3g} ms")
        rows.append(row)
    return _over_first(rows)


def _by_classes(
    dim: int,
    device: torch.device,
    counts: Sequence[int],
    repeats: int,
    report: Callable[[str], object],
) -> list[dict[str, Any]]:
    rows: dict[str, list[dict[str, Any]]] = {"tilt": [], "zero": []}
    g = torch.Generator().manual_seed(0)
    features = normalize(torch.randn(1, 64, dim, generator=g), dim=-1).to(device)
    for classes in counts:
        batch = _context(classes, dim, device).batch(features)
        calls = {name: partial(create_method(name).step, batch) for name in rows}
        for name, taken in timing.medians(calls, repeats, device).items():
            rows[name].append(_row("classes", classes, name, taken))
            report(f"{rows[name][-1]['name']}: {1e3 * taken:.3g} ms")
    return [row for found in rows.values() for row in _over_first(found)]


def _context(classes: int, dim: int, device: torch.device) -> Context:
    g = torch.Generator().manual_seed(1)
    weights = normalize(torch.randn(classes, dim, generator=g), dim=-1)
    return Context(weights.to(device), 100.0)


def _row(axis: str, at: int, method: str, seconds: float) -> dict[str, Any]:
    name = f"{at:,} {axis if at > 1 else axis.removesuffix('s')}, {method}"
    return {"axis": axis, "at": at, "method": method, "name": name, "seconds": seconds}


def _over_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "ratio": row["seconds"] / rows[0]["seconds"]} for row in rows]


def draw(result: dict[str, Any], file: str | os.PathLike[str]) -> None:
    """The three curves side by side, both axes logarithmic, as an SVG, PNG or PDF file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "the plot") from error
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, axis in zip(figure.subplots(1, 3), ("views", "classes", "images"), strict=True):
        rows = [r for r in result["rows"] if r["axis"] == axis]
        for name, look in (("tilt", "o-"), ("zero", "s--")):
            mine = [r for r in rows if r["method"] == name]
            if mine:
                x, y = [r["at"] for r in mine], [1e3 * r["seconds"] for r in mine]
                axes.plot(x, y, look, label=name, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms an image")
        axes.legend(frameon=False)
    axes.set_xlabel("images of the stream so far")
    figure.suptitle(f"{result['model']}, {result['device']}, {result['dtype']}", fontsize=10)
    figure.savefig(file)
