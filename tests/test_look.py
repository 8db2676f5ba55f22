"""`adte look`: a page of labels, and what a person says of some of them."""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from html import unescape
from pathlib import Path

import pytest

from adte import InputError
from adte.files import console
from adte.files.reading import read_rows
from adte.files.rows import Csv
from adte.label import Look
from predicting import call, is_clean, mixed, picture, pictures, predict, settle


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def page(path: str | Path = "labels.html") -> str:
    return Path(path).read_text("utf-8")


def cards(text: str) -> list[tuple[str, float]]:
    """Names and confidences of the images that are shown, in order."""
    found = re.findall(r'<li class="card" data-confidence="([\d.]+)" title="([^"]*)"', text)
    return [(unescape(name), float(sure)) for sure, name in found]


def to_check(text: str) -> list[str]:
    return [unescape(p) for p in re.findall(r'data-path="([^"]*)"', text)]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_a_page_of_whatever_predict_wrote(suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    photos = mixed(Path("photos"))
    assert predict(photos, "--out", f"labels.{suffix}").exit_code == 2  # one cannot be read
    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    done = call("look", f"labels.{suffix}")
    assert done.exit_code == 0
    assert done.stdout == "labels.html\n"
    assert "5 of 5 images shown, 5 to check" in done.stderr
    assert all(p.read_bytes() == data for p, data in before.items())
    text = page()
    said = {str(Path(row["path"])): row for row in read_rows(
        f"labels.{suffix}" + ".jsonl" * (suffix == "parquet"))}  # fmt: skip
    good = {name: row for name, row in said.items() if not row["error"]}
    assert dict(cards(text)) == {
        name: pytest.approx(row["confidence"], abs=1e-6) for name, row in good.items()
    }
    assert text.count("data:image/jpeg;base64,") == 5
    assert "photos/001x.jpg" in text
    assert "5 images" in text
    assert {Path(p) for p in to_check(text)} == {Path(name).resolve() for name in good}


def test_the_least_sure_of_each_label_come_first_and_all_are_counted():
    pictures(Path("photos"), 12)
    predict("photos", "--out", "labels.csv")
    rows = list(read_rows("labels.csv"))
    assert call("look", "labels.csv", "--images", 4, "--check", 0).exit_code == 0
    shown = cards(page())
    assert len(shown) == 4
    for label in {row["label"] for row in rows}:
        sure = {row["path"]: row["confidence"] for row in rows if row["label"] == label}
        there = [name for name, _ in shown if name in sure]
        assert there == sorted(sure, key=lambda name: sure[name])[: len(there)]
        assert there, "every label has its least sure one"
    assert "4 of the 12 images are shown" in page()
    assert "by eye" not in page()


def test_those_to_check_are_drawn_from_all_and_are_the_same_again():
    pictures(Path("photos"), 30)
    predict("photos", "--out", "labels.csv", "-q")
    call("look", "labels.csv", "--check", 6, "--images", 1)
    first = to_check(page())
    assert len(first) == len(set(first)) == len(cards(page())) == 6
    call("look", "labels.csv", "--check", 6, "--out", "other.html")
    assert to_check(page("other.html")) == first
    ranks = sorted(read_rows("labels.csv"), key=lambda row: row["confidence"])
    least = {str(Path(row["path"]).resolve()) for row in ranks[:6]}
    assert set(first) != least


def test_from_another_folder_and_without_a_state(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    pictures(Path("photos"), 3)
    predict("photos", "--out", "labels.csv", "-q")
    monkeypatch.chdir(tmp_path)
    assert call("look", "work/labels.csv").exit_code == 0
    assert page("work/labels.html").count("data:image") == 3
    assert "--state work/labels.csv.adte" in page("work/labels.html")
    os.rename("work/labels.csv.adte", "kept.adte")
    done = call("look", "work/labels.csv")
    assert done.exit_code == 0
    assert "3 images have no picture" in done.stderr
    done = call("look", "work/labels.csv", "--state", "nothing.adte")
    assert done.exit_code == 2
    assert "nothing.adte" in done.stderr


def test_images_in_archives_have_pictures_and_no_check():
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in pictures(Path("photos"), 3):
            archive.write(path)
    predict("photos.zip", "--out", "labels.csv", "-q")
    done = call("look", "labels.csv")
    assert done.exit_code == 0
    assert done.stderr.startswith("note: of the images drawn to check 3 could not be: in archives,")
    assert page().count("data:image") == 3
    assert to_check(page()) == []


def test_a_warning_is_one_line():
    """Of an archive, here, that has no end mark."""
    (photo,) = pictures(Path("photos"), 1)
    with tarfile.open("photos.tar", "w") as archive:
        archive.add(photo)
        end = archive.offset
    os.truncate("photos.tar", end)
    predict("photos.tar", "--out", "labels.csv", "-q")
    done = call("look", "labels.csv")
    assert done.exit_code == 0
    first, _, wrote = done.stderr.splitlines()
    assert first.startswith("note: the archive ")
    assert wrote.startswith("wrote labels.html")


def test_what_is_gone_is_said_and_what_is_unsure_has_its_guess():
    paths = pictures(Path("photos"), 4)
    predict("photos", "--out", "labels.csv", "--min-confidence", 1, "-q")
    paths[0].unlink()
    paths[1].write_bytes(b"no image any more")
    done = call("look", "labels.csv")
    assert done.exit_code == 0
    assert "2 images have no picture" in done.stderr
    assert page().count("no picture") == 2
    assert "4 without a label" in page()
    assert "<td>100.0 %</td>" in page()
    best = {row["path"]: row["top"][0]["class"] for row in read_rows("labels.csv")}
    assert all(f"<em>{guess}?</em>" in page() for guess in best.values())


def test_names_are_text_and_nothing_else():
    Path("photos").mkdir()
    odd = picture(Path("photos") / '"><script>alert(1)<script>&.png')
    call(
        "predict", "photos", "--classes", "<b>cat</b>, a & b", "--views", 4, "--out", "l.csv", "-q"
    )
    assert call("look", "l.csv").exit_code == 0
    assert "<script>alert" not in page("l.html")
    assert "<b>cat" not in page("l.html")
    assert [Path(p).name for p in to_check(page("l.html"))] == [odd.name]


def test_labels_of_any_name_are_shown():
    pictures(Path("photos"), 1)
    odd = os.fsdecode(b"caf\xe9.csv")
    predict("photos", "--out", odd, "-q")
    assert call("look", odd).exit_code == 0
    assert r"<h1>caf\udce9.csv</h1>" in page(os.fsdecode(b"caf\xe9.html"))


def test_bad_input_is_named_and_nothing_is_written_over():
    pictures(Path("photos"), 2)
    predict("photos", "--out", "labels.csv", "-q")
    Path("mine.csv").write_text("a,b\n1,2\n")
    Path("labels.html").write_text("my own page")
    Path("other.csv").write_bytes(whole := Path("labels.csv").read_bytes())
    for args, said in (
        (("mine.csv",), "'mine.csv' holds no rows"),
        (("gone.csv",), "cannot read 'gone.csv' (No such file or directory); check the path"),
        (("labels.txt",), "'labels.txt' is not a file of labels by its name"),
        (("photos",), "'photos' is not a file of labels by its name"),
        (("labels.csv", "--out", "labels.csv"), "'labels.csv' exists and holds labels"),
        (("labels.csv", "--out", "labels.csv", "--force"), "'labels.csv' is the input"),
        (("labels.csv", "--out", "labels.csv.adte", "--force"), "is the input 'labels.csv.adte'"),
        (("labels.csv", "--out", "other.csv"), "'other.csv' exists and holds labels"),
        (("labels.csv", "--out", "-"), "--out '-' is not a file"),
        (("labels.parquet",), "'labels.parquet.jsonl', which is gone"),
        (("labels.csv",), "'labels.html' exists and is not an output of adte"),
        (("labels.csv", "--out", "no/such/folder/x.html"), "no/such/folder"),
    ):
        done = call("look", *args)
        assert done.exit_code == 2
        assert is_clean(done)
        assert said in done.stderr
    assert page() == "my own page"
    assert Path("labels.csv").read_bytes() == Path("other.csv").read_bytes() == whole
    assert call("look", "labels.csv", "--force").exit_code == 0
    assert call("look", "labels.csv").exit_code == 0  # over one of ours


def test_rows_of_a_run_that_goes_on_and_damaged_ones():
    pictures(Path("photos"), 3)
    predict("photos", "--out", "labels.csv", "-q")
    whole = Path("labels.csv").read_bytes()
    Path("labels.csv").write_bytes(whole[:-9])  # the last line is being written
    assert len(Look("labels.csv").shown) == 2
    lines = whole.splitlines(keepends=True)
    Path("labels.csv").write_bytes(b"".join([lines[0], b"torn\n", *lines[2:]]))
    with pytest.raises(InputError, match=r"line 2 of 'labels.csv' is damaged"):
        Look("labels.csv")
    Path("labels.csv").write_bytes(Csv(5).head)
    with pytest.raises(InputError, match="no labelled image"):
        Look("labels.csv")


def test_rows_say_the_same_in_every_format():
    mixed(Path("photos"))
    for suffix in ("csv", "jsonl", "json"):
        predict("photos", "--out", f"labels.{suffix}", "-q")
    keys = ("path", "label", "confidence", "index", "learned", "error", "top")
    first, *others = (
        [{k: row[k] for k in keys} for row in read_rows(f"labels.{s}")]
        for s in ("csv", "jsonl", "json")
    )
    assert len(first) == 6
    assert all(json.loads(json.dumps(rows)) == first for rows in others)


def test_who_labels_at_a_terminal_is_told_of_the_page(monkeypatch):
    pictures(Path("photos"), 2)
    assert "adte look" not in predict("photos", "--out", "a.csv").output
    monkeypatch.setattr(console.err, "_force_terminal", True)
    assert "adte look 'b c.csv'" in predict("photos", "--out", "b c.csv").output
    assert "adte look" not in predict("photos", "--out", "d.csv", "-q").output
    assert "adte look" not in predict("photos", "--out", "-").output
