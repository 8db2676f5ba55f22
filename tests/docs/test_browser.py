"""Reports and pages of the site, photographed in Chromium at three widths.

The photographs go to the folder that ADTE_PHOTOGRAPHS names, else to a temporary one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from adte import compare

pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")

from playwright.sync_api import sync_playwright

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the site is built first
WIDTHS = (390, 768, 1280)
PAGES = ["index.html", "first-steps/index.html", "guides/methods/index.html", "cli/index.html",
         "api/classifier/index.html", "comparison/index.html"]  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000  # milliseconds: a busy machine takes its time
MEASURE = "[innerWidth, document.documentElement.scrollWidth]"


@pytest.fixture(scope="module")
def pages(site, tmp_path_factory) -> dict[str, Path]:
    """Pages by name: some of the site, and a report of real runs."""
    from adte.cli import main

    runs = tmp_path_factory.mktemp("report") / "runs"
    compare(methods=["zero-shot", "se", "adte"], limit=60, seeds=2, runs=runs)
    main(["report", str(runs)], standalone_mode=False)
    named = {p.removesuffix("/index.html").removesuffix(".html"): site / p for p in PAGES}
    return {**named, "report": runs / "report.html"}


@pytest.fixture(scope="module")
def seen(request, tmp_path_factory) -> dict[tuple[str, int], tuple[list[int], Path]]:
    """Of every page at every width: how wide window and page are, and a photograph."""
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    if binary is None:
        pytest.skip("needs Chromium")
    pages: dict[str, Path] = request.getfixturevalue("pages")
    folder = Path(os.environ.get("ADTE_PHOTOGRAPHS", tmp_path_factory.mktemp("photographs")))
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--allow-file-access-from-files"]
    found: dict[tuple[str, int], Any] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=flags, timeout=PATIENCE)
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 1000})
            page.set_default_timeout(PATIENCE)
            for name, path in pages.items():
                page.goto(path.as_uri())
                page.wait_for_timeout(200)  # for what scripts do once the page is loaded
                photograph = folder / f"{name.replace('/', '-')}-{width}.png"
                page.screenshot(path=photograph)
                found[name, width] = (page.evaluate(MEASURE), photograph)
        browser.close()
    return found


def test_no_page_is_wider_than_its_window(seen, pages):
    assert seen.keys() == {(name, width) for name in pages for width in WIDTHS}
    for (name, width), ((window, whole), _) in seen.items():
        assert window == width
        assert whole <= width, name


@pytest.mark.parametrize("width", WIDTHS)
def test_photographs_show_something(seen, pages, width):
    for name in pages:
        _, file = seen[name, width]
        with Image.open(file) as image:
            assert image.size == (width, 1000)
            grey = np.asarray(image.convert("L"), np.float32)
        assert grey.std() > 8, file.name  # not blank
        rows = grey.std(axis=1) > 2
        assert rows.mean() > 0.2, file.name  # and not one line of text at the top
