"""Every shell block and snippet of README and the guides is run.

A page is run as a reader would, top to bottom, in a folder with a few made-up photographs:

    photo.jpg  photos/*.jpg  labelled/{car,cat,dog}/*.jpg  names.txt
    adte.toml  with 8 views where a page names none, so that it takes seconds

`compare` on the bundle, which `adte demo` replays as a whole, takes the first 60 images of it.
`bash` and `python` are run, `toml` and `python` with a title are written to the file that the title
names. `console` (shell) and `py` (Python) are shown only: they need a network or large data. They
are counted here, so that nothing is left out unseen. `text`, and no tag, is output.
`pip install` goes to a folder of the test's own, without an index. Each `adte` is a process of its
own, forked from a warm one (`warm.py`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from predicting import picture
from warm import Warm

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/index.md", "docs/install.md", "docs/first-steps.md", "docs/caches.md"]
PAGES += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs/guides").glob("*.md"))
NOT_RUN = {  # blocks of a page that are shown only, and why
    "README.md": 6,  # set-up, data sets and weights from elsewhere; the paper's tables take long
    "docs/install.md": 1,  # installs
    "docs/caches.md": 1,  # ImageNet
    "docs/guides/data.md": 1,  # a data set from elsewhere
    "docs/guides/models.md": 3,  # weights from elsewhere
    "docs/guides/photographs.md": 1,  # takes a quarter of an hour
    "docs/guides/photos.md": 1,  # weights from elsewhere
}
SHORT = ("--seeds 3 --runs runs/", "--seeds 3 --runs runs/ --limit 60")
RUN, SHOWN, PLAIN = {"bash", "python"}, {"console", "py"}, {"", "text", "toml", "json"}
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?[^\n]*\n(.*?)^```$', re.M | re.S)


def blocks(page: str) -> list[dict[str, object]]:
    """The fenced blocks of a page, in order."""
    whole = (ROOT / page).read_text("utf-8")
    return [
        {
            "page": page,
            "line": whole.count("\n", 0, found.start()) + 1,
            "tag": found[1],
            "title": found[2],
            "text": found[3].replace(*SHORT),
        }
        for found in FENCE.finditer(whole)
    ]


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    if not hasattr(os, "fork"):
        pytest.skip("needs a POSIX system")
    found = Warm()
    yield found
    found.close()


def scene(folder: Path, warm: Warm) -> dict[str, str]:
    """A folder with what the pages speak of; the environment of who works there."""
    tools = folder.with_name("bin")
    tools.mkdir()
    warm.command(tools)
    picture(folder / "photo.jpg", 99)
    (folder / "photos").mkdir()
    for i in range(5):
        picture(folder / "photos" / f"{i}.jpg", i)
    for i, name in enumerate(("car", "cat", "dog")):
        (folder / "labelled" / name).mkdir(parents=True)
        for k in range(3):
            picture(folder / "labelled" / name / f"{k}.jpg", 10 * i + k)
    (folder / "names.txt").write_text("cat\ndog\ncar\n")
    (folder / "adte.toml").write_text("[defaults]\nviews = 8\n")
    installed = folder / "installed"
    path = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path),
        "HOME": str(folder / "home"),
        "XDG_CONFIG_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PIP_TARGET": str(installed),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads a "no" of "no isolation" so
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page, warm, tmp_path):
    todo = [b for b in blocks(page) if b["tag"] in RUN or b["title"]]
    if not todo:
        pytest.skip("the page has no block to run")
    if "open_clip" in str(todo) and find_spec("open_clip") is None:
        pytest.skip("needs the extra clip")
    work = tmp_path / "work"
    work.mkdir()
    listed = tmp_path / "blocks.json"
    listed.write_text(json.dumps(todo), "utf-8")
    script = Path(__file__).with_name("page.py")
    code, output = warm.run(script, [str(listed)], work, scene(work, warm))
    assert code == 0, output[-6000:]
    assert output.count(f"--- {page}, line ") == len(todo), output[-6000:]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_counted(page):
    tags = [b["tag"] for b in blocks(page)]
    assert set(tags) <= RUN | SHOWN | PLAIN
    assert sum(tag in SHOWN for tag in tags) == NOT_RUN.get(page, 0)
    fences = re.findall(r"^\s*```", (ROOT / page).read_text("utf-8"), re.M)
    assert len(fences) == 2 * len(tags)  # none escaped the pattern


def test_most_blocks_are_run():
    tags = [b["tag"] for page in PAGES for b in blocks(page)]
    run, shown = (sum(tag in kind for tag in tags) for kind in (RUN, SHOWN))
    assert shown == sum(NOT_RUN.values())
    assert run > 3 * shown


def test_your_own_method_takes_fifteen_lines():
    code = next(b["text"] for b in blocks("docs/guides/methods.md") if b["title"])
    lines = [line for line in str(code).splitlines() if line.strip()]
    assert len(lines) <= 15
