"""The script behind docs/evidence.md: its streams, its figures, and the table that quotes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from adte import Sample, create_method

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script(script_of) -> ModuleType:
    return script_of("default")


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> str:
    """Six images of each of eight classes, of which two have no image."""
    rng = np.random.default_rng(0)
    text = rng.normal(size=(10, 16)).astype(np.float32)
    label = np.repeat(np.arange(8), 6)
    image = text[label] + 1.5 * rng.normal(size=(48, 16)).astype(np.float32)
    file = tmp_path_factory.mktemp("features") / "made.npz"
    np.savez(file, image=image, text=text, label=label, shown=np.arange(8))
    return str(file)


def test_figures_are_those_of_a_loop(script, features):
    closed, whole = script.named(features).values()
    assert (closed.open, whole.open) == (False, True)
    rows = script.figures(whole, "first 20", [1, 2], {"a": ("tilt", {}), "z": ("zero-shot", {})})
    right, sure = [], []
    for seed in (1, 2):
        method = create_method("tilt")
        for i in script.draw(whole, "first 20", seed):
            weights = whole.context.class_weights
            p = method.step(Sample(whole.logits([i])[0], whole.features[i], weights, scale=100.0))
            right.append(p.index == whole.labels[i])
            sure.append(float(p.probs.max()))
    assert rows[0]["accuracy"] == pytest.approx(np.mean(right))
    assert rows[0]["ece"] == pytest.approx(script.ece(sure, right), abs=1e-4)
    assert [r["method"] for r in rows] == ["a", "z"]


def test_streams_are_what_they_are_called(script, features):
    closed, _ = script.named(features).values()
    y = closed.labels
    assert len(set(y[script.draw(closed, "1/4 shown", 1)])) == 2
    assert len(script.draw(closed, "first 10", 1)) == 10
    assert (np.diff(y[script.draw(closed, "sorted", 1)]) != 0).sum() == 7
    for seed, block in ((7, {0, 1}), (1, {2, 3}), (3, {6, 7})):
        assert set(y[script.draw(closed, "1/4 together", seed)]) == block
    assert (np.diff(y[script.draw(closed, "in order", 1)]) >= 0).all()
    favoured = closed.favoured()
    counts = np.bincount(y[script.draw(closed, "with the bias 6:1", 1)], minlength=8)
    assert counts[favoured.argmax()] == 6
    assert counts[favoured.argmin()] == 1


@pytest.mark.slow
def test_processes_find_the_same(features, tmp_path):
    found = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        command = [sys.executable, "benchmarks/default.py", features, "--streams", "first 20"]
        more = ["--methods", "zero-shot", "tilt", "--jobs", jobs, "--json", str(out)]
        subprocess.run([*command, *more], cwd=ROOT, check=True, capture_output=True)
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    assert len(found[0]) == 4


def recorded(name: str) -> dict[str, dict[str, object]]:
    file = ROOT / f"benchmarks/results/{name}.json"
    return {row["method"]: row for row in json.loads(file.read_text("utf-8"))["result"]["summary"]}


@pytest.mark.parametrize("name", ["streams", "streams-held"])
def test_the_table_of_streams_is_what_was_recorded(name):
    rows = recorded(name)
    text = (ROOT / "docs/evidence.md").read_text("utf-8").split(f"`{name}`")[1].split("\n\n")[1]
    head, _, *lines = (line.strip("| ").split(" | ") for line in text.splitlines())
    assert {line[0].strip("`") for line in lines} == set(rows)
    for method, *cells in lines:
        for key, cell in zip(head[1:], cells, strict=True):
            value = rows[method.strip("`")][key]
            assert float(cell.strip("* ").replace("−", "-")) == round(value, 1), (method, key)


def test_the_numbers_of_the_default_are_what_was_recorded():
    """A changed number costs what docs/default.md says."""
    rows = recorded("numbers")
    text = (ROOT / "docs/default.md").read_text("utf-8").split("## Its numbers")[1]
    found = re.findall(r"([¼¾\d.]+): ([−\d.]+) ± ([\d.]+)", text.split("\n## ")[0])
    said, every = {"¼": "0.25", "¾": "0.75"}, set()
    for name, row in rows.items():
        mean, half = row["over tilt"]
        every.add(f"{name.split()[-1]} {mean:.1f} {half:.1f}".replace(" -0.0 ", " 0.0 "))
    assert len(found) == 12
    for value, mean, half in found:
        assert f"{said.get(value, value)} {mean.replace('−', '-')} {half}" in every


def test_streams_of_many_kinds_say_the_same_twice(script_of, features, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    streams = script_of("streams")
    rules = {name: (name, {}) for name in ("zero-shot", "tilt")}
    kinds = ("lost", "whole", "sorted")
    found, again = ([streams.run(features, 0, k, 1, rules) for k in kinds] for _ in range(2))
    assert found == again
    row, other = streams.summary(found)
    assert row["method"] == "zero-shot"
    assert other["over tilt"][0] == 0
