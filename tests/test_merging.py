"""`adte merge`: one state file of several."""

from __future__ import annotations

import pickle
import shutil
from copy import copy, deepcopy
from pathlib import Path

import pytest
import torch

import adte
from adte.classifier.learned import MOST, Learned, Lineage
from adte.files.states import digest_of, load_state, save_state
from adte.testing.samples import world
from predicting import CLASSES, call, is_clean, picture, settle
from test_facts import LATER


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def learned(folder: Path, count: int, seed: int, state: str, *more: object) -> str:
    """A state that has learned from some pictures."""
    photos = [picture(folder / f"{seed}-{i}.png", seed + i) for i in range(count)]
    assert call("learn", *photos, *(more or CLASSES), "--state", state).exit_code == 0
    return state


def test_states_are_merged_without_their_model(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    parts = [learned(tmp_path / "photos", n, 10 * n, f"{n}.adte") for n in (2, 3, 1)]
    whole = adte.Classifier.load(parts[0])
    for part in parts[1:]:
        whole.merge(adte.Classifier.load(part))
    whole.save("loop.adte")
    before = [Path(part).read_bytes() for part in parts]
    monkeypatch.setattr("adte.classifier.arguments.load_model", None)
    result = call("merge", *parts, "--out", "all.adte")
    assert result.exit_code == 0, result.output
    assert result.output == "wrote all.adte: 3 states, 6 images\n"
    (tensors, facts), (wanted, loop) = load_state("all.adte"), load_state("loop.adte")
    assert facts == loop
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)
    assert [Path(part).read_bytes() for part in parts] == before


def test_what_is_no_part_of_a_whole_is_not_merged(tmp_path):
    (tmp_path / "photos").mkdir()
    one, two = (learned(tmp_path / "photos", 2, seed, f"{seed}.adte") for seed in (1, 5))
    others = ("--classes", "cat, dog", "--views", "4", "--workers", "0")
    third = learned(tmp_path / "photos", 1, 9, "third.adte", *others)
    for given, said in (
        ((one, third, "--out", "new.adte"), "'third.adte' has other classes (2 classes there"),
        ((one, "none.adte", "--out", "new.adte"), "'none.adte' does not exist; check the path"),
        ((one, two, "./1.adte", "--out", "new.adte"), "'./1.adte' is given twice"),
        ((one, one, "--out", "new.adte"), "'1.adte' is given twice"),
        ((one, two, "--out", "1.adte"), "is the input '1.adte'"),
        ((one, two, "--out", "third.adte"), "holds a state already; give another name, or --force"),
        ((one, two, "--out", "-"), "--out '-' is not a file; give a file name"),
    ):
        before = files(tmp_path)
        result = call("merge", *given)
        assert is_clean(result)
        assert result.exit_code == 2
        assert said in result.output
        assert files(tmp_path) == before
    assert call("merge", one, two, "--out", "third.adte", "--force").exit_code == 0
    assert load_state("third.adte")[1]["seen"] == 4


def test_of_several_temperatures_the_first_stays_and_frozen_parts_make_a_frozen_whole(tmp_path):
    (tmp_path / "photos").mkdir()
    names = [learned(tmp_path / "photos", 2, seed, f"{seed}.adte") for seed in (1, 5)]
    for name, temperature in zip(names, (2.0, 1.0), strict=True):
        clf = adte.Classifier.load(name).freeze()
        clf.temperature = temperature
        clf.save(name)
    result = call("merge", *names, "--out", "new.adte")
    assert (
        "note: the states have different temperatures; that of '1.adte' is kept, 2" in result.output
    )
    facts = load_state("new.adte")[1]
    assert (facts["temperature"], facts["frozen"], facts["seen"]) == (2.0, True, 4)


def counted(state: str) -> tuple[float, int]:
    """The predictions and the images that a state counts."""
    tensors, facts = load_state(state)
    return round(float(tensors["counts"].sum()), 4), facts["seen"]


def images_of(clf: adte.Classifier) -> int:
    """The images that it learned from, with those of earlier streams."""
    state = clf.method.state_dict()
    return int(state["seen"] + state["before"])


