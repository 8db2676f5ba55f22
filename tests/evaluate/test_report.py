"""The page of kept runs: whole, self-contained, and with the figures that the runs have."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from click.testing import CliRunner

from adte import InputError, Views
from adte.cli import main
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import Held, Image
from adte.evaluate.report.runs import runs_report
from adte.evaluate.report.sections import read_sections, unusual_stream
from adte.evaluate.running import figures
from adte.evaluate.running.results import Results
from adte.evaluate.running.rows import aggregate
from adte.evaluate.running.tasks import Task, run_tasks
from adte.evaluate.simulate import SimulatedStream

TASKS = [
    Task("zero-shot"),
    Task("se"),
    *(Task("adte", {}, "online", seed) for seed in range(3)),
    Task("adte", {"beta": 0.5}),
    Task("average", title="<b>average</b>"),
]


def held_order(n, seed):
    return np.random.default_rng(seed).permutation(n) if seed else np.arange(n)


def stream(model: str = "simulated", images: int = 60, **recipe) -> Held:
    made = SimulatedStream(images=images, classes=6, views=4, imbalance=8.0, seed=1)
    given = {
        "model": model,
        "classes": tuple(f"class {i}" for i in range(6)),
        "frequency": tuple(made.prior.tolist()),
        "scale": made.scale * 2**0.5,
        "views": Views(count=4),
        "data": {"datasets": [{"name": "simulated"}], "order": "shuffled", "images": images},
    }
    some = [
        Image(sample.batch.features[0], label, str(i), "clean" if i % 2 else "fog", i % 3)
        for i, (sample, label) in enumerate(made)
    ]
    return Held(some, Recipe(**{**given, **recipe}), made.class_weights)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "runs"
    run_tasks(stream(), TASKS, Results(folder))
    runs_report([folder])
    return folder


def keep(folder, record, **changes):
    """Write a record of a folder again, with changes."""
    results = Results(folder)
    results.put(record.key, results.run(record), replace(record, **changes))


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


@pytest.mark.slow
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
    assert len(page.all("svg")) == 6
    assert all(len(a["aria-label"]) > 20 and a["role"] == "img" for a in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table")) == 3  # methods, domains, groups
    assert all("scope" in a for a in page.all("th"))
    assert any(a.get("name") == "viewport" for a in page.all("meta"))
    for part in ("@media print", "prefers-color-scheme: dark", "overflow-x: auto"):
        assert part in text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert not re.search(r"#[0-9a-f]{6}\b", drawings)  # colours are variables, so dark works


def test_figures_are_those_of_the_runs(runs):
    with open(runs / "table.csv", encoding="utf-8") as f:
        lines = {(line["method"], line["protocol"]): line for line in csv.DictReader(f)}
    results = Results(runs)
    right: dict[tuple[str, int, float], np.ndarray] = {}
    for record in results:
        c = record.conditions
        order = held_order(60, c.order_seed)
        correct = np.zeros(60, bool)
        correct[order] = results.run(record).correct
        beta = next((v for k, v in c.options.items() if k.endswith("beta")), None)
        right[record.title, c.order_seed, beta] = correct
    beta = next(b for t, s, b in right if (t, s) == ("adte", 1))
    ours = [right["adte", seed, beta] for seed in range(3)]
    se = next(v for (title, _, _), v in right.items() if title == "se")
    line = lines["adte", "online"]
    assert float(line["accuracy"]) == pytest.approx(np.mean(ours))
    low, high = figures.seed_interval([c.mean() for c in ours])
    assert float(line["ci95_low"]) == pytest.approx(low)
    assert float(line["ci95_high"]) == pytest.approx(high)
    assert float(line["gain"]) == pytest.approx(np.mean(ours) - se.mean())
    low, high = figures.bootstrap_difference(np.mean(ours, axis=0), se)
    assert float(line["gain_ci95_low"]) == pytest.approx(low)
    assert float(line["gain_ci95_high"]) == pytest.approx(high)
    assert float(line["p"]) == pytest.approx(max(figures.mcnemar(c, se) for c in ours))
    assert lines["se", "stateless"]["gain"] == ""
    assert lines["adte beta=0.5", "online"]["seeds"] == "1"  # not taken for a seed of adte's


def test_gains_are_over_what_is_asked_for(runs, tmp_path):
    (section,) = read_sections([runs], baseline="<b>average</b>")
    assert section.reference.name == "<b>average</b>"
    by_name = {e.name: e.row for e in section.entries}
    more = by_name["se"]["accuracy"] - section.reference.row["accuracy"]
    assert by_name["se"]["gain"] == pytest.approx(more)
    page, table, _ = runs_report([runs], tmp_path / "r.html", baseline="zero-shot")
    assert "points over zero-shot (95 %" in page.read_text("utf-8")
    assert ",zero-shot," in table.read_text("utf-8")
    with pytest.raises(InputError, match=r"unknown baseline 'sea'.*se"):
        read_sections([runs], baseline="sea")


def draws(folder, *tasks):
    """Runs of tasks, a list of them for each draw; the images of a draw are its own."""
    done = []
    for seed, some in enumerate(tasks):
        data = {"datasets": [{"name": "s"}], "order": "shuffled", "seed": seed}
        held = stream(data=data)
        held = Held([*held.images()][30 * seed :][:30], held.recipe, held.class_weights)
        done.append(run_tasks(held, some, Results(folder)))
    return done


def test_a_draw_of_many_orders_counts_once(tmp_path):
    """The gain did so, and accuracies, whose difference it is, were means over all runs."""
    orders = [Task("adte", seed=s) for s in range(3)]
    first, second = draws(tmp_path, [Task("se"), *orders], [Task("se"), orders[0]])
    (section,) = read_sections([tmp_path])
    ours, se = (next(e.row for e in section.entries if e.row["method"] == m)
                for m in ("adte", "se"))  # fmt: skip
    for name in ("accuracy", "ece", "nll"):
        alone = [np.mean([o.record.metrics[name] for o in some[1:]]) for some in (first, second)]
        assert ours[name] == pytest.approx(np.mean(alone))
    assert ours["gain"] == pytest.approx(ours["accuracy"] - se["accuracy"])
    means = [np.mean([o.run.correct.mean() for o in some[1:]]) for some in (first, second)]
    assert means[0] != means[1]
    want = np.clip(figures.seed_interval(means), 0, 1)
    assert ours["ci95"] == pytest.approx(want.tolist())
    assert (ours["seeds"], ours["draws"], ours["aside"]) == (4, 2, False)
    assert "each draw counting once" in runs_report([tmp_path])[2].read_text("utf-8")


def test_a_row_that_lacks_draws_is_not_the_best(tmp_path):
    first, _ = draws(tmp_path, [Task("zero-shot"), Task("se"), Task("adte")],
                     [Task("zero-shot"), Task("se")])  # fmt: skip
    for o in first[2:]:  # the best there is
        keep(tmp_path, o.record, metrics={**o.record.metrics, "accuracy": 1.0})
    (section,) = read_sections([tmp_path])
    assert [e.row["aside"] for e in section.entries] == [False, False, True]
    page, _, table = runs_report([tmp_path])
    text = table.read_text("utf-8")
    assert "| adte | online | 100.0 |" in text
    assert "Not ranked, for they lack draws of images and views: adte, online." in text
    assert "adte, online is right on" not in page.read_text("utf-8")
    draws(tmp_path / "every", *[[Task("se"), Task("adte")]] * 2)
    assert "Not ranked" not in runs_report([tmp_path / "every"])[2].read_text("utf-8")


@pytest.mark.slow
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
    with open(tmp_path / "page-table.csv", encoding="utf-8") as f:
        assert {line["table"] for line in csv.DictReader(f)} == {s.title for s in sections}


def test_a_gain_that_is_left_out_is_explained(tmp_path):
    """A second draw of SE alone took the gain of ADTE away, and nothing said why."""
    results, held = Results(tmp_path), stream()
    done = run_tasks(held, [Task("zero-shot"), Task("se"), Task("adte")], results)
    runs_report([tmp_path])
    assert "left out" not in (tmp_path / "table.md").read_text("utf-8")
    for o in done[:2]:
        told = replace(o.record.conditions, view_seed=1)
        results.put(f"{o.task.method}-1", o.run, replace(o.record, conditions=told))
    (section,) = read_sections([tmp_path])
    gains = {e.row["method"]: e.row["gain"] for e in section.entries}
    assert gains["adte"] is None
    assert gains["zero-shot"] is not None
    runs_report([tmp_path])
    said = "left out where the two did not run on the same images and views"
    assert said in (tmp_path / "table.md").read_text("utf-8")


def test_without_matplotlib_the_page_says_how_to_get_plots(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    target = runs_report([runs], tmp_path / "plain.html")[0]
    text = target.read_text("utf-8")
    assert "<svg" not in text
    assert "pip install &#39;adte[plots]&#39;" in text
    assert "<table>" in text


@pytest.mark.parametrize("out", [("--out", "page.html"), ()], ids=["--out", "the default"])
def test_files_of_others_beside_the_page_stay(out, runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs, "runs", ignore=shutil.ignore_patterns("report*", "table*"))
    files = [Path("page.html"), Path("page-table.csv"), Path("page-table.md")]
    if not out:
        files = [Path("runs", name) for name in ("report.html", "table.csv", "table.md")]

    def report(*more):
        return CliRunner().invoke(main, ["report", "runs", *out, *more])

    for mine in files:
        mine.write_text("my notes\n")
        refused = report()
        assert refused.exit_code == 2
        assert f"{str(mine)!r} exists and is not an output of adte" in refused.output
        assert [f for f in files if f.exists()] == [mine]
        assert mine.read_text() == "my notes\n"
        mine.unlink()
    files[1].write_text("my notes\n")
    assert report("--force").exit_code == 0
    assert report().exit_code == 0  # ours by now


def test_a_page_elsewhere_leaves_the_runs_alone(runs, tmp_path, monkeypatch):
    """They may be read-only; a page that goes to a device has no place for tables beside it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = shutil.copytree(runs, tmp_path / "runs")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    (tmp_path / "pages").mkdir()
    runs_report([folder], tmp_path / "pages" / "mine.html")
    assert sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir()) == before
    names = ["mine-table.csv", "mine-table.md", "mine.html"]
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == names
    assert runs_report([folder], "/dev/null")[1:] == [folder / "table.csv", folder / "table.md"]


