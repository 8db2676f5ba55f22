"""Files: whole or not at all, through links and into pipes; state whose header is damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adte import InputError, StateError
from adte.files import FORMAT, load_state, save_state, whole, write_whole

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")


def text(words: str):
    return lambda name: Path(name).write_text(words)


# --------------------------------------------------------------------------- writing


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
    with pytest.raises(InputError, match="empty name"):
        write_whole("", lambda name: None)
    with pytest.raises(InputError, match="null byte"):
        write_whole(str(tmp_path / "a\0b"), lambda name: None)


@posix
def test_links_stay_links(tmp_path):
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "shop.adte"
    target.write_text("old")
    (tmp_path / "middle").symlink_to("real/shop.adte")
    link = tmp_path / "link.adte"
    link.symlink_to("middle")
    assert write_whole(link, text("new")) == link
    assert link.is_symlink()
    assert (tmp_path / "middle").is_symlink()
    assert not target.is_symlink()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path / "real") == ["shop.adte"]


@posix
def test_a_link_to_what_is_not_there_yet(tmp_path):
    (tmp_path / "link").symlink_to("new")
    write_whole(tmp_path / "link", text("x"))
    assert (tmp_path / "new").read_text() == "x"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "far").symlink_to("no/where")
    with pytest.raises(InputError, match=r"the folder '.*no' does not exist"):
        write_whole(tmp_path / "far", text("x"))
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="circle"):
        write_whole(tmp_path / "a", text("x"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_folder").symlink_to("folder")
    with pytest.raises(InputError, match="is a folder"):
        write_whole(tmp_path / "to_folder", text("x"))


@posix
def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, text("through" * 100_000))
    reader.join()
    assert got == [b"through" * 100_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_devices_stay_devices(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    for name in ("/dev/full", tmp_path / "full"):
        with pytest.raises(InputError, match="the disk is full; free some space") as caught:
            write_whole(name, text("x"))
        assert str(name) in str(caught.value)
    write_whole("/dev/null", text("x"))
    for name in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(os.stat(name).st_mode)
    with pytest.raises(InputError, match="the disk is full"):
        save_state("/dev/full", {"a": torch.zeros(3)}, {})


WRITES = """
from adte.files import write_whole
from pathlib import Path
for name in {names!r}:
    print("before")
    write_whole(name, lambda temporary: Path(temporary).write_text(name + "\\n"))
    print("after")
"""


@pytest.mark.slow
@posix
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_in_a_pipe_or_a_file(kind, tmp_path):
    names = [n for n in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") if os.path.exists(n)]
    log = tmp_path / "log"
    log.write_text("earlier\n")
    command = [sys.executable, "-c", WRITES.format(names=names)]
    if kind == "pipe":
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    else:
        with log.open("a") as f:
            subprocess.run(command, stdout=f, check=True)
        earlier, said = log.read_text().split("\n", 1)
        assert earlier == "earlier"
    assert names
    assert said == "".join(f"before\n{name}\nafter\n" for name in names)


@posix
def test_sockets_and_disks_are_refused(tmp_path, monkeypatch):
    import socket

    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("talk")
        with pytest.raises(InputError, match="it is a socket"):
            write_whole("talk", text("x"))
    assert stat.S_ISSOCK(os.stat("talk").st_mode)


@posix
def test_permissions_of_an_old_file_stay(tmp_path):
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, text("new"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", text("new"))
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_names_of_any_length_that_the_system_allows(tmp_path):
    for name in ("n" * 255, "ö" * 127, "[*]?" * 20):
        for words in ("one", "two"):
            write_whole(tmp_path / name, text(words))
        assert (tmp_path / name).read_text() == "two"
    assert len(os.listdir(tmp_path)) == 3
    with pytest.raises(InputError, match="too long"):
        write_whole(tmp_path / ("n" * 256), text("x"))


# --------------------------------------------------------------------------- state


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


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_state(tmp_path / "none")
    with pytest.raises(InputError, match="is not a file"):
        load_state(tmp_path)


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


def test_a_full_disk_names_the_size(tmp_path, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InputError, match=r"the disk is full \(2.0 MB are needed\); free some space"
    ):
        write_whole(tmp_path / "f", full, 2_000_000)
    assert os.listdir(tmp_path) == []


def test_files_are_those_of_safetensors():
    """Byte for byte, though nothing is copied on the way."""
    g = torch.Generator().manual_seed(0)
    tensors = {
        f"{'x' * (i % 3)}é{i}": (100 * torch.rand(3, i, generator=g)).to(dtype)
        for i, dtype in enumerate([*whole.TYPES, *whole.TYPES])
    }
    tensors |= {"one": torch.tensor(1.5), "none": torch.zeros(0, 4).half()}
    tensors["across"] = torch.rand(4, 3, generator=g).T
    metadata = {"adte": json.dumps({"é\u2028": '"\\\x01\t/'}, ensure_ascii=False)}
    parts = whole._safetensors(tensors, metadata)
    plain = {name: x.contiguous() for name, x in tensors.items()}
    assert b"".join(parts) == safetensors.torch.save(plain, metadata)


def test_a_state_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    save_state(tmp_path / "s.adte", {}, {})

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(whole, "open", denied, raising=False)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\); check its"):
        load_state(tmp_path / "s.adte")
