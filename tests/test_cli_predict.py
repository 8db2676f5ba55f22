"""`adte predict`: nothing lost, nothing destroyed, whatever interrupts it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

from adte import Classifier, InputError
from adte.files.console import emit_json
from adte.files.states import load_state
from adte.label import Job, Wanted
from predicting import (
    CLASSES,
    call,
    facts,
    is_clean,
    mixed,
    picture,
    pictures,
    predict,
    rows,
    seen,
    settle,
)


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


@pytest.fixture
def photo(tmp_path):
    return picture(tmp_path / "photo.png")


@pytest.fixture
def photos(tmp_path):
    return mixed(tmp_path / "photos")


# --------------------------------------------------------------------------- no option swallows


def test_json_takes_no_photo(photos, tmp_path):
    """`--json p*.jpg` prints the JSON and leaves the photographs alone."""
    paths = sorted(photos.glob("*.png"))
    before = [p.read_bytes() for p in paths]
    result = call("predict", *CLASSES, "--json", *paths)
    assert result.exit_code == 0, result.output
    assert [r["path"] for r in facts(result)["rows"]] == [str(p) for p in paths]
    assert [p.read_bytes() for p in paths] == before


@pytest.mark.parametrize("name", ["j.txt", "facts", "missing.jpg"])
def test_a_file_for_json_is_called_so(name, photo):
    """It would be taken for an image, after all the work."""
    result = predict(photo, "--json", name, "--out", "o.csv")
    assert result.exit_code == 2
    assert f"--json '{name}' is neither a file for JSON, which ends in .json," in result.output
    assert os.listdir() == ["photo.png"]
    assert predict("--json", "--top", 1, photo).exit_code == 0


@pytest.mark.parametrize("option", ["--out", "--json", "--state"])
def test_files_of_others_need_force(option, photo, tmp_path):
    target = tmp_path / "notes.json"
    target.write_text('{"my": "notes"}')
    result = predict(photo, option, target)
    assert result.exit_code == 2
    assert "--force" in result.output
    assert target.read_text() == '{"my": "notes"}'
    result = predict(photo, option, target, "--force")
    assert result.exit_code == 0, result.output
    assert target.read_bytes() != b'{"my": "notes"}'


# --------------------------------------------------------------------------- special files


def test_a_full_device_costs_no_other_output(photo, tmp_path):
    result = predict(photo, "--json", "/dev/full", "--out", "a.csv")
    assert result.exit_code == 2
    assert "cannot write '/dev/full': the disk is full" in result.output
    assert len(rows(Path("a.csv"))) == 1
    assert seen(Path("a.csv.adte")) == 1
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("option", ["--out", "--json"])
def test_standard_output_may_be_closed(option, photo, monkeypatch):
    monkeypatch.setattr("adte.files.devices.sys.stdout", None)
    targets = {"out": "-"} if option == "--out" else {"json_to": "-"}
    with pytest.raises(InputError, match="standard output is closed; leave it open, or give a fil"):
        Job([str(photo)], Wanted(), **targets).run()
    with pytest.raises(InputError, match="standard output is closed"):
        emit_json({}, "-")


@pytest.mark.parametrize("letters", [252, 245, 235])
@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_name_that_is_too_long_is_refused_in_words(letters, suffix, photo):
    result = predict(photo, "--out", "a" * letters + suffix)
    assert is_clean(result)
    if result.exit_code:
        assert "File name too long; give another name" in result.stderr
    assert (result.exit_code == 0) == (letters == 235 or (letters, suffix) == (245, ".csv"))


@pytest.mark.skipif(not os.path.exists("/dev/fd/1"), reason="needs /dev/fd")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link"])
def test_rows_on_standard_output_are_alone_there_by_any_name(name, photo, monkeypatch):
    Path("link").symlink_to("/dev/stdout")
    made = []
    monkeypatch.setattr("adte.cli._screen.Screen.__init__", lambda self, *a: made.append(a[4]))
    monkeypatch.setattr("adte.cli.predict._run", lambda *_: None)
    assert predict(photo, "--out", name).exit_code == 0
    assert predict(photo, "--out", "o.csv").exit_code == 0
    assert made == [True, False]


# --------------------------------------------------------------------------- labels are not lost


def test_a_name_that_is_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    picture(tmp_path / name)
    for out in ("o.csv", "o.jsonl", "o.json"):
        result = predict(tmp_path, "--out", out, "--json", "facts.json", "--no-bars")
        assert result.exit_code == 0, result.output
        assert "caf\\udce9.png" in result.output
        assert "caf\\udce9.png" in Path(out).read_text().replace("\\\\", "\\")
        json.loads(Path("facts.json").read_text())
        assert predict(tmp_path, "--out", out).output.startswith("0 images labelled, 1 done before")


BLOCKED = """
import os
os.chdir({folder!r})
import sys
from adte.cli import main
try:
    main(["predict", *{args!r}], prog_name="adte")