def begun(folder: Path, count: int, seed: int, start: str) -> str:
    """The state of a stream that began from another."""
    photos = [picture(folder / f"{seed}-{i}.png", seed + i) for i in range(count)]
    result = call("predict", *photos, "--start", start, "--out", f"{seed}.csv", "-q")
    assert result.exit_code == 0, result.output
    return f"{seed}.csv.adte"


def test_what_states_began_from_counts_once(tmp_path):
    (tmp_path / "photos").mkdir()
    warm = learned(tmp_path / "photos", 3, 100, "warm.adte")
    parts = [begun(tmp_path / "photos", n, 10 * n, warm) for n in (1, 2, 4)]
    assert [counted(part) for part in parts] == [(4.0, 1), (5.0, 2), (7.0, 4)]
    result = call("merge", *parts, "--out", "thrice.adte")
    assert result.exit_code == 0, result.output
    said = "'20.csv.adte' and what it is merged with go back to the same state, which counts twice"
    assert said in result.output
    assert counted("thrice.adte") == (16.0, 7)
    result = call("merge", *parts, "--out", "once.adte", "--start", warm)
    assert result.output == "wrote once.adte: 3 states, 7 images\n"
    assert counted("once.adte") == (10.0, 7)
    # a whole of parts is part of a larger one, beside what began with nothing
    some = call("merge", *parts[:2], "--out", "some.adte", "--start", warm)
    empty = learned(tmp_path / "photos", 2, 50, "empty.adte")
    more = call("merge", empty, "some.adte", parts[2], "--out", "more.adte", "--start", warm)
    assert some.exit_code == more.exit_code == 0, more.output
    assert counted("more.adte") == (12.0, 9)
    # whichever come first
    other = learned(tmp_path / "photos", 1, 60, "other.adte")
    last = call("merge", empty, other, *parts[:2], "--out", "last.adte", "--start", warm)
    assert last.exit_code == 0, last.output
    assert counted("last.adte") == (9.0, 6)
    # it may be one of those that are merged, and is then there with its own images
    for given in ([warm, *parts[:2]], [other, parts[0], warm, parts[1]], [other, warm, *parts[:2]]):
        images = 6 + given.count(other)
        twice = call("merge", *given, "--out", "twice.adte", "--force")
        assert "go back to the same state" in twice.output
        assert counted("twice.adte") == (6.0 + images, images)
        result = call("merge", *given, "--out", "it.adte", "--start", warm, "--force")
        assert result.output == f"wrote it.adte: {len(given)} states, {images} images\n"
        assert counted("it.adte") == (images, images)


def test_merging_with_a_start_is_adding_what_came_after_it(tmp_path):
    (tmp_path / "photos").mkdir()
    warm = adte.Classifier.load(learned(tmp_path / "photos", 3, 100, "warm.adte"))
    streams = []
    for seed in (1, 5):
        clf = adte.Classifier.load("warm.adte")
        clf.begin()
        clf.learn([str(picture(tmp_path / f"{seed}-{i}.png", seed + i)) for i in range(2)])
        streams.append(clf)
    one, two = (clf.method.state_dict() for clf in streams)
    streams[0].merge(streams[1], start=warm)
    warm.begin()
    with pytest.raises(adte.StateError, match="another state than the start"):
        streams[0].merge(streams[1], start=warm)  # it is not what they began from any more
    common = warm.method.state_dict()
    for name, merged in streams[0].method.state_dict().items():
        torch.testing.assert_close(merged, one[name] + two[name] - common[name])
    assert streams[0].seen == 4
    assert streams[0].lineage.all - streams[1].lineage.all == {digest_of(two)}
    streams[0].reset()
    assert not streams[0].lineage.all


