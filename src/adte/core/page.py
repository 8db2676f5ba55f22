"""A self-contained HTML page: its style, and matplotlib drawings as inline SVG.

Nothing is loaded from elsewhere, and no script runs but one that a page brings. Colours are CSS
variables, in drawings too, so that the page follows the reader's light or dark setting; print is
always light.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from PIL.Image import Image

from adte.core.errors import MissingExtra

__all__ = ["COLOURS", "HEIGHT", "WIDTH", "figure", "inline", "legend", "page"]

# Inches of a drawing. A column of plots is about as many pixels wide as this is points, on a phone
# and on a desktop, so that text of 11 points is of 11 pixels.
WIDTH, HEIGHT = 4.8, 3.1

# name: (light, dark). A drawing uses the light value; on the page it becomes the variable.
COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181b"),
    "ink": ("#1b1f24", "#e4e8eb"),
    "soft": ("#5b6570", "#9ba6b0"),
    "line": ("#d8dee4", "#30363c"),
    "grey": ("#8a94a0", "#7d8791"),
    "faint": ("#b0b7bf", "#59626a"),
    "mark": ("#0b6e4f", "#4fc08d"),
    "mint": ("#7fb7a3", "#2f7d62"),
    "warm": ("#c77d0a", "#e3a545"),
    "cool": ("#2f6fb0", "#74abe2"),
    "plum": ("#8f3b76", "#cf87b9"),
}


def _variables(dark: int) -> str:
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in COLOURS.items())


STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
"""
    + """
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
       background: var(--paper); max-width: 76rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem;
       -webkit-text-size-adjust: 100% }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; font-weight: 650 }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3.2rem 0 .2rem; font-weight: 650 }
h3 { font-size: 1rem; margin: 2rem 0 .4rem; font-weight: 650 }
p { max-width: 46rem; margin: .4rem 0 } p, figcaption, dt, small { color: var(--soft) }
.lead { font-size: 1.1rem; color: var(--ink) } a { color: inherit; text-underline-offset: .2em }
code { font: .9em ui-monospace, "SF Mono", Menlo, monospace; overflow-wrap: anywhere }
/* What is wider than its box has a shadow at the edge that it goes on beyond: the lower two layers
   stay at the edges, the upper two move with the table and cover them at its ends. */
.wide { overflow-x: auto; margin: 1rem 0; --shade: color-mix(in srgb, var(--ink) 42%, transparent);
        background: linear-gradient(to right, var(--paper) .8rem, transparent) left / 1.6rem 100%,
                    linear-gradient(to left, var(--paper) calc(.8rem + 2px), transparent)
                      right -2px top 0 / 1.6rem 100%,  /* a part of a pixel would stay */
                    linear-gradient(to right, var(--shade), transparent) left / .8rem 100%,
                    linear-gradient(to left, var(--shade), transparent) right / .8rem 100%;
        background-repeat: no-repeat; background-attachment: local, local, scroll, scroll }
.wide:focus-visible { outline: 2px solid var(--mark) } .full table { width: 100% }
table { border-collapse: separate; border-spacing: 0; font-size: .875rem;
        font-variant-numeric: tabular-nums }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
.note { font-size: .8125rem; line-height: 1.5; max-width: 60rem }
th, td { padding: .375rem .6rem; line-height: 1.375rem; text-align: right; white-space: nowrap;
         border-bottom: 1px solid var(--line) }
thead th { font-weight: 500; color: var(--soft); border-bottom-color: var(--grey) }
th:first-child, td:first-child, .text { text-align: left }
tr > :last-child { padding-right: .2rem }
th:first-child { padding-left: 0; position: sticky; left: 0; background: var(--paper) }
tbody th { font-weight: 500 } tbody tr:hover > * { background: color-mix(in srgb, var(--line) 35%,
         var(--paper)) }
th[colspan] { text-align: left; padding-left: 1rem }
td.interval { font-size: .75rem; color: var(--soft); padding-left: 0; text-align: left }
td strong, td.best { font-weight: 700; color: var(--mark) }
td em { font-style: normal; text-decoration: underline; text-decoration-color: var(--mint);
        text-decoration-thickness: 2px; text-underline-offset: .22em }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
         gap: 1.8rem 2rem; margin: 2rem 0 }
figure { margin: 1rem 0; max-width: 28rem; min-width: 0 } .plots figure { margin: 0 }
.tall { grid-row: span 2 }
figure svg { width: 100%; height: auto; display: block }
figure svg text { font-family: inherit !important }
figcaption { font-size: .8125rem; line-height: 1.45; margin-top: .4rem }
details { border-top: 1px solid var(--line); padding: .45rem 0; font-size: .875rem }
details:last-of-type { border-bottom: 1px solid var(--line) }
summary { cursor: pointer } summary small { margin-left: .4rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: .6rem 0 }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere } ul { padding-left: 1.1rem }
footer { margin-top: 3.5rem; font-size: .8125rem }
@media (max-width: 40rem) { body { padding-top: 1.5rem } dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: .5rem } th, td { padding: .375rem .45rem } }
@media print {
  @page { margin: 14mm } body { max-width: none; padding: 0; font-size: 10pt }
  .wide { overflow: visible; background: none } table { font-size: 7.5pt }
  th, td { padding: 2pt 3.5pt; line-height: 1.2 } th:first-child { position: static }
  td.interval { font-size: 6pt } .note, figcaption { font-size: 8pt }
  .plots { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem } h2, h3 { break-after: avoid }
  figure, tr, details { break-inside: avoid } .screen { display: none } a { text-decoration: none }
}
"""
)


