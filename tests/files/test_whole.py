"""Files: whole or not at all, through links and into pipes."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from adte import InputError
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.running.results import Record, Results
from adte.evaluate.running.tasks import Task, run_tasks
from adte.files import write_whole
from adte.files.states import load_state, save_state
from adte.files.whole import why_missing
from evaluate import test_cache as cache_tests

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")


def text(words: str):
    return lambda name: Path(name).write_text(words)


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
    with pytest.raises(InputError, match="embedded null"):
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


def test_a_full_disk_names_the_size(tmp_path, monkeypatch):
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        InputError, match=r"the disk is full \(2.0 MB are needed\); free some space"
    ):
        write_whole(tmp_path / "f", full, 2_000_000)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_file_that_may_not_be_read_is_not_called_damaged(code, tmp_path, monkeypatch):
    """Hours of features were to be deleted, by what was said of a file without read permission."""
    stream = cache_tests.live(4)
    extract(stream, tmp_path / "cache")
    (shard,) = (tmp_path / "cache").glob("shard-*")
    results = Results(tmp_path / "runs")
    run_tasks(stream, [Task("se")], results)
    (facts,) = (tmp_path / "runs").glob("*.json")

    def closed(path, *args):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr("adte.files.whole.open", closed, raising=False)
    said = rf"cannot read '.*': {os.strerror(code)}; check the path and its permissions"
    for look in (
        lambda: Cache(tmp_path / "cache"),
        lambda: load_state(shard),
        lambda: list(results),
        lambda: results.run(Record.from_json(json.loads(facts.read_text()), facts)),
    ):
        with pytest.raises(InputError, match=said):
            look()


def test_what_cannot_be_reached_is_not_said_to_be_missing(tmp_path, monkeypatch):
    def closed(path, *args, **more):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    assert why_missing(tmp_path / "none") == "does not exist; check the path"
    assert why_missing("a" * 300) == "does not exist; check the path"
    monkeypatch.setattr("adte.files.whole.os.stat", closed)
    with pytest.raises(InputError, match=r"cannot be reached \(Permission denied\)"):
        load_state(tmp_path / "closed" / "shop.adte")
