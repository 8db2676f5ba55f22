"""Results as one self-contained HTML page: of kept runs, and of the demo."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from adte import __version__
from adte.errors import MissingExtra
from adte.evaluate.demo import Demo, known_frequency
from adte.evaluate.page import figure, page
from adte.evaluate.sections import Entry, Section, read_sections
from adte.evaluate.tables import Column, Grid, rows_table, save_table
from adte.evaluate.tasks import Outcome
from adte.methods import create_method
from adte.state import write_whole

__all__ = ["demo_report", "runs_report"]


def runs_report(
    folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Write the page of one results folder or several, and their tables as CSV and Markdown.

    The page goes to `out`, by default `report.html` in the first folder; the tables, `table.csv`
    and `table.md`, go into the first folder. Without matplotlib the page has no plots and says so.
    """
    sections = read_sections(folders)
    home = Path(folders[0])
    target = home / "report.html" if out is None else Path(out)
    grids = [rows_table([e.row for e in s.entries], s.title) for s in sections]
    parts = [_summary(sections)]
    for number, section in enumerate(sections, 1):
        parts += _section(section, f"s{number}", target.parent)
    parts.append(
        f"<footer><p>Made by adte {__version__}. The tables lie in <code>table.csv</code>, for "
        "computing, and <code>table.md</code>, for documents.</p></footer>\n"
    )
    text = page("Results", parts)
    return [
        write_whole(target, lambda name: Path(name).write_text(text, "utf-8")),
        save_table(home / "table.csv", grids),
        save_table(home / "table.md", grids),
    ]


def _summary(sections: Sequence[Section]) -> str:
    """One line, and with several sections what won in each."""
    runs = sum(len(e.outcomes) for s in sections for e in s.entries)
    if len(sections) == 1:
        return f'<p class="lead">{_winner(sections[0])} {runs} runs.</p>\n'
    items = "".join(
        f'<li><a href="#s{i}">{html.escape(s.title)}</a>: {_winner(s)}</li>\n'
        for i, s in enumerate(sections, 1)
    )
    return f'<p class="lead">{runs} runs in {len(sections)} comparisons.</p>\n<ul>{items}</ul>\n'


def _winner(section: Section) -> str:
    best = section.entries[0]
    text = f"{html.escape(best.name)} is right on {100 * best.row['accuracy']:.1f} % of images"
    gain, interval = best.row["gain"], best.row["gain_ci95"]
    if gain is not None and interval is not None:
        low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in interval)
        text += f", {100 * gain:+.1f} points over SE (95 %: {low} to {high})"
    return text.replace("+-", "−") + "."


def _section(section: Section, anchor: str, beside: Path) -> list[str]:
    facts = section.facts
    about = [
        f"{facts['images']:,} images",
        f"{facts['classes']} classes",
        f"prompts: {facts.get('prompts', {}).get('name', 'not known')}",
    ]
    data = facts.get("data", {})
    about += [f"{k}: {data[k]}" for k in ("order", "imbalance") if data.get(k, "none") != "none"]
    if len(counts := data.get("domain_counts", {})) > 1:
        about.append(f"{len(counts)} domains, {data.get('domains', '')}")
    rows = rows_table([e.row for e in section.entries], section.title, _caption(section))
    parts = [
        f'<section id="{anchor}"><h2>{html.escape(section.title)}</h2>\n',
        f"<p>{html.escape(' · '.join(about))}</p>\n",
        rows.to_html(),
        _plots(section, anchor),
    ]
    for metric, what in (("by_domain", "domain"), ("by_group", "group")):
        names, accuracies = section.parts(metric)
        if accuracies:
            columns = [Column(k, k, "percent", "up") for k in (*names, "worst")]
            grid = Grid((Column("method"), *columns), accuracies, f"Accuracy by {what}")
            parts.append(f"<h3>Accuracy by {what}, %</h3>\n{grid.to_html()}")
    parts.append('<div class="screen"><h3>Runs and their protocols</h3>\n')
    parts += [_protocol(e, beside) for e in section.entries]
    parts.append("</div>\n")
    if skipped := section.skipped:
        items = "".join(
            f"<li><code>{html.escape(str(s['id']))}</code>: {html.escape(str(s['reason']))}</li>\n"
            for s in skipped[:50]
        )
        more = f"<li>and {len(skipped) - 50} more</li>" if len(skipped) > 50 else ""
        parts.append(
            f"<h3>Images that could not be read: {len(skipped)}</h3>\n<ul>{items}{more}</ul>\n"
        )
    return [*parts, "</section>\n"]