def test_a_folder_without_results(tmp_path):
    with pytest.raises(InputError, match="there are no results in"):
        read_sections([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        read_sections([tmp_path / "nowhere"])
    assert not (tmp_path / "nowhere").exists()
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_names_are_escaped_and_skipped_images_listed(runs, tmp_path):
    folder = shutil.copytree(runs, tmp_path / "runs")
    record = next(iter(Results(folder)))
    skipped = [{"id": "a&b.png", "reason": "truncated"}]
    keep(folder, record, conditions=replace(record.conditions, skipped=skipped))
    text = runs_report([folder])[0].read_text("utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;average&lt;/b&gt;" in text
    assert "could not be read: 1</h3>" in text
    assert "<code>a&amp;b.png</code>: truncated" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": {"name": "seven"}}, ["", "prompts.name=seven"]),
        ({"views": Views(count=4, augmix=True)}, ["views.augmix=False", "views.augmix=True"]),
        ({"images": 40}, ["images=60", "images=40"]),
        ({"data": {"imbalance": "zipf"}}, ["", "imbalance=zipf, ratio=10.0"]),
        ({"data": {"domain_counts": {"s": 1, "fog/5": 1}}}, ["", "clean + fog/5"]),
    ],
)
def test_sections_of_other_conditions_say_what_differs(changes, words, tmp_path):
    usual = {"datasets": [{"name": "s"}], "order": "shuffled"}
    changes = {**changes, "data": {**usual, **changes.get("data", {})}}
    for held in (stream(data=usual), stream(**changes)):
        run_tasks(held, [Task("zero-shot")], Results(tmp_path))
    titles = [s.title.removeprefix("s, simulated, 4 views").strip(", ")
              for s in read_sections([tmp_path])]  # fmt: skip
    assert sorted(titles) == sorted(words)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"order": "as given", "domains": "mixed", "ratio": 5.0, "delta": 0.5, "limit": 9}, []),
        ({"order": "correlated", "delta": 0.5}, ["order=correlated", "delta=0.5"]),
        ({"domains": "mixed", "domain_counts": {"a": 1, "b/2": 1}}, ["domains=mixed"]),
        ({"domain_counts": {f"fog/{i}": 1 for i in range(1, 6)}}, ["5 corruptions"]),
    ],
)
def test_a_title_says_what_is_unusual_in_its_stream(data, words):
    assert unusual_stream(data) == words