def figure(
    draw: Callable[[Any], Any], caption: str = "", width: float = WIDTH, height: float = HEIGHT
) -> str:
    """A matplotlib drawing as inline SVG. `draw` gets the axes; text it returns is the caption."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "the report with its plots") from error
    ink, line = COLOURS["ink"][0], COLOURS["grey"][0]
    style: Any = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar in a name is a dollar
        "svg.hashsalt": caption or "adte",  # names inside a drawing, which must not meet another's
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": line,
        "axes.linewidth": 0.8,
        "axes.labelcolor": COLOURS["soft"][0],
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "text.color": ink,
        "font.size": 11,
        "legend.fontsize": 11,
        "legend.frameon": False,
    }
    with plt.rc_context(style):
        fig, axes = plt.subplots(figsize=(width, height), layout="constrained")
        said = draw(axes)
        tall = ' class="tall"' if fig.get_figheight() > 1.4 * HEIGHT else ""
        buffer = io.StringIO()
        facts = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        fig.savefig(buffer, format="svg", metadata=facts)
        plt.close(fig)
    caption = said if isinstance(said, str) else caption
    label = html.escape(caption or "plot", quote=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # figure_1, axes_1, … of every drawing
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    return f"<figure{tall}>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>\n"


def legend(ax: Any) -> None:
    """The names of what is drawn, below the axes; the drawing grows by as much."""
    handles, names = ax.get_legend_handles_labels()
    if not names:
        return
    columns = max(1, min(3, 58 // (max(map(len, names)) + 8)))  # letters that fit in a line
    fig = ax.figure
    fig.set_figheight(fig.get_figheight() + 0.22 * -(-len(names) // columns))
    fig.legend(handles, names, loc="outside lower left", ncols=columns, handlelength=1.7,
               borderpad=0.1)  # fmt: skip


def inline(image: Image) -> str:
    """A small picture as a JPEG within the page, in the form of an address."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def page(title: str, parts: Sequence[str], style: str = "", script: str = "") -> str:
    """The whole page; with a style of its own beside ours, and a script, where it needs them."""
    script = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{''.join(parts)}{script}</body></html>\n"
    )
