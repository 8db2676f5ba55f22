"""Tasks, results folders and resuming: one JSON a run, nothing run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from adte import InputError
from adte.data import make_stream
from adte.evaluate.compare import Comparison
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.report.sections import read_sections
from adte.evaluate.running.results import Results
from adte.evaluate.running.rows import aggregate
from adte.evaluate.running.tasks import (
    Task,
    grid,
    key_of,
    known_run,
    run_tasks,
    tasks_for,
)
from adte.evaluate.source import Source
from adte.images import KERNELS
from adte.models.prompts import Prompts
from evaluate.test_cache import live, pictures


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Cache:
    return extract(live(20), tmp_path_factory.mktemp("cache"), shard=8)


TASKS = [Task("se"), Task("adte"), Task("adte", {"beta": 0.5}, "two-pass", title="adte 0.5")]


def test_a_record_says_what_was_done(cache):
    (outcome,) = run_tasks(cache, [Task("adte", {"beta": 0.5}, "two-pass")], memory=True)
    record = outcome.record
    assert 0 <= record.metrics["accuracy"] <= 1
    conditions = record.conditions
    assert conditions.options["entropy.beta"] == 0.5
    assert conditions.protocol == "two-pass"
    assert conditions.model == "small"
    assert conditions.images == 20
    assert (conditions.dtype, conditions.device) == ("float32", "cpu")
    assert conditions.kernel in KERNELS
    assert conditions.runtime == "torch"
    assert (conditions.view_seed, conditions.order_seed) == (0, 0)
    facts = json.loads(json.dumps(record.to_json()))
    assert facts["protocol"]["versions"].keys() == {"adte", "torch", "python"}


@pytest.mark.skipif(sys.platform != "linux", reason="the mark of memory cannot be set back")
def test_memory_is_the_methods_own_and_not_what_comes_first():
    """The first row had what torch sets up in a process: twice as much as the same row below."""
    program = (
        "from adte.evaluate.features.cache import Cache\n"
        "from adte.evaluate.running.tasks import Task, run_tasks\n"
        "tasks = [Task('zero-shot', title=title) for title in 'ab']\n"
        "for o in run_tasks(Cache().first(50), tasks, memory=True): print(o.run.peak_memory)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    first, second = map(int, done.stdout.split())
    assert first < second + 4e6


def test_finished_runs_are_not_run_again(cache, tmp_path):
    results, began = Results(tmp_path / "runs"), []
    first = run_tasks(cache, TASKS[:2], results)

    again = run_tasks(cache, TASKS[:2], results, begin=lambda t: began.append(t.name))
    assert [o.record for o in again] == [o.record for o in first]  # their seconds, too
    assert [o.run.predicted.tolist() for o in again] == [o.run.predicted.tolist() for o in first]
    assert began == ["se", "adte"]
    more = run_tasks(cache, TASKS, results)
    assert [o.record for o in more[:2]] == [o.record for o in first]
    (anew,) = run_tasks(cache, TASKS[:1], results, again=True)
    assert anew.record.metrics["seconds"] != first[0].record.metrics["seconds"]
    assert len(list((tmp_path / "runs").glob("*.json"))) == 3


def test_orders_are_of_the_kind_that_was_asked_for(tmp_path):
    """They were shuffles, of which the record said that classes and domains came in turn."""
    sets = [replace(pictures(12), name=name) for name in ("one", "two")]
    stream, model = make_stream(sets, order="class-ordered"), live(1)
    ordered = Live(model.model, model.class_weights, stream, model.views)
    for where in (extract(ordered, tmp_path), ordered):
        done = run_tasks(where, [Task("adte", seed=seed) for seed in range(3)])
        assert len({tuple(o.run.labels.tolist()) for o in done}) == 3
        for o in done:
            facts = o.record.conditions.data
            changes = int((np.diff(o.run.labels) != 0).sum())
            assert facts["changes"] == changes == 5 - (o.run.labels[11] == o.run.labels[12])
            assert o.run.domains == stream.domains
        assert len({o.record.conditions.data["digest"] for o in done}) == 3


def test_rows_average_over_seeds_and_interval_ends_at_nothing_and_all(cache):
    outcomes = run_tasks(cache, [Task("adte", seed=s) for s in range(3)] + [Task("frolic")])
    assert outcomes[3].run.log_prior is not None  # whoever holds a prior has it recorded
    row, _ = aggregate(outcomes)
    assert row["seeds"] == 3
    mean = np.mean([o.record.metrics["accuracy"] for o in outcomes[:3]])
    assert row["accuracy"] == pytest.approx(mean)
    assert row["ci95"][0] <= mean <= row["ci95"][1]
    for outcome, share in zip(outcomes, (0.3, 0.8), strict=False):
        outcome.record.metrics["accuracy"] = share
    assert aggregate(outcomes[:2])[0]["ci95"] == [0.0, 1.0]


def test_grid_takes_every_combination():
    tasks = grid("adte", ["beta=0.5,0.9", "direction=paper,released"], "online", [0, 1])
    assert len(tasks) == 8
    assert tasks[0].options == {"entropy.beta": 0.5, "entropy.direction": "paper"}
    with pytest.raises(InputError, match="unknown option"):
        grid("adte", ["bta=1"], "online", [0])
    tasks = grid("se", ["adjust=none,before"], "online", [0, 1, 2])
    assert [(t.title, t.seed) for t in tasks] == [
        ("se adjust=none", 0),  # does not learn
        *(("se adjust=before", seed) for seed in range(3)),
    ]
    names = {t.method for t in tasks_for(None, ["online", "two-pass"], [0])}
    assert {"adte", "tda", "tpt"} <= names
    assert not names & {"tent", "memo", "deyo", "bn"}  # they need the image tower


def test_images_are_encoded_once_however_many_look_at_them():
    stream = live(12)
    tower = stream.model.encode_image
    passes = []
    stream.model.encode_image = lambda pixels: passes.append(len(pixels)) or tower(pixels)
    outcomes = run_tasks(
        stream, [Task("se"), Task("adte", {}, "two-pass"), *(Task("tda", seed=s) for s in (0, 1))]
    )
    assert len(passes) == 12
    apart = [run_tasks(live(12), [o.task])[0] for o in outcomes]
    for a, b in zip(outcomes, apart, strict=True):
        assert a.run.predicted.tolist() == b.run.predicted.tolist()
        assert a.run.ids == b.run.ids


def test_a_part_of_a_stream_is_compared_and_says_so():
    part = live(10).first(6)
    outcomes = run_tasks(part, [Task("se"), Task("adte", seed=1)])
    assert [(o.record.conditions.part, o.record.conditions.images) for o in outcomes] == [
        ("first 6", 6)
    ] * 2
    assert part.shuffled(1).recipe == part.recipe
    alone = run_tasks(part, [Task("adte", seed=1)])[0]  # encoded as it goes
    assert alone.run.predicted.tolist() == outcomes[1].run.predicted.tolist()


def test_more_features_than_memory_go_through_a_temporary_cache(monkeypatch):
    monkeypatch.setattr("adte.evaluate.running.tasks.HELD", 100)
    tasks = [Task("se"), Task("adte", {}, "two-pass"), Task("tpt")]
    shared = run_tasks(live(6), tasks)
    assert [o.run.predicted.tolist() for o in shared] == [
        run_tasks(live(6), [t])[0].run.predicted.tolist() for t in tasks
    ]


def test_a_strangers_method_is_run_again_when_its_code_changes(cache, tmp_path, monkeypatch):
    """The key of a run covers the source of methods that are not ours."""
    import sys

    from adte.evaluate.running.tasks import key_of
    from adte.methods import registry

    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for number in (1, 2):
        text = (
            "from dataclasses import dataclass\n"
            "from adte.methods.zero_shot import ZeroShot\n"
            "@dataclass(kw_only=True, eq=False)\n"
            f"class Strange(ZeroShot):\n    number = {number}\n"
        )
        (tmp_path / f"strange{number}.py").write_text(text)
        module = __import__(f"strange{number}")
        info = registry.MethodInfo("strange", module.Strange, "", "", {})
        monkeypatch.setitem(registry._METHODS._things, "strange", info)
        keys.append(key_of(cache, Task("strange")))
        sys.modules.pop(f"strange{number}")
    assert keys[0] != keys[1]
    assert key_of(cache, Task("se")) == key_of(cache, Task("se"))


def test_runs_on_other_images_of_the_same_names_are_other_runs(tmp_path):
    """Two exports of one set took each other's results, and were one section of a report."""
    one = live(12)
    foggy = replace(pictures(12), sources=[image // 9 for image in pictures(12).sources])
    other = Live(one.model, one.class_weights, make_stream(foggy, order="listed"), one.views)
    results, tasks = Results(tmp_path), [Task("se"), Task("zero-shot")]
    first, second = (run_tasks(stream, tasks, results) for stream in (one, other))
    assert [o.record.key for o in first] != [o.record.key for o in second]
    assert first[0].run.confidence.tolist() != second[0].run.confidence.tolist()
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert len(before) == 8
    for stream, done in ((other, second), (one, first)):
        again = run_tasks(stream, tasks, results)
        assert [o.record for o in again] == [o.record for o in done]
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    titles = [s.title for s in read_sections([tmp_path])]
    assert len(set(titles)) == 2
    assert all("content" in title for title in titles)


def test_a_table_says_which_methods_did_not_run_under_its_prompts(cache):
    prompts = Prompts.of("art of the {}.").describe()
    stream = live(4, prompts=prompts)
    table = Comparison.of(run_tasks(stream, [Task("se"), Task("tpt"), Task("ctpt")]), stream)
    assert [r.conditions.own_prompt for r in table.records] == ["", *["a photo of a {}."] * 2]
    said = "Not under the prompts of the data, but from 'a photo of a {}.' on: tpt; ctpt."
    assert table.grid.caption.endswith(said)
    assert said in table.small.caption
    usual = live(4, prompts=Prompts.of("a photo of a {}.").describe())
    (same,) = run_tasks(usual, [Task("tpt")])
    assert same.record.conditions.own_prompt == ""


def test_a_run_that_skipped_what_can_be_read_by_now_is_no_known_one(tmp_path):
    """A cluster took it for done, and this machine did it again."""
    for name in ("cat/0.png", "cat/1.png", "dog/0.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), "red").save(path)
    first = tmp_path / "photos" / "cat" / "0.png"
    good = first.read_bytes()
    first.write_bytes(b"damaged")
    os.utime(first, (1, 1))

    def stream():
        return Source(data=[f"folder:{tmp_path / 'photos'}"], views={"count": 2}).open()

    results = Results(tmp_path / "runs")
    run_tasks(stream(), [Task("se")], results)
    key = key_of(stream(), Task("se"))
    assert known_run(stream(), results, key).conditions.images == 2
    first.write_bytes(good)
    os.utime(first, (1, 1))
    assert known_run(stream(), results, key) is None
