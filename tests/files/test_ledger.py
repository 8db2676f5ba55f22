"""An interrupted run goes on: each image has one row and is learned from once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adte import InputError
from adte.files.ledger import Ledger
from adte.files.outputs import open_output
from adte.files.states import load_state
from ledger_run import Run, row

FORMATS = ["a.csv", "a.jsonl", "a.json"]


def names(path: Path) -> list[str]:
    ledger = Ledger(path)
    with ledger.resume():
        return [done.name for done in ledger._done]


def fill(path: Path, images: list[str]) -> None:
    with open_output(path) as out:
        for name in images:
            out.write(row(name))


# --------------------------------------------------------------------------- one run after another


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_done_is_not_done_again(name, tmp_path):
    path = tmp_path / name
    fill(path, ["0.jpg", "1.jpg", "0.jpg"])
    ledger = Ledger(path)
    assert ledger.rows == 3
    with ledger.resume() as out:
        taken = [ledger.take(n) for n in ("0.jpg", "./0.jpg", "0.jpg")]
        assert [done and done.name for done in taken] == ["0.jpg", "0.jpg", None]
        assert ledger.take("1.jpg")
        assert not ledger.take("2.jpg")
        out.write(row("2.jpg", "broken"))
    ledger = Ledger(path)
    ledger.resume().close()
    assert ledger.take("2.jpg") is None  # an image that failed is tried again
    assert [ledger.failures("2.jpg") for _ in range(2)] == [{3: "broken"}, {}]
    assert names(path) == ["0.jpg", "1.jpg", "0.jpg", "2.jpg"]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("covered", [0, 2, 4])
def test_the_output_is_cut_to_what_the_state_covers(name, covered, tmp_path):
    path = tmp_path / name
    fill(path, [f"{i}.jpg" for i in range(4)])
    ledger = Ledger(path)
    with ledger.resume(covered) as out:
        todo = [n for n in (f"{i}.jpg" for i in range(6)) if not ledger.take(n)]
        assert todo == [f"{i}.jpg" for i in range(covered, 6)]
        for n in todo:
            out.write(row(n))
    assert names(path) == [f"{i}.jpg" for i in range(6)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_in_parts_writes_the_same_bytes(name, tmp_path):
    fill(tmp_path / f"whole{name}", [f"{i}.jpg" for i in range(9)])
    for i in range(9):
        with Ledger(tmp_path / name).resume() as out:
            out.write(row(f"{i}.jpg"))
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole{name}").read_bytes()


def place_of(path: Path) -> Path:
    return path.with_name("a.json.jsonl.part") if path.suffix == ".json" else path


@pytest.mark.parametrize("name", FORMATS)
def test_a_torn_line_is_no_row_wherever_it_is_torn(name, tmp_path):
    path = tmp_path / name
    fill(path, ["0.jpg", 'a "b",\\\n.jpg'])
    if name == "a.json":
        Ledger(path).resume()._file.close()  # as a killed process leaves it
        path.unlink()
    place = place_of(path)
    whole = place.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        place.write_bytes(whole[:size])
        ledger = Ledger(path)
        assert ledger.rows == max(0, sum(e <= size for e in ends) - (name == "a.csv"))
        out = ledger.resume()
        for image in ("0.jpg", 'a "b",\\\n.jpg'):
            if not ledger.take(image):
                out.write(row(image))
        out._file.close()
        assert place.read_bytes() == whole
    place.write_bytes(whole + b"\0" * 100)  # room that a crash left empty
    Ledger(path).resume()._file.close()
    assert place.read_bytes() == whole


# --------------------------------------------------------------------------- with a state


def test_rows_of_another_state_are_refused(tmp_path):
    path, state = tmp_path / "a.csv", tmp_path / "s.adte"
    fill(path, ["0.jpg"])
    before = path.read_bytes()
    for marks in (None, {}, {"b.csv": {"rows": 1, "digest": "", "folder": "."}}):
        with pytest.raises(InputError, match=r"a.csv' holds rows that the state '.*s.adte' does"):
            Ledger(path).covered(state, marks)
    assert path.read_bytes() == before
    path.unlink()
    assert Ledger(path).covered(state, None).rows == 0
    with Ledger(path).resume(Ledger(path).covered(state)) as out:
        marks = out.mark(state)
        out.write(row("0.jpg"))  # and the process is killed before the state is saved again
    ledger = Ledger(path)
    with ledger.resume(ledger.covered(state, marks)):
        assert not ledger.take("0.jpg")
    path.unlink()  # the person wants all labels anew
    assert (
        Ledger(path).covered(state, {"a.csv": {"rows": 1, "digest": "x", "folder": "."}}).rows == 0
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_output_is_refused(name, tmp_path):
    path, state = tmp_path / name, tmp_path / "s.adte"
    with open_output(path) as out:
        for i in range(3):
            out.write(row(f"{i}.jpg"))
        marks = out.mark(state)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    fewer = "".join(line for line in lines if "1.jpg" not in line)
    for other in (text.replace("cat", "dog"), fewer, text.replace("1.jpg", "7.jpg")):
        path.write_text(other)
        ledger = Ledger(path)
        with pytest.raises(InputError, match="was changed since it was written"):
            ledger.resume(ledger.covered(state, marks))
        assert path.read_text() == other
    path.write_text(text)
    ledger = Ledger(path)
    with ledger.resume(ledger.covered(state, marks)):
        assert all(ledger.take(f"{i}.jpg") for i in range(3))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("killed", [False, True], ids=["finished", "killed"])
def test_a_mended_image_takes_the_place_of_its_error(name, killed, tmp_path):
    """No state covers a row with an error, so one may go whenever it likes."""
    path, state = tmp_path / name, tmp_path / "s.adte"
    with open_output(path) as out:
        out.write(row("bad.jpg", "broken"))
        out.write(row("0.jpg"))
        out.write(row("worse.jpg", "broken"))
        marks = out.mark(state)
    ledger = Ledger(path)
    out = ledger.resume(ledger.covered(state, marks))
    assert not ledger.take("bad.jpg")
    for number in ledger.failures("bad.jpg"):
        out.drop(number)
    out.write(row("bad.jpg"))
    after = out.mark(state, marks)
    if killed:
        out._file.close()
    else:
        out.close()
        assert out.rows == 3
    for _ in range(2):  # the first tidies up after a killed run
        ledger = Ledger(path)
        with ledger.resume(ledger.covered(state, after)):
            assert ledger.take("bad.jpg")
            assert not ledger.take("bad.jpg")
            assert ledger.take("0.jpg")
            assert not ledger.failures("bad.jpg")
        assert names(path) == ["0.jpg", "worse.jpg", "bad.jpg"]
    assert os.listdir(tmp_path) == [name]


def test_rows_with_an_error_stay_behind_what_is_covered(tmp_path):
    path, state = tmp_path / "a.csv", tmp_path / "s.adte"
    with open_output(path) as out:
        out.write(row("0.jpg"))
        marks = out.mark(state)
        out.write(row("bad.jpg", "broken"))
        out.write(row("1.jpg"))  # the state has not learned from it
    ledger = Ledger(path)
    ledger.resume(ledger.covered(state, marks)).close()
    assert names(path) == ["0.jpg", "bad.jpg"]


def test_marks_that_counted_errors_are_still_read(tmp_path):
    path, state = tmp_path / "a.jsonl", tmp_path / "s.adte"
    fill(path, ["0.jpg"])
    with Ledger(path).resume() as out:
        out.write(row("bad.jpg", "broken"))
        out.write(row("1.jpg"))
    lines = path.read_bytes().splitlines(keepends=True)
    digest = blake2b(b"".join(lines[:2]), digest_size=16).hexdigest()
    marks = {"a.jsonl": {"rows": 2, "digest": digest, "folder": "."}}
    ledger = Ledger(path)
    ledger.resume(ledger.covered(state, marks)).close()
    assert names(path) == ["0.jpg", "bad.jpg"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "path,label\na.jpg,cat\n", "has other columns"),
        ("a.csv", "path,label,confidence,index,learned,error\r\n", "saved by another program"),
        ("a.csv", "path,label,confidence,index,learned,error\na,b\nc,,,,,\n", "was changed"),
        ("a.jsonl", "my notes\n", "was changed"),
        ("a.jsonl", "my notes", "was changed"),
        ("a.json", '{"mine": 1}', "was changed"),
        ("a.json", '[{"path": "a"}]', "was changed"),
        ("a.json", "[" * 50_000, "was changed"),
    ],
)
def test_files_of_others_are_not_cut(name, content, sentence, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode())
    with pytest.raises(InputError, match=sentence):
        Ledger(path).resume()
    assert path.read_bytes() == content.encode()
    assert os.listdir(tmp_path) == [name]


def test_another_number_of_columns_is_refused(tmp_path):
    open_output(tmp_path / "a.csv", top=5).close()
    with pytest.raises(InputError, match="ask for the same number of classes per image"):
        Ledger(tmp_path / "a.csv", top=3)
    with Ledger(tmp_path / "a.csv", top=5).resume() as out:
        out.write(row("0.jpg"))


def test_names_are_those_of_the_folder_where_the_run_began(tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with open_output("../a.csv") as out:
        out.write(row("0.jpg"))
        marks = out.mark("s.adte")
    monkeypatch.chdir(tmp_path / "two")
    ledger = Ledger("../a.csv")
    with ledger.resume(ledger.covered("../one/s.adte", marks)) as out:
        assert not ledger.take("0.jpg")  # another image of that name
        assert ledger.take(str(tmp_path / "one" / "0.jpg"))
        assert not ledger.take("../one/../one/0.jpg")
    monkeypatch.chdir(tmp_path)
    os.mkdir("moved")
    for name in ("one", "a.csv"):
        os.rename(name, f"moved/{name}")
    monkeypatch.chdir("moved/one")
    ledger = Ledger("../a.csv")
    with ledger.resume(ledger.covered("s.adte", marks)):
        assert ledger.take("0.jpg")


def test_runs_from_several_folders_share_one_beginning_of_names(tmp_path, monkeypatch):
    """The last run's folder held for the rows of all, so those of others were written again."""
    (tmp_path / "photos").mkdir()
    marks = {}
    for folder, name in [(".", "photos/0.jpg"), ("photos", "0.jpg"), ("photos", "1.jpg"),
                         (".", "photos/1.jpg"), (".", "photos/0.jpg"), ("/", "s3://b/2.jpg"),
                         (".", "s3://b/2.jpg")]:  # fmt: skip
        monkeypatch.chdir(tmp_path / folder)
        ledger = Ledger(tmp_path / "a.csv")
        with ledger.resume(ledger.covered(tmp_path / "s.adte", marks)) as out:
            if not ledger.take(name):
                out.write(row(name))
            marks = out.mark(tmp_path / "s.adte", marks)
    whole = str(tmp_path / "photos" / "1.jpg")
    assert names(tmp_path / "a.csv") == ["photos/0.jpg", whole, "s3://b/2.jpg"]


