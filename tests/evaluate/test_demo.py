"""The main job on the bundle that ships: the table, the claims, the report."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner

from adte import InputError, create_method
from adte.cli import main
from adte.evaluate import demo
from adte.evaluate.demo import known_frequency, run_demo
from adte.evaluate.features.cache import Cache
from adte.evaluate.running import figures
from adte.evaluate.running.results import Results
from adte.evaluate.running.tasks import LADDER
from adte.models.tiny import tiny_classes


def test_the_bundle_is_what_it_says():
    bundle = Cache()
    assert len(bundle) >= 1000
    assert bundle.recipe.views.count == 64
    assert len(bundle.classes) == 200
    assert sum(p.stat().st_size for p in bundle.folder.iterdir()) <= 20_000_000
    counts = {c["wnid"]: c["count"] for c in tiny_classes()}
    assert tuple(counts[w] for w in bundle.recipe.class_ids) == bundle.recipe.frequency
    for e in bundle.first(3).images():
        norms = e.features.float().norm(dim=-1)
        assert norms.sub(1).abs().max() < 1e-2


def test_the_bundle_holds_none_of_the_lent_photographs(shared_data):
    lent = {p.name for p in (shared_data / "tiny-imagenet-val").rglob("*.JPEG")}
    assert lent
    assert not lent & {e.id for e in Cache().images()}


def test_the_estimated_prior_ranks_the_true_frequencies():
    """The claim of the card, on the whole bundle: at least 0.5 for the best estimator."""
    bundle = Cache()
    method = create_method("zero-shot", adjust="after", estimator="marginal")
    for batch, _ in bundle.batches(64):
        method.learn(batch)
    assert figures.spearman(method.class_prior.log_prior, bundle.frequency) > 0.5


def test_demo_on_another_cache_of_tiny(tmp_path):
    """Frequencies come from the model's own record where the cache has none."""
    folder = tmp_path / "cache"
    shutil.copytree(Cache().folder, folder)
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    del recipe["frequency"]
    (folder / "recipe.json").write_text(json.dumps(recipe), "utf-8")
    assert tuple(known_frequency(Cache(folder))) == Cache().recipe.frequency
    (folder / "recipe.json").write_text(json.dumps({**recipe, "model": "other"}), "utf-8")
    with pytest.raises(InputError, match="how often the model saw"):
        known_frequency(Cache(folder))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The command on 100 photographs: what it printed, its JSON, its folder."""
    home = tmp_path_factory.mktemp("demo")
    target, out = home / "rows.json", home / "out"
    args = ["demo", "--limit", "100", "--json", str(target), "--out", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.output, json.loads(target.read_text("utf-8")), out


def test_demo_prints_the_table_of_the_readme(shown):
    output, facts, _ = shown
    head = next(line for line in output.splitlines() if line.strip().startswith("method"))
    assert " ".join(head.split()) == "method protocol acc. vs SE, 95 % ECE head mid tail ms"
    for word in ("zero-shot", "adte, no LA", "adte-released", "tilt", "two-pass", "Spearman"):
        assert word in output
    keys = {"method", "protocol", "accuracy", "ci95", "gain_ci95", "ece", "head", "middle", "tail"}
    rows = facts["rows"]
    assert len(rows) == len(LADDER)
    assert all(keys | {"images_per_s"} <= r.keys() for r in rows)
    accuracy = {(r["method"], r["protocol"]): r["accuracy"] for r in rows}
    assert accuracy["zero-shot", "stateless"] == pytest.approx(0.38, abs=0.12)
    assert max(e["spearman"] for e in facts["estimators"]) > 0.2  # of 100 images only
    assert (facts["images"], facts["views"], facts["classes"]) == (100, 64, 200)


def test_an_interval_has_the_same_name_everywhere(shown):
    """One pass has no interval of the accuracy, but one of the gain."""
    for row in shown[1]["rows"]:
        assert row["ci95"] is None
        low, high = row["gain_ci95"]
        assert low <= row["gain"] <= high


def test_the_demo_is_an_ordinary_run_with_the_ordinary_report(shown):
    _, facts, out = shown
    records = list(Results(out / "runs"))
    assert len(records) == len(LADDER)
    assert {r.metrics["accuracy"] for r in records} == {r["accuracy"] for r in facts["rows"]}
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg") == 6 + 3  # the section's, then views of one image, prior and q
    assert "Runs and their protocols" in page
    assert "What the stream taught" in page
    assert "Solid bars were kept" in page
    assert not re.search(r'(src|href)="https?:', page)  # self-contained
    links = re.findall(r'href="(runs/[^"]+\.json)"', page)
    assert len(links) == len(LADDER)
    assert all((out / link).is_file() for link in links)


@pytest.mark.slow
def test_the_demo_again_takes_what_is_there(shown, tmp_path, monkeypatch):
    """And a shorter one in the same folder has a page of its own runs alone."""
    out = shutil.copytree(shown[2], tmp_path / "out")  # others look at that page
    monkeypatch.setattr(demo, "ESTIMATORS", {"marginal": {"estimator": "marginal"}})
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")}
    again = run_demo(Cache().first(100), out)
    assert {p: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")} == before
    assert [r["accuracy"] for r in again.rows] == [r["accuracy"] for r in shown[1]["rows"]]
    few = run_demo(Cache().first(2), out)
    page = few.report().read_text("utf-8")
    assert page.count("<h2>") == 2
    assert "first 2</h2>" in page


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["demo", "--limit", "2", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "a file is in the way" in result.output
    assert (tmp_path / "file").read_text() == ""
