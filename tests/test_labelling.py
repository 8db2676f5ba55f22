"""Labelling without a command line: jobs, signals, sorting."""

from __future__ import annotations

import csv
import errno
import html
import json
import os
import re
import signal
import threading
import zipfile
from pathlib import Path

import pytest

import adte
from adte import InputError
from adte.data import load_dataset
from adte.files.inputs import expand
from adte.files.locks import Lock
from adte.files.rows import escape_cell, read_rows
from adte.files.states import load_state
from adte.label import Job, Labelled, Listener, Look, Report, Wanted, run
from adte.label import sorting as sorting_room
from adte.label.back import digest_of, undo
from adte.label.seal import is_sealed
from adte.label.seal import seal as sealed
from adte.label.signals import Deferred
from adte.label.sorting import Sorting, folder_names
from adte.testing import SmallModel
from predicting import CLASSES, call, is_clean, mixed, picture, pictures, predict, seen, settle


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


WANTED = Wanted(["cat", "dog", "car"], views=2)


class Recorder(Listener):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.notes: list[str] = []
        self.begun = 0

    def begin(self, clf, names):
        self.begun = len(names)

    def show(self, image: Labelled) -> None:
        self.names.append(image.name)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_job_tells_its_listener(tmp_path):
    folder = mixed(tmp_path / "photos")
    recorder = Recorder()
    report = Job([str(folder)], WANTED, workers=0, order="listed").run(recorder)
    assert recorder.begun == 6
    assert recorder.names == sorted(map(str, folder.iterdir()))
    assert (report.labelled, report.before, len(report.unread)) == (5, 0, 1)
    assert not report.is_good
    assert str(report) == "5 images labelled, 1 could not be read"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")
def test_what_comes_through_a_pipe_is_another_image_each_time(tmp_path):
    """The second image of a pipe was taken for the first, and passed over."""
    os.mkfifo("camera")
    for photo in pictures(tmp_path / "photos", 2):
        shot = threading.Thread(target=Path("camera").write_bytes, args=(photo.read_bytes(),))
        shot.start()
        report = Job(["camera"], WANTED, out="o.csv", workers=0).run()
        shot.join()
        assert (report.labelled, report.before) == (1, 0)
    assert report.seen == 2


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json"])
def test_an_image_that_is_newer_than_its_row_is_said(out, tmp_path):
    """It kept the label of another one without a word."""
    photos = pictures(tmp_path / "photos", 3)

    def notes(**more) -> list[str]:
        recorder = Recorder()
        Job(["photos"], WANTED, out=out, workers=0, **more).run(recorder)
        return recorder.notes

    assert notes() == notes() == []
    picture(photos[1], 9)
    later = os.stat(out).st_mtime_ns + 10**9
    os.utime(photos[1], ns=(later, later))
    said = f"1 image is newer than '{out}', where the old labels stay; --force labels all anew"
    assert notes() == [said]
    assert notes(force=True) == []


def test_an_interrupt_in_a_listener_loses_nothing(tmp_path):
    """Between two images a signal ends the job at once; what is done is kept."""
    folder = pictures(tmp_path / "photos", 4)[0].parent

    class Impatient(Recorder):
        def show(self, image):
            super().show(image)
            if len(self.names) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    job = Job([str(folder)], WANTED, out="o.csv", workers=0)
    with pytest.raises(KeyboardInterrupt):
        job.run(Impatient())
    assert job.report.labelled == 2
    assert job.report.written == ["o.csv.adte (2 images seen)", "o.csv (2 rows)"]
    again = Job([str(folder)], WANTED, out="o.csv", workers=0).run()
    assert (again.labelled, again.before, again.seen) == (2, 2, 4)


@pytest.mark.parametrize("every", [0.0, 60.0], ids=["saved often", "saved at the end"])
def test_rows_that_wait_for_the_next_group_change_nothing(tmp_path, monkeypatch, every):
    """As on a GPU: a group is learned from before the rows of the one before it are written."""
    folder = mixed(tmp_path / "photos")
    monkeypatch.setattr(run, "EVERY", every)
    rows, states, told = [], [], []
    for name, groups in (("at-once", 0), ("behind", 1)):
        monkeypatch.setattr(run, "behind", lambda clf, groups=groups: groups)
        recorder = Recorder()
        Job([str(folder)], WANTED, out=f"{name}.csv", batch=2, workers=0).run(recorder)
        rows.append(Path(f"{name}.csv").read_text())
        states.append(load_state(f"{name}.csv.adte")[0])
        told.append(recorder.names)
    assert rows[0] == rows[1]
    assert told[0] == told[1]
    assert sorted(told[0]) == sorted(map(str, folder.iterdir()))
    assert all(bool((states[0][k] == states[1][k]).all()) for k in states[0])


def test_an_interrupt_writes_the_rows_that_wait(tmp_path, monkeypatch):
    folder = pictures(tmp_path / "photos", 6)[0].parent
    monkeypatch.setattr(run, "behind", lambda clf: 1)

    class Impatient(Recorder):
        def show(self, image):
            super().show(image)
            if len(self.names) == 1:  # by now the second image was learned from, too
                os.kill(os.getpid(), signal.SIGINT)

    job, recorder = Job([str(folder)], WANTED, out="o.csv", batch=1, workers=0), Impatient()
    with pytest.raises(KeyboardInterrupt):
        job.run(recorder)
    assert len(recorder.names) == 2
    assert job.report.written == ["o.csv.adte (2 images seen)", "o.csv (2 rows)"]
    again = Job([str(folder)], WANTED, out="o.csv", workers=0).run()
    assert (again.labelled, again.before, again.seen) == (4, 2, 6)


