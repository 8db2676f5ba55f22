"""The main job on the bundle that ships: the table, the claims, the report."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner

from adte import InputError, create_method
from adte.cli import main
from adte.evaluate import metrics
from adte.evaluate.cache import Cache
from adte.evaluate.demo import known_frequency
from adte.models.tiny import tiny_classes


def test_the_bundle_is_what_it_says():
    bundle = Cache()
    assert len(bundle) >= 1000
    assert bundle.facts["views"]["count"] == 64
    assert len(bundle.classes) == 200
    assert sum(p.stat().st_size for p in bundle.folder.iterdir()) <= 20_000_000
    counts = {c["wnid"]: c["count"] for c in tiny_classes()}
    assert [counts[w] for w in bundle.facts["class_ids"]] == bundle.facts["frequency"]
    for e in bundle.first(3).encoded():
        norms = e.features.float().norm(dim=-1)
        assert norms.sub(1).abs().max() < 1e-2


def test_the_bundle_holds_none_of_the_lent_photographs(shared_data):
    lent = {p.name for p in (shared_data / "tiny-imagenet-val").rglob("*.JPEG")}
    assert lent
    assert not lent & {e.id for e in Cache().encoded()}


def test_the_estimated_prior_ranks_the_true_frequencies():
    """The claim of the card, on the whole bundle: at least 0.5 for the best estimator."""
    bundle = Cache()
    method = create_method("zero-shot", adjust="after", estimator="marginal")
    for sample, _ in bundle:
        method.learn(sample)
    assert metrics.spearman(method.prior.log_prior, bundle.frequency) > 0.5


def test_demo_on_another_cache_of_tiny(tmp_path):
    """Frequencies come from the model's own record where the cache has none."""
    folder = tmp_path / "cache"
    shutil.copytree(Cache().folder, folder)
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    del recipe["frequency"]
    (folder / "recipe.json").write_text(json.dumps(recipe), "utf-8")
    assert known_frequency(Cache(folder)).tolist() == Cache().facts["frequency"]
    (folder / "recipe.json").write_text(json.dumps({**recipe, "model": "other"}), "utf-8")
    with pytest.raises(InputError, match="how often the model saw"):
        known_frequency(Cache(folder))


def test_demo_prints_the_table_and_writes_the_report(tmp_path):
    target, out = tmp_path / "rows.json", tmp_path / "out"
    args = ["demo", "--limit", "200", "--json", str(target), "--out", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    for word in ("zero-shot", "adte-paper", "adte-released", "two-pass", "Spearman"):
        assert word in result.output
    facts = json.loads(target.read_text())
    rows = facts["rows"]
    keys = {"method", "protocol", "accuracy", "ci95", "ece", "head", "middle", "tail"}
    assert all(keys | {"images_per_s"} <= r.keys() for r in rows)
    accuracy = {(r["method"], r["protocol"]): r["accuracy"] for r in rows}
    assert accuracy["zero-shot", "stateless"] == pytest.approx(0.38, abs=0.12)
    assert max(e["spearman"] for e in facts["estimators"]) > 0.3  # of 200 images only
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 5
    assert not re.search(r'(src|href)="https?:', page)  # self-contained
