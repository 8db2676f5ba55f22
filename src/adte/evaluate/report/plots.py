"""The plots of a section of the report; each draws on matplotlib axes and returns its caption."""

from __future__ import annotations

import math
from itertools import cycle
from typing import Any

import numpy as np

from adte.core.page import COLOURS, HEIGHT, WIDTH, figure, legend
from adte.evaluate.report.sections import Section
from adte.evaluate.running.figures import risk_coverage
from adte.evaluate.running.rows import Entry

__all__ = ["section_plots"]

C = {name: light for name, (light, _) in COLOURS.items()}
MOST = 40  # rows of the dot plot
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)  # of confidence, that the curve of risk shows
OTHERS = (("warm", "--"), ("cool", "-."), ("plum", ":"), ("mint", "--"), ("grey", "-."))


def section_plots(section: Section, name: str) -> list[str]:
    """All plots that the section has the facts for, as HTML. Needs matplotlib.

    `name` is the section's own on the page.
    """
    tall = 0.9 + 0.24 * min(MOST, len(section.entries))
    made = [figure(lambda ax: _dots(section, ax), f"{name} accuracy", WIDTH, tall)]
    few = _few(section)
    made.append(figure(lambda ax: _running(few, ax), f"{name} running", WIDTH, HEIGHT))
    parts = [e for e, *_ in few if e.row.get("head") is not None]
    if parts:
        tall = 0.9 + 0.45 * len(parts)
        made.append(figure(lambda ax: _thirds(parts, ax), f"{name} thirds", WIDTH, tall))
    made.append(figure(lambda ax: _reliability(few, ax), f"{name} reliability", WIDTH, HEIGHT))
    made.append(figure(lambda ax: _coverage(few, ax), f"{name} coverage", WIDTH, HEIGHT))
    if all(e.row.get("seconds") for e in section.entries) and len(section.entries) > 1:
        made.append(figure(lambda ax: _cost(section, ax), f"{name} cost", WIDTH, HEIGHT))
    return made


def _few(section: Section, most: int = 6) -> list[tuple[Entry, str, str]]:
    """The entries that plots with many lines show, with colour and dash: SE, zero-shot and the best
    of the other methods, each under its best protocol.
    """
    best: dict[str, Entry] = {}
    for e in section.entries:
        best.setdefault(e.row["method"], e)
    looks = {"se": (C["soft"], "-"), "zero-shot": (C["faint"], "-")}
    room = most - len(looks.keys() & best.keys())
    rest = cycle(OTHERS)
    green = False
    out = []
    for name, e in best.items():
        if name in looks:
            out.append((e, *looks[name]))
        elif room > 0:
            room -= 1
            if e.ours and not green:
                green = True
                out.append((e, C["mark"], "-"))
            else:
                colour, dash = next(rest)
                out.append((e, C[colour], dash))
    return out


