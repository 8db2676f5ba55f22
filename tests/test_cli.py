"""The command line, as a person meets it: in a process of its own where it matters."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte.cli import main


def call(*args: str):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def photo(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "photo.png"
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    small.resize((96, 72), Image.Resampling.BICUBIC).save(path)
    return path


def test_help_teaches():
    result = call("--help")
    assert result.exit_code == 0
    for verb in ("demo", "predict", "methods", "simulate"):
        assert verb in result.output
        assert call(verb, "--help").exit_code == 0


def test_methods_table_and_json(tmp_path):
    assert "adte-released" in call("methods").output
    rows = json.loads(call("methods", "--json").output)
    assert {"name", "needs", "stateful", "reference", "options", "summary"} <= rows[0].keys()
    assert all(r["reference"] for r in rows)
    assert "beta" in call("methods", "adte").output
    target = tmp_path / "m.json"
    assert call("methods", "--json", target).exit_code == 0
    assert json.loads(target.read_text()) == rows


def test_predict_shows_bars_and_writes_json(photo, tmp_path):
    result = call("predict", photo, "--classes", "cat, dog, car", "--views", 8)
    assert result.exit_code == 0, result.output
    assert "█" in result.output
    assert "cat" in result.output
    target = tmp_path / "rows.json"
    call("predict", photo, "--classes", "cat,dog,car", "--views", 8, "--json", target)
    data = json.loads(target.read_text())
    row = data["rows"][0]
    assert row["label"] in ("cat", "dog", "car")
    assert sum(t["probability"] for t in row["top"]) == pytest.approx(1, abs=1e-4)
    only = call("predict", photo, "--classes", "cat,dog,car", "--views", 8, "--json")
    assert json.loads(only.output)["rows"][0]["label"] == row["label"]


def test_predict_keeps_state_between_calls(photo, tmp_path):
    state = tmp_path / "shop.adte"
    options = ["--classes", "cat,dog", "--views", 4, "--state", state]
    assert call("predict", photo, *options).exit_code == 0
    first = state.read_bytes()
    assert call("predict", photo, *options).exit_code == 0
    assert state.read_bytes() != first
    again = call("predict", photo, "--state", state)  # classes come from the state
    assert again.exit_code == 0, again.output
    other = call("predict", photo, "--classes", "bus,tram", "--state", state)
    assert other.exit_code == 2
    assert "other classes" in other.output


def test_class_names_from_a_file(photo, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n\n", encoding="utf-8")
    result = call("predict", photo, "--classes", f"@{names}", "--views", 2, "--json")
    assert {t["class"] for t in json.loads(result.output)["rows"][0]["top"]} == {"cat", "dog"}


BAD = {
    "no classes": (["predict", "PHOTO"], "no classes"),
    "zero classes": (["predict", "PHOTO", "--classes", " , "], "no class names"),
    "missing": (["predict", "nowhere.jpg", "--classes", "a,b"], "nowhere.jpg"),
    "not an image": (["predict", "TEXT", "--classes", "a,b"], "text.jpg"),
    "empty folder": (["predict", "EMPTY", "--classes", "a,b"], "holds no image"),
    "views": (["predict", "PHOTO", "--classes", "a,b", "--views", "0"], "0"),
    "method": (["predict", "PHOTO", "--classes", "a,b", "--method", "adt"], "did you mean 'adte'"),
    "option": (["predict", "PHOTO", "--classes", "a,b", "--set", "bta=1"], "did you mean 'beta'"),
    "value": (["predict", "PHOTO", "--classes", "a,b", "--set", "beta=x"], "not float"),
    "no equals": (["predict", "PHOTO", "--classes", "a,b", "--set", "beta"], "NAME=VALUE"),
    "ratio": (["predict", "PHOTO", "--classes", "a,b", "--set", "ratio=2"], "outside (0, 1]"),
    "interval": (["predict", "PHOTO", "--classes", "a,b", "--set", "alpha=0.95"], "alpha < beta"),
    "names file": (["predict", "PHOTO", "--classes", "@none.txt"], "none.txt"),
    "unknown": (["methods", "nonsense"], "unknown method"),
    "simulate": (["simulate", "--images", "0"], "images=0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case, photo, tmp_path):
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "empty").mkdir()
    places = {"PHOTO": photo, "TEXT": tmp_path / "text.jpg", "EMPTY": tmp_path / "empty"}
    args, message = BAD[case]
    result = call(*(places.get(a, a) for a in args))
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


def test_simulate_prints_a_table(tmp_path):
    target = tmp_path / "s.json"
    result = call("simulate", "--images", 40, "--classes", 10, "--views", 8, "--json", target)
    assert result.exit_code == 0, result.output
    assert "zero-shot" in result.output
    rows = json.loads(target.read_text())["rows"]
    keys = {"method", "protocol", "accuracy", "ci95", "ece", "head", "middle", "tail"}
    assert keys | {"images_per_s"} <= rows[0].keys()


def test_installed_command_runs():
    """The real executable, so that the entry point and the exit code are real."""
    done = subprocess.run(
        [sys.executable, "-m", "adte.cli", "methods", "nonsense"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown method 'nonsense'")


def test_a_bad_image_costs_no_other_its_label(photo, tmp_path):
    bad, state, out = tmp_path / "bad.jpg", tmp_path / "s.adte", tmp_path / "o.json"
    bad.write_bytes(b"no image")
    args = ("--classes", "cat,dog", "--views", 4, "--state", state, "--json", out)
    result = call("predict", photo, bad, photo, *args)
    assert result.exit_code == 2
    assert "1 of 3 images" in result.output
    assert "bad.jpg" in result.output
    assert len(json.loads(out.read_text())["rows"]) == 2
    assert state.exists()


def test_a_saved_state_is_not_overruled(photo, tmp_path):
    state = tmp_path / "s.adte"
    first = call("predict", photo, "--classes", "cat,dog", "--views", 4, "--state", state)
    assert first.exit_code == 0, first.output
    before = state.read_bytes()
    for args in (("--method", "se"), ("--model", "tinyy"), ("--set", "beta=0.5")):
        result = call("predict", photo, "--state", state, *args)
        assert result.exit_code == 2, result.output
        assert "was saved with" in result.output
    assert state.read_bytes() == before


def test_the_same_photo_twice_is_the_same_class(photo):
    """With two names the first image must not turn the second round."""
    args = ("--classes", "cat,dog", "--views", 32, "--json")
    rows = json.loads(call("predict", photo, photo, photo, *args).output)["rows"]
    assert len({r["label"] for r in rows}) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("compare", "--methods", "se", "--seeds", 0),
        ("compare", "--methods", "se", "--limit", 3, "--device", "gpu"),
        ("compare", "--methods", "se", "--limit", 3, "--views", 4),
        ("compare", "--methods", "se", "--limit", 3, "--model", "ViT-B-16/openai"),
        ("compare", "--methods", "se", "--limit", 3, "--table", "x.xlsx"),
        ("compare", "--methods", "se", "--limit", 3, "--json", "nowhere/x.json"),
        ("sweep", "beta=0.5", "beta=0.6", "--limit", 3),
        ("predict", "PHOTO", "--classes", "a,b", "--top", -1),
        ("predict", "PHOTO", "--classes", "@PHOTO"),
        ("paper", "two-classes", "--jobs", 0),
        ("bench", "head", "--repeats", 0),
        ("eval", "--data", "cache:a", "--data", "cache:b"),
    ],
    ids=lambda args: " ".join(map(str, args)),
)
def test_bad_values_end_in_a_sentence(args, photo, tmp_path):
    args = [str(photo) if a == "PHOTO" else str(a).replace("@PHOTO", f"@{photo}") for a in args]
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert "Error" in result.output or "error:" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_the_same_method_twice_is_one_row():
    result = call("compare", "--methods", "se,se", "--limit", 3, "--json")
    assert len(json.loads(result.output)["rows"]) == 1