def test_behind_a_row_that_failed_none_is_written(tmp_path, monkeypatch):
    """The state stays at its last save, and the same command goes on from there."""
    folder = pictures(tmp_path / "photos", 6)[0].parent
    monkeypatch.setattr(run, "behind", lambda clf: 1)
    labelled, calls = run.Run._labelled, []

    def failing(self, name, found):
        calls.append(name)
        if len(calls) == 3:
            raise InputError("the disk is full")
        return labelled(self, name, found)

    job = Job([str(folder)], WANTED, out="o.csv", batch=1, workers=0)
    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_labelled", failing)
        with pytest.raises(InputError, match="the disk is full"):
            job.run()
    assert len(calls) == 3
    assert any("as it was at its last save" in f for f in job.report.failed)
    again = Job([str(folder)], WANTED, out="o.csv", workers=0).run()
    assert again.seen == 6
    assert Path("o.csv").read_text().count("\n") == 7


# --------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_block(number):
    came: list[int] = []
    before = signal.signal(number, lambda n, frame: came.append(n))
    try:
        mine = signal.getsignal(number)
        signals = Deferred()
        with signals.installed():
            os.kill(os.getpid(), number)
            assert came == [number]  # outside the block it comes at once
            with signals:
                os.kill(os.getpid(), number)
                assert came == [number]
                os.kill(os.getpid(), number)  # a second does not wait
                assert came == [number] * 2
            assert came == [number] * 3
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Deferred().installed() as signals, signals:
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_image_is_known_by_whatever_way_it_is_reached(tmp_path, monkeypatch):
    pictures(tmp_path / "photos", 3)
    assert predict("photos", "--out", "rows.csv").exit_code == 0
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("photos")
    for name in ("photos/../photos", "link", tmp_path / "link", tmp_path / "sub/../photos"):
        result = predict(name, "--out", "rows.csv")
        assert "0 images labelled, 3 done before" in result.output, (name, result.output)
    monkeypatch.chdir(tmp_path / "sub")
    assert "3 done before" in predict("../photos", "--out", "../rows.csv").output
    assert seen(tmp_path / "rows.csv.adte") == 3


def test_archives_that_were_packed_from_beside_do_not_share_their_images(tmp_path):
    photos = pictures(tmp_path / "photos", 2)
    for name, photo in zip(("one.zip", "two.zip"), photos, strict=True):
        with zipfile.ZipFile(name, "w") as archive:
            archive.write(photo, "../photos/a.png")
        result = predict(name, "--out", "rows.csv", "--sort-into", "sorted")
        assert "1 image labelled" in result.output, result.output
    result = predict("one.zip", "two.zip", "--out", "rows.csv")
    assert "0 images labelled, 2 done before" in result.output
    assert (undo("sorted/undo.csv").images, Path("sorted").exists()) == (2, False)


@pytest.mark.skipif(os.name != "posix", reason="needs names that are bytes")
def test_a_state_of_any_name_is_read_again(tmp_path):
    pictures(tmp_path / "photos", 2)
    out = os.fsdecode(b"caf\xe9.csv")
    try:
        Path(out).touch()
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    Path(out).unlink()
    Job(["photos"], WANTED, out=out, workers=0).run(Listener())
    assert Job(["photos"], WANTED, out=out, workers=0).run(Listener()).before == 2
    assert adte.Classifier.load(f"{out}.adte").seen == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    pictures(tmp_path / "photos", 1)
    os.mkfifo("photos/pipe")
    Path("photos/x.png").symlink_to("pipe")
    os.mkfifo("photos/y.png")
    assert Job(["photos"], WANTED, workers=0).run(Listener()).labelled == 1


@pytest.mark.skipif(os.name != "posix", reason="needs names that Windows has not")
def test_names_and_labels_that_begin_as_formulas_go_through_csv(tmp_path):
    """Through labels.csv to `look`, resuming, `calibrate` and `undo`: no spreadsheet runs them."""
    begins = ("=", "+", "-", "@", "\t", "\r", "'", "'=", "-1")
    photos = [f"{begin}{i}.png" for i, begin in enumerate(begins)]
    labels = tuple(f"{begin}HYPERLINK(A{i})" for i, begin in enumerate(("=", "+", "-", "@", "'=")))
    for i, name in enumerate(photos):
        picture(tmp_path / name, i)
    wanted = Wanted(labels, views=2)

    def label(**more) -> Report:
        return Job(photos, wanted, out="rows.csv", top=5, workers=0, **more).run()

    assert label().labelled == len(photos)
    with open("rows.csv", newline="") as file:
        assert not [c for row in csv.reader(file) for c in row if c[:1] in set("=+-@\t\r")]
    found = list(read_rows("rows.csv"))
    assert [row["path"] for row in found] == photos
    assert {row["label"] for row in found} <= {*labels}
    assert all({t["class"] for t in row["top"]} == {*labels} for row in found)
    again = label(sort_into="sorted", sort="move")
    assert (again.labelled, again.before, again.failed) == (0, len(photos), [])
    with open("sorted/undo.csv", newline="") as file:
        assert not [c for row in csv.reader(file) for c in row if c[:1] in set("=+-@\t\r")]
    assert undo("sorted/undo.csv") == (len(photos), [])
    assert all(map(os.path.isfile, photos))
    assert Look("rows.csv").run().shown == len(photos)
    page = html.unescape(Path("rows.html").read_text("utf-8"))
    assert {row["label"] for row in found} <= {*re.findall(r'data-label="([^"]*)"', page)}
    table = [["path", "label"], *([row["path"], row["label"]] for row in found[:4])]
    with open("checked.csv", "w", newline="") as file:
        csv.writer(file).writerows([escape_cell(c) for c in row] for row in table)
    examples = [*load_dataset("csv:checked.csv")]
    assert [os.path.basename(e.source) for e in examples] == photos[:4]
    checked = load_dataset("csv:checked.csv").classes
    assert {*checked} == {row["label"] for row in found[:4]}


# --------------------------------------------------------------------------- sorting


