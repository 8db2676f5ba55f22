"""Extraction and comparison survive `kill -9`, a full disk and damaged folders.

The processes are real ones that run the command line. They are forked from one warm process, which
has torch and the package imported but nothing loaded, so that a start costs milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adte.evaluate.features.cache import Cache
from adte.evaluate.running.results import Results

pytestmark = pytest.mark.slow

if not hasattr(os, "fork"):
    pytest.skip("needs a POSIX system", allow_module_level=True)

IMAGES = 290  # a full shard and a small one
METHODS = "zero-shot,se,adte,tda,bca"
TIMINGS = {"images_per_s", "seconds", "peak_memory"}

WARM = """
import json, os, resource, sys
import torch
import adte.cli.evaluate, adte.evaluate.source, adte.evaluate.running.tasks, adte.models.tiny
torch.set_num_threads(1)
for line in sys.stdin:
    code, log, limit = json.loads(line)
    pid = os.fork()
    if pid == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            exec(code)
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Warm:
    """Starts processes; one at a time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.server = subprocess.Popen(
            [sys.executable, "-c", WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, code: str, limit: int = 0) -> int:
        """The id of a process that runs the code; no file may grow beyond the limit."""
        self.server.stdin.write(json.dumps([code, str(self.log), limit]) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def wait(self) -> int:
        return int(self.server.stdout.readline())

    def run(self, code: str, limit: int = 0) -> tuple[int, str]:
        self.start(code, limit)
        return self.wait(), self.log.read_text("utf-8")

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    server = Warm(tmp_path_factory.mktemp("log") / "output.txt")
    yield server
    server.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(IMAGES):
        path = root / ("cat", "dog")[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return root


def cli(*args: object) -> str:
    return f"from adte.cli import main; main({[str(a) for a in args]!r})"


def extraction(pictures: Path, folder: Path) -> str:
    source = ("--data", f"folder:{pictures}", "--views", 1, "--workers", 0)
    return cli("extract", *source, "--out", folder)


def comparison(folder: Path) -> str:
    return cli("compare", "--methods", METHODS, "--seeds", 2, "--limit", 24, "--runs", folder)


@pytest.fixture(scope="module")
def whole(warm, pictures, tmp_path_factory):
    """The cache that an uninterrupted extraction makes, and the seconds it took."""
    folder = tmp_path_factory.mktemp("whole") / "cache"
    start = time.perf_counter()
    code, output = warm.run(extraction(pictures, folder))
    assert code == 0, output
    return folder, time.perf_counter() - start


@pytest.fixture(scope="module")
def compared(warm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "runs"
    code, output = warm.run(comparison(folder))
    assert code == 0, output
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def figures(folder: Path) -> dict[str, object]:
    """All files of a results folder, the records without what no two runs have in common."""
    out: dict[str, object] = {}
    for name, data in contents(folder).items():
        record = json.loads(data) if name.endswith(".json") else data
        if isinstance(record, dict):
            record["metrics"] = {k: v for k, v in record["metrics"].items() if k not in TIMINGS}
            del record["checksum"]  # which is of them, too
        out[name] = record
    return out


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_often(warm: Warm, code: str, folder: Path, moments: list[tuple[int, float]]) -> int:
    """Start, wait until the folder holds so many files and up to so many seconds more, `kill -9`.

    Returns how many processes died of it; the others had come to their end.
    """
    rng, killed = random.Random(0), 0
    for target, most in moments:
        pid = warm.start(code)
        while alive(pid) and (not folder.exists() or len(os.listdir(folder)) < target):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, most))
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
        killed += warm.wait() == -signal.SIGKILL
    return killed


def test_an_extraction_killed_ten_times_ends_up_the_same(warm, pictures, whole, tmp_path):
    want, seconds = whole
    folder = tmp_path / "cache"
    code = extraction(pictures, folder)
    # The files are recipe, weights, first shard; the second one takes a tenth of the time.
    shares = [(0, 0.1), (0, 0.2), (1, 0.2), *[(2, 0.6)] * 3, *[(3, 0.06)] * 4]
    moments = [(target, share * seconds) for target, share in shares]
    assert kill_often(warm, code, folder, moments) >= 6
    end, output = warm.run(code)
    assert end == 0, output
    assert contents(folder) == contents(want)
    ids = [e.id for e in Cache(folder).images()]
    assert len(ids) == len(set(ids)) == IMAGES


def test_a_comparison_killed_ten_times_ends_up_the_same(warm, compared, tmp_path):
    want = figures(compared)
    assert len(want) == 16  # two files for each of 2 + 2 · 3 runs
    folder = tmp_path / "runs"
    targets = sorted(random.Random(1).sample(range(len(want)), 10))
    assert kill_often(warm, comparison(folder), folder, [(t, 0.1) for t in targets]) >= 6
    assert len(os.listdir(folder)) > 4  # finished runs of killed processes
    end, output = warm.run(comparison(folder))
    assert end == 0, output
    assert figures(folder) == want


DIES = """
import os, signal
from adte.files import write_whole
def half(name):
    with open(name, "w") as f:
        f.write("ha")
    os.kill(os.getpid(), signal.SIGKILL)