def test_another_stream_of_one_seed_is_no_second_seed(tmp_path):
    right = stream()
    wrong = [i._replace(label=(i.label + 1) % 6) for i in right.images()]
    others = [Held(wrong, right.recipe, right.class_weights), stream(scale=1.0)]
    for held in (right, *others):
        run_tasks(held, [Task("se"), *(Task("adte", seed=s) for s in range(2))], Results(tmp_path))
    sections = read_sections([tmp_path])
    assert len({s.title for s in sections}) == 3
    seeds = {e.row["method"]: e.row["seeds"] for s in sections for e in s.entries}
    assert seeds == {"se": 1, "adte": 2}
    assert all(s.reference is not None for s in sections)


@pytest.mark.parametrize(
    ("name", "values"), [("dtype", ("float32", "bfloat16")), ("runtime", ("torch", "float8"))]
)
def test_what_ran_twice_is_told_apart(name, values, tmp_path):
    for value in values:
        run_tasks(stream(**{name: value}), [Task("se")], Results(tmp_path))
    (section,) = read_sections([tmp_path])
    assert {e.row["method"] for e in section.entries} == {f"se, {name}={v}" for v in values}


def test_two_sources_of_a_method_are_two_rows(tmp_path):
    results = Results(tmp_path)
    (done,) = run_tasks(stream(), [Task("zero-shot")])
    for number, source in enumerate(("1234abcd", "5678efgh", "5678efgh")):
        c = replace(done.record.conditions, source=source, view_seed=number)
        results.put(f"run-{number}", done.run, replace(done.record, conditions=c))
    (section,) = read_sections([tmp_path])
    rows = {e.row["method"]: e.row["seeds"] for e in section.entries}
    assert rows == {"zero-shot, source=1234abcd": 1, "zero-shot, source=5678efgh": 2}
    assert all(e.ours for e in section.entries)  # code from elsewhere is no baseline


