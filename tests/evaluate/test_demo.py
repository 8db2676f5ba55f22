"""The main job on the bundle that ships: the table, the claims, the report."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from adte import create_method
from adte.cli import main
from adte.evaluate.features.cache import Cache
from adte.evaluate.running import figures
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import LADDER
from adte.models.tiny import tiny_classes


def test_the_bundle_is_what_it_says(shared_data):
    bundle = Cache()
    assert len(bundle) >= 1000
    assert bundle.recipe.views.count == 64
    assert len(bundle.classes) == 200
    assert sum(p.stat().st_size for p in bundle.folder.iterdir()) <= 20_000_000
    counts = {c["wnid"]: c["count"] for c in tiny_classes()}
    assert tuple(counts[w] for w in bundle.recipe.class_ids) == bundle.recipe.frequency
    for e in bundle.first(3).images():
        assert e.features.float().norm(dim=-1).sub(1).abs().max() < 1e-2
    lent = {p.name for p in (shared_data / "tiny-imagenet-val").rglob("*.JPEG")}
    assert lent
    assert not lent & {e.id for e in bundle.images()}


def test_the_estimated_prior_ranks_the_true_frequencies():
    """The claim of the card, on the whole bundle: at least 0.5 for the best estimator."""
    bundle = Cache()
    method = create_method("zero-shot", adjust="after", estimator="marginal")
    for batch, _ in bundle.batches(64):
        method.learn(batch)
    assert figures.spearman(method.class_prior.log_prior, bundle.frequency) > 0.5


def test_the_demo_is_an_ordinary_run_with_the_ordinary_report(tmp_path):
    target, out = tmp_path / "rows.json", tmp_path / "out"
    args = ["demo", "--limit", "100", "--json", str(target), "--out", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    facts = json.loads(target.read_text("utf-8"))
    head = next(line for line in result.output.splitlines() if line.strip().startswith("method"))
    assert " ".join(head.split()) == "method protocol acc. vs SE, 95 % ECE head mid tail ms"
    keys = {"method", "protocol", "accuracy", "gain_ci95", "ece", "head", "middle", "tail"}
    rows = facts["rows"]
    assert len(rows) == len(LADDER)
    for row in rows:
        assert keys <= row.keys()
        assert row["ci95"] is None  # one pass has none of the accuracy, but one of the gain
        low, high = row["gain_ci95"]
        assert low <= row["gain"] <= high
    accuracy = {(r["method"], r["protocol"]): r["accuracy"] for r in rows}
    assert accuracy["zero-shot", "stateless"] == pytest.approx(0.38, abs=0.12)
    assert (facts["images"], facts["views"], facts["classes"]) == (100, 64, 200)

    assert {r.metrics["accuracy"] for r in Results(out / "runs")} == set(accuracy.values())
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg") == 6
    assert not re.search(r'(src|href)="https?:', page)  # self-contained
    links = re.findall(r'href="(runs/[^"]+\.json)"', page)
    assert len(links) == len(LADDER)
    assert all((out / link).is_file() for link in links)

    # The same again takes what it finds; a shorter one has a page of its own runs alone.
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")}
    assert CliRunner().invoke(main, args).exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")} == before
    assert CliRunner().invoke(main, ["demo", "--limit", "2", "--out", str(out)]).exit_code == 0
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<h2>") == 1
    assert "first 2</h2>" in page
