"""Photographs, three of them broken, interrupted and resumed: labelled once, learned once.

The transcript of 200 is a page of the documentation: ADTE_WRITE_DOCS=1 writes it there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from predicting import picture, rows, seen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = ROOT.parent / "shared" / "data" / "photos"
WRITES = os.environ.get("ADTE_WRITE_DOCS") == "1"
COUNT = 200 if WRITES else 80
BROKEN = [COUNT // 10, 9 * COUNT // 20, 3 * COUNT // 4]  # in order; one before the interruption
NAMES = "fish, bird, snake, dog, insect, boat, car, musical instrument, clothing, food"
COMMAND = ("predict", "photos", "--classes", "@names.txt", "--views", "8", "--out", "labels.csv")
PAGE = """# A folder of photographs, interrupted and resumed

Made by `tests/test_transcript.py`: 200 photographs, three of them broken. `adte predict` is
interrupted and run again. Every image has one row and was learned from once, and the labels are
those of a run without interruption.

```text
{text}
```
"""


def collect(folder: Path) -> None:
    """Photographs, and three files that are none."""
    folder.mkdir()
    found = sorted(PHOTOS.glob("*.jpg"))[:COUNT] if PHOTOS.is_dir() else []
    if len(found) == COUNT:
        for path in found:
            shutil.copy(path, folder)
    else:
        for i in range(COUNT):
            picture(folder / f"{i:03d}.png", i)
    cut, empty, words = (sorted(folder.iterdir())[i] for i in BROKEN)
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 3])
    empty.write_bytes(b"")
    words.write_text("this is no photograph")


class Shell:
    """Runs `adte` in a folder and keeps what is seen."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, []

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        with (self.folder / "screen.txt").open("wb") as screen:
            return subprocess.Popen([sys.executable, "-W", "error", "-m", "adte", *args],
                                    cwd=self.folder, stdout=screen, stderr=screen)  # fmt: skip

    def note(self, args: tuple[str, ...], code: int) -> str:
        """Add a command and its output, shortened, to the transcript."""
        text = (self.folder / "screen.txt").read_text("utf-8")
        shown = text.splitlines()
        labels = [i for i, line in enumerate(shown) if line.startswith("photos/")]
        if code == 130:
            shown.insert(labels[-1] + 1, "^C")
        if len(labels) > 10:
            start, end = labels[5], labels[-3]
            shown[start:end] = [f"… {end - start} lines more …"]
        self.seen += [f"$ adte {' '.join(args)}", *shown, "$ echo $?", str(code)]
        return text


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_a_transcript(tmp_path):
    collect(tmp_path / "photos")
    (tmp_path / "names.txt").write_text(NAMES.replace(", ", "\n") + "\n")
    shell, out = Shell(tmp_path), tmp_path / "labels.csv"

    child = shell.start(*COMMAND)
    end = time.monotonic() + 300
    while not out.exists() or out.read_bytes().count(b"\n") < 0.2 * COUNT:
        assert child.poll() is None, (tmp_path / "screen.txt").read_text()
        assert time.monotonic() < end
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 130
    first = shell.note(COMMAND, 130)
    done = len(rows(out))
    labelled = done - sum(bool(r["error"]) for r in rows(out))
    assert 0.2 * COUNT - 1 <= done < COUNT
    assert "interrupted" in first
    assert seen(tmp_path / "labels.csv.adte") == sum(r["learned"] == "true" for r in rows(out))

    child = shell.start(*COMMAND)
    assert child.wait() == 2
    second = shell.note(COMMAND, 2)
    assert f"{COUNT - 3 - labelled} images labelled, {labelled} done before" in second
    assert "3 could not be read" in second

    every = rows(out)
    assert len(every) == len({r["path"] for r in every}) == COUNT
    names = sorted(p.name for p in (tmp_path / "photos").iterdir())
    assert [r["path"] for r in every] == [f"photos/{name}" for name in names]
    broken = [r for r in every if r["error"]]
    assert len(broken) == 3
    assert all(r["path"] in second for r in broken)
    assert sum(r["learned"] == "true" for r in every) == COUNT - 3
    assert seen(tmp_path / "labels.csv.adte") == COUNT - 3
    assert "Traceback" not in first + second

    at_once = (*COMMAND[:-1], "once.csv", "-q")
    assert shell.start(*at_once).wait() == 2  # with as many threads: last bits go by them
    assert (tmp_path / "once.csv").read_bytes() == out.read_bytes()
    shell.note(at_once, 2)
    shell.seen += ["$ cmp labels.csv once.csv && echo the same", "the same"]

    page = PAGE.format(text="\n".join(shell.seen))
    assert str(tmp_path) not in page
    (tmp_path / "predict.md").write_text(page, "utf-8")
    if WRITES:
        (ROOT / "docs" / "transcripts").mkdir(parents=True, exist_ok=True)
        (ROOT / "docs" / "transcripts" / "predict.md").write_text(page, "utf-8")
