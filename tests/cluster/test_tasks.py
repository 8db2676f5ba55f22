"""Methods × seeds × settings on a cluster: the results folder of one machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adte.cli import main

pytest.importorskip("ray")

pytestmark = pytest.mark.slow
SAME = ("accuracy", "ece", "nll", "top5", "confidence", "entropy")


def call(*words: str) -> None:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 0, found.output


def results(folder):
    found = {}
    for path in folder.glob("*.json"):
        facts = json.loads(path.read_text())
        found[path.name] = {k: facts["metrics"].get(k) for k in SAME}, facts["protocol"]
    return found


def test_a_comparison_has_the_same_results(nodes, tmp_path):
    asked = ("compare", "--methods", "se,adte,tda", "--seeds", "2", "--limit", "40")
    call(*asked, "--runs", str(tmp_path / "here"))
    call(
        *asked,
        "--runs",
        str(tmp_path / "there"),
        "--engine",
        "ray",
        "--json",
        str(tmp_path / "t.json"),
    )
    here, there = results(tmp_path / "here"), results(tmp_path / "there")
    assert here == there
    assert len(here) == 5  # one of se, two shuffles each of the others
    for name in here:
        predictions = name.replace(".json", ".safetensors")
        one, two = (tmp_path / f / predictions for f in ("here", "there"))
        assert one.read_bytes() == two.read_bytes()
    assert len(json.loads((tmp_path / "t.json").read_text())["rows"]) == 3


def test_a_sweep_goes_on_where_it_was(nodes, tmp_path):
    """Be it of one machine."""
    runs = ("--runs", str(tmp_path / "runs"), "--limit", "30")
    call("sweep", "clip=1,2", "--method", "adte", *runs)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()}
    assert len(before) == 4
    call("sweep", "clip=1,2,3", "--method", "adte", *runs, "--engine", "ray")
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs").iterdir()}
    assert len(after) == 6
    assert before.items() <= after.items()


def test_without_a_folder_only_the_table_remains(nodes, tmp_path):
    table = tmp_path / "table.csv"
    call("replay", str(bundle()), "--method", "se", "--limit", "20", "--engine", "ray",
         "--table", str(table))  # fmt: skip
    assert len(table.read_text().splitlines()) == 2


def bundle():
    from adte.evaluate.features.cache import bundle

    return bundle()