def _caption(section: Section) -> str:
    """What the columns mean, for those that there are."""
    keys = {k for e in section.entries for k, v in e.row.items() if v is not None}
    best = section.best_baseline
    notes = [
        ("accuracy", "Accuracies and ECE in %; best bold, second underlined."),
        ("ci95", "Behind an accuracy: 95 % interval over seeds (Student's t)."),
        ("gain", "Over SE: gain in points with its 95 % interval (bootstrap, paired by image), and "
         "McNemar's exact p, the largest over seeds, not corrected for the number of rows."),
        ("gain_best", f"Over best: likewise over the best baseline, {best.name if best else ''}."),
        ("head", "Head, middle, tail: thirds of the classes by training frequency."),
        ("seconds", "ms: milliseconds an image."),
        ("peak_memory", "MB: peak memory above the start."),
    ]  # fmt: skip
    return " ".join(note for key, note in notes if key in keys)


def _plots(section: Section, anchor: str) -> str:
    try:
        from adte.evaluate.plots import section_plots

        return f'<div class="plots">{"".join(section_plots(section, anchor))}</div>\n'
    except MissingExtra as error:
        return f"<p>No plots: {html.escape(str(error))}.</p>\n"


def _protocol(entry: Entry, beside: Path) -> str:
    """What decided the figures of an entry, folded up, with links to its runs."""
    protocol = entry.first.record["protocol"]
    links = ", ".join(
        f'<a href="{quote(Path(os.path.relpath(f, beside)).as_posix())}">seed {o.task.seed}</a>'
        for o, f in sorted(zip(entry.outcomes, entry.files, strict=True),
                           key=lambda pair: pair[0].task.seed)
    )  # fmt: skip
    hidden = ("skipped", "seed")
    items = "".join(
        f"<dt>{html.escape(k)}</dt><dd>{_value(v)}</dd>\n"
        for k, v in protocol.items() if k not in hidden
    )  # fmt: skip
    accuracy = f"{100 * entry.row['accuracy']:.1f} %"
    return (
        f"<details><summary>{html.escape(entry.name)}<small>{accuracy}</small></summary>\n"
        f"<dl><dt>results</dt><dd>{links}</dd>\n{items}</dl></details>\n"
    )


def _value(value: Any) -> str:
    """A fact as text; what is inside a mapping as name=value."""
    if isinstance(value, dict):
        return ", ".join(f"{html.escape(str(k))}={_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        between = "; " if value and isinstance(value[0], dict) else ", "
        return f"[{between.join(map(_value, value))}]"
    return html.escape(str(value))


# --------------------------------------------------------------------------- the demo's report


def _find(demo: Demo, title: str, protocol: str = "online") -> Outcome:
    return next(o for o in demo.outcomes if (o.task.name, o.task.protocol) == (title, protocol))


def _views_of_one(demo: Demo, ax: Any) -> str:
    """Entropies of the views of an image where selection decides; returns the caption."""
    se, adte = _find(demo, "se"), _find(demo, "adte, no LA", "two-pass")
    rescued = np.flatnonzero(~se.run.correct & adte.run.correct)
    index = int(rescued[0]) if len(rescued) else 0
    sample, label = demo.replay.at(index)
    for shift, (name, method, colour) in enumerate(
        (("Shannon", create_method("se"), "#8a94a0"), ("ADTE", adte.learned, "#0b6e4f"))
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
    q = _find(demo, "adte", "two-pass").learned.predict(replay.at(0)[0]).q

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
        rows_table([{**r, "ci95": None} for r in demo.rows], "Methods").to_html(),
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
        Grid(
            (
                Column("name", "estimator of the prior"),
                Column("spearman", "Spearman", "number", "up"),
                Column("bias_std", "spread of the bias", "number"),
            ),
            demo.estimators,
            "Estimators of the prior",
        ).to_html(),
    ]
    text = page("adte demo: methods on real photographs", parts)
    return write_whole(folder / "report.html", lambda name: Path(name).write_text(text, "utf-8"))
