"""`adte predict`: what is shown, read and written, and `adte undo`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from adte import Classifier
from adte.cli._screen import TINY
from adte.core.prediction import Prediction
from predicting import call, facts, mixed, picture, pictures, predict, rows, seen, settle

ADTE = (sys.executable, "-W", "error", "-m", "adte")


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "photo.png")


@pytest.fixture
def photos(tmp_path):
    return mixed(tmp_path / "photos")


# --------------------------------------------------------------------------- what is shown


def test_a_line_per_image(photos):
    result = predict(photos, "--order", "listed")
    shown = result.stdout.splitlines()
    assert len(shown) == 6
    for line, path in zip(shown, sorted(photos.iterdir()), strict=True):
        assert line.split()[0] == str(path)
    assert shown[2].split()[1:] == ["(not", "read)"]
    label, confidence, unit = shown[0].split()[1:]
    assert label in ("cat", "dog", "car")
    assert 0 <= float(confidence) <= 100
    assert unit == "%"
    assert "█" not in result.output
    assert "\x1b" not in result.output


def test_bars_for_one_image_or_on_demand(photo, photos):
    assert "█" in predict(photo).stdout
    assert "█" not in predict(photo, "--no-bars").stdout
    assert predict(photos, "--bars").stdout.count("%") == 15


def test_quiet_and_verbose(photos):
    quiet = predict(photos, "-q")
    assert quiet.stdout == ""
    assert len(quiet.stderr.splitlines()) == 2  # the broken one, and the summary
    assert quiet.stderr.splitlines()[1] == "5 images labelled, 1 could not be read"
    verbose = predict(photos, "-v", "--top", 2)
    assert len(verbose.stdout.splitlines()) == 6 + 5 * 2
    both = predict(photos, "-q", "-v")
    assert both.exit_code == 2
    assert "contradict" in both.output


@pytest.mark.slow
def test_other_encodings(photo, tmp_path):
    """cp1252 has neither blocks nor arrows."""
    picture(tmp_path / "größe→.png")
    (tmp_path / "photo.png").rename(tmp_path / "a.png")
    done = subprocess.run(
        [*ADTE, "predict", "a.png", "größe→.png", "--classes", "größe, →, dog", "--bars",
         "--views", "2"],
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "cp1252"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"####" in done.stdout
    assert "größe\\u2192.png".encode("cp1252") in done.stdout
    assert b"Error" not in done.stderr


@pytest.mark.slow
def test_the_progress_bar_shares_no_line(photos, tmp_path):
    """On a real terminal, lines come out above the bar."""
    pty = pytest.importorskip("pty")
    mine, theirs = pty.openpty()
    args = [*ADTE, "predict", "photos", "--classes", "cat, dog", "--views", "4"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(args, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    text = b""
    while True:
        try:
            block = os.read(mine, 4096)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        text += block
    child.wait()
    os.close(mine)
    screen = Terminal().feed(text.decode())
    shown = [line for line in screen if ".png" in line and "error" not in line]
    assert len(shown) == 5
    for line in shown:
        assert line.split()[-1] == "%", line
        assert "labelling" not in line
    assert b"labelling" in text  # there was a bar
    assert not any("labelling" in line for line in screen)  # and it is gone


class Terminal:
    """As much of a terminal as a progress bar asks for: lines, up, clear."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> list[str]:
        i = 0
        while i < len(text):
            c = text[i]
            if text.startswith("\x1b[", i):
                end = i + 2
                while not text[end].isalpha():
                    end += 1
                self.code(text[i + 2 : end], text[end])
                i = end + 1
                continue
            if c == "\n":
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.lines):
                    self.lines.append("")
            elif c == "\r":
                self.column = 0
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + c + line[self.column + 1 :]
                self.column += 1
            i += 1
        return self.lines

    def code(self, number: str, kind: str) -> None:
        if kind == "A":
            self.row = max(0, self.row - int(number or 1))
        elif kind == "K":
            self.lines[self.row] = "" if number == "2" else self.lines[self.row][: self.column]


