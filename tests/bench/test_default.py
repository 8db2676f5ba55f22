"""The script behind docs/evidence.md: its streams, its figures, and the table that quotes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
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
    rows = script.figures(whole, "first 20", [1, 2], {"a": ("adte", {}), "z": ("zero-shot", {})})
    right, sure = [], []
    for seed in (1, 2):
        method = create_method("adte")
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
    for seed, block in ((1, {0, 1}), (2, {2, 3}), (4, {6, 7})):
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
        more = ["--methods", "zero-shot", "adte", "--jobs", jobs, "--json", str(out)]
        subprocess.run([*command, *more], cwd=ROOT, check=True, capture_output=True)
        found.append(json.loads(out.read_text()))
    assert found[0] == found[1]
    assert len(found[0]) == 4


def test_the_table_of_every_method_is_what_was_recorded(script):
    rows = json.loads((ROOT / "benchmarks/results/every.json").read_text("utf-8"))["result"]
    near = script.near_the_best(rows)
    best = Counter(method for _, methods in near for method in methods)
    means: dict[str, list[float]] = {}
    for row in rows:
        means.setdefault(row["method"], []).append(100 * row["accuracy"])
    text = (ROOT / "docs/evidence.md").read_text("utf-8").split("## Beside every method")[1]
    text = text.split("\n## ")[0].replace("*", "").replace("`se` with `adjust=before`", "`se + la`")
    told = re.findall(r"\| `([\w +-]+)` \| ([\d.]+) \| (\d+) ", text)
    assert len(told) == len(means) - 1  # SE, which of one view is zero-shot
    for method, mean, number in told:
        assert (float(mean), int(number)) == (round(np.mean(means[method]), 1), best[method])
    assert f"has {script.in_hindsight(near)} of the {len(near)}." in text
    assert f"on {100 * best['adte'] / len(near):.0f} % of these streams" in text


def test_the_table_of_related_classes_is_what_was_recorded():
    rows = [
        row
        for name in ("together-few", "together")
        for row in json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))[
            "result"
        ]
    ]
    found = {(row["stream"], row["method"]): row for row in rows}
    methods = ("zero-shot", "se + la", "adte, equal", "adte, as they come", "adte, no likeness")
    text = (ROOT / "docs/evidence.md").read_text("utf-8").split("## Related classes")[1]
    told = [line.strip("|").split("|") for line in text.split("\n\n")[2].splitlines()[2:]]
    streams = dict.fromkeys(stream for stream, _ in found)
    for (_, *cells), stream in zip(told, streams, strict=True):
        *figures, _, ours, gain = (re.sub(r"[* ]", "", cell) for cell in cells)
        accuracies = [found[stream, m]["accuracy"] for m in (*methods, "adte")]
        assert [float(x) for x in (*figures, ours)] == [round(100 * x, 1) for x in accuracies]
        recorded = found[stream, "adte"]["gain_over_zero_shot"]
        said = gain.replace("−", "-").split("±")
        assert [float(x) for x in said] == [round(100 * x, 1) for x in recorded]


def test_the_table_of_warm_states_is_what_was_recorded():
    rows = json.loads((ROOT / "benchmarks/results/warm.json").read_text("utf-8"))["result"]
    gains = {
        (row["source"], row["stream"].replace("1/5", "1/4"), row["method"]): [
            round(100 * x, 1) for x in row["gain_over_reference"]
        ]
        for row in rows
        if row["method"].startswith("adte")
    }
    streams = [stream for source, stream, method in gains if (source, method) == ("replay", "adte")]
    sources = {
        "bundle": "replay", "2,000 photographs": "2,000 photographs", "`shifts`": "shifts",
        "CIFAR-10, 4,000": "CIFAR-10, 4,000 images", "ImageNet, real CLIP": "clip-vit-b32-imagenet",
    }  # fmt: skip
    text = (ROOT / "docs/evidence.md").read_text("utf-8").split("| warm (cold) |")[1]
    lines = text.split("\n\n")[0].replace("−", "-").splitlines()[2:]
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [name for name, *_ in told] == list(sources)
    for name, *cells in told:
        for cell, stream in zip(cells, streams, strict=True):
            if cell not in ("", "the same two"):
                warm, cold = (gains[sources[name], stream, m] for m in ("adte", "adte, cold"))
                assert [float(x) for x in re.findall(r"[-+\d.]+", cell)] == [*warm, cold[0]]
    assert sum(bool(re.search(r"\d", cell)) for _, *cells in told for cell in cells) == 36
