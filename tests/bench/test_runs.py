"""Every benchmark of speed on the smallest work: rows, ratios, and figures that add up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from adte import load_model
from adte.bench import rate
from adte.bench.timing import medians, processor
from adte.cli import main
from adte.core.errors import InputError
from adte.core.machine import threads
from adte.images import Views

ROOT = Path(__file__).resolve().parents[2]
CONDITIONS = {"device", "dtype", "kernel", "threads", "processor", "torch", "python"}


@pytest.fixture(scope="module")
def speed(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("speed")


def check(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The shape of every result; the rows by name."""
    assert {"rows", "ratio", "meaning"} | CONDITIONS <= result.keys()
    assert result["kernel"] == Views().kernel()
    assert result["processor"] == processor()
    assert result["dtype"] in ("float32", "float64", "bfloat16")
    for row in result["rows"]:
        assert {"name", "seconds", "ratio"} <= row.keys()
        assert row["seconds"] > 0
        assert row["ratio"] > 0
    json.dumps(result)
    return {row["name"]: row for row in result["rows"]}


def test_candidates_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    found = medians({n: lambda n=n: calls.append(n) for n in "abc"}, 3)
    assert calls == list("abc" + "abc" + "cba" + "abc")
    assert set(found) == set("abc")
    naps = iter([0.0, 0.002, 0.08, 0.002])
    taken = medians({"nap": lambda: time.sleep(next(naps))}, 3)  # one busy moment is ignored
    assert 0.002 <= taken["nap"] < 0.04


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_limit_counts_all_products() -> None:
    net = load_model("tiny", dtype="float32")
    counted = rate.tower_flops(net)
    products = sum(p.numel() for p in net.image_tower.parameters() if p.ndim > 1)
    assert counted > 2 * products  # each weight is used at least once, and attention comes on top
    assert rate.matrix_rate(net.device, torch.float32, 1) > 1e6
    found = rate.limit(net, 8)
    assert found["seconds"] == pytest.approx(8 * counted / found["matrix_rate"])


@pytest.mark.slow
def test_rate(tmp_path: Path) -> None:
    for number, jpeg in enumerate(rate.photographs(3)):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg)
    args = ("--images", "3", "--batch", "2", "--views", "4", "--classes", "5", "--repeats", "1",
            "--workers", "1", "--folder", str(tmp_path), "--json")  # fmt: skip
    said = CliRunner().invoke(main, ["bench", "rate", *args])
    assert said.exit_code == 0, said.output
    result = json.loads(said.stdout)
    rows = check(result)
    assert list(rows) == ["usual way", "ours", "tower alone", "limit"]
    assert rows["limit"]["of_limit"] == rows["usual way"]["ratio"] == 1
    assert result["ratio"] == rows["ours"]["ratio"]
    tower, ours = rows["tower alone"]["seconds"], rows["ours"]["seconds"]
    assert result["of_tower"] == pytest.approx(tower / ours)
    assert (result["runtime"], result["images"]) == ("torch", 3)


def test_nothing_is_not_timed() -> None:
    for name in ("images", "batch", "views"):
        with pytest.raises(InputError, match=f"{name}=0"):
            rate.run(**{name: 0})
    with pytest.raises(InputError, match="1 classes"):
        rate.class_names(1)


def test_views_makes_the_usual_pixels(speed: ModuleType) -> None:
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    result = speed.views(image, repeats=1)
    check(result)
    assert result["image"] == [60, 80]
    assert result["max_level_error"] <= 2.01


def test_head(speed: ModuleType) -> None:
    result = speed.head(views=8, classes=50, repeats=3)
    rows = check(result)
    assert result["ratio"] == rows["ADTE head (q from the prior included)"]["ratio"]
    assert rows["Shannon head"]["ratio"] == 1


def test_prior(speed: ModuleType) -> None:
    result = speed.prior(classes=30, size=2, repeats=3)
    slow, fast, default = check(result).values()
    assert result["ratio"] == pytest.approx(slow["seconds"] / fast["seconds"])
    assert default["name"] == speed.DEFAULT
    assert result["dtype"] == "float64"
    result = speed.prior(classes=20_000, repeats=1)
    (row,) = check(result).values()
    assert row["name"] == speed.DEFAULT
    assert result["bank_bytes"] > speed.MOST
    assert "left out" in result["meaning"]


def test_stream_is_looked_at_by_decades(speed: ModuleType) -> None:
    result = speed.stream(images=2500, views=2, classes=3, batch=50)
    rows = check(result)
    assert list(rows) == ["1,000 images", "2,500 images"]
    first, last = rows.values()
    assert result["ratio"] == last["ratio"]
    assert first["state_bytes"] == last["state_bytes"] > 0


@pytest.mark.slow
def test_a_longer_stream_takes_no_more_memory(speed: ModuleType) -> None:
    rows = speed.stream(images=20_000, views=2, batch=64)["rows"]
    if rows[-1]["resident_bytes"]:
        assert rows[-1]["grown_bytes"] < 16 << 20  # 20,000 images of features would be 5 MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("cost.py --classes 12 --views 6 --repeats 1",
         ["zero-shot", "zero", "adte", "adte-released", "tilt", "tpt"]),
        ("serve.py --images 6 --turns 1 --clients 3 --views 4",
         ["bare pipeline", "service, 3 clients", "service, 1 client"]),
    ],
)  # fmt: skip
def test_scripts(line: str, names: list[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script, *args = line.split()
    command = [sys.executable, f"benchmarks/{script}", *args, "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    rows = check(json.loads(file.read_text("utf-8")))
    assert list(rows)[: len(names)] == names