def test_json_says_the_same(photo):
    data = facts(predict(photo, "--json"))
    (row,) = data["rows"]
    assert row["label"] == row["top"][0]["class"] in data["classes"]
    assert sum(t["probability"] for t in row["top"]) == pytest.approx(1, abs=1e-4)
    assert (data["labelled"], data["seen"], data["unread"]) == (1, 1, [])


def test_the_same_photo_twice_is_the_same_class(photo):
    """With two names the first image must not turn the second round."""
    args = ("--classes", "cat,dog", "--views", 32, "--json")
    found = facts(call("predict", photo, photo, photo, *args))["rows"]
    assert len({r["label"] for r in found}) == 1


# --------------------------------------------------------------------------- all are named


def test_unreadable_images_are_all_named(photos, tmp_path):
    for name in ("a.heic", "b.avif", "c.jfif"):
        (photos / name).write_bytes(b"no image either")
    result = predict(photos, "--out", "o.csv", "--json", "j.json")
    assert result.exit_code == 2
    assert "5 images labelled, 4 could not be read" in result.stderr
    bad = ("001x.jpg", "a.heic", "b.avif", "c.jfif")
    by_name = {Path(r["path"]).name: r for r in rows(Path("o.csv"))}
    said = {
        Path(u["path"]).name: u["error"] for u in json.loads(Path("j.json").read_text())["unread"]
    }
    assert len(by_name) == 9
    for name in bad:
        assert result.stderr.count(name) >= 1
        assert by_name[name]["error"] == said[name] != ""
        assert by_name[name]["learned"] == "false"
    assert seen(Path("o.csv.adte")) == 5


# --------------------------------------------------------------------------- a real model


def test_tiny_says_what_it_is_once(photos):
    result = predict(photos)
    assert result.stderr.count(TINY) == 1
    assert "adte models get ViT-B-16/openai" in TINY
    assert TINY not in predict(photos, "-q").stderr


# --------------------------------------------------------------------------- what people expect


def test_rows_as_csv_and_json_lines(photos):
    for out in ("o.csv", "o.jsonl", "o.json"):
        predict(photos, "--out", out, "--top", 2)
    by_csv = rows(Path("o.csv"))
    lines = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert lines == json.loads(Path("o.json").read_text())
    assert list(by_csv[0])[:6] == ["path", "label", "confidence", "index", "learned", "error"]
    for a, b in zip(by_csv, lines, strict=True):
        assert a["path"] == b["path"]
        assert a["label"] == (b["label"] or "")
        if b["error"] is None:
            assert float(a["confidence"]) == b["confidence"] == b["top"][0]["probability"]
            assert [a["class_1"], a["class_2"]] == [t["class"] for t in b["top"]]
            assert b["learned"] is True
            assert b["kept"]
    printed = predict(photos, "--out", "-", "--top", 2)
    streamed = [json.loads(line) for line in printed.stdout.splitlines()]  # as they are made
    assert sorted(streamed, key=lambda row: row["path"]) == lines != streamed