except SystemExit as end:
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(end.code)
"""


def start(processes, folder, *args):
    """A run that waits for the pipe `wait.png` when it has labelled what stands before it."""
    os.mkfifo(folder / "wait.png")
    before = ["--classes", "cat, dog", "--views", "4", "--workers", "0"]
    return processes.start(BLOCKED.format(folder=str(folder), args=[*map(str, args), *before]))


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_leaves_rows_and_state(number, code, said, processes, tmp_path):
    pictures(tmp_path / "photos", 3)
    args = ("photos", "wait.png", "--out", "o.csv", "--json", "j.json", "--state", "s.adte")
    pid = start(processes, tmp_path, *args)
    until(lambda: lines(tmp_path / "o.csv") == 4)
    os.kill(pid, number)
    ended, text = processes.wait(pid)
    assert ended == code, text
    assert said in text
    assert "3 images labelled; written: s.adte (3 images seen), o.csv (3 rows)" in text
    assert "Traceback" not in text
    assert len(json.loads((tmp_path / "j.json").read_text())["rows"]) == 3
    assert seen(tmp_path / "s.adte") == 3
    assert not list(tmp_path.glob(".*"))  # neither locks nor parts are left


def test_a_state_that_cannot_be_saved_costs_no_label(processes, tmp_path):
    pictures(tmp_path / "photos", 3)
    (tmp_path / "away").mkdir()
    args = ("photos", "wait.png", "--out", "o.csv", "--state", "away/s.adte")
    pid = start(processes, tmp_path, *args)
    until(lambda: lines(tmp_path / "o.csv") == 4)
    shutil.rmtree(tmp_path / "away")
    (tmp_path / "wait.png").write_bytes(picture(tmp_path / "last.png", 9).read_bytes())
    ended, text = processes.wait(pid)
    assert ended == 2, text
    assert "cannot write 'away/s.adte'" in text
    assert "written: o.csv (4 rows); 1 not written" in text
    assert len(rows(tmp_path / "o.csv")) == 4


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
"""


@pytest.mark.slow
def test_a_full_disk_in_the_middle(processes, tmp_path):
    """Rows stop, the state is as it was at its last save, and the same command goes on."""
    every = pictures(tmp_path / "photos", 40)
    args = ["photos", "--classes", "cat, dog", "--views", "2", "--out", "o.csv", "--json", "j.json"]
    ended, text = processes.run(LIMITED + BLOCKED.format(folder=str(tmp_path), args=args))
    assert ended == 2, text
    assert "cannot write 'o.csv' after" in text
    assert "Traceback" not in text
    done = len(rows(tmp_path / "o.csv"))
    assert 0 < done < 40
    assert seen(tmp_path / "o.csv.adte") <= done
    result = call("predict", *args)
    assert result.exit_code == 0, result.output
    assert [Path(r["path"]).name for r in rows(tmp_path / "o.csv")] == [p.name for p in every]
    assert seen(tmp_path / "o.csv.adte") == 40


