"""The command line, as a person meets it: in a process of its own where it matters."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from adte.cli import main


def call(*args: str):
    return CliRunner().invoke(main, [str(a) for a in args])


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


BAD = {
    "unknown": (["methods", "nonsense"], "unknown method"),
    "simulate": (["simulate", "--images", "0"], "images=0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case):
    args, message = BAD[case]
    result = call(*args)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("error: ")
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_simulate_prints_a_table(tmp_path):
    target = tmp_path / "s.json"
    result = call("simulate", "--images", 12, "--classes", 6, "--views", 4, "--json", target)
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
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ("compare", "--methods", "se", "--seeds", 0),
        ("compare", "--methods", "se", "--limit", 3, "--device", "gpu"),
        ("compare", "--methods", "se", "--limit", 3, "--views", 4),
        ("compare", "--methods", "se", "--limit", 3, "--model", "ViT-B-16/openai"),
        ("compare", "--methods", "se", "--limit", 3, "--table", "x.xlsx"),
        ("compare", "--methods", "se", "--limit", 3, "--json", "nowhere/x.json"),
        ("sweep", "smoothing=1", "smoothing=2", "--limit", 3),
        ("paper", "two-classes", "--jobs", 0),
        ("bench", "rate", "--repeats", 0),
        ("eval", "--data", "cache:a", "--data", "cache:b"),
    ],
    ids=lambda args: " ".join(map(str, args)),
)
def test_bad_values_end_in_a_sentence(args):
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert "Error" in result.output or "error:" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_the_same_method_twice_is_one_row():
    result = call("compare", "--methods", "se,se", "--limit", 3, "--json")
    assert len(json.loads(result.output)["rows"]) == 1
