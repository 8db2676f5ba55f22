"""State files: what is written comes back, and damage is one sentence."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adte import InputError, StateError
from adte.files import states
from adte.files.states import FORMAT, load_state, save_state


def test_round_trip(tmp_path):
    tensors = {"a": torch.arange(6).view(2, 3), "b": torch.tensor(True), "none": torch.empty(0, 4)}
    facts = {"classes": ["größe", "猫", "caf\udce9"], "n": 3, "x": 1e-9}
    path = save_state(tmp_path / "s", tensors, {**facts, "format": 1})
    back, header = load_state(path)
    assert back.keys() == tensors.keys()
    for key, value in tensors.items():
        assert torch.equal(back[key], value)
        assert back[key].dtype == value.dtype
    assert header == {**facts, "format": FORMAT}


def test_foreign_safetensors_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(StateError, match="not a state of adte"):
        load_state(tmp_path / "foreign")


def with_header(path: Path, header: str) -> Path:
    """A state file without tensors whose header is this text."""
    top = json.dumps({"__metadata__": {"adte": header}}).encode()
    path.write_bytes(struct.pack("<Q", len(top)) + top)
    return path


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("", "damaged"),
        ("[]", "not a table of facts"),
        ("null", "not a table of facts"),
        ("{}", "format is None"),
        ('{"format": true}', "format is True"),
        ('{"format": "2"}', "format is '2'"),
        ('{"format": 2.0}', "format is 2.0"),
        ('{"format": 0}', "format is 0"),
        ('{"format": -1}', "format is -1"),
        ('{"format": [[[[[[[[[[]]]]]]]]]]}', "format is"),
        ('{"format": 99, "version": "7.1"}', r"state format 99, .* formats up to 2; .*\('7.1'\)"),
        ('{"format": 1' + "0" * 60 + "}", "state format 1000"),
        ('{"format": ' + "9" * 5000 + "}", "damaged"),
        ('{"format": 2, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_bad_headers_are_one_sentence(header, sentence, tmp_path):
    path = with_header(tmp_path / "bad.adte", header)
    with pytest.raises(StateError, match=sentence) as caught:
        load_state(path)
    assert "bad.adte" in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_files_of_format_1_are_read_and_newer_ones_are_not(tmp_path):
    old = with_header(tmp_path / "old.adte", '{"format": 1, "version": "0.1.0"}')
    assert load_state(old)[1] == {"format": 1, "version": "0.1.0"}
    new = with_header(tmp_path / "new.adte", json.dumps({"format": FORMAT + 1}))
    with pytest.raises(StateError, match="load it with the version that wrote it"):
        load_state(new)


def test_every_byte_of_a_state_counts(tmp_path):
    """A flipped bit is found, or (in the checksum's own name) makes no difference."""
    tensors = {"a": torch.arange(4.0), "b": torch.ones(3, dtype=torch.int64), "c": torch.eye(2)}
    path = save_state(tmp_path / "s.adte", tensors, {"classes": ["cat", "dog"]})
    data, (want, facts) = path.read_bytes(), load_state(path)
    missed = 0
    for place in range(8, len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            found, same = load_state(path)
        except StateError:
            continue
        missed += 1
        assert same == facts
        assert all(torch.equal(found[name], x) for name, x in want.items())
    assert missed <= len("checksum")


def test_a_state_without_a_checksum_is_read(tmp_path):
    """As earlier versions wrote it."""
    parts = states.as_bytes({"a": torch.ones(2)}, {}, checksum=False)
    (tmp_path / "s.adte").write_bytes(b"".join(parts))
    assert torch.equal(load_state(tmp_path / "s.adte")[0]["a"], torch.ones(2))


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_state(tmp_path / "none")
    with pytest.raises(InputError, match="is not a file"):
        load_state(tmp_path)
    for wrong in (None, 3, ["s.adte"]):
        with pytest.raises(InputError, match=r"is no path of a state file; give one"):
            load_state(wrong)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_state_file_is_a_traceback(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    path = save_state(folder / "whole.adte", {"a": torch.zeros(2)}, {"classes": ["a"], "x": {}})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    bad = folder / "bad.adte"
    bad.write_bytes(bytes(content[:cut]) if data.draw(st.booleans()) else bytes(content))
    said = "bad.adte"
    try:
        load_state(bad)
    except StateError as error:
        said = str(error)
    assert "bad.adte" in said


def test_files_are_those_of_safetensors():
    """Byte for byte, though nothing is copied on the way."""
    g = torch.Generator().manual_seed(0)
    tensors = {
        f"{'x' * (i % 3)}é{i}": (100 * torch.rand(3, i, generator=g)).to(dtype)
        for i, dtype in enumerate([*states.TYPES, *states.TYPES])
    }
    tensors |= {"one": torch.tensor(1.5), "none": torch.zeros(0, 4).half()}
    tensors["across"] = torch.rand(4, 3, generator=g).T
    metadata = {"adte": json.dumps({"é\u2028": '"\\\x01\t/'}, ensure_ascii=False)}
    parts = states._safetensors(tensors, metadata)
    plain = {name: x.contiguous() for name, x in tensors.items()}
    assert b"".join(parts) == safetensors.torch.save(plain, metadata)


def test_a_state_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    save_state(tmp_path / "s.adte", {}, {})

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("adte.files.whole.open", denied, raising=False)
    with pytest.raises(InputError, match=r"cannot read '.*s\.adte': Permission denied; check the"):
        load_state(tmp_path / "s.adte")