def test_what_keeps_no_state_is_one_row_and_one_seed(tmp_path):
    tasks = [Task("se", protocol="two-pass"), Task("adte", protocol="two-pass"),
             *(Task("se", seed=s) for s in range(2)), Task("adte")]  # fmt: skip
    outcomes = run_tasks(stream(), tasks, Results(tmp_path))
    (section,) = read_sections([tmp_path])
    assert sorted(e.name for e in section.entries) == ["adte, online", "adte, two-pass", "se"]
    for rows in (aggregate(outcomes), [e.row for e in section.entries]):
        (se,) = [r for r in rows if r["method"] == "se"]
        assert (se["protocol"], se["seeds"], se["ci95"]) == ("stateless", 1, None)


def test_other_predictions_under_one_name_are_shown_apart_with_a_note(runs, tmp_path):
    other = tmp_path / "other"
    assert len(read_sections([runs, shutil.copytree(runs, other)])) == 1  # each counts once
    (record,) = (r for r in Results(runs) if r.title == "se")
    run = Results(runs).run(record)
    Results(other).put(record.key, replace(run, predicted=run.labels), record)
    with pytest.warns(UserWarning, match="folders hold runs of one name that predict otherwise"):
        first, second = read_sections([runs, other])
    assert len(first.entries) == len(second.entries) == 5
    right = [{e.name: e.first.run.correct.all() for e in s.entries}["se"] for s in (first, second)]
    assert right == [False, True]
    assert second.title.endswith("other")


def test_p_does_not_depend_on_which_of_two_is_the_baseline(tmp_path):
    tasks, results = [Task("zero-shot"), Task("adte"), Task("adte", seed=1)], Results(tmp_path)
    plain, _, last = run_tasks(stream(images=200), tasks, results)
    same = dict(zip(plain.run.ids, plain.run.predicted, strict=True))
    changed = replace(last.run, predicted=np.array([same[i] for i in last.run.ids]))
    results.put(last.record.key, changed, last.record)
    for base, other in (("zero-shot", "adte"), ("adte", "zero-shot")):
        (section,) = read_sections([tmp_path], baseline=base)
        (entry,) = (e for e in section.entries if e.row["method"] == other)
        assert entry.row["p"] == 1.0


def test_the_verb_names_a_result_that_was_altered(runs, tmp_path):
    folder = shutil.copytree(runs, tmp_path / "runs")
    path = next(folder.glob("adte*.json"))
    whole = path.read_text("utf-8")
    for text in (whole.replace("online", "sideways"), "[" * 200_000):
        path.write_text(text)
        done = CliRunner().invoke(main, ["report", str(folder)])
        assert done.exit_code == 2
        assert path.name in done.output.replace("\n", "")
        assert "delete it and run again" in " ".join(done.output.split())
