"""The order of the work: shuffled where all images are known, and rows in the listing's order."""

from __future__ import annotations

import csv
import json
import os
import random
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import adte.files.journal
import adte.files.states
import adte.images
import adte.label.tables
from adte import Classifier, compare
from adte.core.errors import InputError
from adte.data.places import listing
from adte.evaluate import from_arrays
from adte.files.journal import Stream
from adte.files.order import Blocks, put_back, shuffled
from adte.files.states import load_state
from adte.label import Job, Listener, Wanted, run
from predicting import call, picture, predict, settle

CLASSES = [f"class {c}" for c in "abcdefghij"]
WANTED = Wanted(CLASSES, views=2)
REAL = Path(__file__).parents[2] / "shared" / "data" / "clip-vit-b32-imagenet.npz"


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


class Recorder(Listener):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.notes: list[str] = []

    def show(self, image) -> None:
        self.names.append(image.name)

    def note(self, text: str) -> None:
        self.notes.append(text)


def folder_of(place: Path, each: int = 2) -> Path:
    """A folder for each of ten classes, by name; one image is broken."""
    for c, name in enumerate(CLASSES):
        (place / name).mkdir(parents=True)
        for i in range(each):
            picture(place / name / f"{i}.png", 10 * c + i)
    (place / CLASSES[3] / "0.png").write_bytes(b"no image")
    return place


def label(out: str, *inputs: str, **more) -> Recorder:
    recorder = Recorder()
    Job(list(inputs or ("photos",)), WANTED, out=out, workers=0, **more).run(recorder)
    return recorder


def paths(out: str) -> list[str]:
    text = Path(out).read_text()
    if out.endswith(".csv"):
        return [row["path"] for row in csv.DictReader(text.splitlines())]
    rows = json.loads(text) if out.endswith(".json") else map(json.loads, text.splitlines())
    return [row["path"] for row in rows]


def by_name(folder: str = "photos") -> list[str]:
    return sorted(str(p) for p in Path(folder).rglob("*.png"))


