"""What a person mistyped is said before torch is imported, which takes seconds."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from adte.cli import _methods
from adte.cli._verbs import MODULES
from predicting import picture, settle

RUN = """
import sys
from adte.cli import main
try:
    main(sys.argv[1:], prog_name="adte")
finally:
    print("torch" if "torch" in sys.modules else "no torch", file=sys.stderr)
"""


def quickly(line: str) -> tuple[int, str]:
    """The exit code of a command that does not import torch, and what it says."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *shlex.split(line)], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.stderr.splitlines()[-1] == "no torch", said
    return done.returncode, said


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)
    picture(tmp_path / "cat.png")


def test_help_of_every_verb():
    """All in one process, to be quick; `--help` ends it by an exception."""
    verbs = list(MODULES)
    code = (
        "import sys\nfrom adte.cli import main\n"
        f"for words in [[], *([v] for v in {verbs!r})]:\n"
        "    main([*words, '--help'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pedict cat.png", "unknown command 'pedict' (did you mean 'predict'?); choose one of"),
        ("data gett x y", "unknown command 'gett' (did you mean 'get'?)"),
        ("predict cat.png --bas", "No such option '--bas'"),
        ("eval --bas", "No such option '--bas'"),
        ("paper --bas", "No such option '--bas'"),
        ("predict cat.png --views none", "'none' is not a valid number or 'auto'"),
        (
            "predict cat.png --classes a,b --set smoth=1",
            "unknown option 'smoth' (did you mean 'smoothing'?)",
        ),
        ("predict cat.png --classes a,b --set bas", "--set 'bas' is not NAME=VALUE"),
        ("eval --data folder:x --set warp=1 --method tda", "unknown option 'warp'"),
        ("predict cat.png --classes a,b --method adtee", "unknown method 'adtee' (did you mean"),
        ("predict none.png --classes a,b", "cannot open 'none.png' (No such file or directory)"),
        ("predict cat.png --classes @none.txt", "class names 'none.txt' does not exist"),
        (
            "predict cat.png --classes cat dog car",
            "error: 'dog' is no image that is there; if it is a class, put all names in quotes: "
            "--classes 'cat, dog, car'\n",
        ),
        ("predict cat.png --classes cat, dog", "put all names in quotes: --classes 'cat, dog'"),
    ],
)
def test_a_slip_is_said_at_once(line, said):
    code, text = quickly(line)
    assert code == 2
    assert said in text


def test_the_list_of_methods_is_theirs():
    with open(_methods.__file__.replace("_methods.py", _methods.FILE), encoding="utf-8") as file:
        assert file.read() == _methods.listed(), "write it anew, see adte/cli/_methods.py"