@pytest.mark.parametrize("way", ["saved", "pickled", "copied", "deep-copied"])
def test_what_is_handed_on_counts_once(tmp_path, way):
    """The one that is copied, and its copies, hold the same images."""
    clf = adte.Classifier("tiny", ["cat", "dog"], views=2)
    clf.learn([str(picture(tmp_path / f"{i}.png", i)) for i in range(3)])
    ways = {"pickled": lambda: pickle.loads(pickle.dumps(clf)), "copied": lambda: copy(clf)}
    ways |= {"deep-copied": lambda: deepcopy(clf)}
    ways |= {"saved": lambda: adte.Classifier.load(clf.save("then.adte"), clf.model)}
    start, *copies = (ways[way]() for _ in range(3))
    streams = [clf, *copies]
    for number, one in enumerate(streams):
        one.learn(str(picture(tmp_path / f"own-{number}.png", 10 + number)))
    with pytest.warns(UserWarning, match="counts twice"):
        copy(clf).merge(copies[0])
    for one in copies:
        clf.merge(one, start=start)
    assert clf.seen == 3 + len(streams)
    answers = clf.method.state_dict()["answers"]
    assert float(answers.sum()) == pytest.approx(clf.seen)


def test_what_was_begun_with_is_remembered_however_often_it_is_saved(tmp_path):
    learned(tmp_path, 2, 100, "warm.adte")
    one, two, start = (adte.Classifier.load("warm.adte") for _ in range(3))
    for i in range(MOST + 2):
        one.learn(torch.full((8, 8, 3), i, dtype=torch.uint8))
        one.save("one.adte")
    assert len(one.lineage.held) == 1 + MOST + 2
    two.learn(str(picture(tmp_path / "own.png", 9)))
    with pytest.warns(UserWarning, match="counts twice"):
        copy(one).merge(two)
    one.merge(two, start=start)
    assert one.seen == 2 + MOST + 2 + 1


def test_a_state_knows_all_that_it_goes_back_to(tmp_path):
    (tmp_path / "photos").mkdir()
    learned(tmp_path / "photos", 3, 100, "warm.adte")
    photos = (str(picture(tmp_path / f"{i}.png", i)) for i in range(20))  # no two alike

    def begun(*images: int) -> adte.Classifier:
        clf = adte.Classifier.load("warm.adte")
        for count in images:
            clf.begin()
            clf.learn([next(photos) for _ in range(count)])
        return clf

    for one, two in (
        (begun(1), begun(0, 1)),  # of which the second begin changed nothing
        (begun(1), begun(1, 1)),
        (begun(1, 2), begun(1, 1, 0)),
    ):
        seen = one.seen + two.seen
        before = [images_of(clf) for clf in (one, two)]
        with pytest.warns(UserWarning, match="go back to the same state, which counts twice"):
            deepcopy(one).merge(two)
        one.merge(two, start=adte.Classifier.load("warm.adte"))
        counts = one.method.state_dict()["counts"]
        assert (one.seen, images_of(one)) == (seen, sum(before) - 3)
        assert float(counts.sum()) == pytest.approx(sum(before) - 3)
        assert float(counts.min()) >= 0
    # what both began from last stands for what that goes back to
    later = begun(1)
    starts = [copy(later) for _ in range(2)]
    for clf in starts:
        clf.begin()
        clf.learn([next(photos)])
    starts[0].merge(starts[1], start=later)
    assert images_of(starts[0]) == 6


def test_what_states_went_on_from_counts_once(tmp_path):
    """Copies of a state that learned more were merged as if they had nothing in common."""
    (tmp_path / "photos").mkdir()
    full = learned(tmp_path / "photos", 3, 100, "full.adte")
    parts = []
    for seed in (1, 5):
        parts.append(shutil.copy(full, f"{seed}.adte"))
        learned(tmp_path / "photos", 2, seed, parts[-1])
    assert [counted(part) for part in parts] == [(5.0, 5)] * 2
    twice = call("merge", *parts, "--out", "twice.adte")
    assert "'5.adte' and what it is merged with go back to the same state" in twice.output
    assert counted("twice.adte") == (10.0, 10)
    result = call("merge", *parts, "--out", "once.adte", "--start", full)
    assert result.output == "wrote once.adte: 2 states, 7 images\n"
    assert counted("once.adte") == (7.0, 7)
    # one of them may be the state itself, or have begun from it
    assert call("merge", full, *parts, "--out", "all.adte", "--start", full).exit_code == 0
    assert counted("all.adte") == (7.0, 7)
    fresh = begun(tmp_path / "photos", 1, 70, full)
    assert call("merge", parts[0], fresh, "--out", "both.adte", "--start", full).exit_code == 0
    assert counted("both.adte") == (6.0, 6)
    # what was saved as it began, and then loaded, is the same as what it began from
    clf = adte.Classifier.load(full)
    clf.begin()
    clf.save("begun.adte")
    for start in ("begun.adte", full):
        one, two = (adte.Classifier.load("begun.adte") for _ in range(2))
        for clf, seed in ((one, 80), (two, 90)):
            clf.learn([str(picture(tmp_path / f"{seed}.png", seed))])
        one.merge(two, start=adte.Classifier.load(start))
        assert (one.seen, images_of(one)) == (2, 5)