def same_state(one: str, other: str) -> bool:
    a, b = (load_state(f"{name}.adte")[0] for name in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --------------------------------------------------------------------------- the order itself


def test_the_order_follows_from_names_and_seed_alone(tmp_path, monkeypatch):
    names = [f"{i}.jpg" for i in range(100)]
    order = [names[i] for i in shuffled(names, 0)]
    assert order != names != [names[i] for i in shuffled(names, 1)] != order
    listed = random.Random(0).sample(names, 100)
    assert [listed[i] for i in shuffled(listed, 0)] == order
    few = names[10:40]  # what else lies in the folder makes no difference
    assert [few[i] for i in shuffled(few, 0)] == [n for n in order if n in few]

    folder_of(tmp_path / "photos")
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in reversed(by_name()):
            archive.write(path, os.path.relpath(path, "photos"))

    def order_in(start: str) -> list[str]:
        items = listing([start]).items(0)
        return [os.path.relpath(name, start) for name, _ in items]

    orders = [order_in(s) for s in ("photos", "./photos/", str(tmp_path / "photos"), "photos.zip")]
    monkeypatch.chdir("photos")
    assert all(o == orders[0] != sorted(orders[0]) for o in [*orders, order_in(".")])


def test_rows_are_put_back_in_the_places_that_they_have():
    assert put_back(list("cba"), list("abc")) == [2, 1, 0]
    assert put_back(list("bxa"), list("ab")) == [2, 1, 0]  # what is not listed stays
    assert put_back(list("aab"), list("aba")) == [0, 2, 1]  # named twice, listed twice
    assert put_back(list("aaab"), list("ab")) == [0, 1, 2, 3]
    assert put_back([], list("ab")) == []


def test_one_that_comes_class_after_class_is_known():
    def is_sorted(keys) -> bool:
        blocks = Blocks()
        for key in keys:
            blocks.add(key)
        return blocks.is_sorted

    assert is_sorted("a" * 30 + "b" * 30)
    assert is_sorted(i // 2 for i in range(100))
    assert not is_sorted("a" * 60)  # one class has no order
    assert not is_sorted(range(100))  # nor have classes of one image
    assert not is_sorted("ab" * 30)
    assert not is_sorted("aabb")  # a few images come in any order


# --------------------------------------------------------------------------- labelling


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json", "o.parquet"])
def test_ten_classes_by_name_are_equal_whatever_the_file_system_lists(out, tmp_path, monkeypatch):
    if out.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    folder_of(tmp_path / "photos")
    rows, states, orders = [], [], []
    scandir, rng = os.scandir, random.Random(0)

    @contextmanager
    def in_any_order(place):
        with scandir(place) as entries:
            every = list(entries)
        yield iter(rng.sample(every, len(every)))

    for _ in range(3):
        monkeypatch.setattr(adte.images.decode.os, "scandir", in_any_order)
        recorder = label(out, force=True)
        monkeypatch.setattr(adte.images.decode.os, "scandir", scandir)
        rows.append(Path(out).read_bytes())
        states.append(load_state(f"{out}.adte")[0])
        orders.append(recorder.names)
        assert recorder.notes == []
    assert rows[0] == rows[1] == rows[2]
    assert orders[0] == orders[1] == orders[2]
    assert orders[0] != by_name() == sorted(orders[0])
    assert all(torch.equal(states[0][k], s[k]) for s in states for k in s)
    if not out.endswith(".parquet"):
        assert paths(out) == by_name()
    assert paths(f"{out}.jsonl") == by_name() if out.endswith(".parquet") else True


def test_the_shuffled_order_is_another_stream_than_the_listed(tmp_path):
    folder_of(tmp_path / "photos")
    recorder = label("listed.csv", order="listed")
    assert recorder.names == by_name() == paths("listed.csv")
    label("shuffled.csv")
    assert paths("shuffled.csv") == by_name()
    assert not same_state("listed.csv", "shuffled.csv")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
@pytest.mark.parametrize("out", ["o.csv", "o.json"])
def test_killed_at_any_step_and_resumed_it_is_equal_again(out, tmp_path, monkeypatch):
    """Before and after each row, each save of the state, and each file that is put in place."""
    folder_of(tmp_path / "photos", 1)
    monkeypatch.setattr(run, "EVERY", 0.0)
    label(f"whole.{out}")
    wanted = Path(f"whole.{out}").read_bytes()

    def child(last: int) -> bool:
        """Run in another process, which ends at once at a step; whether it came to its end."""
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        steps = 0

        def stepping(real):
            def step(*args, **more):
                nonlocal steps
                if last == steps + 1:
                    os._exit(9)
                done = real(*args, **more)
                steps += 2
                if last == steps:
                    os._exit(9)
                return done

            return step

        try:
            Stream._put = stepping(Stream._put)
            for module in (adte.files.journal, adte.files.states, adte.label.tables):
                module.write_whole = stepping(module.write_whole)
            label(out)
            os._exit(0)
        finally:
            os._exit(1)

    ends = 0
    last = 0
    while not ends:
        last += 1
        for left in (out, f"{out}.adte", f"{out}.jsonl"):
            Path(left).unlink(missing_ok=True)
        ends = child(last)  # killed once …
        if not ends and last % 3 == 0:
            child(last // 2 + 1)  # … or twice
        label(out)
        assert Path(out).read_bytes() == wanted, last
        assert same_state(out, f"whole.{out}"), last
    assert last > 20


def test_rows_of_another_order_and_new_images_go_on(tmp_path):
    class Enough(Recorder):
        def show(self, image) -> None:
            super().show(image)
            if len(self.names) == 7:
                raise KeyboardInterrupt

    folder_of(tmp_path / "photos")
    job = Job(["photos"], WANTED, out="o.csv", workers=0, order="listed")
    with pytest.raises(KeyboardInterrupt):
        job.run(first := Enough())
    there = paths("o.csv")
    assert first.names == by_name()[:7] == there[:7]
    assert len(there) < 10
    label("o.csv")
    assert paths("o.csv") == by_name()
    picture(tmp_path / "photos" / CLASSES[0] / "00.png", 99)
    before = Path("o.csv").read_text().splitlines()
    again = label("o.csv")
    assert set(again.names) == {f"photos/{CLASSES[0]}/00.png", f"photos/{CLASSES[3]}/0.png"}
    assert paths("o.csv") == by_name()
    after = Path("o.csv").read_text().splitlines()
    assert [line for line in after if "00.png" not in line] == before
    assert load_state("o.csv.adte")[1]["seen"] == 20
    label("o.csv", "photos/class j", "photos/class a")  # all there: nothing is put elsewhere
    assert set(after) == set(Path("o.csv").read_text().splitlines())


def test_a_state_that_was_not_saved_leaves_the_rows_where_they_are(tmp_path, monkeypatch):
    folder_of(tmp_path / "photos", 1)
    real, saves = Classifier.checkpoint, []

    def checkpoint(self, *args, **more):
        saves.append(1)
        if len(saves) > 1:
            raise InputError("the disk is full")
        return real(self, *args, **more)

    monkeypatch.setattr(Classifier, "checkpoint", checkpoint)
    recorder = label("o.jsonl")
    assert paths("o.jsonl") == recorder.names != by_name()
    monkeypatch.setattr(Classifier, "checkpoint", real)
    label("o.jsonl")
    label("whole.jsonl")
    assert Path("o.jsonl").read_text() == Path("whole.jsonl").read_text()
    assert same_state("o.jsonl", "whole.jsonl")


def test_files_zips_and_facts_are_shuffled_and_put_back_too(tmp_path):
    folder_of(tmp_path / "photos")
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in by_name():
            archive.write(path, os.path.relpath(path, "photos"))
    label("folder.csv", "photos")
    packed = label("zip.csv", "photos.zip", json_to="facts.json")
    names = [n.replace("photos/", "photos.zip/", 1) for n in by_name()]
    assert packed.names != names == paths("zip.csv")
    assert same_state("folder.csv", "zip.csv")
    assert [row["path"] for row in json.loads(Path("facts.json").read_text())["rows"]] == names
    some = random.Random(0).sample(by_name(), 8)
    files = label("files.csv", *some)
    assert sorted(files.names) == sorted(some)
    assert paths("files.csv") == some != files.names


def test_rows_to_a_stream_come_as_they_are_made_with_one_note(tmp_path):
    folder_of(tmp_path / "photos", 1)
    result = predict("photos", "--out", "-")
    made = [json.loads(line)["path"] for line in result.stdout.splitlines()]
    assert sorted(made) == by_name() != made
    assert result.stderr.count("shuffled order of the work") == 1
    result = predict("photos", "--out", "-", "--order", "listed")
    assert [json.loads(line)["path"] for line in result.stdout.splitlines()] == by_name()
    assert "order of the work" not in result.stderr


def test_streams_come_as_they_come_with_one_note_if_sorted(tmp_path):
    folder_of(tmp_path / "photos", 6)
    with tarfile.open("photos.tar", "w") as tar:
        for path in by_name():
            tar.add(path)
    taken = label("tar.csv", "photos.tar")
    assert taken.names == [f"photos.tar/{n}" for n in by_name()] == paths("tar.csv")
    listed = label("listed.csv", order="listed")
    assert [len(r.notes) for r in (taken, listed, label("shuffled.csv"))] == [1, 1, 0]
    assert "folder after folder" in taken.notes[0]


def test_learn_takes_the_order(tmp_path):
    folder_of(tmp_path / "photos", 1)
    words = ("learn", "photos", "--classes", ", ".join(CLASSES), "--views", 2, "--workers", 0)
    for order in ("shuffled", "listed"):
        call(*words, "--state", f"{order}.learned.adte", "--order", order)
        label(f"{order}.csv", order=order)
        assert same_state(f"{order}.learned", f"{order}.csv")
    call(*words, "--state", "usual.adte")
    assert same_state("usual", "shuffled.csv")


# --------------------------------------------------------------------------- in Python


def test_a_stream_of_a_folder_is_shuffled_and_names_its_images(tmp_path):
    folder_of(tmp_path / "photos", 6)
    (tmp_path / "photos" / CLASSES[3] / "0.png").unlink()

    def new() -> Classifier:
        return Classifier("tiny", CLASSES, views=2)

    names = [p.source for p in new().stream("photos")]
    assert sorted(names) == by_name() != names
    assert names == label("o.csv").names
    with pytest.warns(UserWarning, match="folder after folder") as notes:
        assert [p.source for p in new().stream("photos", order="listed")] == by_name()
    assert len(notes) == 1
    with pytest.warns(UserWarning, match="folder after folder"):  # in the order of the caller
        assert [p.source for p in new().stream(by_name())] == by_name()
    one, other = new(), new()
    assert one.learn("photos") == 59
    for _ in other.stream("photos"):
        pass
    a, b = (clf.method.state_dict() for clf in (one, other))
    assert all(torch.equal(a[k], b[k]) for k in a)
    with pytest.raises(InputError, match="unknown order of images 'sorted'"):
        next(new().stream("photos", order="sorted"))


# --------------------------------------------------------------------------- own features


@pytest.fixture
def arrays():
    """Rows sorted by class."""
    rng = np.random.default_rng(0)
    weights, labels = rng.normal(size=(6, 16)), np.repeat(np.arange(6), 12)
    return weights[labels] + 2 * rng.normal(size=(72, 16)), weights, labels


def test_own_features_come_shuffled_or_as_they_are_listed(arrays):
    listed = from_arrays(*arrays, order="listed")
    assert listed.labels.tolist() == arrays[2].tolist()
    usual, again, other = (from_arrays(*arrays, seed=s) for s in (0, 0, 1))
    assert usual.labels.tolist() == again.labels.tolist() != listed.labels.tolist()
    assert usual.labels.tolist() != other.labels.tolist()
    facts = [s.recipe.data for s in (listed, usual, again, other)]
    assert [d["order"] for d in facts] == ["listed", *3 * ["shuffled"]]
    digests = [d["digest"] for d in facts]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    names = [int(i.id) for i in usual.images()]
    assert np.array_equal(arrays[2][names], usual.labels)
    domains = ["clean"] * 30 + ["fog"] * 42  # which stay where they are
    assert from_arrays(*arrays, domains=domains).domains == domains
    with pytest.raises(InputError, match="unknown order of rows 'file'"):
        from_arrays(*arrays, order="file")


def test_a_comparison_says_its_order_and_takes_another(arrays, tmp_path, recwarn):
    np.savez("x.npz", image=arrays[0], text=arrays[1], label=arrays[2])
    spec = "npz:x.npz"
    usual = compare(spec, ["se", "tilt"], runs="runs")
    assert not recwarn.list
    data = usual.records[0].conditions.data
    assert (data["order"], data["seed"]) == ("shuffled", 0)
    same = compare(from_arrays(*arrays, name="x"), ["se", "tilt"], runs="runs")
    assert list(same) == list(usual)  # they are the same runs, and read from the folder
    assert len(list(Path("runs").rglob("*.json"))) == 2
    with pytest.warns(UserWarning, match="class after class") as notes:
        listed = compare(spec, ["se", "tilt"], order="listed")
    assert len(notes) == 1
    assert "order=listed" in listed.title
    assert listed[0]["accuracy"] == usual[0]["accuracy"]  # of SE, which does not learn
    assert listed[1]["nll"] != usual[1]["nll"]
    for more in ({"shuffle": 2}, {"seed": 3}):
        (row,) = compare(spec, "tilt", **more)
        assert row["nll"] != usual[1]["nll"]
    seeds = compare(spec, "tilt", seeds=2, shuffle=1)
    assert [r.conditions.order_seed for r in seeds.records] == [1, 2]


def test_compare_and_sweep_take_the_shuffle_that_the_message_names(arrays, tmp_path):
    np.savez("x.npz", image=arrays[0], text=arrays[1], label=arrays[2])
    asked = ("--data", "npz:x.npz", "--order", "listed")
    for verb in (("compare", "--methods", "tilt"), ("sweep", "smoothing=20,50")):
        result = call(*verb, *asked)
        assert result.stderr.count("class after class") == 1
        assert "--shuffle" in result.stderr
        assert "class after class" not in call(*verb, *asked, "--shuffle", 1).stderr


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data/clip-vit-b32-imagenet.npz")
def test_shuffled_is_as_the_readme_says_on_real_features():
    methods = ["zero-shot", "tilt"]
    plain, usual = (r["accuracy"] for r in compare(f"npz:{REAL}", methods))
    assert (round(100 * plain, 1), round(100 * usual, 1)) == (61.2, pytest.approx(62.5, abs=0.3))
    with pytest.warns(UserWarning, match="class after class"):
        (listed,) = compare(f"npz:{REAL}", "tilt", order="listed")
    assert 100 * listed["accuracy"] == pytest.approx(62.0, abs=0.3)
