"""Rows: one line each, whatever is in a name; names come back byte for byte."""

from __future__ import annotations

import csv
import json
import os
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adte.files.claims import kind_of
from adte.files.outputs import open_output
from adte.files.reading import read_rows
from adte.files.rows import (
    COLUMNS,
    Csv,
    Lines,
    escape_cell,
    escape_name,
    is_facts,
    is_resaved,
    is_rows,
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
        assert form.read(line)[:5] == (name, name or None, ROW["confidence"], True, name)


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
        assert form.read(line)[:5] == (text, text or None, ROW["confidence"], True, text)
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
    assert form.read(broken) == ("b.jpg", None, None, False, "cannot read it", None)


def test_json_of_a_row():
    line = Lines().line(ROW)
    assert json.loads(line) == ROW
    assert tuple(json.loads(line))[: len(COLUMNS)] == COLUMNS
    odd = json.loads(Lines().line({"path": "b", "confidence": float("nan")}))
    assert odd == {**dict.fromkeys(COLUMNS), "path": "b"}


@pytest.mark.parametrize(
    ("head", "ours"),
    [
        (Csv().head, True),
        (Csv(2).head + Csv(2).line(ROW), True),
        (Lines().line(ROW), True),
        (b"[\n" + Lines().line(ROW).rstrip() + b",\n", True),
        (b"[\n]\n", True),
        (b'{\n  "adte": "0.2.0",\n  "rows": []\n}', True),
        (b"path,label\nphotos/a.jpg,cat\n", False),
        (b"path,label,confidence,index,learned,error,mine\n", False),
        (b'{"path": "a.jpg", "label": "cat"}\n', False),
        (b'[\n{"path": "a.jpg"}\n]', False),
        (b'{"name": "adte"}', False),
        (b"\xff\xd8\xff\xe0 a photo", False),
        (b"[" * 100_000, False),
        (b"# notes\n", False),
        (b"\n", False),
    ],
)
def test_our_outputs_are_told_from_others(head, ours):
    assert (is_rows(head) or is_facts(head)) is ours


@pytest.mark.parametrize("top", [0, 2])
def test_rows_that_another_program_saved_are_told(top):
    head = Csv(top).head.removesuffix(b"\n")
    quoted = b";".join(b'"%s"' % c for c in head.split(b","))
    for line in (head + b"\r", b"\xef\xbb\xbf" + head, head.replace(b",", b";") + b"\r", quoted):
        assert is_resaved(line + b"\n")
        assert is_resaved(line)
    for line in (head, head[1:] + b"\r", b'{"path": "a"}\r', b"path;label\r", b"\r", b""):
        assert not is_resaved(line + b"\n")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
def test_an_output_is_known_however_long_its_rows_are(name, tmp_path):
    """Its first row was cut at a megabyte, and the output disowned."""
    top = [{"class": f"class number {i} " + "x" * 100, "probability": 1e-4} for i in range(10_000)]
    with open_output(tmp_path / name, top=len(top)) as output:
        output.write({**ROW, "top": top})
    assert kind_of(tmp_path / name) == "rows"
    assert [row["path"] for row in read_rows(tmp_path / name)] == ["a.jpg"]


@pytest.mark.parametrize("start", [b'{"info": ', b"[\n", b'{"path": 1, "x": '])
def test_a_large_file_of_others_is_told_soon(start, tmp_path):
    """Of a list of annotations in one line a quarter of a gigabyte was joined again and again."""
    path = tmp_path / "coco.json"
    with path.open("wb") as file:
        file.write(start + b'"')
        file.write(b"x" * (40 << 20))
        file.write(b'"}')
    begun = time.perf_counter()
    assert kind_of(path) == "other"
    assert time.perf_counter() - begun < 5