def test_an_image_at_the_root_is_not_the_one_of_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("a.csv", ["0.jpg"])
    ledger = Ledger("a.csv")
    with ledger.resume():
        assert not ledger.take(os.path.join(os.path.abspath(os.sep), "0.jpg"))
        assert ledger.take("./0.jpg")


def test_streams_have_no_past(capfdbinary):
    ledger = Ledger("-")
    with ledger.resume(ledger.covered("s.adte")) as out:
        assert not ledger.take("0.jpg")
        out.write(row("0.jpg"))
    assert json.loads(capfdbinary.readouterr().out)["path"] == "0.jpg"


def test_an_output_that_grew_meanwhile_is_refused(tmp_path):
    fill(tmp_path / "a.csv", ["0.jpg"])
    ledger = Ledger(tmp_path / "a.csv")
    with Ledger(tmp_path / "a.csv").resume() as out:
        out.write(row("1.jpg"))
    with pytest.raises(InputError, match="is being written by another process"):
        ledger.resume(0)
    assert names(tmp_path / "a.csv") == ["0.jpg", "1.jpg"]


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
        done = Ledger(folder / name).done
        assert sorted(d.name for d in done) == images
        assert {d.name for d in done if d.failed} == last
        learned = load_state(folder / "s.adte")[1]["learned"]
        assert learned == [d.name for d in done if not d.failed]


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
from ledger_run import Run
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
    for _ in range(6):
        pid = processes.start(code)
        wanted = place_size(path) + rng.randrange(1, 600)
        while place_size(path) < wanted and not Path(f"{path}.done").exists():
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        killed += processes.wait(pid)[0] == -signal.SIGKILL
    assert killed >= 4
    assert processes.run(code) == (0, "")
    images = [f"{i}.jpg" for i in range(count)]
    assert names(path) == images
    assert load_state(state)[1]["learned"] == images


def place_size(path: Path) -> int:
    return max((p.stat().st_size for p in (path, place_of(path)) if p.exists()), default=0)
