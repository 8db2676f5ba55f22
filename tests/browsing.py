"""What the tests of pages share beside their browser, which is in conftest.py."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe

SERIOUS = ("serious", "critical")
SIZES = {"desktop": (1280, 1000), "phone": (390, 844)}


def faults(page: Any) -> list[tuple[str, str]]:
    """What keeps people out of a page, by the rules of Axe."""
    found = Axe().run(page).response["violations"]
    return [(f["id"], f["nodes"][0]["html"]) for f in found if f["impact"] in SERIOUS]