def test_standard_input_zip_and_tar(photo, tmp_path):
    data = photo.read_bytes()
    want = facts(predict(photo, "--json"))["rows"][0]["confidence"]
    with zipfile.ZipFile("p.zip", "w") as archive:
        archive.writestr("in/photo.png", data)
        archive.writestr("in/bad.png", b"none")
    with tarfile.open("p.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("photo.png")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    got = facts(predict("-", "--json", input=data))["rows"]
    assert [(r["path"], r["confidence"]) for r in got] == [("-", want)]
    got = facts(predict("p.zip", "--json"))["rows"]
    assert [r["path"] for r in got] == ["p.zip/in/photo.png", "p.zip/in/bad.png"]
    assert got[0]["confidence"] == want
    assert got[1]["error"]
    got = facts(predict("p.tar.gz", "--json"))["rows"]
    assert [(r["path"], r["confidence"]) for r in got] == [("p.tar.gz/photo.png", want)]


def test_a_list_of_files(photos):
    Path("list.txt").write_text("photos/000.png\nphotos/002.png\n")
    got = facts(predict("--files-from", "list.txt", "--json"))["rows"]
    assert [r["path"] for r in got] == ["photos/000.png", "photos/002.png"]
    got = facts(predict("photos/001.png", "--files-from", "-", "--json", input=b"photos/000.png\0"))
    assert [r["path"] for r in got["rows"]] == ["photos/001.png", "photos/000.png"]


def test_below_a_confidence_there_is_no_label(photos):
    result = predict(photos, "--min-confidence", 1, "--out", "o.jsonl")
    assert "5 images labelled (5 unsure)" in result.stderr
    assert result.stdout.count("unsure") == 5
    for row in map(json.loads, Path("o.jsonl").read_text().splitlines()):
        if row["error"] is None:
            assert row["label"] is None
            assert row["abstained"] is True
            assert row["top"][0]["class"] in ("cat", "dog", "car")
            assert row["confidence"] == row["top"][0]["probability"]
    assert predict(photos, "--min-confidence", 0, "--json").stdout.count('"abstained": true') == 0


def tree(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("way", ["copy", "link", "move"])
def test_sorted_and_taken_back(way, photos, tmp_path):
    before = tree(photos)
    result = predict(photos, "--sort-into", "sorted", "--sort", way, "--json", "j.json")
    assert result.exit_code == 2, result.output
    done = {"copy": "copied", "link": "linked", "move": "moved"}[way]
    assert f"sorted (5 images {done}; `adte undo sorted/undo.csv` undoes it)" in result.stderr
    for row in json.loads(Path("j.json").read_text())["rows"]:
        if row["error"] is None:
            target = tmp_path / "sorted" / row["label"] / Path(row["path"]).name
            assert target.read_bytes() == before[Path(row["path"]).name]
            assert target.is_symlink() == (way == "link")
    left = tree(photos)
    assert left == (before if way != "move" else {"001x.jpg": b"no image"})
    back = call("undo", "sorted/undo.csv")
    assert back.exit_code == 0, back.output
    assert "5 images taken back, 0 left" in back.output
    assert tree(photos) == before
    assert not Path("sorted").exists()


def test_sorting_writes_over_nothing(photos, tmp_path):
    for label in ("cat", "dog", "car"):
        (tmp_path / "sorted" / label).mkdir(parents=True)
        (tmp_path / "sorted" / label / "000.png").write_text("mine")
    predict(photos / "000.png", "--sort-into", "sorted")
    assert [p.read_text() for p in Path("sorted").glob("*/000.png")] == ["mine"] * 3
    (numbered,) = Path("sorted").glob("*/000-2.png")
    numbered.write_bytes(b"edited by me")
    back = call("undo", "sorted/undo.csv")
    assert back.exit_code == 2
    assert "was changed since it was sorted" in back.output
    assert numbered.read_bytes() == b"edited by me"
    assert [p.read_text() for p in Path("sorted").glob("*/000.png")] == ["mine"] * 3


def test_sorting_goes_on_with_the_labels(photos, tmp_path):
    """The second run sorts what the first has labelled, and nothing twice."""
    predict(photos / "000.png", photos / "001.png", "--out", "o.csv")
    predict(photos, "--out", "o.csv", "--sort-into", "sorted")
    predict(photos, "--out", "o.csv", "--sort-into", "sorted")
    assert len(list(Path("sorted").rglob("*.png"))) == 5
    for row in rows(Path("o.csv")):
        if row["label"]:
            assert (tmp_path / "sorted" / row["label"] / Path(row["path"]).name).is_file()


def test_unsure_images_and_archives_are_sorted_too(photo):
    with zipfile.ZipFile("p.zip", "w") as archive:
        archive.write(photo, "in/photo.png")
    predict("p.zip", "--sort-into", "sorted", "--min-confidence", 1)
    assert Path("sorted/unsure/photo.png").read_bytes() == photo.read_bytes()
    for way, done in (("move", "moved"), ("link", "linked")):
        said = predict("p.zip", "--sort-into", "s", "--sort", way).output
        assert f"images in the archive 'p.zip' cannot be {done}; use --sort copy" in said
    assert "read once" in predict("-", "--sort-into", "s", input=b"x").output
    assert "give a folder outside" in predict(".", "--sort-into", "below").output
    assert "--sort needs --sort-into" in predict(photo, "--sort", "move").output


def test_a_prediction_as_a_dict_and_in_a_notebook(photo):
    p = Classifier("tiny", ["cat", "<b>dog</b>"], views=4).predict(photo)
    said = json.loads(json.dumps(p.to_dict()))
    assert said["label"] == p.label
    assert said["source"] == str(photo)
    assert said["probs"] == p.probs.tolist()
    assert said["kept"] == p.kept.tolist()
    assert said["q"] is None
    html = p._repr_html_()
    assert html.count("<tr>") == 2
    assert "&lt;b&gt;dog" in html
    assert "<b>" not in html
    assert f"{100 * p.confidence:.1f} %" in html
    bare = Prediction(torch.tensor([0.25, 0.75]))
    assert bare.top() == [("class 1", 0.75), ("class 0", 0.25)]
    assert "class 1" in bare._repr_html_()


def test_a_state_file_is_shown():
    pictures(Path("photos"), 4)
    predict("photos", "--out", "labels.csv", "-q")
    shown = call("state", "labels.csv.adte")
    assert shown.exit_code == 0, shown.output
    for word in ("tiny", "tilt", "4 (learning)", "cat", "dog", "car", "bias", "share"):
        assert word in shown.output
    held = json.loads(call("state", "labels.csv.adte", "--json").stdout)
    assert (held["model"], held["method"], held["seen"]) == ("tiny", "tilt", 4)
    by_class = held["by_class"]
    assert [r["class"] for r in by_class] == ["cat", "dog", "car"]
    assert sum(r["share"] for r in by_class) == pytest.approx(1)
    assert sum(r["bias"] for r in by_class) == pytest.approx(3)
    for method, known in (("tda", {"class"}), ("adte", {"class", "bias"})):  # not all estimate both
        predict("photos", "--method", method, "--out", f"{method}.csv", "-q")
        held = json.loads(call("state", f"{method}.csv.adte", "--json").stdout)
        assert [r.keys() for r in held["by_class"]] == 3 * [known]
        assert call("state", f"{method}.csv.adte").exit_code == 0
    refused = call("state", "labels.csv.adte", "verify")
    assert refused.exit_code == 2
    assert "'verify' is for the folder of a service, and 'labels.csv.adte' is a file" in (
        refused.output
    )
    assert "is not a state file" in call("state", "labels.csv").output


def test_a_run_goes_on_with_its_classes_in_another_order():
    pictures(Path("photos"), 4)
    first = sorted(Path("photos").iterdir())[0]
    predict(first, "--out", "labels.csv", "-q")
    again = ("--classes", "car, cat, dog", "--views", 4, "--workers", 0)
    result = call("predict", "photos", "--out", "labels.csv", *again)
    assert result.exit_code == 0, result.output
    assert result.output.count("has the same classes in another order; they are matched") == 1
    predict(first, "--out", "other.csv", "-q")
    predict("photos", "--out", "other.csv", "-q")
    assert Path("labels.csv").read_text() == Path("other.csv").read_text()
    other = ("--classes", "car, cat, bird", "--views", 4, "--workers", 0)
    refused = call("predict", "photos", "--out", "labels.csv", *other)
    assert refused.exit_code == 2
    assert "was saved for other classes" in refused.output
