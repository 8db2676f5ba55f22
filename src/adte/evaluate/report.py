"""A self-contained HTML page with tables and plots."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adte.errors import MissingExtra
from adte.evaluate.compare import COLUMNS, Outcome, format_rows
from adte.evaluate.demo import Demo, known_frequency
from adte.methods import create_method
from adte.state import write_whole

__all__ = ["demo_report", "figure", "page", "table"]

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #5b6570; --line: #d8dee4; --mark: #0b6e4f; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; background: #fff; }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
p, figcaption { color: var(--soft) } .wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap }
th:first-child, td:first-child { text-align: left } td.best { font-weight: 700; color: var(--mark) }
figure { margin: 1rem 0 } figure svg { max-width: 100%; height: auto }
@media print { body { margin: 0; max-width: none } h2 { break-after: avoid }
               figure { break-inside: avoid } }
"""


def figure(
    draw: Callable[[Any], None], caption: str, width: float = 7.5, height: float = 3.6
) -> str:
    """A matplotlib drawing as inline SVG. `draw` gets the axes, or a row of them."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "the report with its plots") from error
    style: Any = {
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10,
        "svg.hashsalt": "adte",
    }
    with plt.rc_context(style):
        fig, axes = plt.subplots(figsize=(width, height), layout="constrained")
        draw(axes)
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", metadata={"Date": None})
        plt.close(fig)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def table(columns: Sequence[str], cells: Sequence[Sequence[str]], best: int | None = None) -> str:
    """An HTML table; the largest figure of column `best` is marked."""
    top = max((float(r[best]) for r in cells), default=None) if best is not None else None
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = ""
    for row in cells:
        marks = [
            ' class="best"' if i == best and float(c) == top else "" for i, c in enumerate(row)
        ]
        body += (
            "<tr>"
            + "".join(f"<td{m}>{html.escape(c)}</td>" for m, c in zip(marks, row, strict=True))
            + "</tr>"
        )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'


def page(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


# --------------------------------------------------------------------------- the demo's report


def _find(demo: Demo, title: str, protocol: str = "online") -> Outcome:
    return next(o for o in demo.outcomes if (o.entry.title, o.entry.protocol) == (title, protocol))


def _views_of_one(demo: Demo, ax: Any) -> str:
    """Entropies of the views of an image where selection decides; returns the caption."""
    se, adte = _find(demo, "se"), _find(demo, "adte, no LA", "two-pass")
    rescued = np.flatnonzero(~se.run.correct & adte.run.correct)
    index = int(rescued[0]) if len(rescued) else 0
    sample, label = demo.replay.at(index)
    for shift, (name, method, colour) in enumerate(
        (("Shannon", create_method("se"), "#8a94a0"), ("ADTE", adte.method, "#0b6e4f"))
    ):
        p = method.predict(sample)
        values = p.entropy.numpy()  # type: ignore[union-attr]
        scaled = (values - values.min()) / max(float(np.ptp(values)), 1e-9)
        kept = np.isin(np.arange(len(values)), p.kept.numpy())  # type: ignore[union-attr]
        x = np.arange(len(values)) + 0.4 * shift - 0.2
        bars = ax.bar(x, scaled + 0.02, width=0.4, color=colour, alpha=0.35, label=name)
        for i in np.flatnonzero(kept):
            bars[i].set_alpha(1.0)
    ax.set(xlabel="view (0 is the base view)", ylabel="entropy, scaled to 0…1")
    ax.legend(frameon=False)
    names = demo.replay.classes
    how = (
        "the first image that Shannon selection gets wrong and ADTE right"
        if len(rescued)
        else ("the first image")
    )
    return (
        f"Entropy of the 64 views of {how}: a {names[label]!r}. Solid bars were kept. Shannon said "
        f"{names[int(se.run.predicted[index])]!r}, ADTE {names[int(adte.run.predicted[index])]!r}."
    )


def _running(demo: Demo, ax: Any) -> None:
    for title, colour, style in (
        ("zero-shot", "#b0b7bf", "-"),
        ("se", "#5b6570", "-"),
        ("se + LA", "#c77d0a", "--"),
        ("adte", "#0b6e4f", "-"),
        ("adte-paper", "#8f3b76", ":"),
        ("adte-released", "#2f6fb0", ":"),
    ):
        correct = _find(demo, title).run.correct
        so_far = 100 * np.cumsum(correct) / np.arange(1, len(correct) + 1)
        start = min(50, len(correct) // 4)  # the first few images say nothing
        ax.plot(np.arange(start, len(correct)), so_far[start:], style, color=colour, label=title)
    ax.set(xlabel="images seen", ylabel="accuracy so far, %")
    ax.legend(frameon=False, ncols=2)


def _thirds(demo: Demo, ax: Any) -> None:
    wanted = ("zero-shot", "se", "se + LA", "adte, no LA", "adte")
    shown = [
        r
        for w in wanted
        for r in demo.rows
        if r["method"] == w and r["protocol"] in ("stateless", "two-pass")
    ]
    x = np.arange(len(shown))
    for i, (part, colour) in enumerate(
        (("head", "#0b6e4f"), ("middle", "#7fb7a3"), ("tail", "#c77d0a"))
    ):
        ax.bar(
            x + 0.27 * (i - 1), [100 * r[part] for r in shown], width=0.25, color=colour, label=part
        )
    ax.set_xticks(x, [r["method"] for r in shown])
    ax.set(ylabel="accuracy, %")
    ax.margins(y=0.15)
    ax.legend(frameon=False, ncols=3, loc="upper right")


def demo_report(demo: Demo, folder: str | Path) -> Path:
    """Write report.html into the folder, which is made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    replay, frequency = demo.replay, known_frequency(demo.replay)
    captions: list[str] = []
    best = max(demo.estimators, key=lambda e: e["spearman"])
    q = _find(demo, "adte", "two-pass").method.predict(replay.at(0)[0]).q

    def scatter(values: Any, label: str) -> Callable[[Any], None]:
        def draw(ax: Any) -> None:
            ax.scatter(frequency, values, s=12, color="#0b6e4f", alpha=0.7)
            ax.set(xscale="log", xlabel="training images of the class", ylabel=label)
            ticks = [n for n in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000) if n <= frequency.max()]
            ax.set_xticks([n for n in ticks if n >= frequency.min()])
            ax.minorticks_off()
            ax.xaxis.set_major_formatter("{x:g}")

        return draw

    one = figure(lambda ax: captions.append(_views_of_one(demo, ax)), "")
    parts = [
        f"<p>{len(replay)} photographs, {len(replay.classes)} classes, "
        f"{replay.facts['views']['count']} views each, model "
        f"<code>{html.escape(str(replay.facts['model']))}</code>. The model was "
        "trained on a long-tailed set of known class frequencies; no method sees a label.</p>",
        "<h2>Methods</h2>",
        table(COLUMNS, format_rows(demo.rows), best=2),
        "<p>Accuracies in %. The interval is the 95 % paired bootstrap of the gain over SE. Head, "
        "middle, tail: thirds of the classes by training frequency. Rows as they fell.</p>",
        "<h2>Head and tail</h2>",
        figure(
            lambda ax: _thirds(demo, ax),
            "Accuracy on thirds of the classes; two-pass where a method learns.",
        ),
        "<h2>Accuracy over the stream</h2>",
        figure(
            lambda ax: _running(demo, ax),
            "Running accuracy, online: every image is predicted, then learned from.",
        ),
        "<h2>The views of one image</h2>",
        one.replace(
            "<figcaption></figcaption>", f"<figcaption>{html.escape(captions[0])}</figcaption>"
        ),
        "<h2>What the stream taught</h2>",
        figure(
            scatter(best["log_prior"], "estimated log prior"),
            f"Estimated log prior ({best['name']}) against the true training frequency: Spearman "
            f"{best['spearman']:.2f}.",
        ),
        ""
        if q is None
        else figure(
            scatter(q.numpy(), "q of the class"),
            "The class-specific q of ADTE against training frequency.",
        ),
        table(
            ("estimator of the prior", "Spearman", "spread of the bias"),
            [[e["name"], f"{e['spearman']:.3f}", f"{e['bias_std']:.2f}"] for e in demo.estimators],
            best=1,
        ),
    ]
    text = page("adte demo: methods on real photographs", parts)
    return write_whole(folder / "report.html", lambda name: Path(name).write_text(text, "utf-8"))
