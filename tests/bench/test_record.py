"""The script that keeps results: what belongs to a figure, and where each one is from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("record")


@pytest.mark.slow
def test_a_result_is_kept_with_its_command_version_and_machine(
    script: ModuleType, tmp_path: Path
) -> None:
    more = ("--classes", "20", "--repeats", "3")
    script.main(["bench-head", "--as", "small-head", "--out", str(tmp_path), "--", *more])
    facts = json.loads((tmp_path / "small-head.json").read_text("utf-8"))
    assert facts["command"] == "python benchmarks/speed.py head --classes 20 --repeats 3"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["date"])
    assert facts["version"]["adte"]
    assert {"processor", "kernel", "threads", "torch"} <= facts["machine"].keys()
    assert facts["result"]["classes"] == 20


def test_paths_stay_out_of_results(script: ModuleType, tmp_path: Path) -> None:
    paths = {"PHOTOGRAPHS": str(tmp_path / "photos"), "WORK": "/tmp/adte-x"}
    step = "adte extract --data folder:PHOTOGRAPHS --out WORK/cache"
    assert script.words(step, paths)[-3:] == [
        f"folder:{tmp_path / 'photos'}", "--out", "/tmp/adte-x/cache"
    ]  # fmt: skip
    said = {"data": [f"{tmp_path / 'photos'}/a.jpg"], "cache": "/tmp/adte-x/cache", "accuracy": 0.5}
    assert script.without(said, paths) == {
        "data": ["PHOTOGRAPHS/a.jpg"], "cache": "WORK/cache", "accuracy": 0.5
    }  # fmt: skip


def test_what_cannot_be_recorded_is_said(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    for args, words in (
        (("nothing",), "unknown name 'nothing'"),
        (("multilabel",), "--with PHOTOGRAPHS=PATH"),
        (("multilabel", "--with", "PHOTOGRAPHS=/not/there"), "a path that exists"),
        (("bench-head", "bench-views", "--as", "x"), "one NAME at a time"),
    ):
        with pytest.raises(SystemExit) as ended:
            script.main(args)
        assert ended.value.code == 2
        assert words in capsys.readouterr().err


def test_the_readme_names_every_result_and_its_command(script: ModuleType) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name in script.RECORDS:
        assert f"`{name}`" in text
    kept = {p.stem: json.loads(p.read_text("utf-8")) for p in script.RESULTS.glob("*.json")}
    for name, facts in kept.items():
        assert f"`{name}`" in text, f"benchmarks/README.md does not say what made {name}.json"
        assert facts["name"] == name
        assert {"command", "date", "version", "machine", "result"} <= facts.keys()
    first, second = (
        {name for row in part.splitlines() if row.startswith("| `")
         for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
        for part in text.split("Of these no file is kept")
    )  # fmt: skip
    assert (first, second) == (kept.keys(), script.RECORDS.keys() - kept.keys())
