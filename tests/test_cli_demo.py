"""`adte demo`, with few images and where it cannot write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from predicting import call, is_clean, picture, settle


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    settle(monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_demo_of_few_images(limit, tmp_path, monkeypatch):
    if limit > 2:
        monkeypatch.setitem(sys.modules, "matplotlib", None)  # the tables suffice
    result = call("demo", "--limit", limit, "--out", "page", "--json", "j.json")
    assert is_clean(result), result.output
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page" / "report.html").is_file()
    assert json.loads(Path("j.json").read_text())["images"] == limit


def test_a_demo_that_cannot_be_written(tmp_path):
    photo = picture(tmp_path / "photo.png")
    result = call("demo", "--limit", 3, "--out", photo)
    assert result.exit_code == 2
    assert "a file is in the way" in result.output
    result = call("demo", "--limit", 3, "--out", "/proc/adte")
    assert result.exit_code == 2
    assert is_clean(result)
