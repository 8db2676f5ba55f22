"""`adte.compare`: methods side by side, from Python."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from adte import InputError, Sample, create_method
from adte.evaluate.compare import Listener, compare
from adte.evaluate.features.cache import Cache
from adte.evaluate.running.tasks import Task, tasks_for


@pytest.fixture(scope="module")
def table():
    return compare(methods=["zero-shot", "se", "adte"], protocols=["online", "two-pass"], limit=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for i in range(2):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_it_prints_as_a_table(table):
    lines = str(table).splitlines()
    assert lines[0] == "tiny-imagenet, 20 images, 200 classes, model tiny-longtail"
    assert lines[1].split()[:3] == ["method", "protocol", "acc."]
    assert f"{100 * table[0]['accuracy']:.1f}" in lines[2]
    assert len({line.index("online") for line in lines if "online" in line}) == 1
    assert repr(table) == str(table)
    page = table._repr_html_()
    assert page.count("<tr>") == 5
    assert "two-pass" in page


def test_it_saves_what_the_command_line_saves(table, tmp_path):
    path = table.save(tmp_path / "t.csv")
    with path.open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [float(r["accuracy"]) for r in rows] == [r["accuracy"] for r in table]
    with pytest.raises(InputError, match=r"\.csv, \.md, \.html or \.tex"):
        table.save(tmp_path / "t.txt")


def test_a_table_says_which_stream_it_ran_on(folder, tmp_path):
    table = compare(f"folder:{folder}", "zero-shot", views=2, workers=0, order="class-ordered",
                    domains="mixed", imbalance="zipf", ratio=4.0, corrupt="fog")  # fmt: skip
    said = (f"{folder.name}, 6 images, 2 classes, model tiny, order=class-ordered, domains=mixed, "
            "imbalance=zipf, ratio=4.0, clean + fog/5")  # fmt: skip
    assert str(table).splitlines()[0] == said
    tex = table.save(tmp_path / "t.tex").read_text("utf-8")
    assert f"\\caption{{{said}. Accur" in tex.replace(r"\_", "_")


def test_a_method_with_other_options_does_not_pass_for_the_usual_one():
    """Its row had the bare name, and every gain was over it as if it were SE."""
    tasks = [Task("se", {"ratio": 0.5}), "zero-shot", "average"]
    table = compare(methods=tasks, limit=8)
    assert [row["method"] for row in table] == ["se ratio=0.5", "zero-shot", "average"]
    assert {row["over"] for row in table} == {"zero-shot"}
    assert "vs zero-shot, 95 %" in str(table)
    asked = compare(methods=tasks, limit=8, baseline="se ratio=0.5")
    assert "vs se ratio=0.5: the gain" in str(asked)
    assert asked[0]["gain"] == 0
    with pytest.raises(InputError, match="unknown baseline 'se'"):
        compare(methods=tasks, limit=8, baseline="se")


def test_a_method_that_is_held_runs_anew_with_its_options():
    held = create_method("adte", tau=0.5)
    held.step(Sample(torch.zeros(1, 3)))  # of other classes: what it has learned is left out
    table = compare(methods=[held, "adte", create_method("se")], limit=8)
    assert [row["method"] for row in table] == ["adte tau=0.5", "adte", "se"]
    assert int(held.state_dict()["prior.seen"]) == 1
    with pytest.raises(InputError, match="Own is a method that is not registered; put @register"):
        compare(methods=type("Own", (type(held),), {})(), limit=8)


@pytest.mark.slow
def test_a_stream_that_is_there():
    stream = Cache().first(6)
    assert compare(stream, "se")[0]["accuracy"] == compare(methods="se", limit=6)[0]["accuracy"]
    with pytest.raises(InputError, match="limit cannot be set for a stream"):
        compare(stream, "se", limit=3)


def test_somebody_can_listen():
    heard = []
    listener = Listener(
        heard.append,
        lambda task: heard.append(task.name),
        lambda record: heard.append(record.metrics["images"]),
    )
    compare(methods="se", limit=2, listener=listener)
    assert heard == ["se", 2, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"methods": "adt"}, "did you mean 'adte'"),
        ({"methods": []}, "leave them out for all"),
        ({"methods": "se", "protocols": ["offline"]}, "unknown protocol 'offline'"),
        ({"methods": "se", "protocols": "offline"}, "unknown protocol 'offline'"),
        ({"methods": "se", "seeds": 0}, "seeds=0"),
        ({"methods": "se", "nonsense": 1}, "unknown option of a comparison 'nonsense'"),
        ({"methods": "se", "views": 3}, "64 views per image, not 3"),
        ({"methods": "se", "limit": 0}, "limit=0"),
        ({"methods": "se", "seeds": "x"}, "seeds='x' cannot be used; give a whole number"),
        ({"methods": "se", "batch": "x"}, "batch='x' is not a number"),
        ({"methods": "se", "batch": 1.5}, "batch=1.5 is not a whole number"),
        ({"methods": "se", "workers": -1}, "workers=-1 must be at least 0"),
        ({"methods": "se", "clean": 3}, "clean=3 is no switch"),
        ({"methods": "se", "templates": 3}, "template 3 is no text"),
        ({"methods": "se", "prompts": "seven"}, "unknown option of a comparison 'prompts'"),
        ({"methods": "tent"}, "needs the image tower"),
        ({"data": "folder:/nowhere", "methods": "se"}, "/nowhere"),
        ({"methods": 3}, "methods=3 cannot be run; give names in a list"),
        ({"protocols": 3}, "protocols=3 cannot be run; give names in a list"),
        ({"again": True}, "again=True redoes the runs of a folder; name it as runs=FOLDER"),
    ],
    ids=str,
)
def test_bad_input_is_named(given, message):
    with pytest.raises(InputError, match=message):
        compare(**given)


def test_tasks_run_under_every_protocol_on_every_shuffle():
    tasks = tasks_for(
        [Task("adte", {"tau": 1.0}), Task("se"), Task("adte", seed=5)],
        ["online", "two-pass"],
        range(2),
    )
    assert [(t.method, t.protocol, t.seed) for t in tasks] == [
        ("adte", "online", 0), ("adte", "online", 1), ("adte", "two-pass", 0),
        ("adte", "two-pass", 1), ("se", "online", 0), ("adte", "online", 5),
    ]  # fmt: skip
