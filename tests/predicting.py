"""What the tests of `adte predict` share: pictures, and one loaded model for all of them."""

from __future__ import annotations

import csv
import functools
import json
import os
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

import adte.classifier.arguments
from adte.cli import main
from adte.files.states import load_state

CLASSES = ("--classes", "cat, dog, car", "--views", "4", "--workers", "0")


def call(*args: object, input: bytes | None = None) -> Result:
    """The verb in this process; a traceback would be in `exception`."""
    return CliRunner().invoke(main, [os.fspath(a) if isinstance(a, Path) else str(a) for a in args],
                              input=input)  # fmt: skip


def predict(*args: object, input: bytes | None = None) -> Result:
    """`adte predict` with three classes."""
    return call("predict", *args, *CLASSES, input=input)


def is_clean(result: Result) -> bool:
    """It ended by itself, and not in a traceback."""
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    return ended and "Traceback" not in result.output


def picture(path: Path, seed: int = 0) -> Path:
    """A photograph, nearly."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    small.resize((96, 72), Image.Resampling.BICUBIC).save(path)
    return path


def pictures(folder: Path, count: int) -> list[Path]:
    """Pictures in a folder of their own."""
    folder.mkdir(exist_ok=True)
    return [picture(folder / f"{i:03d}.png", i) for i in range(count)]


def mixed(folder: Path) -> Path:
    """A folder of five pictures and a broken one, the third in order."""
    pictures(folder, 5)
    (folder / "001x.jpg").write_bytes(b"no image")
    return folder


def settle(monkeypatch, folder: Path) -> None:
    """Work in a folder, with one loaded model and no defaults of the person who runs the tests."""
    monkeypatch.setattr(adte.classifier.arguments, "load_model", one_model())
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    for name in ("ADTE_MODEL", "ADTE_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def rows(path: Path) -> list[dict[str, str]]:
    """What a CSV file holds."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def seen(state: Path) -> int:
    """Images that a saved state has learned from."""
    return int(load_state(state)[1]["seen"])


def facts(result: Result) -> dict[str, object]:
    return json.loads(result.stdout)


@functools.lru_cache(maxsize=1)
def one_model():
    """The real `load_model`, which loads `tiny` once for all who ask in the same way."""
    load = adte.classifier.arguments.load_model

    @functools.cache
    def kept(name, device, dtype, forced):
        return load(name, device=device, dtype=dtype)

    def load_once(name, *, device=None, dtype=None, **how):
        if name != "tiny" or any(value not in (None, "auto") for value in how.values()):
            return load(name, device=device, dtype=dtype, **how)
        return kept(name, device, dtype, os.environ.get("ADTE_DTYPE"))

    return load_once
