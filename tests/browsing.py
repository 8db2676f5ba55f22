"""What the tests of pages share beside their browser, which is in conftest.py."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageColor

from adte.core.page import COLOURS

SERIOUS = ("serious", "critical")
SIZES = {"desktop": (1280, 1000), "phone": (390, 844)}


def faults(page: Any) -> list[tuple[str, str]]:
    """What keeps people out of a page, by the rules of Axe."""
    found = Axe().run(page).response["violations"]
    return [(f["id"], f["nodes"][0]["html"]) for f in found if f["impact"] in SERIOUS]


def small(image: Image.Image) -> Image.Image:
    """With 256 colours, those of the house among them."""
    house = [ImageColor.getrgb(c) for pair in COLOURS.values() for c in pair]
    many = image.quantize(160).getpalette()[: 3 * 160]
    rare = image.quantize(64, Image.Quantize.MAXCOVERAGE).getpalette()[: 3 * 64]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*many, *rare, *(level for colour in house for level in colour)])
    return image.quantize(palette=palette, dither=Image.Dither.NONE)
