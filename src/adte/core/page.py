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
from functools import cache
from importlib import resources
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


@cache
def style() -> str:
    """The page's style: the colours of the light and of the dark setting, and `assets/page.css`."""
    rules = resources.files("adte").joinpath("assets", "page.css").read_text("utf-8")
    return (
        f"\n:root {{ color-scheme: light dark; {_variables(0)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}\n{rules}"
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
        title = draw(axes)
        tall = ' class="tall"' if fig.get_figheight() > 1.4 * HEIGHT else ""
        buffer = io.StringIO()
        facts = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        fig.savefig(buffer, format="svg", metadata=facts)
        plt.close(fig)
    caption = title if isinstance(title, str) else caption
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


def page(title: str, parts: Sequence[str], more: str = "", script: str = "") -> str:
    """The whole page; with more style beside ours, and a script, where it needs them."""
    script = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style()}{more}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{''.join(parts)}{script}</body></html>\n"
    )