# --------------------------------------------------------------------------- resumed, exactly


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json"])
@pytest.mark.parametrize("state", [(), ("--state", "s.adte")])
def test_a_run_in_two_parts_is_the_run_in_one(out, state, photos, tmp_path):
    every = sorted(photos.iterdir())
    listed = ("--order", "listed")
    assert predict(*every[:4], "--out", out, *state, *listed).exit_code == 2
    result = predict(photos, "--out", out, *state, *listed)
    assert result.exit_code == 2, result.output
    assert "2 images labelled, 3 done before, 1 could not be read" in result.output
    (tmp_path / "one").mkdir()
    predict(photos, "--out", f"one/{out}", "--state", "one/s.adte", *listed)
    assert Path(out).read_bytes() == (tmp_path / "one" / out).read_bytes()
    mine, theirs = (load_state(p)[0] for p in (state[1] if state else f"{out}.adte", "one/s.adte"))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[k], theirs[k]) for k in mine)
    again = predict(photos, "--out", out, *state)
    assert "0 images labelled, 5 done before" in again.output
    assert seen(Path(state[1] if state else f"{out}.adte")) == 5


def test_interrupted_anywhere_each_image_is_learned_once(processes, tmp_path):
    """Killed without a warning: rows that the state does not cover are made again."""
    pictures(tmp_path / "photos", 6)
    pid = start(processes, tmp_path, "photos", "wait.png", "--out", "o.csv")
    until(lambda: lines(tmp_path / "o.csv") == 7)
    os.kill(pid, signal.SIGKILL)
    processes.wait(pid)
    assert seen(tmp_path / "o.csv.adte") < 6
    result = call("predict", tmp_path / "photos", "--out", "o.csv", "--workers", 0)
    assert result.exit_code == 0, result.output
    assert len({r["path"] for r in rows(Path("o.csv"))}) == len(rows(Path("o.csv"))) == 6
    assert seen(Path("o.csv.adte")) == 6


def test_rows_of_another_state_are_refused(photo):
    predict(photo, "--out", "o.csv", "--state", "a.adte")
    result = predict(photo, "--out", "o.csv", "--state", "b.adte")
    assert result.exit_code == 2
    assert "is not an output of adte that the state 'b.adte' knows of" in result.output
    assert predict(photo, "--out", "o.csv", "--force").exit_code == 0
    assert seen(Path("o.csv.adte")) == 1


# --------------------------------------------------------------------------- several at once


def test_two_processes_on_one_state(processes, tmp_path):
    code = BLOCKED + "\n"
    started = []
    for name in ("a", "b"):
        pictures(tmp_path / name, 20)
        args = [name, "--classes", "cat, dog", "--views", "2", "--state", "s.adte", "-q"]
        started.append(processes.start(code.format(folder=str(tmp_path), args=args)))
    for pid in started:
        ended, text = processes.wait(pid)
        assert ended == 0, text
    assert seen(tmp_path / "s.adte") == 40


def test_the_second_says_who_has_it(processes, tmp_path, photo):
    pid = start(processes, tmp_path, "photo.png", "wait.png", "--state", "s.adte")
    until(lambda: (tmp_path / "s.adte").exists())
    result = predict(photo, "--state", "s.adte", "--wait", 0.2)
    assert result.exit_code == 2
    assert f"'s.adte' is used by another process ({pid}); waiting up to 0.2 s" in result.output
    assert f"'s.adte' is used by another process ({pid}); wait until it is done" in result.output
    os.kill(pid, signal.SIGTERM)
    processes.wait(pid)
    assert call("predict", photo, "--state", "s.adte", "--classes", "cat, dog").exit_code == 0


