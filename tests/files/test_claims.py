"""Claims: nothing of another's making is written over; locks keep two processes apart."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch

from adte import InputError
from adte.files.claims import Target, claim, is_others, own_folder
from adte.files.locks import Lock
from adte.files.rows import Csv
from adte.files.states import save_state
from adte.files.whole import write_whole

if not hasattr(os, "fork"):
    pytest.skip("needs a POSIX system", allow_module_level=True)

import resource

PHOTO = b"\xff\xd8\xff\xe0 a photo"


@pytest.fixture
def forbidden():
    """A folder in which this process may not write, even where tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "folder")
        folder.mkdir()
        (folder / "old.csv").write_bytes(Csv().head)
        os.chmod(name, 0o755)
        os.chmod(folder, 0o555)
        os.chmod(folder / "old.csv", 0o444)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            os.chmod(folder, 0o755)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("p1.jpg").write_bytes(PHOTO)
    Path("photos").mkdir()
    Path("photos/a.jpg").write_bytes(PHOTO)
    save_state("old.adte", {"a": torch.zeros(1)}, {"method": "adte", "classes": ["a"]})
    Path("old.csv").write_bytes(Csv().head)
    write_whole("table.md", "| method |")
    Path("truth.csv").write_text("path,label\nphotos/a.jpg,cat\n")
    Path("link.jpg").symlink_to("p1.jpg")
    os.link("p1.jpg", "hard.jpg")
    return tmp_path


# --------------------------------------------------------------------------- claims


@pytest.mark.parametrize(
    ("targets", "inputs", "sentence"),
    [
        ([("--json", "p1.jpg")], ["p1.jpg"], "--json 'p1.jpg' is the input 'p1.jpg'"),
        ([("--json", "link.jpg")], ["p1.jpg"], "--json 'link.jpg' is the input 'p1.jpg'"),
        ([("--json", "p1.jpg")], ["link.jpg"], "is the input 'link.jpg'"),
        ([("--json", "hard.jpg")], ["p1.jpg"], "is the input 'p1.jpg'"),
        ([("--json", "./photos/../p1.jpg")], ["p1.jpg"], "is the input"),
        ([("--json", "photos/a.jpg")], ["photos"], "exists in the input folder 'photos'"),
        ([("--json", "x.json"), ("--state", "x.json")], [],
         "--state 'x.json' and --json 'x.json' are the same file; give two names"),
        ([("--json", "table.md"), ("--out", "./table.md")], [], "are the same file"),
        ([("--json", "-"), ("--out", "-")], [], "--out '-' and --json '-' are the same file"),
        ([("--json", "-"), ("--out", "/dev/stdout")], [], "are the same file"),
        ([("--out", "p1.jpg")], [], "exists and is not an output of adte; .* --force"),
        ([("--out", "truth.csv")], [], "--out 'truth.csv' exists and is not an output of adte"),
        ([("--out", "old.adte")], [], "exists and is not an output of adte"),
        ([("--state", "p1.jpg", "state")], [], "exists and is not a state file of adte"),
        ([("--state", "old.csv", "state")], [], "exists and is not a state file of adte"),
        ([("--out", "photos")], [], "'photos': it is a folder"),
        ([("--out", "none/x.csv")], [], "the folder 'none' does not exist; make it first"),
        ([("--out", "")], [], "empty name"),
    ],
)  # fmt: skip
def test_and_2_conflicts_are_refused_and_all_stays(here, targets, inputs, sentence):
    before = {p: p.read_bytes() for p in here.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=sentence):
        claim([Target(*t) for t in targets], inputs)
    assert {p: p.read_bytes() for p in here.rglob("*") if p.is_file()} == before


def test_force_writes_over_strangers_but_never_over_inputs(here):
    claim([Target("--out", "truth.csv"), Target("--state", "p1.jpg", "state")], [], force=True)
    for path, inputs in (("p1.jpg", ["p1.jpg"]), ("photos/a.jpg", ["photos"])):
        with pytest.raises(InputError, match="give another name"):
            claim([Target("--out", path)], inputs, force=True)
    with pytest.raises(InputError, match="are the same file"):
        claim([Target("--out", "new.csv"), Target("--json", "new.csv")], force=True)


def test_two_outputs_on_a_terminal_are_one(here):
    import pty

    ours, theirs = pty.openpty()
    before = os.dup(1)
    os.dup2(theirs, 1)
    try:
        with pytest.raises(InputError, match="are the same file"):
            claim([Target("--json", "-"), Target("--out", "/dev/stdout")])
    finally:
        os.dup2(before, 1)
        for handle in (ours, theirs, before):
            os.close(handle)