def stopping_at(name: str):
    """What puts an image into its folder, and is interrupted at that one."""

    def interrupted(way, source, target, do=sorting_room._do):
        if target.name == name:
            raise KeyboardInterrupt
        do(way, source, target)

    return interrupted


def test_undo_makes_the_folder_that_was_moved_empty(tmp_path):
    photo = pictures(tmp_path / "photos", 1)[0]
    Sorting("sorted", "move", [str(photo)]).fill([(str(photo), photo)], {str(photo): ["a"]}, ["a"])
    photo.parent.rmdir()
    assert undo("sorted/undo.csv") == (1, [])
    assert photo.exists()


def test_the_list_remembers_where_moved_images_came_from_until_they_are_back(tmp_path):
    """A label's folder that got another name: undo takes nothing back, and its list must stay."""
    photos = [str(p) for p in pictures(tmp_path / "photos", 2)]
    items = [(name, Path(name)) for name in photos]
    Sorting("sorted", "move", ["photos"]).fill(items, {n: ["cat"] for n in photos}, ["cat"])
    Path("sorted/cat").rename("sorted/cats")
    done = undo("sorted/undo.csv")
    assert done.images == 0
    assert [reason for reason in done.left if "is not where it was moved to" in reason] == done.left
    assert len(done.left) == 2
    Path("sorted/cats").rename("sorted/cat")
    assert undo("sorted/undo.csv") == (2, [])
    assert all(map(os.path.exists, photos))
    assert not Path("sorted").exists()


def test_a_list_that_a_full_disk_cut_goes_on(tmp_path):
    """What followed stood on the torn line, and could not be undone; an empty list was refused."""
    photos = [str(p) for p in pictures(tmp_path / "photos", 3)]
    listing = Path("sorted/undo.csv")
    for torn, name in zip(("", "move,/photos/0", ""), photos, strict=True):
        Path("sorted").mkdir(exist_ok=True)
        with listing.open("a") as file:  # all that there was room for
            file.write(torn)
        Sorting("sorted", "move", [name]).fill([(name, Path(name))], {name: ["cat"]}, ["cat"])
    assert undo(listing).images == 3


def test_images_that_are_gone_before_they_are_sorted_are_said(tmp_path):
    """As where the disk that they lie on is taken away."""
    photos = [str(p) for p in pictures(tmp_path / "photos", 3)]
    sorting = Sorting("sorted", "copy", ["photos"])
    labels = {name: ["cat"] for name in photos}
    assert sorting.fill([(photos[0], Path(photos[0]))], labels, ["cat"]) == 1
    (said,) = sorting.left
    assert said.startswith("2 labelled images could not be found again to be sorted, such as ")


def test_an_image_of_two_names_is_moved_once(tmp_path):
    (photo,) = pictures(Path("photos"), 1)
    names = str(photo), f"./{photo}"
    sorting = Sorting("sorted", "move", ["photos", "./photos"])
    labels = {name: ["cat"] for name in names}
    assert sorting.fill(expand(["photos", "./photos/000.png"]), labels, ["cat"]) == 1
    assert sorting.left == []


def test_what_a_killed_copy_left_goes(tmp_path):
    photos = [str(p) for p in pictures(tmp_path / "photos", 2)]
    items = [(name, Path(name)) for name in photos]
    Sorting("sorted", "copy", ["photos"]).fill(items, {n: ["cat"] for n in photos}, ["cat"])
    Path("sorted/cat/001.png").rename("sorted/cat/.001.png.0123abcd.part")
    assert undo("sorted/undo.csv") == (1, [])
    assert not Path("sorted").exists()