def test_four_threads_lose_nothing(tmp_path):
    every = pictures(tmp_path / "photos", 20)
    clf = Classifier("tiny", ["cat", "dog", "car"], views=2)
    threads = [
        threading.Thread(target=lambda part: [clf.predict(p) for p in part], args=(every[i::4],))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clf.seen == 20
    assert int(clf.method.state_dict()["seen"]) == 20


# --------------------------------------------------------------------------- with a state

WITH_STATE = {
    "same classes": (("--classes", "cat, dog, car"), None),
    "other classes": (("--classes", "bus, tram"), "saved for other classes"),
    "same model": (("--model", "tiny"), None),
    "other model": (("--model", "ViT-B-16/openai"), "with model 'tiny', not 'ViT-B-16/openai'"),
    "same method": (("--method", "tilt"), None),
    "other method": (("--method", "se"), "with method 'tilt', not 'se'"),
    "same views": (("--views", 4), None),
    "other views": (("--views", 8), "with views 4, not 8"),
    "same seed": (("--seed", 0), None),
    "other seed": (("--seed", 1), "with seed 0, not 1"),
    "same template": (("--template", "a photo of a {}."), None),
    "its name": (("--template", "single"), None),
    "other template": (("--template", "art of a {}"), "with template ['a photo of a {}.'], not"),
    "same set": (("--set", "smoothing=50"), None),
    "other set": (("--set", "smoothing=5"), "with smoothing 50.0, not 5"),
    "device": (("--device", "cpu"), None),
    "dtype": (("--dtype", "bfloat16"), None),
    "weights": (("--weights", "random"), "pass neither"),
}


@pytest.mark.parametrize("case", WITH_STATE)
def test_options_are_applied_checked_or_refused(case, photo):
    predict(photo, "--state", "s.adte")
    before = Path("s.adte").read_bytes()
    args, sentence = WITH_STATE[case]
    result = call("predict", photo, "--state", "s.adte", *args)
    assert is_clean(result)
    if sentence is None:
        assert result.exit_code == 0, result.output
        assert seen(Path("s.adte")) == 2
    else:
        assert result.exit_code == 2
        assert sentence in result.output
        assert Path("s.adte").read_bytes() == before


def test_classes_come_from_the_state(photo):
    predict(photo, "--state", "s.adte")
    result = call("predict", photo, "--state", "s.adte", "--json")
    assert facts(result)["classes"] == ["cat", "dog", "car"]


def test_defaults_of_ones_own_do_not_overrule_a_state(photo, monkeypatch):
    predict(photo, "--state", "s.adte")
    monkeypatch.setenv("ADTE_MODEL", "ViT-B-16/openai")
    assert call("predict", photo, "--state", "s.adte").exit_code == 0


def test_a_frozen_run_without_a_state_goes_on_too(photos):
    assert predict(photos / "000.png", "--freeze", "--out", "o.csv").exit_code == 0
    predict(photos, "--freeze", "--out", "o.csv")
    assert len(rows(Path("o.csv"))) == 6
    assert seen(Path("o.csv.adte")) == 0
    other = call("predict", photos, "--classes", "bus, tram", "--freeze", "--out", "o.csv")
    assert other.exit_code == 2
    assert "the state of --out, 'o.csv.adte', was saved for other classes" in other.output


def test_a_frozen_run_only_reads_the_state(photos):
    predict(photos, "--state", "s.adte")
    before = Path("s.adte").read_bytes()
    result = call("predict", photos, "--state", "s.adte", "--freeze", "--out", "o.csv")
    assert result.exit_code == 2
    assert {r["learned"] for r in rows(Path("o.csv"))} == {"false"}
    assert Path("s.adte").read_bytes() == before
    again = call("predict", photos, "--state", "s.adte", "--freeze", "--out", "o.csv")
    assert "0 images labelled, 5 done before" in again.output
    call("predict", photos, "--state", "s.adte")
    other = call("predict", photos, "--state", "s.adte", "--freeze", "--out", "o.csv")
    assert other.exit_code == 2
    assert "was written with another state" in other.output
    missing = call("predict", photos, "--state", "no.adte", "--freeze")
    assert "'no.adte' does not exist" in missing.output


# --------------------------------------------------------------------------- what was done before


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json"])
def test_a_mended_image_is_tried_again(out, photos):
    assert predict(photos, "--out", out).exit_code == 2
    again = predict(photos, "--out", out)  # still broken: nothing changes
    assert "0 images labelled, 5 done before, 1 could not be read" in again.stderr
    before = Path(out).read_text()
    assert before.count("001x.jpg as an image") <= 1
    picture(photos / "001x.png", 7).rename(photos / "001x.jpg")
    mended = predict(photos, "--out", out)
    assert mended.exit_code == 0, mended.output
    assert "1 image labelled, 5 done before" in mended.stderr
    assert f"{out} (6 rows)" in mended.stderr
    text = Path(out).read_text()
    assert text.count("001x.jpg") == 1
    assert "cannot read" not in text
    assert seen(Path(f"{out}.adte")) == 6
    assert "0 images labelled, 6 done before" in predict(photos, "--out", out).stderr
    assert Path(out).read_text() == text


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json"])
def test_what_is_said_of_an_image_is_the_last_trial(out, photos):
    predict(photos, "--out", out)
    for number in range(2):
        (photos / "001x.jpg").unlink()
        (photos / "001x.jpg").symlink_to("gone.jpg" if number else "001x.jpg")
        result = predict(photos, "--out", out)
        assert result.exit_code == 2
        assert f"{out} (6 rows)" in result.stderr
        said = Path(out).read_text()
        assert said.count("001x.jpg' is not there" if number else "symbolic links") == 1, said
    assert said.count("001x") == 2  # its name, and what is said of it


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.json"])
def test_a_folder_or_an_archive_that_can_be_read_again_has_no_row(out, photos, tmp_path):
    (photos / "001x.jpg").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    Path("a.zip").write_bytes(b"no archive")
    inputs = ("empty/", "link", "a.zip", photos)
    assert predict(*inputs, "--out", out).exit_code == 2
    assert f"{out} (8 rows)" in predict(*inputs, "--out", out).stderr
    picture(tmp_path / "empty" / "x.png", 7)
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.write(tmp_path / "empty" / "x.png", "x.png")
    mended = predict(*inputs, "--out", out)
    assert mended.exit_code == 0, mended.output
    assert f"3 images labelled, 5 done before; written: {out}.adte" in mended.stderr
    assert f"{out} (8 rows)" in mended.stderr
    assert "no image" not in Path(out).read_text()
    assert "cannot be read" not in Path(out).read_text()


def test_another_confidence_is_refused(photos):
    found = facts(predict(photos, "--json"))["rows"]
    middle = sorted(r["confidence"] for r in found if not r["error"])[2]
    predict(photos, "--out", "o.csv", "--min-confidence", middle)
    before = Path("o.csv").read_bytes()
    for other in ((), ("--min-confidence", 0), ("--min-confidence", 1)):
        result = predict(photos, "--out", "o.csv", *other)
        assert result.exit_code == 2
        assert "'o.csv' was written with --top 3 --min-confidence 0." in result.output
        assert Path("o.csv").read_bytes() == before
    same = predict(photos, "--out", "o.csv", "--min-confidence", middle)
    assert "0 images labelled, 5 done before" in same.stderr


def test_rows_that_are_gone_are_not_learned_again_in_silence(photos):
    predict(photos, "--out", "o.csv")
    Path("o.csv").unlink()
    before = Path("o.csv.adte").read_bytes()
    result = predict(photos, "--out", "o.csv")
    assert result.exit_code == 2
    assert "'o.csv' is gone or empty, but its state has seen 5 images" in result.output
    assert Path("o.csv.adte").read_bytes() == before
    assert not Path("o.csv").exists()
    goes_on = predict(photos, "--out", "o.csv", "--state", "o.csv.adte")
    assert "note: 'o.csv' is gone or empty" in goes_on.stderr
    assert seen(Path("o.csv.adte")) == 10
    Path("o.csv").unlink()
    predict(photos, "--out", "o.csv", "--force")
    assert seen(Path("o.csv.adte")) == 5


def test_learn_takes_a_list_of_files(photos):
    Path("list.txt").write_text("photos/000.png\nphotos/002.png\n")
    result = call("learn", "--files-from", "list.txt", *CLASSES, "--state", "w.adte")
    assert "2 images learned" in result.stderr
    result = call("learn", *CLASSES, "--state", "none.adte")
    assert result.exit_code == 2
    assert "no image was given; name images" in result.stderr


def test_learn_writes_over_files_of_others_when_it_is_told_to(photo):
    Path("w.adte").write_text("my notes")
    refused = call("learn", photo, *CLASSES, "--state", "w.adte")
    assert refused.exit_code == 2
    assert "is not a state file of adte; give another name, or --force" in refused.stderr
    assert Path("w.adte").read_text() == "my notes"
    for turn in (1, 2):  # a state of ours is gone on from all the same
        assert call("learn", photo, *CLASSES, "--state", "w.adte", "--force").exit_code == 0
        assert seen(Path("w.adte")) == turn


def test_no_state_where_nothing_was_learned(photos):
    result = call("learn", "missing.zip", photos / "001x.jpg", *CLASSES, "--state", "w.adte")
    assert result.exit_code == 2
    assert "0 images learned, 2 could not be read" in result.stderr
    assert "written" not in result.stderr
    assert not Path("w.adte").exists()
    call("learn", photos, *CLASSES, "--state", "w.adte")
    call("learn", "missing.zip", "--state", "w.adte")
    assert seen(Path("w.adte")) == 5


@pytest.mark.parametrize(
    ("args", "again"),
    [
        (("learn", "--state", "s.adte"), "would learn the first 2 images again; give those that"),
        (("predict", "--state", "s.adte"), "would learn the first 2 images again; give those that"),
        (("predict", "--out", "o.csv"), "continues from them where it can"),
    ],
    ids=["learn", "state", "out"],
)
def test_an_interrupt_says_what_the_same_command_does(args, again, photos, monkeypatch):
    shown = []

    def show(self, image):
        shown.append(image)
        if len(shown) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("adte.cli._screen.Screen.show", show)
    verb, *rest = args
    result = call(verb, photos, *CLASSES, *rest)
    assert result.exit_code == 130
    assert f"and the same command {again}" in result.stderr


def test_a_full_standard_output_costs_no_other_output(photos, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adte.files.console.line", full)
    result = predict(photos, "--out", "o.csv")
    assert result.exit_code == 2
    assert is_clean(result)
    assert "error: cannot write standard output: the disk is full" in result.stderr
    assert len(rows(Path("o.csv"))) == seen(Path("o.csv.adte")) == 1


def test_a_reader_who_left_is_told_what_the_same_command_does(photos, monkeypatch):
    def gone(*_):
        raise BrokenPipeError

    for kind in ("Stream", "Journal"):
        monkeypatch.setattr(f"adte.files.journal.{kind}.write", gone)
    streamed = predict(photos, "--out", "-", "--state", "s.adte")
    assert "the same command learns again what it had learned by then" in streamed.stderr
    kept = predict(photos, "--out", "o.csv", "--state", "t.adte")
    assert "the same command continues from there" in kept.stderr


def test_no_image_is_blamed_for_a_kernel_that_there_is_not(photos, monkeypatch):
    monkeypatch.setenv("ADTE_VIEWS", "xx")
    result = predict(photos)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown kernel of the views in ADTE_VIEWS 'xx'; choose")


def test_the_example_of_a_setting_is_one_that_the_default_uses(photo):
    assert "write it as in smoothing=5" in predict(photo, "--set", "beta").stderr
    assert "no effect" not in predict(photo, "--set", "smoothing=5").stderr


def test_classes_may_be_described_in_sentences(photo, tmp_path):
    """As a template does, the sentences decide the numbers, and belong to the state."""
    told = tmp_path / "told.json"
    told.write_text(json.dumps({"cat": ["a cat with whiskers."], "dog": ["a dog.", "it barks."],
                                "car": ["a car on a road."]}))  # fmt: skip
    plain = facts(predict(photo, "--json"))["rows"][0]["confidence"]
    result = predict(photo, "--descriptions", told, "--out", "o.csv")
    assert result.exit_code == 0, result.output
    assert rows(Path("o.csv"))[0]["confidence"] != str(plain)
    again = predict(photo, "--descriptions", told, "--out", "o.csv")
    assert "0 images labelled, 1 done before" in again.output
    told.write_text(json.dumps({"cat": ["another."], "dog": ["a dog."], "car": ["a car."]}))
    other = predict(photo, "--descriptions", told, "--out", "o.csv")
    assert f"was saved with other descriptions than '{told}' has; leave" in other.output
    assert "leave --descriptions out" in other.output
    told.write_text(json.dumps({"cat": ["a cat."]}))
    assert "lack 2 of 3 classes: 'dog', 'car'" in predict(photo, "--descriptions", told).output
    assert predict(photo, "--descriptions", told, "--allow-missing").exit_code == 0
    assert "--allow-missing needs --descriptions" in predict(photo, "--allow-missing").output