def test_what_is_merged_twice_or_with_the_wrong_start_is_noticed(tmp_path):
    (tmp_path / "photos").mkdir()
    warm = learned(tmp_path / "photos", 3, 100, "warm.adte")
    parts = [begun(tmp_path / "photos", n, 10 * n, warm) for n in (1, 2)]
    result = call("merge", *parts, "--out", "wrong.adte", "--start", parts[0])
    assert "go back to the same state, which counts twice" in result.output
    whole, part = (adte.Classifier.load(parts[0]).anew() for _ in range(2))
    for clf, seed in ((whole, 70), (part, 80)):
        clf.learn([str(picture(tmp_path / f"{seed}.png", seed))])
    whole.merge(part)
    with pytest.warns(UserWarning, match="go back to the same state, which counts twice"):
        whole.merge(part)


def test_a_state_remembers_the_first_and_the_last_states_that_it_holds():
    method = adte.create_method("tilt", likeness=0)
    now = Learned(method, 0, Lineage(begun_from=("that",)))
    assert now.noted() == now  # nothing was learned yet
    held = []
    for day in world(2 * MOST + 3, views=2):
        method.learn(day)
        now = now.noted()
        assert now.noted() == now
        held.append(now.digest)
    assert now.lineage == Lineage((*held[:MOST], *held[-MOST:]), ("that",))


def test_a_start_that_cannot_be_taken_out_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    warm = learned(tmp_path / "photos", 3, 100, "warm.adte")
    other = learned(tmp_path / "photos", 2, 200, "other.adte")
    parts = [begun(tmp_path / "photos", n, 10 * n, warm) for n in (1, 2)]
    tda = learned(tmp_path / "photos", 2, 300, "tda.adte", *CLASSES, "--method", "tda")
    cached = [begun(tmp_path / "photos", n, 40 + n, tda) for n in (1, 2)]
    for given, start, said in (
        (parts, other, "began or went on from another state than the start that was given"),
        (cached, tda, "the state of 'tda' is no sum, so what two of them began with cannot"),
        (parts, tda, "'tda.adte' has method 'tda'"),
        (parts, "none.adte", "'none.adte' does not exist"),
    ):
        before = files(tmp_path)
        result = call("merge", *given, "--out", "new.adte", "--start", start)
        assert is_clean(result)
        assert result.exit_code == 2
        assert said in result.output
        assert files(tmp_path) == before


@pytest.mark.parametrize("older", [0, 1])
def test_a_state_of_before_a_fact_was_kept_is_merged_in_any_order(older, tmp_path):
    """The other order ended in a traceback, or lost the fact."""
    (tmp_path / "photos").mkdir()
    parts = [learned(tmp_path / "photos", n, 10 * n, f"{n}.adte") for n in (1, 2)]
    tensors, facts = load_state(parts[older])
    save_state(parts[older], tensors, {k: v for k, v in facts.items() if k not in LATER})
    result = call("merge", *parts, "--out", "all.adte")
    assert result.exit_code == 0, result.output
    assert load_state("all.adte")[1]["preprocess"] == load_state(parts[1 - older])[1]["preprocess"]
    assert load_state("all.adte")[1]["scale"] is not None
