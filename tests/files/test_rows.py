"""Rows: one line each, whatever is in a name; names come back byte for byte."""

from __future__ import annotations

import csv
import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adte import InputError
from adte.files.rows import (
    COLUMNS,
    Csv,
    Lines,
    escape_cell,
    escape_name,
    holds_rows,
    read_rows,
    unescape_cell,
    unescape_name,
)

ROW = {
    "path": "a.jpg", "label": "cat, small", "confidence": 0.1 + 0.2, "index": 3, "learned": True,
    "error": None, "top": [{"class": "cat, small", "probability": 0.3}, {"class": 'a "dog"',
    "probability": 1e-9}], "kept": [0, 4],
}  # fmt: skip
NAMES = st.binary(max_size=20).map(lambda b: b.decode("utf-8", "surrogateescape")) | st.text(
    st.characters(exclude_categories=()), max_size=20
)


@given(NAMES)
@example("a\udcff.jpg")
@example("a\\udcff.jpg")
@example("a\\\\udcff\udcff.jpg")
@example("C:\\photos\\u000a.jpg")
@example("two\nlines\r.jpg")
def test_every_name_is_one_line_and_comes_back(name):
    text = escape_name(name)
    assert unescape_name(text) == name
    assert text.encode("utf-8").count(b"\n") == text.count("\r") == 0
    for form in (Csv(2), Lines()):
        line = form.line({**ROW, "path": name, "label": name, "error": name})
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        row = form.row(line)
        assert [row[c] or "" for c in ("path", "label", "error")] == [name] * 3
        assert (row["confidence"], row["learned"]) == (ROW["confidence"], True)


DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", " =")


@given(st.text("'=+-@\t\r\n a1", max_size=6))
def test_a_spreadsheet_runs_no_text_and_each_comes_back(text):
    cell = escape_cell(text)
    assert not cell.startswith(DANGEROUS)
    assert unescape_cell(cell) == text
    if not text.lstrip("' ").startswith((*DANGEROUS, "\n")):
        assert cell == text  # what is no formula stays as it is, apostrophes and all
    for form in (Csv(1), Lines()):
        best = [{"class": text, "probability": -0.5}]
        line = form.line({**ROW, "path": text, "label": text, "error": text, "top": best})
        found = form.row(line)
        assert [found[c] or None for c in ("path", "label", "error")] == [text or None] * 3
        assert found["top"] == (best if text or isinstance(form, Lines) else [])
        (cells,) = csv.reader([line.decode()])
        if isinstance(form, Csv):
            assert not [c for c in cells[:-1] if c.startswith(DANGEROUS)]
            assert cells[-1] == "-0.5"  # a number stays one


@given(st.binary(max_size=20).filter(lambda b: b"\0" not in b))
def test_the_bytes_of_a_name_come_back(data):
    assert os.fsencode(unescape_name(escape_name(os.fsdecode(data)))) == data


@pytest.mark.parametrize("name", ["photo.jpg", "größe/猫.png", "C:\\photos\\new.jpg", 'a "b", c'])
def test_plain_names_are_written_as_they_are(name):
    assert escape_name(name) == name
    assert json.loads(Lines().line({"path": name}))["path"] == name
    assert next(csv.reader([Csv().line({"path": name}).decode()]))[0] == name


def test_csv_of_a_row():
    form = Csv(3)
    assert form.head.decode() == (
        "path,label,confidence,index,learned,error,class_1,probability_1,class_2,probability_2,"
        "class_3,probability_3\n"
    )
    (cells,) = csv.reader([form.line(ROW).decode()])
    assert cells == ["a.jpg", "cat, small", "0.30000000000000004", "3", "true", "", "cat, small",
                     "0.3", 'a "dog"', "1e-09", "", ""]  # fmt: skip
    broken = form.line({"path": "b.jpg", "error": "cannot read it", "learned": False})
    (cells,) = csv.reader([broken.decode()])
    assert cells == ["b.jpg", "", "", "", "false", "cannot read it", "", "", "", "", "", ""]
    row = form.row(broken)
    assert (row["label"], row["error"], row["top"]) == (None, "cannot read it", [])


def test_json_of_a_row():
    line = Lines().line(ROW)
    assert json.loads(line) == ROW
    assert tuple(json.loads(line))[: len(COLUMNS)] == COLUMNS
    odd = json.loads(Lines().line({"path": "b", "confidence": float("nan")}))
    assert odd == {**dict.fromkeys(COLUMNS), "path": "b"}


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_rows_are_read_however_long_and_files_of_others_are_not(name, tmp_path):
    path = tmp_path / name
    top = [{"class": f"class number {i} " + "x" * 100, "probability": 1e-4} for i in range(10_000)]
    form = Csv(len(top)) if name == "rows.csv" else Lines()
    whole = form.head + form.line({**ROW, "top": top})
    path.write_bytes(whole + b"torn")
    assert [(row["path"], row["top"]) for row in read_rows(path)] == [("a.jpg", top)]
    assert holds_rows(path)
    for other in (b"path,label\nphotos/a.jpg,cat\n", b'{"path": "a.jpg", "label": "cat"}\n',
                  b"\xff\xd8\xff\xe0 a photo\n", b"[" * 100_000 + b"\n", b"# notes\n",
                  whole.replace(b",", b";")):  # fmt: skip
        path.write_bytes(other)
        with pytest.raises(InputError, match="as it was written"):
            list(read_rows(path))
        assert not holds_rows(path)
    with pytest.raises(InputError, match="not a file of labels by its name"):
        list(read_rows(tmp_path / "rows.txt"))
