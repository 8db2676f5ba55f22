"""Issue 11, "Must show": reports and pages of the site, photographed in Chromium at three widths.

The photographs go to the folder that ADTE_PHOTOGRAPHS names, else to a temporary one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adte import compare

pytestmark = pytest.mark.slow
WIDTHS = (390, 768, 1280)
PAGES = ["index.html", "first-steps/index.html", "guides/methods/index.html", "cli/index.html",
         "api/classifier/index.html", "comparison/index.html"]  # fmt: skip
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--allow-file-access-from-files", "--virtual-time-budget=4000"]  # fmt: skip
MEASURE = """<script>
addEventListener("load", () => setTimeout(() => parent.postMessage({
  width: innerWidth, page: document.documentElement.scrollWidth, name: NAME,
}, "*"), 200));
</script>"""
FRAMES = """<!doctype html><script>
const found = [];
addEventListener("message", event => {
  if (!event.data.name) return;
  found.push(event.data);
  document.documentElement.dataset.found = JSON.stringify(found);
});
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("needs Chromium")
    return found


@pytest.fixture(scope="module")
def pages(site, tmp_path_factory) -> dict[str, Path]:
    """Pages by name: some of the site, and a report of real runs."""
    from adte.cli import main

    runs = tmp_path_factory.mktemp("report") / "runs"
    compare(methods=["zero-shot", "se", "adte"], limit=60, seeds=2, runs=runs)
    main(["report", str(runs)], standalone_mode=False)
    named = {p.removesuffix("/index.html").removesuffix(".html"): site / p for p in PAGES}
    return {**named, "report": runs / "report.html"}


def look(browser: str, profile: Path, *arguments: str) -> str:
    done = subprocess.run([browser, *FLAGS, f"--user-data-dir={profile}", *arguments],
                          capture_output=True, text=True, timeout=180)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_no_page_is_wider_than_its_window(browser, pages, tmp_path):
    frames = []
    for name, page in pages.items():
        copy = page.with_name("measured.html")
        script = MEASURE.replace("NAME", json.dumps(name))
        copy.write_text(page.read_text("utf-8") + script, "utf-8")
        frames += [f'<iframe src="{copy.as_uri()}" style="width:{w}px;height:900px"></iframe>'
                   for w in WIDTHS]  # fmt: skip
    whole = tmp_path / "frames.html"
    style = "<style>iframe { border: 0; display: block }</style>"
    whole.write_text(FRAMES + style + "".join(frames), "utf-8")
    try:
        dom = look(browser, tmp_path / "profile", "--dump-dom", whole.as_uri())
    finally:
        for page in pages.values():
            page.with_name("measured.html").unlink()
    found = json.loads(unescape(re.search(r'data-found="(.*?)"', dom)[1]))
    assert {(f["name"], f["width"]) for f in found} == {(n, w) for n in pages for w in WIDTHS}
    assert [f for f in found if f["page"] > f["width"]] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_photographs_show_something(browser, pages, width, tmp_path):
    folder = Path(os.environ.get("ADTE_PHOTOGRAPHS", tmp_path / "photographs"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        file = folder / f"{name.replace('/', '-')}-{width}.png"
        look(browser, tmp_path / "profile", f"--window-size={width},1000",
             f"--screenshot={file}", page.as_uri())  # fmt: skip
        with Image.open(file) as image:
            assert image.size == (width, 1000)
            grey = np.asarray(image.convert("L"), np.float32)
        assert grey.std() > 8, file.name  # not blank
        rows = grey.std(axis=1) > 2
        assert rows.mean() > 0.2, file.name  # and not one line of text at the top
