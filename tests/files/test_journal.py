"""Rows as they come, whole whatever stops the writer; a run goes on, each image once."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adte import InputError
from adte.files.journal import KEEP, Journal, Mark, Stream
from adte.files.rows import read_rows
from adte.files.states import load_state
from journal_run import Run, row

FORMATS = ["a.csv", "a.jsonl"]
ODD = 'a "b",\\\n.jpg'
posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")


def names(path: Path) -> list[str]:
    return [row["path"] for row in read_rows(path)]


def fill(path: Path, images: list[str], mark: Mark | None = None, **more) -> Mark:
    """A run over images; what its state has to say at the end."""
    with Journal(path, mark=mark) as out:
        out.begin()
        for name in images:
            if not out.take(name):
                out.write(row(name, **more))
        return Mark.among(out.mark("s.adte", {}), path, "s.adte")


# --------------------------------------------------------------------------- rows


@pytest.mark.parametrize("name", [*FORMATS, "a.ndjson", "B.CSV"])
def test_formats_by_suffix_and_rows_as_they_come(name, tmp_path):
    best = [{"class": c, "probability": 0.5} for c in ("cat", "dog")]
    rows = [{**row(f"{i}.jpg"), "top": best} for i in range(3)]
    path = tmp_path / name
    with Journal(path, top=2).begin() as out:
        for i, each in enumerate(rows):
            out.write(each)
            assert f"{i}.jpg" in path.read_text().splitlines()[-1]
        assert out.rows == 3
    out.close()  # again does nothing
    assert list(read_rows(path)) == rows
    if name == "a.csv":
        with path.open(newline="") as file:
            assert next(csv.DictReader(file))["class_2"] == "dog"
    assert os.listdir(tmp_path) == [name]


@posix
def test_a_name_that_is_not_utf8_loses_no_row(tmp_path):
    odd = os.fsdecode(b"caf\xe9.jpg")
    for file in FORMATS:
        fill(tmp_path / file, ["0.jpg", odd, "2.jpg"])
        assert b"caf\\udce9.jpg" in (tmp_path / file).read_bytes().replace(b"\\\\", b"\\")
        assert names(tmp_path / file) == ["0.jpg", odd, "2.jpg"]


@posix
def test_links_stay_links_and_pipes_pipes(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "a.csv").symlink_to("real/a.csv")
    fill(tmp_path / "a.csv", ["0.jpg"])
    assert (tmp_path / "a.csv").is_symlink()
    assert names(tmp_path / "real" / "a.csv") == ["0.jpg"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    with Stream(pipe).begin() as out:
        out.write(row("0.jpg"))
        assert out.mark("s", {"other": 1}) == {"other": 1}
    reader.join()
    assert json.loads(got[0]) == row("0.jpg")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "out.csv"])
def test_standard_output(name, capfdbinary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "-":
        os.symlink("/dev/stdout", name)
    with Stream(name).begin() as out:
        assert not out.take("0.jpg")
        out.write(row("0.jpg"))
    with Stream(name).begin():
        pass
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert sys.stdout.buffer.closed is False
    if name == "-":
        assert list(map(json.loads, lines)) == [row("0.jpg")]
    else:
        assert [line.split(",")[0] for line in lines] == ["path", "0.jpg", "path"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence():
    said = r"cannot write '/dev/full' after 0 rows: the disk is"
    with Stream("/dev/full").begin() as out, pytest.raises(InputError, match=said):
        out.write(row("0.jpg"))
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@posix
@pytest.mark.parametrize("name", FORMATS)
def test_a_disk_that_fills_up_leaves_whole_rows(name, tmp_path):
    """RLIMIT_FSIZE: the kernel refuses to let a file grow, in the midst of a row."""
    import resource

    path, limits = tmp_path / name, resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out = Journal(path).begin()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        with pytest.raises(InputError, match=r"after \d+ rows: the system does not"):  # noqa: PT012
            for i in range(100):
                out.write(row(f"{i}.jpg"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    out.close()
    assert 0 < len(names(path)) < 30
    assert names(path) == [f"{i}.jpg" for i in range(len(names(path)))]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "d.csv").mkdir()
    for name, sentence in (("no/a.csv", "make it first"), ("d.csv", "is a folder"),
                           ("rows.txt", "does not say which format to write")):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            Journal(tmp_path / name)


# --------------------------------------------------------------------------- marks


def test_marks_name_the_output_from_the_state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("out/deep")
    with Journal("out/deep/a.csv", asked="--top 5").begin() as out:
        first = out.mark("shop.adte", {})
        out.write(row("0.jpg"))
        second = out.mark("shop.adte", {**first, "b.csv": {"rows": 2}})
        many = out.mark("s.adte", {f"{i}.csv": {} for i in range(3 * KEEP)})
    mark = Mark(**first["out/deep/a.csv"])
    assert (mark.rows, mark.folder, mark.asked) == (0, "../..", "--top 5")
    assert list(second) == ["b.csv", "out/deep/a.csv"]
    assert second["out/deep/a.csv"]["rows"] == 1
    assert second["out/deep/a.csv"]["digest"] != mark.digest
    assert list(many)[-2:] == [f"{3 * KEEP - 1}.csv", "out/deep/a.csv"]
    assert len(many) == KEEP


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_done_is_not_done_again(name, tmp_path):
    path = tmp_path / name
    mark = fill(path, ["0.jpg", "1.jpg", "0.jpg", ODD])
    out = Journal(path, mark=mark)
    assert [bool(out.take(n)) for n in ("0.jpg", "./0.jpg", "0.jpg", ODD, "1.jpg", "2.jpg")] == [
        True, True, False, True, True, False,
    ]  # fmt: skip
    assert names(path) == ["0.jpg", "1.jpg", "0.jpg", ODD]
    for i in range(9):
        mark = fill(path, [f"{j}.jpg" for j in range(i)], mark)
    assert names(path) == ["0.jpg", "1.jpg", "0.jpg", ODD, *(f"{i}.jpg" for i in range(2, 8))]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("covered", [0, 2, 4])
def test_the_output_is_cut_to_what_the_state_covers(name, covered, tmp_path):
    path = tmp_path / name
    mark = fill(path, [f"{i}.jpg" for i in range(covered)])
    whole = path.read_bytes()
    fill(path, [f"{i}.jpg" for i in range(4)], mark)
    out = Journal(path, mark=mark)
    todo = [n for n in (f"{i}.jpg" for i in range(6)) if not out.take(n)]
    assert todo == [f"{i}.jpg" for i in range(covered, 6)]
    out.begin().close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", FORMATS)
def test_a_torn_line_is_no_row_wherever_it_is_torn(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    path = tmp_path / name
    none = fill(path, [])
    head = path.read_bytes()
    mark = fill(path, ["0.jpg"], none)
    first = path.read_bytes()
    fill(path, ["0.jpg", ODD], mark)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        for tail in (b"", b"\0" * 100):  # room that a crash left empty
            for covered, kept in ((none, head), (mark, first)):
                path.write_bytes(whole[:size] + tail)
                if 0 < size < len(kept) and covered is mark:
                    with pytest.raises(InputError, match="was changed since it was written"):
                        Journal(path, mark=covered)
                elif size >= len(kept):
                    Journal(path, mark=covered).begin().close()
                    assert path.read_bytes() == kept
                    fill(path, ["0.jpg", ODD], covered)
                    assert path.read_bytes() == whole


def test_an_output_that_is_gone_is_known(tmp_path):
    mark = fill(tmp_path / "a.csv", ["0.jpg"])
    (tmp_path / "a.csv").unlink()
    assert Journal(tmp_path / "a.csv", mark=mark).lost == 1
    (tmp_path / "a.csv").touch()
    assert Journal(tmp_path / "a.csv", mark=mark).lost == 1


def other_contents(text: str) -> list[str]:
    lines = text.splitlines(keepends=True)
    fewer = "".join(line for line in lines if "1.jpg" not in line)
    return [
        text.replace("cat", "dog"), fewer, text.replace("1.jpg", "7.jpg"), "my notes\n", "my notes",
        "path,label,confidence,index,learned,error\r\n", text.replace(",", ";"), "[" * 50_000,
    ]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_output_is_refused(name, tmp_path):
    path = tmp_path / name
    mark = fill(path, [f"{i}.jpg" for i in range(3)])
    text = path.read_text()
    for other in other_contents(text):
        path.write_bytes(other.encode())
        with pytest.raises(InputError, match="was changed since it was written") as caught:
            Journal(path, mark=mark)
        assert "--force" not in str(caught.value)  # what a person has changed would be lost
        assert path.read_bytes() == other.encode()
    path.write_text("my notes\n")
    with pytest.raises(InputError, match="was changed since it was written"):
        Journal(path, mark=fill(tmp_path / f"b{name}", []))


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
def test_a_mended_image_takes_the_place_of_its_error(name, killed, tmp_path):
    """No state covers a row with an error, so one may go whenever it likes."""
    path = tmp_path / name
    with Journal(path).begin() as out:
        for each in (row("bad.jpg", "broken"), row("0.jpg"), row("worse.jpg", "broken"),
                     row("a.zip", "damaged")):  # fmt: skip
            out.write(each)
        marks = out.mark("s.adte", {})
    before = path.read_bytes()
    out = Journal(path, mark=Mark.among(marks, path, "s.adte")).begin()
    assert not out.take("bad.jpg")
    out.write(row("worse.jpg", "broken"))
    assert path.read_bytes() == before  # the same error has its row
    out.write(row("bad.jpg"))
    out.write(row("a.zip/0.jpg"))  # so it could be opened
    marks = out.mark("s.adte", marks)
    if killed:
        out._file.close()
    else:
        out.close()
        assert out.rows == 4
    out = Journal(path, mark=Mark.among(marks, path, "s.adte")).begin()
    assert [bool(out.take(n)) for n in ("bad.jpg", "bad.jpg", "0.jpg")] == [True, False, True]
    out.close()
    assert names(path) == ["0.jpg", "worse.jpg", "bad.jpg", "a.zip/0.jpg"]


def test_rows_with_an_error_stay_behind_what_is_covered(tmp_path):
    path = tmp_path / "a.csv"
    with Journal(path).begin() as out:
        out.write(row("0.jpg"))
        marks = out.mark("s.adte", {})
        out.write(row("bad.jpg", "broken"))
        out.write(row("1.jpg"))  # the state has not learned from it
    Journal(path, mark=Mark.among(marks, path, "s.adte")).begin().close()
    assert names(path) == ["0.jpg", "bad.jpg"]


# --------------------------------------------------------------------------- names


def test_names_are_those_of_the_folder_where_the_run_began(tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    mark = fill("../a.csv", ["0.jpg"])
    monkeypatch.chdir(tmp_path / "two")
    out = Journal("../a.csv", mark=mark)
    assert not out.take("0.jpg")  # another image of that name
    assert not out.take(os.path.join(os.path.abspath(os.sep), "0.jpg"))
    assert out.take(str(tmp_path / "one" / "0.jpg"))
    assert not out.take("../one/../one/0.jpg")
    monkeypatch.chdir(tmp_path)
    os.mkdir("moved")
    for name in ("one", "a.csv"):
        os.rename(name, f"moved/{name}")
    monkeypatch.chdir("moved/one")
    assert Journal("../a.csv", mark=mark).take("0.jpg")


def test_runs_from_several_folders_share_one_beginning_of_names(tmp_path, monkeypatch):
    """The last run's folder held for the rows of all, so those of others were written again."""
    (tmp_path / "photos").mkdir()
    mark = None
    for folder, name in [(".", "photos/0.jpg"), ("photos", "0.jpg"), ("photos", "1.jpg"),
                         (".", "photos/1.jpg"), (".", "photos/0.jpg"), ("/", "s3://b/2.jpg"),
                         (".", "s3://b/2.jpg")]:  # fmt: skip
        monkeypatch.chdir(tmp_path / folder)
        mark = fill(tmp_path / "a.csv", [name], mark)
    whole = str(tmp_path / "photos" / "1.jpg")
    assert names(tmp_path / "a.csv") == ["photos/0.jpg", whole, "s3://b/2.jpg"]