def _wilson(accuracy: float, images: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share, by Wilson's score."""
    middle = (accuracy + z * z / (2 * images)) / (1 + z * z / images)
    root = math.sqrt(accuracy * (1 - accuracy) / images + z * z / (4 * images * images))
    return middle - z * root / (1 + z * z / images), middle + z * root / (1 + z * z / images)


def _dots(section: Section, ax: Any) -> str:
    entries = section.entries[:MOST][::-1]
    images = section.conditions.images
    for y, e in enumerate(entries):
        value, colour = e.row["accuracy"], C["mark"] if e.ours else C["soft"]
        low, high = _wilson(value, images)
        ax.plot([100 * low, 100 * high], [y, y], color=C["line"], lw=5, solid_capstyle="butt")
        if e.row["ci95"] is not None:
            ax.plot([100 * x for x in e.row["ci95"]], [y, y], color=colour, lw=1.6)
        ax.plot(100 * value, y, "o", color=colour, ms=5.5, mew=0)
    if section.reference is not None:
        ax.axvline(100 * section.reference.row["accuracy"], color=C["grey"], lw=0.8, ls=":")
    ax.set_yticks(range(len(entries)), [e.name for e in entries])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set(xlabel="accuracy, %", ylim=(-0.7, len(entries) - 0.3))
    seeds = "Thin lines: 95 % over seeds. " if any(e.row["ci95"] for e in entries) else ""
    line = f" The dotted line is {section.reference.name}." if section.reference else ""
    what = "Accuracy." if len(entries) == len(section.entries) else f"Accuracy, the best {MOST}."
    return (
        f"{what} {seeds}Pale bands: 95 % over the {images:,} images of one run (Wilson).{line} "
        "Green: ADTE's family, and methods from elsewhere."
    )


def _running(few: list[tuple[Entry, str, str]], ax: Any) -> str:
    for e, colour, dash in few:
        correct = e.first.run.correct
        so_far = 100 * np.cumsum(correct) / np.arange(1, len(correct) + 1)
        start = min(50, len(correct) // 4)  # the first few images say nothing
        points = np.unique(np.linspace(start, len(correct) - 1, 400).astype(int))
        ax.plot(points + 1, so_far[points], dash, color=colour, lw=1.5, label=e.name)
    ax.set(xlabel="images seen", ylabel="accuracy so far, %")
    legend(ax)
    seed = few[0][0].first.record.conditions.order_seed
    return (
        f"Running accuracy over the stream, seed {seed}: SE, zero-shot and the best of the others. "
        "A method that learns should rise against one that does not."
    )


def _thirds(entries: list[Entry], ax: Any) -> str:
    y = np.arange(len(entries))[::-1]
    for i, (part, colour) in enumerate((("head", "mark"), ("middle", "mint"), ("tail", "warm"))):
        values = [100 * (e.row[part] or 0) for e in entries]
        ax.barh(y + 0.26 * (1 - i), values, height=0.24, color=C[colour], label=part)
    ax.set_yticks(y, [e.name for e in entries])
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel="accuracy, %", ylim=(-0.6, len(entries) - 0.4))
    legend(ax)
    return "Accuracy on the head, middle and tail third of the classes, by training frequency."


def _reliability(few: list[tuple[Entry, str, str]], ax: Any, bins: int = 10) -> str:
    ax.plot([0, 100], [0, 100], color=C["line"], lw=1)
    for e, colour, dash in few:
        confidence = np.concatenate([o.run.confidence for o in e.outcomes])
        correct = np.concatenate([o.run.correct for o in e.outcomes])
        which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        counts = np.bincount(which, minlength=bins)
        full = counts >= max(5, len(which) / 100)  # a bin of few images is noise
        x = np.bincount(which, confidence, minlength=bins)[full] / counts[full]
        y = np.bincount(which, correct, minlength=bins)[full] / counts[full]
        ax.plot(100 * x, 100 * y, dash, color=colour, lw=1.5, marker="o", ms=3, label=e.name)
    ax.set(xlabel="confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100))
    legend(ax)
    return (
        "Reliability: accuracy against confidence in ten bins, those with at least 1 % of the "
        "images. On the diagonal a method is as often right as it says; below it, overconfident."
    )


def _coverage(few: list[tuple[Entry, str, str]], ax: Any) -> str:
    for e, colour, dash in few:
        confidence = np.concatenate([o.run.confidence for o in e.outcomes])
        correct = np.concatenate([o.run.correct for o in e.outcomes])
        threshold, coverage, risk = risk_coverage(confidence, correct)
        shown = coverage >= 0.02  # of fewer images a share is noise
        ax.plot(100 * coverage[shown], 100 * risk[shown], dash, color=colour, lw=1.5, label=e.name)
        for t in THRESHOLDS:
            at = np.searchsorted(-threshold, -t, "right") - 1  # the last that is sure enough
            if at >= 0 and shown[at]:
                ax.plot(100 * coverage[at], 100 * risk[at], "o", color=colour, ms=4, mew=0)
    ax.set(xlabel="images that get a label, %", ylabel="wrong of these, %", xlim=(0, 100))
    ax.set_ylim(bottom=0)
    legend(ax)
    marks = ", ".join(f"{t:g}" for t in THRESHOLDS)
    return (
        "Risk over coverage: how many labels are wrong where images below a confidence get none, "
        f"as with `predict --min-confidence`. Dots, from right to left: below {marks}."
    )


def _cost(section: Section, ax: Any) -> str:
    entries = sorted(section.entries, key=lambda e: e.row["seconds"])
    front: list[Entry] = []
    for e in entries:
        if not front or e.row["accuracy"] > front[-1].row["accuracy"]:
            front.append(e)
    for e in entries:
        colour = C["mark"] if e.ours else C["soft"]
        alpha = 1.0 if e in front else 0.45
        point = (1e3 * e.row["seconds"], 100 * e.row["accuracy"])
        ax.plot(*point, "o", color=colour, alpha=alpha, ms=6, mew=0)
    ax.step([1e3 * e.row["seconds"] for e in front], [100 * e.row["accuracy"] for e in front],
            where="post", color=C["faint"], lw=0.9, zorder=0)  # fmt: skip
    values = [1e3 * e.row["seconds"] for e in entries]
    room = 1.4 if values[-1] > 3 * values[0] else 2.0
    left, right = values[0] / room, values[-1] * room
    ax.set(xscale="log", xlabel="milliseconds per image", ylabel="accuracy, %",
           xlim=(left, right))  # fmt: skip
    ticks = [m * 10.0**k for k in range(-4, 6) for m in (1, 2, 5)]
    inside = [t for t in ticks if left <= t <= right]
    if len(inside) > 6:
        inside = [t for t in inside if math.log10(t).is_integer()]
    ax.set_xticks(inside, [f"{t:g}" for t in inside])
    ax.minorticks_off()
    ax.margins(y=0.18)
    _label_points(ax, front)
    return (
        "Time against accuracy. The line joins the methods that none beats in both, which are "
        "named; time is what the method itself takes, the views already encoded."
    )


def _label_points(ax: Any, entries: list[Entry]) -> None:
    """Names below points of rising accuracy, moved down where they would lie on one another."""
    low, high = ax.get_ylim()
    left, right = ax.get_xlim()
    gap, last = 0.075 * (high - low), math.inf
    for e in reversed(entries):
        x, y = 1e3 * e.row["seconds"], 100 * e.row["accuracy"]
        last = min(y, last - gap)
        far = math.log(x / left) > 0.55 * math.log(right / left)  # little room on the right
        ax.annotate(e.name, (x, last), xytext=(-5 if far else 5, -3), textcoords="offset points",
                    ha="right" if far else "left", va="top", fontsize=10.5)  # fmt: skip