write_whole({path!r}, half)
"""


@pytest.mark.parametrize("name", ["shard-00001.safetensors", "recipe.json", "r.json"])
def test_what_a_killed_writer_left_is_no_data_and_goes_away(
    warm, whole, name, tmp_path, monkeypatch
):
    folder = tmp_path / "cache"
    shutil.copytree(whole[0], folder)
    before = contents(folder)
    assert warm.run(DIES.format(path=str(folder / name)))[0] == -signal.SIGKILL
    (left,) = contents(folder).keys() - before.keys()
    assert left.startswith(f".{name}.")
    assert len(Cache(folder)) == IMAGES
    assert list(Results(tmp_path)) == []
    from adte.files import write_whole

    def busy(temporary: str) -> None:
        """A writer at work is left alone by another one of the same file."""
        write_whole(folder / name, lambda other: Path(other).write_text("inner"))
        assert Path(temporary).exists()
        Path(temporary).write_bytes(b"outer")

    write_whole(folder / name, busy)
    assert (folder / left).exists()  # its writer may be at work
    later = time.time() + 4000
    with monkeypatch.context() as patch:
        patch.setattr("adte.files.whole.time.time", lambda: later)
        write_whole(folder / name, lambda other: Path(other).write_bytes(b"outer"))
    assert contents(folder) == {**before, name: b"outer"}


def test_a_full_disk_stops_an_extraction_in_one_sentence(warm, pictures, whole, tmp_path):
    """RLIMIT_FSIZE: the kernel refuses to let a file grow, in the midst of the second shard."""
    folder = tmp_path / "cache"
    shutil.copytree(whole[0], folder)
    last = folder / "shard-00001.safetensors"
    want, size = contents(folder), last.stat().st_size
    last.unlink()
    code, output = warm.run(extraction(pictures, folder), limit=size // 2)
    assert code == 2
    (line,) = (s for s in output.splitlines() if s.startswith("error: "))
    assert "shard-00001.safetensors" in line
    assert "raise the limit (ulimit -f)" in line
    assert "run the same command again" in line
    assert "Traceback" not in output
    assert contents(folder).keys() == want.keys() - {last.name}
    assert warm.run(extraction(pictures, folder))[0] == 0
    assert contents(folder) == want


FILL = """
mount -t tmpfs -o size=64k none "$1" && cd "$1" && shift &&
mkdir out && head -c 49152 /dev/zero > ballast || exit 99
exec "$@"
"""
SAVE = """
import os
import torch
from adte import AdteError
from adte.files.states import save_state
for _ in range(2):
    try:
        for i in range(3):
            save_state(f"out/{i}", {"a": torch.ones(1500)}, {})
        print("saved")
    except AdteError as error:
        print(error)
    print(*sorted(os.listdir("out")))
    if os.path.exists("ballast"):
        os.remove("ballast")
"""


def test_a_file_system_without_room(tmp_path):
    """A real file system of 64 kB, where user name spaces allow one."""
    mount = tmp_path / "small"
    mount.mkdir()
    inside = ["sh", "-c", FILL, "sh", str(mount), sys.executable, "-c", SAVE]
    try:
        done = subprocess.run(["unshare", "-rm", *inside], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the command unshare")
    if done.returncode in (1, 99):
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    assert done.stderr == ""
    said, names, again, every = done.stdout.splitlines()
    assert said.startswith("cannot write 'out/")
    assert "the disk is full; free some space" in said
    assert 1 <= len(names.split()) < 3
    assert (again, every.split()) == ("saved", ["0", "1", "2"])
