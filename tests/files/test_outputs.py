"""Outputs: rows as they come, whole whatever stops the writer."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from adte import InputError
from adte.files.outputs import KEEP, Mark, open_output

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")


def row(i: int) -> dict[str, object]:
    best = [{"class": "cat", "probability": 0.9}, {"class": "dog", "probability": 0.1}]
    return {"path": f"{i}.jpg", "label": "cat", "confidence": 0.9, "index": 0, "learned": True,
            "error": None, "top": best}  # fmt: skip


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as f:
            return list(csv.DictReader(f))
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.ndjson", "a.json", "B.CSV"])
def test_formats_by_suffix(name, tmp_path):
    path = tmp_path / name
    with open_output(path, top=2) as out:
        for i in range(3):
            out.write(row(i))
        assert out.rows == 3
    out.close()  # again does nothing
    rows = read(path.rename(tmp_path / name.lower()))
    assert [r["path"] for r in rows] == ["0.jpg", "1.jpg", "2.jpg"]
    if name.lower().endswith("csv"):
        assert rows[0]["class_2"] == "dog"
    else:
        assert rows == [row(i) for i in range(3)]
    assert os.listdir(tmp_path) == [name.lower()]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_an_output_without_rows_is_valid(name, tmp_path):
    open_output(tmp_path / name).close()
    assert read(tmp_path / name) == []


def test_the_name_says_the_format(tmp_path):
    with pytest.raises(InputError, match=r"rows.txt' does not say .* end it in .csv, .jsonl"):
        open_output(tmp_path / "rows.txt")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_rows_are_there_as_they_come(name, tmp_path):
    path = tmp_path / name
    out = open_output(path)
    place = tmp_path / "a.json.jsonl.part" if name == "a.json" else path
    for i in range(3):
        out.write(row(i))
        lines = place.read_text().splitlines()
        assert len(lines) == i + 1 + (name == "a.csv")
        assert f"{i}.jpg" in lines[-1]
    out.close()


def test_an_interrupt_keeps_the_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[\n]\n")
    with pytest.raises(KeyboardInterrupt), open_output(path) as out:  # noqa: PT012
        out.write(row(0))
        assert path.read_text() == "[\n]\n"
        raise KeyboardInterrupt
    assert read(path) == [row(0)]


@posix
def test_a_name_that_is_not_utf8_loses_no_row(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    for file in ("a.csv", "a.jsonl", "a.json"):
        with open_output(tmp_path / file) as out:
            for path in ("0.jpg", name, "2.jpg"):
                out.write({**row(0), "path": path})
        assert [r["path"] for r in read(tmp_path / file)] == ["0.jpg", "caf\\udce9.jpg", "2.jpg"]


@posix
def test_links_stay_links_and_pipes_pipes(tmp_path):
    (tmp_path / "real").mkdir()
    for name in ("a.csv", "a.json"):
        (tmp_path / name).symlink_to(f"real/{name}")
        with open_output(tmp_path / name) as out:
            out.write(row(1))
        assert (tmp_path / name).is_symlink()
        assert len(read(tmp_path / "real" / name)) == 1
    assert sorted(os.listdir(tmp_path / "real")) == ["a.csv", "a.json"]
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    with open_output(pipe) as out:
        out.write(row(0))
        out.write(row(1))
        assert out.mark("s", {"other": 1}) == {"other": 1}
    reader.join()
    assert json.loads(got[0]) == [row(0), row(1)]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "out.csv", "out.json"])
def test_standard_output(name, capfdbinary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name != "-":
        os.symlink("/dev/stdout", name)
    with open_output(name) as out:
        out.write(row(0))
    with open_output(name) as out:
        pass
    said = capfdbinary.readouterr().out.decode()
    assert sys.stdout.buffer.closed is False
    if name == "out.json":
        assert said == "[\n" + json.dumps(row(0)) + "\n]\n[\n]\n"
    elif name == "-":
        assert [json.loads(line) for line in said.splitlines()] == [row(0)]
    else:
        assert [line.split(",")[0] for line in said.splitlines()] == ["path", "0.jpg", "path"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence():
    out = open_output("/dev/full")
    with pytest.raises(InputError, match=r"cannot write '/dev/full' after 0 rows: the disk is"):
        out.write(row(0))
    out.close()
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@posix
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_a_disk_that_fills_up_leaves_whole_rows(name, tmp_path):
    """RLIMIT_FSIZE: the kernel refuses to let a file grow, in the midst of a row."""
    import resource
    import signal

    path, limits = tmp_path / name, resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out = open_output(path)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        with pytest.raises(InputError, match=r"after \d+ rows: the system does not"):  # noqa: PT012
            for i in range(100):
                out.write(row(i))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    out.close()
    rows = read(path)
    assert 0 < len(rows) < 30
    assert [r["path"] for r in rows] == [f"{i}.jpg" for i in range(len(rows))]


def test_a_list_that_cannot_be_put_in_place_keeps_its_rows(tmp_path):
    path = tmp_path / "a.json"
    out = open_output(path)
    out.write(row(0))
    path.mkdir()
    with pytest.raises(InputError, match=r"is a folder.*; the rows so far are in '.*\.part'"):
        out.close()
    assert len((tmp_path / "a.json.jsonl.part").read_text().splitlines()) == 1


@posix
@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_one_writer_at_a_time(name, tmp_path):
    with open_output(tmp_path / name) as out:
        out.write(row(0))
        with pytest.raises(InputError, match=f"{name}' is being written by another process"):
            open_output(tmp_path / name)
        out.write(row(1))
    assert len(read(tmp_path / name)) == 2


def test_places_that_cannot_be_written(tmp_path):
    for name, sentence in (("no/a.csv", "make it first"), ("d.csv", "is a folder")):
        (tmp_path / "d.csv").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=sentence):
            open_output(tmp_path / name)


def test_marks_name_the_output_from_the_state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("out/deep")
    with open_output("out/deep/a.csv") as out:
        first = out.mark("shop.adte")
        out.write(row(0))
        second = out.mark("shop.adte", {**first, "b.csv": {"rows": 2}})
    assert list(first) == ["out/deep/a.csv"]
    mark = Mark(**first["out/deep/a.csv"])
    assert (mark.rows, mark.folder) == (0, "../..")
    assert list(second) == ["b.csv", "out/deep/a.csv"]
    assert second["out/deep/a.csv"]["rows"] == 1
    assert second["out/deep/a.csv"]["digest"] != mark.digest
    many = {f"{i}.csv": {} for i in range(3 * KEEP)}
    kept = out_of_many(tmp_path, many)
    assert len(kept) == KEEP
    assert list(kept)[-2:] == [f"{3 * KEEP - 1}.csv", "z.csv"]


def out_of_many(folder: Path, marks: dict[str, object]) -> dict[str, object]:
    with open_output(folder / "z.csv") as out:
        return out.mark(folder / "s.adte", marks)
