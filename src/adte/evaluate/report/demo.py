"""What only the demo shows: the views of one image, and what the stream taught."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adte.core.errors import MissingExtra
from adte.core.page import COLOURS, figure, legend
from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.report.tables import Column, Grid
from adte.evaluate.running.tasks import Outcome
from adte.methods import Method, create_method

__all__ = ["lessons"]

C = {name: light for name, (light, _) in COLOURS.items()}


def lessons(
    stream: FeatureStream,
    outcomes: Sequence[Outcome],
    estimators: Sequence[Mapping[str, Any]],
    adte: Method,
) -> str:
    """The block at the end of the demo's page. Without matplotlib it has no plots.

    `estimators` have a name, a log prior and its figures; `adte` has learned from the stream.
    """
    table = Grid(
        (
            Column("name", "estimator of the prior"),
            Column("spearman", "Spearman", "number", "up"),
            Column("bias_std", "spread of the bias", "number"),
        ),
        estimators,
        "Estimators of the prior",
        "Spearman: rank correlation of the estimated prior with the true training frequency.",
    )
    try:
        drawn = [
            figure(lambda ax: _views(stream, outcomes, adte, ax), "views of one image"),
            *_scatters(stream, estimators, adte),
        ]
        plots = f'<div class="plots">{"".join(drawn)}</div>\n'
    except MissingExtra:  # the sections above say so
        plots = ""
    return (
        '<section id="lessons"><h2>What the stream taught</h2>\n'
        "<p>The model was trained on a long-tailed set of known class frequencies; no method sees "
        f"a label.</p>\n{plots}{table.to_html()}</section>\n"
    )


def _views(stream: FeatureStream, outcomes: Sequence[Outcome], adte: Method, ax: Any) -> str:
    """Entropies of the views of an image where selection decides; returns the caption."""
    right = {(o.task.name, o.task.protocol): o.run.correct for o in outcomes}
    rescued = np.flatnonzero(~right["se", "online"] & right["adte-released", "two-pass"])
    index = int(rescued[0]) if len(rescued) else 0
    batch, (image,) = next(stream.ordered(np.array([index])).batches(1))
    said = []
    for shift, (name, method, colour) in enumerate(
        (("Shannon", create_method("se"), C["grey"]), ("ADTE", adte, C["mark"]))
    ):
        p = method.predict(batch)[0]
        assert p.entropy is not None
        assert p.kept is not None
        values = p.entropy.cpu().numpy()
        scaled = (values - values.min()) / max(float(np.ptp(values)), 1e-9)
        x = np.arange(len(values)) + 0.4 * shift - 0.2
        bars = ax.bar(x, scaled + 0.02, width=0.4, color=colour, alpha=0.35, label=name)
        for i in p.kept.tolist():
            bars[i].set_alpha(1.0)
        said.append(f"{name} said {stream.classes[p.index]!r}")
    ax.set(xlabel="view (0 is the base view)", ylabel="entropy, scaled to 0…1")
    legend(ax)
    which = "first image that Shannon selection gets wrong and adte-released right"
    which = which if len(rescued) else "first image"
    return (
        f"Entropy of the {len(values)} views of the {which}: a "
        f"{stream.classes[image.label]!r}. Solid bars were kept. {', '.join(said)}."
    )


def _scatters(
    stream: FeatureStream, estimators: Sequence[Mapping[str, Any]], adte: Method
) -> list[str]:
    """The best estimate of the prior, and q, against how often the model saw each class."""
    best = max(estimators, key=lambda e: e["spearman"])
    batch, _ = next(stream.batches(1))
    q = adte.predict(batch)[0].q
    shown: list[tuple[ArrayLike, str, str]] = [
        (
            best["log_prior"],
            "estimated log prior",
            f"Estimated log prior ({best['name']}) against the true training frequency: Spearman "
            f"{best['spearman']:.2f}.",
        )
    ]
    if q is not None:
        caption = "The class-specific q of ADTE against training frequency."
        shown.append((q.cpu().numpy(), "q of the class", caption))
    return [figure(_scatter(stream, values, label), caption) for values, label, caption in shown]


def _scatter(stream: FeatureStream, values: ArrayLike, label: str) -> Callable[[Any], None]:
    frequency = stream.frequency
    assert frequency is not None

    def draw(ax: Any) -> None:
        ax.scatter(frequency, values, s=12, color=C["mark"], alpha=0.7)
        ax.set(xscale="log", xlabel="training images of the class", ylabel=label)
        ticks = [n for n in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000) if n <= frequency.max()]
        ax.set_xticks([n for n in ticks if n >= frequency.min()])
        ax.minorticks_off()
        ax.xaxis.set_major_formatter("{x:g}")

    return draw
