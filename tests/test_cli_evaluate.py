"""The evaluation verbs, end to end on a small folder with the embedded model."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte.cli import main


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes, three pictures each, in the layout of an image folder."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for i in range(3):
            small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
            big = small.resize((48, 48), Image.Resampling.BICUBIC)
            big.save(root / name / f"{i}.png")
    return root


FAST = ("--views", 3, "--workers", 0)


def test_eval_writes_metrics_and_the_whole_protocol(folder, tmp_path):
    target = tmp_path / "out.json"
    result = call("eval", "--data", f"folder:{folder}", *FAST, "--json", target)
    assert result.exit_code == 0, result.output
    out = json.loads(target.read_text())
    assert out["metrics"]["images"] == 6
    protocol = out["protocol"]
    assert protocol["model"] == "tiny"
    assert protocol["method"] == "adte"
    assert protocol["views"]["count"] == 3
    assert protocol["data"]["order"] == "shuffled"
    assert protocol["prompts"]["templates"] == ["a photo of a {}."]


def test_mixed_stream_of_clean_and_corrupted(folder, tmp_path):
    target = tmp_path / "out.json"
    mixed = ("--corrupt", "gaussian_noise,contrast", "--severity", "2", "--domains", "mixed")
    result = call("eval", "--data", f"folder:{folder}", *FAST, *mixed, "--json", target)
    assert result.exit_code == 0, result.output
    out = json.loads(target.read_text())
    assert out["metrics"]["images"] == 18
    assert {"gaussian_noise/2", "contrast/2"} < out["metrics"]["by_domain"].keys()
    assert "worst_domain" in out["metrics"]


def test_replay_of_a_cache_says_what_eval_says(folder, tmp_path):
    cache, a, b = tmp_path / "cache", tmp_path / "a.json", tmp_path / "b.json"
    source = ("--data", f"folder:{folder}", *FAST)
    assert call("extract", *source, "--out", cache).exit_code == 0
    for method in ("zero-shot", "adte", "tda"):
        assert call("eval", *source, "--method", method, "--json", a).exit_code == 0
        assert call("replay", cache, "--method", method, "--json", b).exit_code == 0
        one, two = (json.loads(p.read_text())["metrics"] for p in (a, b))
        for m in (one, two):
            for cost in ("images_per_s", "seconds", "peak_memory"):
                m.pop(cost)
        assert one == two
    other = call("extract", "--data", f"folder:{folder}", "--views", 4, "--out", cache)
    assert other.exit_code == 2
    assert "another views" in other.output


def test_a_cache_does_not_stand_in_for_something_else(folder, tmp_path):
    cache = tmp_path / "cache"
    assert call("extract", "--data", f"folder:{folder}", *FAST, "--out", cache).exit_code == 0
    data = ("eval", "--data", f"cache:{cache}")
    for args, message in (
        (("--views", 32), "another number of views: 3 there, 32 asked for"),
        (("--prompts", "art of the {}."), "another prompt set"),
    ):
        refused = call(*data, *args)
        assert refused.exit_code == 2, refused.output
        assert message in refused.output
    fine = call(*data, "--views", 3, "--prompts", "a photo of a {}.", "--limit", 4, "--json")
    assert json.loads(fine.output)["metrics"]["images"] == 4
    recipe = cache / "recipe.json"  # as if another checkpoint of the same name had made it
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "fingerprint": "0123"}))
    for args in (data, ("replay", cache, "--method", "tpt")):
        refused = call(*args)
        assert refused.exit_code == 2, refused.output
        assert "holds features of model 'tiny' (fingerprint 0123), not of" in refused.output


def test_compare_and_sweep_keep_their_runs(folder, tmp_path):
    cache, runs = tmp_path / "cache", tmp_path / "runs"
    call("extract", "--data", f"folder:{folder}", *FAST, "--out", cache)
    args = ("--data", f"cache:{cache}", "--runs", runs)
    result = call("compare", *args, "--methods", "zero-shot,se,adte", "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert len(list(runs.glob("*.json"))) == 4  # two methods have no state: one seed says all
    assert call("sweep", "beta=0.5,0.9", *args, "--json").exit_code == 0
    assert len(list(runs.glob("*.json"))) == 6


def test_unreadable_images_are_reported_or_stop_a_strict_run(folder, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "cat" / "1.png").write_bytes(b"no image")
    result = call("eval", "--data", f"folder:{broken}", *FAST)
    assert result.exit_code == 0, result.output
    assert "1 images could not be read" in result.output
    strict = call("eval", "--data", f"folder:{broken}", *FAST, "--strict")
    assert strict.exit_code == 2
    assert "1.png" in strict.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["eval"], "no data was given"),
        (["eval", "--data", "folder:/nowhere"], "/nowhere"),
        (["eval", "--data", "nonsense:x"], "nonsense"),
        (["eval", "--data", "folder:/nowhere", "--method", "nonsense"], "unknown method"),
        (["eval", "--data", "FOLDER", "--corrupt", "rain"], "rain"),
        (["eval", "--data", "FOLDER", "--severity", "9", "--corrupt", "fog"], "severity='9'"),
        (["replay", "/nowhere"], "recipe.json"),
        (["sweep", "beta"], "NAME=VALUES"),
        (["data", "get", "imagenet", "x"], "cannot be downloaded"),
        (["datasets", "nonsense"], "unknown"),
    ],
)
def test_bad_input_is_one_sentence(args, message, folder):
    result = call(*(f"folder:{folder}" if a == "FOLDER" else a for a in args))
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_lists():
    assert "imagenet-a" in call("datasets").output
    assert json.loads(call("datasets", "pets", "--json").output)[0]["images"] == 3669
    assert "tiny" in call("models", "tiny").output


def test_image_only_models_take_part(folder, tmp_path):
    """A timm classifier narrowed to the data's classes: live, from a cache, with its own tower."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    import shutil

    known = tmp_path / "known"
    for name, wnid in (("cat", "n01440764"), ("dog", "n01443537")):
        shutil.copytree(folder / name, known / wnid)
    source = ("--data", f"folder:{known}", "--model", "timm:test_resnet", "--weights", "random")
    live = tmp_path / "a.json"
    args = (*source, "--methods", "zero-shot,average,adte,bn,memo", *FAST)
    result = call("compare", *args, "--json", live)
    assert result.exit_code == 0, result.output
    rows = {r["method"]: r for r in json.loads(live.read_text())["rows"]}
    assert rows.keys() == {"zero-shot", "average", "adte", "bn", "memo"}
    refused = call("eval", *source, *FAST, "--method", "tda")
    assert refused.exit_code == 2
    assert "needs features" in refused.output
    prompted = call("eval", *source, *FAST, "--prompts", "a {}.")
    assert prompted.exit_code == 2
    assert "reads no prompts" in prompted.output
    other = call("eval", "--data", f"folder:{folder}", *source[2:], *FAST)
    assert other.exit_code == 2
    assert "'cat' is not among the 1000 fixed classes" in other.output
    cache = tmp_path / "fixed"
    assert call("extract", *source, *FAST, "--out", cache).exit_code == 0
    assert call("replay", cache, "--method", "adte").exit_code == 0
    refused = call("replay", cache, "--method", "tda")
    assert refused.exit_code == 2
    assert "needs features" in refused.output


def test_what_a_cache_cannot_do_is_refused(folder, tmp_path):
    cache = tmp_path / "cache"
    assert call("extract", "--data", f"folder:{folder}", *FAST, "--out", cache).exit_code == 0
    for args in (("--order", "class-ordered"), ("--imbalance", "zipf"), ("--corrupt", "fog")):
        for data in (("--data", f"cache:{cache}"), ()):
            result = call("compare", *data, "--methods", "se", "--limit", 3, *args)
            assert result.exit_code == 2, result.output
            assert "extract" in result.output
