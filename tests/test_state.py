"""State files: whole or not at all."""

from __future__ import annotations

import os

import pytest
import torch

from adte import InputError, StateError
from adte.state import load_state, save_state, write_whole


def test_round_trip(tmp_path):
    tensors = {"a": torch.arange(6).view(2, 3), "b": torch.tensor(True), "none": torch.empty(0, 4)}
    facts = {"classes": ["größe", "猫"], "n": 3, "x": 1e-9}
    path = save_state(tmp_path / "s", tensors, facts)
    back, header = load_state(path)
    assert back.keys() == tensors.keys()
    for key, value in tensors.items():
        assert torch.equal(back[key], value)
        assert back[key].dtype == value.dtype
    assert {k: header[k] for k in facts} == facts


def test_a_failing_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")

    def half(name: str) -> None:
        with open(name, "w") as f:
            f.write("ne")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        write_whole(tmp_path, lambda name: None)
    with pytest.raises(InputError, match="make it first"):
        write_whole(tmp_path / "no" / "file", lambda name: None)


def test_foreign_safetensors_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(StateError, match="not a state of adte"):
        load_state(tmp_path / "foreign")
