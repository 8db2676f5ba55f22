"""The page of kept runs: whole, self-contained, and with the figures that the runs have."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.evaluate import metrics
from adte.evaluate.features import Held, shuffle
from adte.evaluate.report import runs_report
from adte.evaluate.results import Results
from adte.evaluate.sections import read_sections
from adte.evaluate.tasks import Task, run_tasks
from adte.simulate import SimulatedStream

TASKS = [
    Task("zero-shot"),
    Task("se"),
    *(Task("adte", {}, "online", seed) for seed in range(3)),
    Task("adte", {"beta": 0.5}),
    Task("average", title="<b>average</b>"),
]


def stream(model: str = "simulated", images: int = 60) -> Held:
    made = SimulatedStream(images=images, classes=6, views=4, imbalance=8.0, seed=1)
    facts = {
        "model": model,
        "classes": [f"class {i}" for i in range(6)],
        "frequency": made.prior.tolist(),
        "views": {"count": 4, "seed": 0},
        "data": {"datasets": [{"name": "simulated"}], "order": "file"},
    }
    names = [(str(i), "clean" if i % 2 else "fog", i % 3) for i in range(images)]
    return Held(list(made), facts, names)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "runs"
    run_tasks(stream(), TASKS, Results(folder))
    runs_report([folder])
    return folder


class Page(HTMLParser):
    """Checks nesting; collects ids, links, and counts of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_the_page_is_whole_and_needs_nothing_else(runs):
    text = (runs / "report.html").read_text("utf-8")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert (runs / unquote(link)).is_file()
    assert sum(link.endswith(".json") for link in page.links) == 7
    assert not page.all("script")
    assert not page.all("link")
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "@import" not in text


def test_the_page_is_accessible_and_follows_the_reader(runs):
    text = (runs / "report.html").read_text("utf-8")
    page = Page(text)
    assert len(page.all("svg")) == 5
    assert all(len(a["aria-label"]) > 20 and a["role"] == "img" for a in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table")) == 3  # methods, domains, groups
    assert all("scope" in a for a in page.all("th"))
    assert any(a.get("name") == "viewport" for a in page.all("meta"))
    for part in ("@media print", "prefers-color-scheme: dark", "overflow-x: auto"):
        assert part in text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert not re.search(r"#[0-9a-f]{6}\b", drawings)  # colours are variables, so dark works


def test_titles_are_escaped(runs):
    text = (runs / "report.html").read_text("utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;average&lt;/b&gt;" in text


def test_figures_are_those_of_the_runs(runs):
    with open(runs / "table.csv", encoding="utf-8") as f:
        lines = {(line["method"], line["protocol"]): line for line in csv.DictReader(f)}
    results = Results(runs)
    right: dict[tuple[str, int, float], np.ndarray] = {}
    for record in results:
        p = record["protocol"]
        order = shuffle(60, p["seed"])
        correct = np.zeros(60, bool)
        correct[order] = results.run(record).correct
        right[record["title"], p["seed"], p["options"].get("beta")] = correct
    beta = next(b for t, s, b in right if (t, s) == ("adte", 1))
    ours = [right["adte", seed, beta] for seed in range(3)]
    se = next(v for (title, _, _), v in right.items() if title == "se")
    line = lines["adte", "online"]
    assert float(line["accuracy"]) == pytest.approx(np.mean(ours))
    low, high = metrics.seed_interval([c.mean() for c in ours])
    assert float(line["ci95_low"]) == pytest.approx(low)
    assert float(line["ci95_high"]) == pytest.approx(high)
    assert float(line["gain"]) == pytest.approx(np.mean(ours) - se.mean())
    low, high = metrics.bootstrap_difference(np.mean(ours, axis=0), se)
    assert float(line["gain_ci95_low"]) == pytest.approx(low)
    assert float(line["gain_ci95_high"]) == pytest.approx(high)
    assert float(line["p"]) == pytest.approx(max(metrics.mcnemar(c, se) for c in ours))
    assert lines["se", "stateless"]["gain"] == ""
    assert lines["adte beta=0.5", "online"]["seeds"] == "1"  # not taken for a seed of adte's


def test_gain_over_the_best_baseline(runs):
    (section,) = read_sections([runs])
    best = section.best_baseline
    assert not best.ours
    others = [e for e in section.entries if not e.ours]
    assert best.row["accuracy"] == max(e.row["accuracy"] for e in others)
    assert best.row["gain_best"] is None
    for e in section.entries:
        if e is not best:
            gain = e.row["accuracy"] - best.row["accuracy"]
            assert e.row["gain_best"] == pytest.approx(gain)
            assert e.row["gain_best_ci95"][0] <= gain <= e.row["gain_best_ci95"][1]
    ranked = [e.row["accuracy"] for e in section.entries]
    assert ranked == sorted(ranked, reverse=True)


def test_sections_are_what_can_be_compared(runs, tmp_path):
    runs, other = shutil.copytree(runs, tmp_path / "runs"), tmp_path / "other"
    run_tasks(stream("another", 40), TASKS[:2], Results(other))
    run_tasks(stream(), TASKS[:1], Results(other))  # lies in both folders
    sections = read_sections([runs, other])
    assert [len(s.entries) for s in sections] == [5, 2]
    assert [s.title for s in sections] == ["simulated, simulated, 4 views",
                                           "simulated, another, 4 views"]  # fmt: skip
    target = tmp_path / "page.html"
    runs_report([runs, other], target)
    page = Page(target.read_text("utf-8"))
    assert {"s1", "s2"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))  # drawings share no names
    for link in page.links:
        assert link.startswith("#") or (tmp_path / unquote(link)).is_file()
    with open(runs / "table.csv", encoding="utf-8") as f:
        assert {line["table"] for line in csv.DictReader(f)} == {s.title for s in sections}


def test_without_matplotlib_the_page_says_how_to_get_plots(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    target = runs_report([runs], tmp_path / "plain.html")[0]
    text = target.read_text("utf-8")
    assert "<svg" not in text
    assert "pip install &#x27;adte[plots]&#x27;" in text
    assert "<table>" in text


def test_skipped_images_are_listed(runs, tmp_path):
    folder = shutil.copytree(runs, tmp_path / "runs")
    path = min(folder.glob("*.json"))
    record = json.loads(path.read_text("utf-8"))
    record["protocol"]["skipped"] = [{"id": "a&b.png", "reason": "truncated"}]
    path.write_text(json.dumps(record), "utf-8")
    text = runs_report([folder])[0].read_text("utf-8")
    assert "could not be read: 1</h3>" in text
    assert "<code>a&amp;b.png</code>: truncated" in text


def test_the_same_runs_make_the_same_page(runs, tmp_path):
    before = (runs / "report.html").read_bytes()
    assert runs_report([runs])[0].read_bytes() == before


def test_the_verb(runs, tmp_path):
    result = CliRunner().invoke(main, ["report", str(runs), "--out", str(tmp_path / "p.html")])
    assert result.exit_code == 0, result.output
    assert result.output.split() == [
        str(tmp_path / "p.html"), str(runs / "table.csv"), str(runs / "table.md")
    ]  # fmt: skip
    assert "| **" in (runs / "table.md").read_text("utf-8")


def test_a_folder_without_results(tmp_path):
    with pytest.raises(InputError, match="there are no results in"):
        read_sections([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        read_sections([tmp_path / "nowhere"])
    assert not (tmp_path / "nowhere").exists()
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