def test_the_only_copy_stays(tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    with zipfile.ZipFile("one.zip", "w") as archive:
        archive.write(photo, "x.png")
    items = [(str(photo), photo), ("one.zip/x.png", photo.read_bytes())]
    labels = {name: ["cat"] for name, _ in items}
    Sorting("sorted", "copy", ["photos", "one.zip"]).fill(items, labels, ["cat"])
    photo.unlink()
    done = undo("sorted/undo.csv")
    assert done.images == 1
    assert "is the only copy" in done.left[0]
    assert Path("sorted/cat/000.png").exists()


def test_an_interrupt_tells_what_was_moved(tmp_path, monkeypatch):
    pictures(tmp_path / "photos", 3)
    done = []
    do = sorting_room._do

    def second(way, source, target):
        if done:
            raise KeyboardInterrupt
        done.append(target)
        do(way, source, target)

    monkeypatch.setattr(sorting_room, "_do", second)
    job = Job(["photos"], WANTED, sort_into="sorted", sort="move", workers=0)
    with pytest.raises(KeyboardInterrupt):
        job.run(Listener())
    assert job.report.written == ["sorted (1 image moved; `adte undo sorted/undo.csv` undoes it)"]


def test_images_of_one_name_and_label_are_sorted_after_an_interrupt(tmp_path, monkeypatch):
    """The second was taken for the first, and never sorted."""
    images = [p.read_bytes() for p in pictures(tmp_path / "photos", 2)]
    items = [("a.zip/x.png", image) for image in images]
    labels = {"a.zip/x.png": ["cat", "cat"]}
    with monkeypatch.context() as patch:
        patch.setattr(sorting_room, "_do", stopping_at("x-2.png"))
        with pytest.raises(KeyboardInterrupt):
            Sorting("sorted", "copy", ["a.zip"]).fill(items, labels, ["cat"])
    again = [Sorting("sorted", "copy", ["a.zip"]).fill(items, labels, ["cat"]) for _ in range(2)]
    assert again == [1, 0]
    assert [Path(f"sorted/cat/{n}.png").read_bytes() for n in ("x", "x-2")] == images


def test_who_sorts_holds_the_list(tmp_path, monkeypatch):
    pictures(tmp_path / "photos", 1)
    monkeypatch.setattr("adte.label.back.Lock", lambda path: Lock(path, 0))
    job = Job(["photos"], WANTED, sort_into="sorted", wait=0, workers=0)
    assert job.run().is_good
    with Lock("sorted/undo.csv"):
        with pytest.raises(InputError, match=r"'sorted/undo.csv' is used by another process"):
            undo("sorted/undo.csv")
        (said,) = Job(["photos"], WANTED, sort_into="sorted", wait=0, workers=0).run().failed
        assert "'sorted/undo.csv' is used by another process" in said
    assert undo("sorted/undo.csv") == (1, [])
    assert not Path("sorted").exists()


def test_a_folder_that_was_taken_back_meanwhile_is_made_again(tmp_path):
    pictures(tmp_path / "photos", 1)

    class Hasty(Recorder):
        def show(self, image):
            Path("sorted").rmdir()

    assert Job(["photos"], WANTED, sort_into="sorted", workers=0).run(Hasty()).is_good
    assert undo("sorted/undo.csv").images == 1


def places(folder: str = "sorted") -> list[str]:
    """Where sorted images lie."""
    return sorted(str(p.relative_to(folder)) for p in Path(folder).glob("*/*"))


@pytest.mark.parametrize("way", ["copy", "link"])
def test_an_image_with_another_label_goes_to_another_folder(way, tmp_path):
    """It lay in both."""
    items = [(str(p), p) for p in pictures(tmp_path / "photos", 3)]
    before = {name: path.read_bytes() for name, path in items}

    def fill(*labels: str | None) -> int:
        found = {name: [label] for (name, _), label in zip(items, labels, strict=True)}
        return Sorting("sorted", way, ["photos"]).fill(items, found, ["cat", "dog"])

    assert fill(None, None, "dog") == 3
    assert fill("cat", None, "dog") == 1
    assert places() == ["cat/000.png", "dog/002.png", "unsure/001.png"]
    assert fill("cat", "cat", "cat") == 2
    assert places() == [f"cat/{name}" for name in ("000.png", "001.png", "002.png")]
    assert fill("cat", "cat", "cat") == 0
    assert undo("sorted/undo.csv") == (3, [])
    assert {name: path.read_bytes() for name, path in items} == before
    assert not Path("sorted").exists()


@pytest.mark.parametrize("way", ["copy", "move"])
def test_another_photo_of_the_same_name_size_and_time_costs_none(way, tmp_path):
    """As fixed-size formats and unpacked archives have them: the first was taken away."""
    (photo,) = pictures(tmp_path / "photos", 1)
    first = photo.read_bytes()
    for data, label in ((first, "cat"), (first[::-1], "dog")):
        photo.write_bytes(data)
        os.utime(photo, (1, 1))
        sorting = Sorting("sorted", way, ["photos"])
        sorting.fill([(str(photo), photo)], {str(photo): [label]}, ["cat", "dog"])
    assert Path("sorted/cat/000.png").read_bytes() == first
    assert Path("sorted/dog/000.png").read_bytes() == first[::-1]


def test_a_link_to_where_an_image_was_moved_costs_none(tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    data = photo.read_bytes()
    for label in ("cat", "dog"):
        sorting = Sorting("sorted", "move", ["photos"])
        sorting.fill([(str(photo), photo)], {str(photo): [label]}, ["cat", "dog"])
        if label == "cat":
            photo.symlink_to(Path("sorted/cat/000.png").absolute())
    assert Path("sorted/cat/000.png").read_bytes() == data


def test_a_name_that_became_free_has_another_image(tmp_path):
    """The list has two images under one name; the last one is there."""
    photos = {}
    for seed, folder in enumerate("ab"):
        (tmp_path / folder).mkdir()
        photos[folder] = picture(tmp_path / folder / "x.png", seed)
    for folder, label in (("a", "cat"), ("a", "dog"), ("b", "cat"), ("a", None)):
        sorting, photo = Sorting("sorted", "copy", ["a", "b"]), photos[folder]
        assert sorting.fill([(str(photo), photo)], {str(photo): [label]}, ["cat", "dog"]) == 1
        assert sorting.left == []
    assert places() == ["cat/x.png", "unsure/x.png"]
    assert Path("sorted/cat/x.png").read_bytes() == photos["b"].read_bytes()
    assert undo("sorted/undo.csv") == (2, [])


def test_what_was_changed_in_the_old_folder_stays(tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    items = [(str(photo), photo)]
    Sorting("sorted", "copy", ["photos"]).fill(items, {str(photo): [None]}, ["cat"])
    Path("sorted/unsure/000.png").write_bytes(b"edited by me")
    sorting = Sorting("sorted", "copy", ["photos"])
    assert sorting.fill(items, {str(photo): ["cat"]}, ["cat"]) == 1
    (said,) = sorting.left
    assert said == "'sorted/unsure/000.png' stays: it was changed since it was sorted"
    assert Path("sorted/unsure/000.png").read_bytes() == b"edited by me"
    again = Sorting("sorted", "copy", ["photos"])
    assert again.fill(items, {str(photo): ["cat"]}, ["cat"]) == 0
    assert again.left == []


def test_a_move_that_was_cut_off_goes_where_the_image_belongs_now(tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    data, items = photo.read_bytes(), [(str(photo), photo)]
    Sorting("sorted", "move", ["photos"]).fill(items, {str(photo): ["cat"]}, ["cat", "dog"])
    os.link("sorted/cat/000.png", photo)  # as between the two steps of a move
    Sorting("sorted", "move", ["photos"]).fill(items, {str(photo): ["dog"]}, ["cat", "dog"])
    assert places() == ["dog/000.png"]
    assert not photo.exists()
    assert undo("sorted/undo.csv") == (1, [])
    assert photo.read_bytes() == data


def test_folders_have_safe_names_of_their_own():
    names = folder_names(["a/b", "a_b", "..", "unsure", "x" * 500, "cat", "cat", "CAT"])
    assert names["a/b"] == "a_b"
    assert names["a_b"] == "a_b-2"
    assert names[".."] == "_"
    assert names["unsure"] == "unsure-2"
    assert len(names["x" * 500]) == 200
    assert names["CAT"] == "CAT-2"
    one, two = "caf\u00e9", "cafe\u0301"  # which a Mac takes for the same
    assert folder_names([one, two]) == {one: one, two: f"{two}-2"}


def test_moved_across_links(tmp_path):
    """A link is moved as a link, and leads to the same image from its new place."""
    (photo,) = pictures(tmp_path / "photos", 1)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "a.png"
    link.symlink_to("../photos/000.png")
    sorting = Sorting(tmp_path / "sorted", "move", [str(link)])
    assert sorting.fill([(str(link), link)], {str(link): ["cat"]}, ["cat"]) == 1
    moved = tmp_path / "sorted" / "cat" / "a.png"
    assert moved.is_symlink()
    assert moved.read_bytes() == photo.read_bytes()
    assert not os.path.lexists(link)
    assert undo(sorting.path).images == 1
    assert link.read_bytes() == photo.read_bytes()


# ------------------------------------------------------------- lists and folders from elsewhere


def tree() -> dict[str, bytes | str]:
    """All that there is, links as such."""
    found = (p for p in Path().rglob("*") if p.is_symlink() or p.is_file())
    return {str(p): os.readlink(p) if p.is_symlink() else p.read_bytes() for p in found}


@pytest.fixture
def downloaded(tmp_path) -> Path:
    """A folder that somebody else sorted images into, and its list."""
    pictures(Path("outside"), 1)[0].rename("outside/mine.png")
    Path("got/cat").mkdir(parents=True)
    picture(Path("got/cat/000.png"))
    return Path("got/undo.csv")


def listed(path: Path, *lines: tuple[str, ...]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("way", "from", "to", "digest", "seal"), *lines])


@pytest.mark.parametrize("seal", [None, "", "0" * 32, "é"])
@pytest.mark.parametrize("root", [None, "photos"])
def test_undo_moves_nothing_out_by_a_list_from_elsewhere(root, seal, downloaded, tmp_path):
    """Nor to where a link in its own folder leads, nor beside the folder."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/out").symlink_to("../outside")
    digest = digest_of(Path("got/cat/000.png"))
    for origin in ("outside/new.png", "new.png", "photos/../outside/new.png", "../new.png",
                   "photos/out/new.png", "photos/x/../../outside/new.png"):  # fmt: skip
        line = ("move", str(tmp_path / origin), "cat/000.png", digest)
        listed(downloaded, line if seal is None else (*line, seal))
        before = tree()
        with pytest.raises(InputError, match=r"would move an image to '.*new\.png'") as caught:
            undo(downloaded, root)
        assert "--root" in str(caught.value)
        assert tree() == before
    said = call("undo", downloaded)
    assert (said.exit_code, is_clean(said)) == (2, True)
    assert "--root FOLDER" in said.output


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_undo_takes_nothing_out_of_folders_that_links_lead_to(downloaded, tmp_path):
    mine = Path("outside/mine.png")
    (tmp_path / "got/dog").symlink_to("../outside")
    for way in ("copy", "link", "move"):
        listed(downloaded, (way, str(tmp_path / "elsewhere.png"), "dog/mine.png", digest_of(mine)))
        before = tree()
        for do in (undo, lambda path: Sorting("got", "move", [])):
            with pytest.raises(InputError, match="'got/dog' is a link, which is not followed"):
                do(downloaded)
        assert tree() == before


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_undo_puts_no_link_of_another_into_the_users_folders(downloaded, tmp_path):
    """A link is put back only where this user's adte took it from."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "got/cat/a.png").symlink_to(tmp_path / "outside/mine.png")
    digest = digest_of(Path("outside/mine.png"))
    listed(downloaded, ("move", str(tmp_path / "photos/a.png"), "cat/a.png", digest))
    before = tree()
    done = undo(downloaded, "photos")
    assert done.images == 0
    assert "it is a link, which was not sorted so" in done.left[0]
    assert {**tree(), str(downloaded): b""} == {**before, str(downloaded): b""}


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_list_or_a_lock_that_is_a_link_is_not_written(downloaded, tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    Path("outside/list").write_bytes(b"")
    listing = Path("got/undo.csv")
    for target in ("list", "missing"):
        listing.unlink(missing_ok=True)
        listing.symlink_to(f"../outside/{target}")
        before = tree()
        with pytest.raises(InputError, match=r"'got/undo\.csv' is a link, which is not followed"):
            Sorting("got", "copy", [str(photo)])
        with pytest.raises(InputError, match=r"'got/undo\.csv' is a link, which is not followed"):
            undo(listing)
        assert tree() == before
    listing.unlink()
    Path("got/.undo.csv.lock").symlink_to("../outside/mine.png")
    listed(listing)
    before = tree()
    with pytest.raises(InputError, match=r"undo\.csv\.lock' is a link, which is not followed"):
        undo(listing)  # it would have been emptied
    assert tree() == before


@pytest.mark.skipif(os.name != "posix", reason="needs links")
@pytest.mark.parametrize("way", ["copy", "link", "move"])
def test_sorting_does_not_follow_the_link_of_a_class(way, tmp_path):
    """It says so before any image is labelled, and an image that was labelled stays where it is."""
    (photo,) = pictures(tmp_path / "photos", 1)
    for folder in ("outside", "sorted"):
        (tmp_path / folder).mkdir()
    (tmp_path / "sorted/dog").symlink_to("../outside")
    before = tree()
    with pytest.raises(InputError, match="'sorted/dog' is a link, which is not followed"):
        Job(["photos"], WANTED, sort_into="sorted", sort=way, workers=0).run()
    sorting = Sorting("sorted", way, [str(photo)])
    with pytest.raises(InputError, match="'sorted/dog' is a link, which is not followed"):
        sorting.fill([(str(photo), photo)], {str(photo): ["dog"]}, ["dog"])
    assert tree() == before
    result = predict("photos", "--sort-into", "sorted", "--sort", way)
    assert (result.exit_code, is_clean(result)) == (2, True)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_list_from_elsewhere_does_not_take_an_image_for_moved(tmp_path):
    """A link to the image was taken for it, and the image itself was removed."""
    (photo,) = pictures(tmp_path / "photos", 1)
    Path("got/cat").mkdir(parents=True)
    Path("got/cat/000.png").symlink_to(photo)
    listed(Path("got/undo.csv"), ("move", str(photo), "cat/000.png", digest_of(photo)))
    sorting = Sorting("got", "move", [str(photo)])
    sorting.fill([(str(photo), photo)], {str(photo): ["cat"]}, ["cat"])
    assert any(p.is_file() and not p.is_symlink() for p in (photo, Path("got/cat/000-2.png")))


def test_what_this_user_moved_goes_back_without_a_root_and_other_lists_with_one(
    tmp_path, monkeypatch
):
    """As where the key is gone, on another machine, and by a list of an earlier version."""
    photos = pictures(tmp_path / "photos", 2)
    whole = {p.name: p.read_bytes() for p in photos}
    listing = Path("sorted/undo.csv")

    def move() -> None:
        items = [(str(p), p) for p in photos]
        sorting = Sorting("sorted", "move", ["photos"])
        assert sorting.fill(items, {str(p): ["cat"] for p in photos}, ["cat"]) == 2

    move()
    Path("sorted").rename("renamed")
    assert undo("renamed/undo.csv") == (2, [])
    move()
    with listing.open(newline="") as file:
        lines = list(csv.reader(file))
    with listing.open("w", newline="") as file:  # as it was before there were seals
        csv.writer(file).writerows(line[:4] for line in lines)
    with pytest.raises(InputError, match="--root FOLDER"):
        undo(listing)
    assert undo(listing, "photos") == (2, [])
    move()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
        with pytest.raises(InputError, match="--root FOLDER"):
            undo(listing)
    assert undo(listing) == (2, [])
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # no place for a key
    move()
    with pytest.raises(InputError, match="--root FOLDER"):
        undo(listing)
    done = call("undo", listing, "--root", tmp_path)
    assert done.exit_code == 0, done.output
    assert {p.name: p.read_bytes() for p in photos} == whole


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_the_key_of_seals_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seals = {sealed(("a", "b")) for _ in range(2)}
    (key,) = (p for p in Path("state").rglob("*") if p.is_file())
    assert key.stat().st_mode & 0o777 == 0o600
    (seal,) = seals
    assert is_sealed(("a", "b"), seal)
    for texts, other in ((("ab", ""), seal), (("a", "c"), seal), (("a", "b"), "")):
        assert not is_sealed(texts, other)
    key.write_bytes(b"")
    assert not is_sealed(("a", "b"), seal)
    assert sealed(("a", "b")) == ""


def test_an_image_comes_back_only_to_a_free_place(tmp_path):
    (photo,) = pictures(tmp_path / "photos", 1)
    data = photo.read_bytes()
    sorting = Sorting(tmp_path / "sorted", "move", [str(photo)])
    sorting.fill([(str(photo), photo)], {str(photo): [None]}, ["cat"])
    photo.write_text("another one by now")
    done = undo(sorting.path)
    assert done.images == 0
    assert "is there again" in done.left[0]
    assert photo.read_text() == "another one by now"
    photo.unlink()
    assert undo(sorting.path).images == 1  # the list still knows it
    assert photo.read_bytes() == data
    assert not (tmp_path / "sorted").exists()


@pytest.mark.parametrize("way", ["copy", "move", "link"])
def test_what_an_interrupt_left_undone_is_done_by_the_same_command(way, tmp_path, monkeypatch):
    photos = pictures(tmp_path / "photos", 3)
    labels = {str(p): ["cat"] for p in photos}
    whole = {p.name: p.read_bytes() for p in photos}

    def fill() -> int:
        sorting = Sorting(tmp_path / "sorted", way, [str(p) for p in photos])
        return sorting.fill([(str(p), p) for p in photos if p.exists()], labels, ["cat"])

    with monkeypatch.context() as patch:
        patch.setattr(sorting_room, "_do", stopping_at("001.png"))
        with pytest.raises(KeyboardInterrupt):
            fill()
    assert fill() == 2
    assert {p.name: p.read_bytes() for p in (tmp_path / "sorted" / "cat").iterdir()} == whole
    assert fill() == 0
    assert undo(tmp_path / "sorted" / "undo.csv").images == 3
    assert {p.name: p.read_bytes() for p in photos} == whole


def test_a_torn_copy_has_no_name(tmp_path, monkeypatch):
    (photo,) = pictures(tmp_path / "photos", 1)
    sorting = Sorting(tmp_path / "sorted", "copy", [str(photo)])

    def torn(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("adte.label.sorting.shutil.copy2", torn)
    with pytest.raises(InputError, match="the disk is full"):
        sorting.fill([(str(photo), photo)], {str(photo): ["cat"]}, ["cat"])
    assert [p.name for p in (tmp_path / "sorted").iterdir()] == ["undo.csv"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_gives_no_image_away_is_named(code, tmp_path, monkeypatch):
    """The folder to sort into was blamed; it had taken the image."""
    photos = pictures(tmp_path / "photos", 2)
    unlink = Path.unlink

    def refuse(path: Path, *args, **more) -> None:
        if path == photos[0]:
            raise OSError(code, os.strerror(code))
        unlink(path, *args, **more)

    monkeypatch.setattr(Path, "unlink", refuse)
    sorting = Sorting("sorted", "move", ["photos"])
    assert sorting.fill([(str(p), p) for p in photos], {str(p): ["a"] for p in photos}, ["a"]) == 1
    (said,) = sorting.left
    assert said.startswith(f"'{photos[0]}' cannot be taken from its folder: {os.strerror(code)}; ")
    assert places() == ["a/001.png"]
    assert undo("sorted/undo.csv") == (1, [])


def test_a_file_in_the_way_of_a_folder_stops_no_other(tmp_path):
    photos = pictures(tmp_path / "photos", 2)
    labels = dict(zip(map(str, photos), (["cat"], ["dog"]), strict=True))
    sorting = Sorting("sorted", "copy", ["photos"])
    Path("sorted/cat").write_text("mine")
    assert sorting.fill([(str(p), p) for p in photos], labels, ["cat", "dog"]) == 1
    assert "into 'sorted/cat': a file is in the way" in sorting.left[0]
    assert Path("sorted/cat").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("broken", ["_do", "fsync"])
def test_a_disk_that_takes_no_more_ends_the_sorting(code, broken, tmp_path, monkeypatch):
    photos = pictures(tmp_path / "photos", 2)
    items, labels = [(str(p), p) for p in photos], {str(p): ["cat"] for p in photos}
    sorting = Sorting("sorted", "link", ["photos"])

    def fail(*_):
        raise OSError(code, "no more")

    with monkeypatch.context() as patch:
        if broken == "_do":
            patch.setattr(sorting_room, "_do", fail)
        else:
            patch.setattr("adte.label.sorting.os.fsync", fail)
        with pytest.raises(InputError, match="cannot"):
            sorting.fill(items, labels, ["cat"])
    assert len(sorting.path.read_text().splitlines()) == 2  # the columns, and the first image
    assert Sorting("sorted", "link", ["photos"]).fill(items, labels, ["cat"]) == 2
    assert undo(sorting.path).images == 2


def test_an_output_is_not_the_list_of_the_sorted(tmp_path):
    pictures(tmp_path / "photos", 1)
    job = Job(["photos"], WANTED, out="sorted/undo.csv", sort_into="sorted")
    (tmp_path / "sorted").mkdir()
    with pytest.raises(InputError, match="is the list that --sort-into keeps"):
        job.run()
    assert list((tmp_path / "sorted").iterdir()) == []


def test_rows_of_a_frozen_state_are_of_that_state(tmp_path):
    """Another state with as many images is another state, and is not taken for the first."""
    first, second = pictures(tmp_path / "a", 4), pictures(tmp_path / "b", 2)
    Job([str(p) for p in first[:2]], WANTED, state="a.adte", workers=0).run()
    Job([str(p) for p in first[2:]], WANTED, state="b.adte", workers=0).run()
    frozen = {"freeze": True, "out": "rows.csv", "workers": 0}
    Job([str(second[0])], WANTED, state="b.adte", **frozen).run()
    before = Path("rows.csv").read_bytes()
    with pytest.raises(InputError, match=r"was written with another state than 'a\.adte'"):
        Job([str(p) for p in second], WANTED, state="a.adte", **frozen).run()
    assert Path("rows.csv").read_bytes() == before
    Job([str(p) for p in second], WANTED, state="b.adte", **frozen).run()
    assert Path("rows.csv").read_text().count("\n") == 3


def test_a_frozen_state_begins_another_stream_and_learns_nothing(tmp_path):
    photos = [str(p) for p in pictures(tmp_path / "a", 3)]
    Job(photos, WANTED, state="s.adte", workers=0).run()
    clf = adte.Classifier.load("s.adte")
    clf.freeze().save("f.adte")
    Job(photos[:1], WANTED, start="f.adte", out="rows.csv", workers=0).run()
    tensors, facts = load_state("rows.csv.adte")
    assert (facts["seen"], facts["frozen"]) == (0, True)
    assert (int(tensors["seen"]), int(tensors["before"])) == (0, 3)
    assert tensors["roots"].any()
    assert not tensors["answers"].any()
    with pytest.raises(InputError, match="is frozen, so nothing would be learned"):
        Job(photos, WANTED, state="f.adte", learn=True, workers=0).run()
    result = call("learn", photos[0], "--state", "f.adte", *CLASSES[:4])
    assert is_clean(result)
    assert result.exit_code == 2
    assert "images learned" not in result.output


@pytest.mark.parametrize("out", ["rows.jsonl", "rows.json", "rows.csv"])
def test_rows_list_as_many_classes_as_before(out, tmp_path):
    photos = [str(p) for p in pictures(tmp_path / "a", 2)]
    Job(photos[:1], WANTED, out=out, top=1, workers=0).run()
    before = Path(out).read_bytes()
    with pytest.raises(InputError, match=r"was written with --top 1 .*; ask for the same"):
        Job(photos, WANTED, out=out, top=3, workers=0).run()
    assert Path(out).read_bytes() == before
    Job(photos, WANTED, out=out, top=1, workers=0).run()


def test_the_same_command_goes_on_with_options_of_the_method(tmp_path):
    pictures(tmp_path / "photos", 1)
    words = ("photos", "--set", "smoothing=5", "--set", "likeness=1", "--out", "rows.csv")
    assert predict(*words).exit_code == 0
    pictures(tmp_path / "photos", 2)
    again = predict(*words)
    assert again.exit_code == 0, again.output
    other = predict("photos", "--set", "smoothing=4", "--out", "rows.csv")
    assert is_clean(other)
    assert "was saved with smoothing 5.0, not 4" in " ".join(other.output.split())


def test_shares_of_what_was_seen(tmp_path):
    clf = adte.Classifier(SmallModel(), ["a", "b", "c"], views=4)
    with pytest.raises(adte.InputError, match="no image was seen"):
        _ = clf.shares
    clf.learn([pictures(tmp_path, 6)[i] for i in range(6)])
    found = clf.shares
    assert sum(s.share for s in found) == pytest.approx(1)
    assert [s.share for s in found] == sorted((s.share for s in found), reverse=True)
    assert all(0 <= s.low <= s.share <= s.high <= 1 for s in found)
    assert {s.label for s in found} == {"a", "b", "c"}
    other = adte.Classifier(SmallModel(), ["a", "b"], "zero-shot", views=1)
    other.predict(pictures(tmp_path, 1)[0])
    with pytest.raises(adte.InputError, match="method 'zero-shot' estimates no shares"):
        _ = other.shares


def test_learning_is_predicting_without_rows(tmp_path):
    pictures(tmp_path / "in", 5)
    learned = call("learn", tmp_path / "in", *CLASSES, "--state", tmp_path / "a.adte")
    assert is_clean(learned)
    assert "5 images learned" in learned.stderr
    assert not learned.stdout
    assert is_clean(predict(tmp_path / "in", "--state", tmp_path / "b.adte"))
    ours, theirs = (load_state(tmp_path / f"{n}.adte")[0] for n in "ab")
    assert ours.keys() == theirs.keys()
    assert all(bool((ours[k] == theirs[k]).all()) for k in ours)


def test_a_warm_start_leaves_its_state_alone(tmp_path):
    pictures(tmp_path / "in", 4)
    warm, out = tmp_path / "warm.adte", tmp_path / "out.csv"
    assert is_clean(call("learn", tmp_path / "in", *CLASSES, "--state", warm))
    before = warm.read_bytes()
    assert is_clean(predict(tmp_path / "in", "--start", warm, "--out", out))
    assert warm.read_bytes() == before
    assert seen(Path(f"{out}.adte")) == 4
    ours, theirs = (load_state(p)[0] for p in (f"{out}.adte", warm))
    assert float(ours["answers"].sum()) == pytest.approx(4)  # frequencies are its own
    assert float(ours["counts"].sum()) == pytest.approx(8)
    assert [int(s[k]) for s in (ours, theirs) for k in ("seen", "before")] == [4, 4, 4, 0]
    again = predict(tmp_path / "in", "--start", warm, "--out", out)  # all done: nothing learned
    assert is_clean(again)
    assert f"--start '{warm}' is not used: '{out}.adte' exists and is continued" in again.stderr
    assert seen(Path(f"{out}.adte")) == 4
    wrong = call("predict", tmp_path / "in", "--start", warm, "--classes", "a, b", "--out", "x.csv")
    assert wrong.exit_code == 2
    assert "--start" in wrong.stderr
    assert "other classes" in wrong.stderr


@pytest.mark.parametrize("kept", [{}, {"state": "s.adte"}, {"state": "s.adte", "freeze": True}])
def test_a_start_that_comes_too_late_is_said(kept, tmp_path):
    pictures(tmp_path / "in", 2)

    def job(**more) -> Job:
        return Job(["in/000.png"], WANTED, out="o.csv", workers=0, **more)

    if "state" in kept:
        Job(["in/001.png"], WANTED, state="s.adte", workers=0).run()
    job(**kept).run()
    Job(["in"], WANTED, state="warm.adte", learn=True, workers=0).run()
    clf = adte.Classifier.load("warm.adte")
    clf.temperature = 2.0
    clf.save("warm.adte")
    recorder = Recorder()
    assert job(start="warm.adte", **kept).run(recorder).before == 1
    (said,) = [n for n in recorder.notes if "--start" in n]
    assert "--start 'warm.adte' is not used" in said


def test_a_warm_start_is_there_and_may_be_used_as_it_is(tmp_path):
    pictures(tmp_path / "in", 4)
    call("learn", "in", *CLASSES, "--state", "warm.adte")
    plain = predict("in", "--start", "warm.adte", "--freeze")
    frozen = predict(
        "in", "--start", "warm.adte", "--freeze", "--state", "no.adte", "--out", "o.csv"
    )
    assert frozen.exit_code == 0, frozen.output
    assert frozen.stdout == plain.stdout
    assert not Path("no.adte").exists()
    again = predict(
        "in", "--start", "warm.adte", "--freeze", "--state", "no.adte", "--out", "o.csv"
    )
    assert "4 done before" in again.stderr
    missing = predict("in", "--start", "nope.adte", "--out", "o.csv")
    assert missing.exit_code == 2
    assert "state file 'nope.adte' does not exist; check the path" in missing.stderr
    long = "a" * 300
    for options in (("--start", long), ("--freeze", "--state", long)):
        assert f"state file '{long}' does not exist" in predict("in", *options).stderr
    alone = predict("in", "--freeze", "--state", "no.adte")
    assert "state file 'no.adte' does not exist" in alone.stderr


def test_an_output_without_a_format_is_refused_at_once(tmp_path, monkeypatch):
    pictures(tmp_path / "in", 1)
    monkeypatch.setattr(Wanted, "new", lambda self: pytest.fail("the model was loaded"))
    for name, said in (
        ("x.txt", "which format to write; end it"),
        ("a" * 245 + ".json", "too long"),
    ):
        result = predict("in", "--out", name)
        assert result.exit_code == 2
        assert said in result.stderr


def test_an_output_of_nothing_but_what_was_mended_can_be_resumed(tmp_path, monkeypatch):
    """What had to be tried again was its only row, and the file that was left was no JSON."""
    Path("photos.zip").write_bytes(b"PK damaged")
    job = Job(["photos.zip"], WANTED, out="out.json", workers=0)
    assert len(job.run().unread) == 1
    with zipfile.ZipFile("photos.zip", "w") as archive:
        archive.write(picture(tmp_path / "a.png", 1), "a.png")

    def interrupted(self, source):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("adte.pipeline.Pipeline.prepare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Job(["photos.zip"], WANTED, out="out.json", workers=0).run()
    assert Job(["photos.zip"], WANTED, out="out.json", workers=0).run().labelled == 1
    assert len(json.loads(Path("out.json").read_text())) == 1