# --------------------------------------------------------------------------- killed anywhere


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    count=st.integers(1, 12),
    every=st.integers(1, 5),
    kills=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([b"", b"{", b'{"path": "x'])), max_size=5
    ),
)
def test_each_image_once_whenever_it_is_killed(name, count, every, kills, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    images = [f"{i % 7}.jpg" for i in range(count)]  # some are named twice
    path, state = folder / name, folder / "s.adte"
    for steps, torn in kills:
        Run(path, state, images, every).killed_after(steps, torn)
    Run(path, state, images, every).go()
    assert names(path) == images
    assert load_state(state)[1]["learned"] == images
    assert not [n for n in os.listdir(folder) if n not in (name, "s.adte")]
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_mended_images_are_learned_once_whenever_it_is_killed(name, tmp_path):
    rng = random.Random(0)
    for turn in range(30):
        folder = tmp_path / str(turn)
        folder.mkdir()
        images = [f"{i}.jpg" for i in range(rng.randrange(1, 8))]
        first = frozenset(n for n in images if rng.random() < 0.5)
        last = frozenset(n for n in first if rng.random() < 0.3)
        run = Run(folder / name, folder / "s.adte", images, 3)
        for bad in (first, first, last, last):
            run.bad = bad
            run.killed_after(rng.randrange(25), rng.choice([b"", b"{", b'{"path": "x']))
        run.bad, run.left = last, -1
        run.go()
        done = list(read_rows(folder / name))
        assert sorted(d["path"] for d in done) == images
        assert {d["path"] for d in done if d["error"]} == last
        learned = load_state(folder / "s.adte")[1]["learned"]
        assert learned == [d["path"] for d in done if not d["error"]]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_put_into_the_listings_order_whenever_it_is_killed(name, tmp_path):
    """The mark of all rows is good on both sides of the change of their places."""
    rng = random.Random(0)
    for turn in range(8):
        folder = tmp_path / str(turn)
        folder.mkdir()
        listing = [f"{i % 6}.jpg" for i in range(rng.randrange(1, 9))]  # some are named twice
        images = rng.sample(listing, len(listing))
        run = Run(folder / name, folder / "s.adte", images, 3)
        run.listing = listing
        for steps in (rng.randrange(40), rng.randrange(40), 3 + 2 * len(images), 10**6):
            run.killed_after(steps, rng.choice([b"", b"{", b'{"path": "x']))
        assert names(folder / name) == listing
        learned = load_state(folder / "s.adte")[1]["learned"]
        assert sorted(learned) == sorted(listing)
        run.images = run.listing = ["new.jpg", *listing]  # the file grows, and is put in order
        run.killed_after(rng.randrange(12), b"")
        run.left = -1
        run.go()
        assert names(folder / name) == run.listing
        assert load_state(folder / "s.adte")[1]["learned"] == [*learned, "new.jpg"]


RUN = """
import sys, time
sys.path[:0] = {tests!r}
from pathlib import Path
from journal_run import Run
class Slow(Run):
    def step(self):
        time.sleep(0.002)
Slow(Path({path!r}), Path({state!r}), [f"{{i}}.jpg" for i in range({count})], 8).go()
Path({path!r} + ".done").touch()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
@pytest.mark.parametrize("name", FORMATS)
def test_each_image_once_after_kill_9(name, processes, tmp_path):
    path, state, count = tmp_path / name, tmp_path / "s.adte", 80
    tests = [str(Path(__file__).parents[1])]
    code = RUN.format(tests=tests, path=str(path), state=str(state), count=count)
    rng, killed = random.Random(0), 0

    def size() -> int:
        return path.stat().st_size if path.exists() else 0

    for _ in range(6):
        pid = processes.start(code)
        wanted = size() + rng.randrange(1, 600)
        while size() < wanted and not Path(f"{path}.done").exists():
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        killed += processes.wait(pid)[0] == -signal.SIGKILL
    assert killed >= 4
    assert processes.run(code) == (0, "")
    images = [f"{i}.jpg" for i in range(count)]
    assert names(path) == images
    assert load_state(state)[1]["learned"] == images
