"""`adte merge`: one state file of several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import adte
from adte.files.states import load_state
from predicting import CLASSES, call, is_clean, picture, settle


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
    monkeypatch.setattr("adte.given.load_model", None)
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
