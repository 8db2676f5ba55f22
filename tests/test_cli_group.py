"""What all verbs share: how they end, what they write over, what they say of themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from adte.cli import main
from adte.cli._group import Verbs
from adte.cli._options import OptionsOf, Section
from adte.cli._verbs import MODULES, VERBS
from adte.core.options import option
from adte.evaluate.report.tables import Column, Grid
from adte.evaluate.running import tasks
from adte.evaluate.running.results import Results
from adte.files import console
from predicting import picture


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def start(*args, **extra):
    """A process of its own."""
    command = [sys.executable, "-m", "adte", *map(str, args)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        errors="replace",
    )


# --------------------------------------------------------------------------- as a process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to handle")
def test_sigterm_ends_in_a_sentence_and_leaves_whole_runs(tmp_path):
    runs = tmp_path / "runs"
    args = ("compare", "--methods", "zero-shot,se,adte,tda,bca", "--seeds", 3, "--runs", runs)
    process = start(*args)
    try:
        until = time.monotonic() + 300
        while len(list(runs.glob("*.json"))) < 2 and time.monotonic() < until:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143
    assert out == ""
    assert err.startswith("terminated; the files written so far are complete")
    assert err.count("\n") == 1
    assert len(list(Results(runs))) >= 2  # each is read and checked
    left = [p.name for p in runs.iterdir() if p.suffix not in (".json", ".safetensors")]
    assert left == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
@pytest.mark.parametrize("how", ["-m", "script"])
def test_an_interrupt_during_the_imports_ends_in_a_word(how, tmp_path):
    """Ctrl-C comes while torch is being imported, here a torch that sends it."""
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    )
    (tmp_path / "adte").write_text("from adte.cli import main\nmain()\n")  # as pip writes it
    words = ["-m", "adte"] if how == "-m" else [str(tmp_path / "adte")]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *words, "predict"], capture_output=True, text=True, env=env
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_who_imports_the_package_is_interrupted_as_ever(tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "try:\n import adte.core.functional\nexcept KeyboardInterrupt:\n print('mine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout) == (0, "mine\n")


@pytest.mark.parametrize(
    "asked",
    [("--help",), ("--version",), ("predict", "--help"), ("serve", "--help"), ()],
    ids=" ".join,
)
def test_what_the_program_says_of_itself_needs_no_torch(asked, tmp_path):
    """Which takes seconds, and so would every Tab key."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    words = {"COMP_WORDS": "adte rep", "COMP_CWORD": "1", "_ADTE_COMPLETE": "bash_complete"}
    env = {**os.environ, "PYTHONPATH": str(tmp_path), **({} if asked else words)}
    done = subprocess.run(
        [sys.executable, "-m", "adte", *asked], capture_output=True, text=True, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    code = "import adte; adte.Client('http://localhost:1'), adte.InputError"
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_verbs_stand_where_the_table_says():
    for name, module in MODULES.items():
        verb = main.get_command(click.Context(main), name)
        assert verb.callback.__module__ == f"adte.cli.{module}"
    assert main.commands.keys() == MODULES.keys()
    assert all(line.help.endswith(".") for verbs in VERBS.values() for line in verbs.values())


def test_an_interrupt_ends_in_a_sentence(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("adte.evaluate.running.tasks.perform", stop)
    result = call("compare", "--methods", "se", "--limit", 2)
    assert result.exit_code == 130
    assert result.stderr.startswith("interrupted; the files written so far are complete")


def test_a_terminal_without_the_letters_stops_nothing():
    """As in a process of its own, of which test_cli_predict_shown.py sees to it."""
    done = CliRunner(charset="cp1252").invoke(main, ["methods", "zero-shot"])
    assert done.exit_code == 0, done.output
    assert "\\u03c4" in done.stdout  # τ
    done = CliRunner(charset="ascii").invoke(main, ["methods", "zero-shot", "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert "τ" in row["options"][1]["options"][1]["help"]


@pytest.mark.slow
def test_the_shell_can_complete():
    """`python -m adte` goes by the name of the command."""
    process = start(_ADTE_COMPLETE="bash_source")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "_ADTE_COMPLETE=bash_complete" in out
    words = {"COMP_WORDS": "adte rep", "COMP_CWORD": "1", "_ADTE_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(main, [], prog_name="adte", env=words)
    assert done.stdout.split() == ["plain,replay", "plain,report"]
    assert "_ADTE_COMPLETE=bash_source" in call("--help").output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("args", [
    ("methods",), ("methods", "--json"), ("--help",),
    pytest.param(("compare", "--methods", "se", "--limit", 2), marks=pytest.mark.slow),
], ids=lambda args: " ".join(map(str, args)))  # fmt: skip
def test_a_full_standard_output_is_one_sentence(args):
    args = map(str, args)
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "adte", *args], stdout=full,
                              stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert done.returncode == 2, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: cannot write standard output: the disk is full; free some space")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_other_errors_of_the_system_stay_what_they_are(monkeypatch):
    def broken(*_, **__):
        raise FileNotFoundError(2, "a mistake of ours")

    monkeypatch.setattr("adte.files.console.table", broken)
    assert isinstance(call("methods").exception, FileNotFoundError)


# --------------------------------------------------------------------------- nothing destroyed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "flag", "name"),
    [
        (("methods", "se"), "--json", "x.json"),
        (("models", "tiny"), "--json", "x.json"),
        (("datasets", "pets"), "--json", "x.json"),
        (("compare", "--methods", "se", "--limit", 2), "--json", "x.json"),
        (("compare", "--methods", "se", "--limit", 2), "--table", "x.md"),
        (("compare", "--methods", "se", "--limit", 2), "--table", "x.csv"),
        (("compare", "--methods", "se", "--limit", 2), "--table", "x.html"),
        (("compare", "--methods", "se", "--limit", 2), "--table", "x.tex"),
        (("sweep", "smoothing=1", "--limit", 2), "--table", "x.md"),
        (("simulate", "--images", 3, "--classes", 3, "--views", 2), "--json", "x.json"),
        (("paper", "--list"), "--json", "x.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_only_what_is_of_our_making_is_written_over(verb, flag, name, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "LADDER", tasks.LADDER[:2])  # what simulate runs; two write a file
    target = tmp_path / name
    target.write_text("my notes\n")
    refused = call(*verb, flag, target)
    assert refused.exit_code == 2
    assert "is not an output of adte; give another name, or --force" in refused.output
    assert target.read_text() == "my notes\n"
    assert call(*verb, flag, target, "--force").exit_code == 0
    first = target.read_text()
    assert first != "my notes\n"
    again = call(*verb, flag, target)  # ours by now
    assert again.exit_code == 0, again.output
    target.unlink()
    assert call(*verb, flag, target).exit_code == 0


def test_outputs_are_checked_before_any_work(tmp_path):
    missing = ("--data", "folder:/nowhere")  # is not looked at
    for args, message in (
        (("--json", tmp_path / "no" / "x.json"), "does not exist"),
        (("--json", "/dev/null/x.json"), "/dev/null"),
        (("--table", tmp_path / "x.xlsx"), ".csv, .md, .html or .tex"),
    ):
        result = call("eval", *missing, *args)
        assert result.exit_code == 2
        assert message in result.output
        assert "/nowhere" not in result.output
    (tmp_path / "folder.json").mkdir()
    result = call("eval", *missing, "--json", tmp_path / "folder.json")
    assert result.exit_code == 2
    assert "it is a folder" in result.output


# --------------------------------------------------------------------------- the paper's verbs


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("paper", "nonsense"), "nonsense"),
        (("paper", "two-classes", "--views", 4), "--views needs --data"),
        (("paper", "two-classes", "--model", "ViT-B-16"), "--model needs --data"),
        (("paper", "two-classes", "--weights", "x"), "--weights needs --data"),
        (("paper", "two-classes", "--workers", 0), "--workers needs --data"),
        (("paper", "two-classes", "--device", "gpu"), "device='gpu'"),
        (("paper", "two-classes", "--dtype", "int8"), "dtype='int8'"),
        (("paper", "two-classes", "--batch", 0), "batch=0"),
        (("paper", "two-classes", "--preset", "huge"), "unknown preset 'huge'"),
        (("study", "two-classes"), "adte paper two-classes"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_what_a_study_cannot_use_is_refused(args, message, tmp_path):
    result = call(*args, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1


# --------------------------------------------------------------------------- options


@dataclass(frozen=True)
class Knobs:
    count: int = option(3, "how many")
    share: float = option(0.5, "which part")
    kind: Literal["a", "b"] = option("a", "which way")
    words: tuple[str, ...] = option((), "texts; may be repeated")
    place: str | None = option(None, "where")
    strict: bool = option(False, "stop at once")
    keep: bool = option(True, "keep it")
    hidden: int = 7


KNOBS = OptionsOf(Knobs, names={"count": "how-many"}, prefix="k_", helps={"share": "what part"})


@click.group(cls=Verbs)
def verbs():
    pass


@verbs.command()
@Section("Knobs", KNOBS)
@click.option("--other", default=1)
def turn(other, **values):
    given = KNOBS.given(values)
    assert values == {}
    click.echo(json.dumps(given))


def turned(*args):
    result = CliRunner().invoke(verbs, ["turn", *args])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_options_are_those_of_the_dataclass():
    assert turned() == {}  # defaults are left to the dataclass
    args = ("--how-many", "4", "--share", "0.2", "--kind", "b", "--words", "x",
            "--words", "y", "--place", "here", "--strict", "--no-keep")  # fmt: skip
    assert turned(*args) == {
        "count": 4,
        "share": 0.2,
        "kind": "b",
        "words": ["x", "y"],
        "place": "here",
        "strict": True,
        "keep": False,
    }
    assert turned("--how-many", "3") == {"count": 3}  # given, though it is the default


def test_help_comes_from_the_fields():
    said = CliRunner().invoke(verbs, ["turn", "--help"]).output
    assert said.index("Knobs:") < said.index("--how-many") < said.index("Options:")
    assert said.index("Options:") < said.index("--other")
    for text in ("How many.  [default: 3]", "What part.  [default: 0.5]", "[a|b]"):
        assert text in said
    assert "hidden" not in said


@pytest.mark.parametrize("args", [
    ("--share", "nan"), ("--share", "inf"), ("--share", "x"), ("--kind", "c"),
    ("--how-many", "2.5"), ("--hidden", "1"),
], ids=" ".join)  # fmt: skip
def test_bad_values_are_refused(args):
    result = CliRunner().invoke(verbs, ["turn", *args])
    assert result.exit_code == 2
    assert args[0] in result.output.splitlines()[-1]


def test_notes_leave_out_what_pillow_says_of_no_file(capsys):
    with console.notes():
        warnings.warn_explicit("Truncated", UserWarning, "x.py", 1, module="PIL.TiffImagePlugin")
        warnings.warn("ours", stacklevel=1)
    assert capsys.readouterr().err == "note: ours\n"


def test_brackets_in_names_are_no_markup(tmp_path):
    for name in ("[red]cat", "dog[x", "[bold]"):
        (tmp_path / "[dim]set" / name).mkdir(parents=True)
        picture(tmp_path / "[dim]set" / name / "a.png")
    out = call("data", "check", "folder", tmp_path / "[dim]set").output
    assert "0 '[bold]', 1 '[red]cat', 2 'dog[x'" in " ".join(out.split())
    assert "[dim]set" in out
    grid = Grid(
        [Column("m"), Column("a", "[red]one", "percent")], [{"m": "[bold]x", "a": 0.5}], "[b]"
    )
    with console.out.capture() as shown:
        console.grid(grid)
    assert all(text in shown.get() for text in ("[red]one", "[bold]x", "[b]"))