def test_what_may_be_written(here):
    os.mkfifo("pipe")
    Path("empty.csv").touch()
    Path("dangling.csv").symlink_to("photos/new.csv")
    names = ["new.csv", "table.md", "empty.csv", "dangling.csv", "photos/labels.csv",
             "pipe", "-", "/dev/null"]  # fmt: skip
    claim([Target(f"--{i}", n) for i, n in enumerate(names)], ["p1.jpg", "photos", "-"])
    claim([Target("--out", None), Target("--state", "old.adte", "state")], ["photos"])
    claim([Target("--out", "/dev/null"), Target("--json", "/dev/null")])
    Path("photos/labels.csv").write_bytes(Csv().head)
    claim([Target("--out", "photos/labels.csv", ours=True)], ["photos"])
    assert not os.path.exists("new.csv")
    assert not os.path.lexists("photos/new.csv")


def test_folders_that_cannot_be_written_are_named_first(forbidden):
    for name in ("new.csv", "old.csv"):
        with pytest.raises(InputError, match="choose a folder that you may write to") as caught:
            claim([Target("--out", forbidden / name, ours=True)])
        assert str(caught.value).startswith(f"cannot write --out '{forbidden / name}'")


def test_files_of_others(here):
    wanted = {"p1.jpg": True, "photos": True, "old.adte": True, "old.csv": True, "truth.csv": True,
              "table.md": False, "none": False}  # fmt: skip
    assert {name: is_others(name) for name in wanted} == wanted
    assert not is_others("old.adte", "state")
    save_state("weights", {"a": torch.zeros(1)}, {"kind": "class weights"})
    assert is_others("weights", "state")
    os.rename("table.md", "moved.md")
    assert not is_others("moved.md")
    Path("moved.md").write_text("| method | mine |")
    assert is_others("moved.md")


def test_a_file_that_cannot_be_read_is_called_so(here, monkeypatch):
    """Not a file of another's, which --force would write over. The administrator may read all."""

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("adte.files.whole.open", denied, raising=False)
    with pytest.raises(InputError, match=r"old.adte': Permission denied; check the path and"):
        claim([Target("--state", "old.adte", "state")])


# --------------------------------------------------------------------------- locks


def test_one_at_a_time_in_one_process(tmp_path):
    path = tmp_path / "shop.adte"
    with Lock(path) as held:
        for other in (Lock(path, timeout=0), Lock(tmp_path / "." / "shop.adte", timeout=0.05)):
            with pytest.raises(InputError, match=r"shop.adte' is used by another process \(\d+\)"):
                other.acquire()
        with pytest.raises(InputError, match="taken already"):
            held.acquire()
        with Lock(tmp_path / "other.adte", timeout=0):
            pass
    with Lock(path, timeout=0):
        pass
    assert os.listdir(tmp_path) == []


def test_a_link_and_its_target_share_a_lock(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.adte").symlink_to("real/shop.adte")
    with Lock(tmp_path / "link.adte"):
        with pytest.raises(InputError, match="another process"):
            Lock(tmp_path / "real" / "shop.adte", timeout=0).acquire()
        assert os.listdir(tmp_path / "real") == [".shop.adte.lock"]


HOLDS = """
import os, time
from pathlib import Path
from adte.files.locks import Lock
with Lock({path!r}):
    Path({path!r} + ".held").touch()
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_stops_nobody(tmp_path, processes):
    path = tmp_path / "shop.adte"
    pid = processes.start(HOLDS.format(path=str(path)))
    while not Path(f"{path}.held").exists():
        time.sleep(0.01)
    with pytest.raises(InputError, match=rf"used by another process \({pid}\); wait until it is"):
        Lock(path, timeout=0.1).acquire()
    os.kill(pid, signal.SIGKILL)
    assert processes.wait(pid)[0] == -signal.SIGKILL
    assert (tmp_path / ".shop.adte.lock").exists()
    with Lock(path, timeout=0):
        pass


def test_a_disk_that_takes_no_more_is_locked_too(tmp_path):
    """`adte undo` makes room on it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with (
            Lock(tmp_path / "a.csv"),
            pytest.raises(InputError, match="is used by another process; wait"),
        ):
            Lock(tmp_path / "a.csv", 0).acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(tmp_path.iterdir())


def test_places_that_take_no_lock(tmp_path, forbidden):
    with pytest.raises(InputError, match=r"cannot lock '.*x.adte': Permission denied; choose a"):
        Lock(forbidden / "x.adte").acquire()


def test_locks_of_places_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="make it first"):
        Lock(tmp_path / "no" / "x.adte")
    with Lock(tmp_path / ("n" * 255)):
        assert len(os.listdir(tmp_path)) == 1


def test_a_new_disk_is_an_empty_folder(tmp_path):
    (tmp_path / "lost+found").mkdir()
    assert own_folder(tmp_path, "mark") == tmp_path
    (tmp_path / "found").mkdir()
    with pytest.raises(InputError, match="holds other files, such as 'found'"):
        own_folder(tmp_path, "mark")
