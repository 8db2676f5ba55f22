"""The evaluation verbs, end to end on a small folder with the embedded model."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte.cli import main
from adte.evaluate.features.cache import Cache, bundle
from adte.evaluate.features.live import Live
from adte.evaluate.running.results import Results


def call(*args, env=None):
    return CliRunner().invoke(main, [str(a) for a in args], env=env)


def facts(*args, env=None):
    """What a verb writes as JSON."""
    result = call(*args, "--json", env=env)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*args, env=None):
    """The one sentence that a verb says of what it cannot do."""
    result = call(*args, env=env)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.stderr.endswith(said + "\n")
    return said


@pytest.fixture(autouse=True)
def _no_config(tmp_path_factory, monkeypatch):
    """Nobody's own defaults play a part."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("ADTE_MODEL", "ADTE_DEVICE", "ADTE_DTYPE"):
        monkeypatch.delenv(name, raising=False)


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


@pytest.fixture(scope="module")
def cache(folder, tmp_path_factory):
    """Their features; not to be changed."""
    out = tmp_path_factory.mktemp("features") / "cache"
    assert call("extract", "--data", f"folder:{folder}", *FAST, "--out", out).exit_code == 0
    return out


def without_costs(metrics):
    costs = ("images_per_s", "seconds", "peak_memory")
    return {k: v for k, v in metrics.items() if k not in costs}


# --------------------------------------------------------------------------- eval


@pytest.mark.slow
def test_eval_writes_metrics_and_the_whole_protocol(folder, tmp_path):
    target = tmp_path / "out.json"
    result = call("eval", "--data", f"folder:{folder}", *FAST, "--json", target)
    assert result.exit_code == 0, result.output
    assert "tilt" in result.output
    out = json.loads(target.read_text())
    assert out["metrics"]["images"] == 6
    protocol = out["protocol"]
    assert protocol["model"] == "tiny"
    assert protocol["method"] == "tilt"
    assert protocol["views"]["count"] == 3
    assert protocol["data"]["order"] == "shuffled"
    assert protocol["prompts"]["templates"] == ["a photo of a {}."]
    assert protocol["dtype"] == "float32"
    assert protocol["kernel"]


@pytest.mark.slow
def test_options_reach_the_stream_the_views_and_the_prompts(folder):
    asked = ("--order", "listed", "--set", "views.scale=0.2,0.5", "--set", "views.flip=0",
             "--template", "seven")  # fmt: skip
    protocol = facts("eval", "--data", f"folder:{folder}", *FAST, *asked)["protocol"]
    assert protocol["data"]["order"] == "listed"
    assert protocol["views"]["scale"] == [0.2, 0.5]
    assert protocol["views"]["flip"] == 0
    assert len(protocol["prompts"]["templates"]) == 7
    two = facts("eval", "--data", f"folder:{folder}", *FAST, "--template", "a {}.",
                "--template", "the {}.")  # fmt: skip
    assert two["protocol"]["prompts"]["templates"] == ["a {}.", "the {}."]


@pytest.mark.slow
def test_mixed_stream_of_clean_and_corrupted(folder):
    mixed = ("--corrupt", "gaussian_noise,contrast", "--severity", "2", "--domains", "mixed")
    out = facts("eval", "--data", f"folder:{folder}", *FAST, *mixed)
    assert out["metrics"]["images"] == 18
    assert {"gaussian_noise/2", "contrast/2"} < out["metrics"]["by_domain"].keys()
    assert "worst_domain" in out["metrics"]
    assert out["rows"][0]["by_domain"] == out["metrics"]["by_domain"]
    said = call("eval", "--data", f"folder:{folder}", *FAST, *mixed).stdout.splitlines()
    for domain, right in out["metrics"]["by_domain"].items():
        assert [domain, "6", f"{100 * right:.1f}"] in [line.split() for line in said]


@pytest.mark.slow
def test_classes_without_images_are_a_note(folder, tmp_path):
    table, names = tmp_path / "a.csv", tmp_path / "names.txt"
    table.write_text(f"path,label\n{folder}/cat/0.png,cat\n{folder}/dog/0.png,dog\n")
    names.write_text("cat\ndog\nfox\n")
    for verb in (("eval",), ("extract", "--out", str(tmp_path / "cache"))):
        result = call(*verb, "--data", f"csv:{table}?classes={names}", *FAST)
        assert result.exit_code == 0, result.output
        assert "note: 'a' has no image of 1 of its 3 classes: fox" in result.stderr
    assert "note:" not in call("eval", "--data", f"csv:{table}", *FAST).stderr


@pytest.mark.slow
def test_descriptions_may_lack_classes_if_that_is_said(folder, tmp_path):
    said = tmp_path / "said.json"
    said.write_text(json.dumps({"cat": ["a cat that sleeps."]}))
    source = ("eval", "--data", f"folder:{folder}", *FAST)
    told = (*source, "--descriptions", said)
    assert "lack 1 of 2 classes: 'dog'" in refused(*told)
    result = call(*told, "--allow-missing")
    assert result.exit_code == 0, result.output
    assert "note: the descriptions 'said.json' lack 1 of 2 classes" in result.stderr
    assert "--allow-missing needs --descriptions" in refused(*source, "--allow-missing")


@pytest.mark.slow
def test_batches_change_no_figure(folder, cache):
    source = ("eval", "--data", f"folder:{folder}", *FAST)
    want = without_costs(facts(*source)["metrics"])
    tcr = pytest.approx(want.pop("tcr"))  # a mean over the views, whose last bit may differ
    for size in (1, 4, 64):
        for command in (source, ("replay", cache)):
            found = without_costs(facts(*command, "--batch", size)["metrics"])
            assert found.pop("tcr") == tcr
            assert found == want


@pytest.mark.slow
def test_unreadable_images_are_reported_or_stop_a_strict_run(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "cat" / "1.png").write_bytes(b"no image")
    result = call("eval", "--data", f"folder:{broken}", *FAST)
    assert result.exit_code == 0, result.output
    assert "skipped 1 image that could not be read, the first: " in result.output
    assert "1.png" in refused("eval", "--data", f"folder:{broken}", *FAST, "--strict")


def test_images_that_are_newer_than_what_is_kept_of_them_are_told(folder, tmp_path):
    """The figures of other pixels were shown again, and nothing said so."""
    data = shutil.copytree(folder, tmp_path / "data")
    given = ("--data", f"folder:{data}", *FAST)
    kept = ("eval", "--method", "se", *given, "--runs", tmp_path / "runs")
    cached = ("extract", *given, "--out", tmp_path / "cache")
    foggy = ("--corrupt", "fog", "--no-clean")
    studied = ("paper", "two-classes", "--data", f"folder:{data}", "--views", 2,
               "--out", tmp_path / "paper")  # fmt: skip
    for verb in (kept, cached, studied, (*kept, *foggy)) * 2:
        assert "newer" not in call(*verb).stderr
    later = time.time() + 60
    os.utime(data / "cat" / "1.png", (later, later))
    for verb in (kept, (*kept, *foggy)):
        said = " ".join(call(*verb).stderr.split())
        assert "note: images are newer (1 of 6) than their runs in " in said
        assert "run with --again" in said
    for verb in (cached, studied):
        said = " ".join(call(*verb).stderr.split())
        assert "note: images are newer (1 of 6) than their features in " in said
    assert "newer" not in call(*kept, "--again").stderr


# --------------------------------------------------------------------------- seeds and orders


@pytest.mark.slow
def test_where_nothing_can_be_read_it_is_one_sentence(tmp_path):
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "1.png").write_bytes(b"no image")
    for verb in (("eval", "--method", "se"), ("eval", "--method", "se", "--runs", tmp_path / "r"),
                 ("extract", "--out", tmp_path / "c")):  # fmt: skip
        said = refused(*verb, "--data", f"folder:{tmp_path / 'bad'}", "--views", 2)
        assert "none of the 1 images could be read; the first: cannot read" in said


def test_runs_that_lacked_an_image_are_made_again_once_it_is_there(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "mend")
    lost = tmp_path / "mend" / "cat" / "1.png"
    good = lost.read_bytes()
    args = ("compare", "--data", f"folder:{tmp_path / 'mend'}", "--views", 2, "--methods")
    for content, images in ((b"junk", 5), (b"junk", 5), (good, 6)):
        lost.write_bytes(content)
        found = facts(*args, "zero-shot,average", "--runs", tmp_path / "runs")
        assert [row["images"] for row in found["rows"]] == [images, images]


@pytest.mark.skipif(os.name != "posix", reason="needs names that are bytes")
def test_names_of_files_may_be_any_bytes(folder, tmp_path):
    odd, name = tmp_path / "odd", os.fsdecode(b"caf\xe9")
    shutil.copytree(folder, odd)
    try:
        (odd / "cat" / "1.png").rename(odd / "cat" / f"{name}.png")
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    (odd / "cat" / f"torn {name}.png").write_bytes(b"\x89PNG")
    (odd / "cat").rename(odd / name)  # a class, too
    data = ("--data", f"folder:{tmp_path / 'odd'}", "--views", 2)
    for _ in range(2):
        found = facts("compare", *data, "--methods", "zero-shot,se", "--runs", tmp_path / "runs")
        assert [row["images"] for row in found["rows"]] == [6, 6]
    for _ in range(2):
        assert call("extract", *data, "--out", tmp_path / "c").exit_code == 0
    assert call("replay", tmp_path / "c", "--method", "se").exit_code == 0
    assert call("eval", *data, "--method", "se", "--corrupt", "fog").exit_code == 0
    assert call("report", tmp_path / "runs").exit_code == 0
    assert "torn caf\\udce9.png" in (tmp_path / "runs" / "report.html").read_text("utf-8")


def test_tables_and_addresses_are_evaluated_here_too(folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    files = sorted(folder.glob("*/*.png"))
    columns = {"image": [f.read_bytes() for f in files], "label": [f.parent.name for f in files]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    args = ("eval", "--method", "se", "--views", 2, "--order", "listed")
    want = facts(*args, "--data", f"folder:{folder}")["metrics"]["nll"]
    for data in (f"parquet:{tmp_path / 'a.parquet'}", f"remote:{folder.as_uri()}"):
        assert facts(*args, "--data", data)["metrics"]["nll"] == want
        assert call(*args, "--data", data, "--corrupt", "fog").exit_code == 0
        name, _, path = data.partition(":")
        assert call("data", "check", name, path).exit_code == 0


def test_a_note_of_data_check_is_one_line(tmp_path):
    for name in ("cat/1.png", "dog/1.png", "new.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    result = call("data", "check", "folder", str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr.startswith("note: images in ")
    assert "Warning" not in result.output


def test_a_report_of_many_methods(cache, tmp_path):
    names = "average,te,zero,tda,bca,mta,boostadapter"
    assert (
        call(
            "compare", "--data", f"cache:{cache}", "--methods", names, "--runs", tmp_path
        ).exit_code
        == 0
    )
    assert call("eval", "--data", f"cache:{cache}", "--method", "se", "--json", tmp_path / "x.json",
                "--runs", tmp_path).exit_code == 0  # fmt: skip
    assert call("report", tmp_path).exit_code == 0


def test_the_seed_is_that_of_stream_and_views(folder):
    source = ("eval", "--data", f"folder:{folder}", *FAST)
    for args, stream, views in (
        ((), 0, 0),
        (("--seed", 3), 3, 3),
        (("--seed", 3, "--set", "views.seed=5"), 3, 5),
        (("--seed", 3, "--set", "stream.seed=4"), 4, 3),
        (("--set", "stream.seed=4"), 4, 0),
    ):
        protocol = facts(*source, *args)["protocol"]
        assert (protocol["data"]["seed"], protocol["view_seed"]) == (stream, views)
        assert protocol["order_seed"] == 0


@pytest.mark.slow
def test_a_cache_has_the_order_that_it_was_made_in(folder, tmp_path):
    """And `--shuffle` another; `--seed` is the one that the cache was made with, or refused."""
    made, runs = tmp_path / "cache", tmp_path / "runs"
    source = ("--data", f"folder:{folder}", *FAST, "--seed", 3)
    assert call("extract", *source, "--out", made).exit_code == 0
    order = [image.id for image in Cache(made).images()]
    live = facts("eval", *source, "--runs", runs)
    same = facts("replay", made, "--runs", runs)
    named = facts("replay", made, "--seed", 3, "--runs", runs)
    other = facts("replay", made, "--shuffle", 2, "--runs", runs)
    ids = {}
    for record in Results(runs):
        ids[record.conditions.order_seed] = Results(runs).run(record).ids
    assert ids[0] == order
    assert sorted(ids[2]) == sorted(order)
    assert ids[2] != order
    assert other["protocol"]["order_seed"] == 2
    want = without_costs(live["metrics"])
    assert without_costs(same["metrics"]) == without_costs(named["metrics"]) == want
    assert live["protocol"]["view_seed"] == same["protocol"]["view_seed"] == 3
    for seed in (0, 4):
        said = refused("replay", made, "--seed", seed)
        assert f"was made with 3 as the seed of the stream, not {seed}" in said
        assert "--shuffle" in said


@pytest.mark.slow
def test_seeds_are_shuffles(cache):
    out = facts("compare", "--data", f"cache:{cache}", "--methods", "zero-shot,adte", "--seeds", 3)
    shuffles = [(r["protocol"]["method"], r["protocol"]["order_seed"]) for r in out["runs"]]
    assert shuffles == [("zero-shot", 0), ("adte", 0), ("adte", 1), ("adte", 2)]
    assert [r["seeds"] for r in out["rows"]] == [1, 3]


# --------------------------------------------------------------------------- caches


def test_replay_is_eval_on_a_cache(folder, cache):
    source = ("--data", f"folder:{folder}", *FAST)
    for method in ("zero-shot", "adte", "tda"):
        live = facts("eval", *source, "--method", method)
        replayed = facts("replay", cache, "--method", method)
        named = facts("eval", "--data", f"cache:{cache}", "--method", method)
        assert without_costs(live["metrics"]) == without_costs(replayed["metrics"])
        assert without_costs(live["metrics"]) == without_costs(named["metrics"])
        assert replayed["protocol"] == named["protocol"]


def test_a_cache_does_not_stand_in_for_something_else(cache):
    data = ("eval", "--data", f"cache:{cache}")
    for args, message in (
        (("--views", 32), "was made with 3 views per image, not 32"),
        (("--set", "views.seed=1"), "was made with 0 as the seed of the views, not 1"),
        (("--set", "views.flip=0.2"), "with 0.5 as the flip of the views, not 0.2"),
        (("--template", "art of the {}."), "another prompt set"),
        (("--model", "ViT-B-16/openai"), "features of model 'tiny', not of 'ViT-B-16/openai'"),
        (("--dtype", "bfloat16"), "features of dtype 'float32', not of 'bfloat16'"),
        (("--order", "class-ordered"), "with shuffled as the order of the stream"),
        (("--set", "stream.imbalance=zipf"), "with none as the imbalance of the stream, not zipf"),
        (("--corrupt", "fog"), "--corrupt fog needs images"),
        (("--workers", 2), "--workers 2 needs images"),
        (("--strict",), "--strict needs images"),
        (("--prompt-set", "cupl"), "has no prompt set 'cupl'"),
        (("--method", "tent"), "needs the image tower"),
        (("--data", "folder:x"), "cannot be joined"),
    ):
        assert message in refused(*data, *args)
    asked = ("--views", 3, "--template", "a photo of a {}.", "--limit", 4, "--order", "shuffled",
             "--seed", 0, "--model", "tiny", "--dtype", "float32", "--device", "cpu")  # fmt: skip
    assert facts(*data, *asked)["metrics"]["images"] == 4


def test_replay_has_no_options_that_only_images_can_use(cache):
    for args in (("--order", "listed"), ("--corrupt", "fog"), ("--workers", 1), ("--data", "x:y")):
        result = call("replay", cache, *args)
        assert result.exit_code == 2
        assert f"No such option '{args[0]}'" in result.output


def test_devices_and_dtypes_are_checked_where_no_tower_runs(cache):
    assert "device='nonsense' cannot be used here" in refused(
        "replay", cache, "--device", "nonsense"
    )
    assert "dtype='int8' is not a float type" in refused("replay", cache, "--dtype", "int8")


@pytest.mark.slow
def test_a_caches_model_is_loaded_for_its_text_tower_alone(cache, tmp_path):
    other = shutil.copytree(bundle(), tmp_path / "other")  # early: nothing in it tells
    recipe = other / "recipe.json"  # as if another checkpoint of the same name had made it
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "fingerprint": "0123"}))
    assert call("replay", other, "--limit", 2).exit_code == 0
    said = refused("replay", other, "--method", "tpt")
    assert "holds features of model 'tiny-longtail' (fingerprint 0123), not of" in said
    assert facts("replay", cache, "--method", "tpt", "--limit", 1)["metrics"]["images"] == 1


@pytest.mark.slow
def test_extract_goes_on_and_refuses_other_views(folder, tmp_path):
    source, out = ("--data", f"folder:{folder}"), tmp_path / "cache"
    first = facts("extract", *source, *FAST, "--out", out)
    assert first["images"] == 6
    assert first["skipped"] == []
    assert facts("extract", *source, *FAST, "--out", out) == first
    assert "another views" in refused("extract", *source, "--views", 4, "--out", out)
    older = tmp_path / "older"  # from before small images had views of their own: it stays so
    free = facts("extract", *source, *FAST, "--set", "views.enlarge=0", "--out", older)
    assert "enlarge" not in free["recipe"]["views"]
    assert facts("extract", *source, *FAST, "--out", older) == free
    said = refused("extract", *source, *FAST, "--set", "views.enlarge=2", "--out", older)
    assert "enlarge: None there, 2.0 asked for" in said
    assert "names a cache" in refused("extract", "--data", f"cache:{out}", "--out", tmp_path / "b")
    for prompts in ("seven", "eighty"):
        named = ("--template", prompts, "--prompt-set", prompts)
        assert call("extract", *source, *FAST, *named, "--out", out).exit_code == 0
    seven = facts("replay", out, "--prompt-set", "seven")["protocol"]["prompts"]["templates"]
    assert len(seven) == 7


# --------------------------------------------------------------------------- own features


@pytest.fixture
def npz(tmp_path):
    """Features of two views in a file."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, image=rng.normal(size=(5, 2, 8)), text=rng.normal(size=(3, 8)),
             label=[0, 1, 2, 0, 1])  # fmt: skip
    return path


def test_own_features_are_data(npz, tmp_path, monkeypatch):
    (tmp_path / "adte.toml").write_text('[defaults]\nviews = 3\nmodel = "tiny"\n')
    monkeypatch.chdir(tmp_path)  # these are for images
    data = ("--data", f"npz:{npz}")
    assert facts("eval", *data, "--views", 2)["metrics"]["images"] == 5
    rows = facts("compare", *data, "--limit", 4, "--runs", tmp_path / "runs")["rows"]
    assert {"zero-shot", "adte", "tilt", "tda"} < {r["method"] for r in rows}
    assert call("report", tmp_path / "runs").exit_code == 0
    assert call("sweep", "smoothing=20,50", *data, "--shuffle", 1).exit_code == 0
    assert call("sweep", "smoothing=20,50", *data, "--seeds", 2).exit_code == 0
    assert call("eval", *data, "--shuffle", 2**63).exit_code == 2  # no log could hold it


def test_own_features_do_not_stand_in_for_something_else(npz, tmp_path):
    data = ("--data", f"npz:{npz}")
    for args, message in (
        (("--views", 3), "--views 3 needs images, and 'npz:"),
        (("--model", "tiny"), "--model tiny needs images"),
        (("--order", "class-ordered"), "unknown order of rows 'class-ordered'"),
        (("--corrupt", "fog"), "--corrupt fog needs images"),
        (("--template", "a {}."), "--template needs images"),
        (("--limit", 0), "limit=0"),
        (("--method", "tpt"), "needs the text tower; give images"),
        (("--method", "tent"), "needs the image tower; give images"),
        (("--data", "folder:x"), "cannot be joined"),
    ):
        assert message in refused("eval", *data, *args)
    assert "names features" in refused("extract", *data, "--out", tmp_path / "x")
    assert f"write npz:{npz} for features" in refused("compare", "--data", npz)
    assert "does not exist" in refused("eval", "--data", f"npz:{tmp_path}/gone.npz")


# --------------------------------------------------------------------------- compare and sweep


def test_names_may_be_repeated(npz):
    args = ("--methods", "zero-shot", "--methods", "se,adte", "--protocols", "online",
            "--protocols", "two-pass")  # fmt: skip
    rows = facts("compare", "--data", f"npz:{npz}", *args)["rows"]
    names = [(r["method"], r["protocol"]) for r in rows]
    assert names == [("zero-shot", "stateless"), ("se", "stateless"), ("adte", "online"),
                     ("adte", "two-pass")]  # fmt: skip


@pytest.mark.slow
def test_compare_and_sweep_keep_their_runs(cache, tmp_path):
    runs, table = tmp_path / "runs", tmp_path / "table.md"
    args = ("--data", f"cache:{cache}", "--runs", runs)
    result = call("compare", *args, "--methods", "zero-shot,se,adte", "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert len(list(runs.glob("*.json"))) == 4  # two methods have no state: one shuffle says all
    assert call("sweep", "smoothing=20,90", *args, "--table", table).exit_code == 0
    assert len(list(runs.glob("*.json"))) == 6
    assert "tilt smoothing=20" in table.read_text()
    result = call("report", runs)
    assert result.exit_code == 0, result.output
    assert (runs / "report.html").exists()


@pytest.mark.slow
def test_images_are_encoded_once_for_all_methods(folder, monkeypatch):
    passes, images = [], Live.images
    monkeypatch.setattr(Live, "images", lambda live: passes.append(1) or images(live))
    args = ("--methods", "zero-shot,se,adte,tda", "--protocols", "online,two-pass")
    rows = facts("compare", "--data", f"folder:{folder}", *FAST, *args)["rows"]
    names = [(r["method"], r["protocol"]) for r in rows]
    assert names == [("zero-shot", "stateless"), ("se", "stateless"), ("adte", "online"),
                     ("adte", "two-pass"), ("tda", "online"), ("tda", "two-pass")]  # fmt: skip
    assert len(passes) == 1


@pytest.mark.slow
def test_without_data_it_is_the_bundle():
    rows = facts("compare", "--methods", "zero-shot,se", "--limit", 5)["rows"]
    assert [r["method"] for r in rows] == ["zero-shot", "se"]
    for args, message in (
        (("--views", 4), "the embedded bundle was made with 64 views per image, not 4"),
        (("--seed", 1), "the embedded bundle was made with 0 as the seed"),
        (
            ("--model", "ViT-B-16/openai"),
            "the embedded bundle holds features of model 'tiny-longtail'",
        ),
        (("--corrupt", "fog"), "the embedded bundle holds features"),
        (("--methods", "bn"), "needs the image tower"),
    ):
        assert message in refused("compare", "--methods", "se", "--limit", 3, *args)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_handful_of_images_is_enough(limit):
    args = ("--methods", "zero-shot,adte", "--protocols", "online,two-pass", "--limit", limit)
    rows = facts("compare", *args, "--seeds", 2)["rows"]
    assert [r["method"] for r in rows] == ["zero-shot", "adte", "adte"]


def test_methods_are_checked_before_anything_runs(tmp_path):
    """The data does not exist, and is not looked for."""
    data, runs = ("--data", "folder:/nowhere"), tmp_path / "runs"
    for args, message in (
        (("compare", "--methods", ""), "name methods, or leave --methods out for all"),
        (("compare", "--methods", " , "), "name methods, or leave --methods out for all"),
        (("compare", "--methods", "se,adt"), "unknown method 'adt'"),
        (("compare", "--methods", "se", "--protocols", "offline"), "unknown protocol 'offline'"),
        (("compare", "--methods", "se", "--protocols", ""), "no protocols"),
        (("sweep", "smoothing=0.5,x"), "smoothing='x' is not float"),
        (("sweep", "smoothing=0.5,-1"), "smoothing"),
        (("sweep", "nope=1"), "unknown option 'nope'"),
        (("eval", "--method", "adte", "--set", "ratio=2"), "outside (0, 1]"),
    ):
        assert message in refused(*args, *data, "--runs", runs)
    assert not runs.exists()


PAPER = ("--method", "adte")
SETTINGS = {
    "beta": "is not NAME=VALUE",
    "=1": "is not NAME=VALUE",
    "beta=": "not float",
    "tau=nan": "tau=nan is not a number",
    "tau=inf": "tau=inf",
    "ratio=nan": "ratio=nan",
    "count=nan": "not int",
    "direction=up": "unknown value for option 'direction'",
    "bta=1": "did you mean 'beta'",
    "prior.clip=-1": "clip",
}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_end_in_a_sentence(text, cache):
    assert SETTINGS[text] in refused("replay", cache, *PAPER, "--set", text)


def test_settings_reach_the_method(cache):
    args = ("--set", "tau=0.5", "--set", "prior.clip=1.5", "--set", "seed=1")
    options = facts("replay", cache, *PAPER, *args)["protocol"]["options"]
    assert (options["adjust.tau"], options["prior.clip"], options["prior.seed"]) == (0.5, 1.5, 1)
    assert "given twice" in refused("replay", cache, *PAPER, "--set", "tau=1", "--set", "tau=2")


def test_settings_without_an_effect_are_noted(cache):
    done = call("replay", cache, *PAPER, "--set", "q=0.1", "--set", "clip=1.5")
    assert done.exit_code == 0, done.output
    assert (
        "entropy.q has no effect on adte with these options; it needs kind=tsallis" in done.stderr
    )
    assert "clip" not in done.stderr
    done = call("replay", cache, "--method", "se", "--set", "clip=1.5")
    assert "prior.clip has no effect on se with these options" in done.stderr


# --------------------------------------------------------------------------- bad input


BAD = {
    "no data": (["eval"], "no data was given"),
    "nowhere": (["eval", "--data", "folder:/nowhere"], "/nowhere"),
    "no such set": (["eval", "--data", "nonsense:x"], "nonsense"),
    "no such corruption": (["eval", "--data", "FOLDER", "--corrupt", "rain"], "rain"),
    "severity": (["eval", "--data", "FOLDER", "--corrupt", "fog", "--severity", "9"], "'9'"),
    "severity alone": (["eval", "--data", "FOLDER", "--severity", "3"], "needs --corrupt"),
    "no-clean alone": (["eval", "--data", "FOLDER", "--no-clean"], "needs --corrupt"),
    "limit": (["eval", "--data", "FOLDER", "--limit", "0"], "limit=0"),
    "views": (["eval", "--data", "FOLDER", "--views", "0"], "count=0"),
    "batch": (["eval", "--data", "FOLDER", "--batch", "0"], "batch=0"),
    "seed": (["eval", "--data", "FOLDER", "--seed", "-1"], "seed=-1"),
    "workers": (["eval", "--data", "FOLDER", "--workers", "-1"], "workers=-1"),
    "ratio": (["eval", "--data", "FOLDER", "--set", "stream.ratio=0.5"], "ratio=0.5"),
    "not a number": (["eval", "--data", "FOLDER", "--set", "views.flip=nan"], "flip=nan is not"),
    "not two": (
        ["eval", "--data", "FOLDER", "--set", "views.scale=0.1"],
        "scale=0.1 of the views is not 2 numbers",
    ),
    "no such option": (["compare", "--set", "views.flop=1"], "unknown option 'flop'"),
    "of no one method": (["compare", "--set", "smoothing=5"], "no option of the views or of the"),
    "device": (["eval", "--data", "FOLDER", "--device", "gpu"], "device='gpu'"),
    "dtype": (["eval", "--data", "FOLDER", "--dtype", "int8"], "dtype='int8'"),
    "model": (["eval", "--data", "FOLDER", "--model", "x:y"], "x:"),
    "weights": (["eval", "--data", "FOLDER", "--weights", "random"], "embedded"),
    "template": (["eval", "--data", "FOLDER", "--template", "no place"], "no place"),
    "descriptions": (["eval", "--data", "FOLDER", "--descriptions", "/nowhere"], "/nowhere"),
    "again": (["eval", "--data", "FOLDER", "--again"], "--again needs --runs"),
    "runs": (["eval", "--data", "FOLDER", "--runs", "FILE"], "a file is in the way"),
    "json": (["eval", "--data", "FOLDER", "--json", "/nowhere/x.json"], "/nowhere"),
    "table": (["eval", "--data", "FOLDER", "--table", "x.xlsx"], ".csv, .md, .html or .tex"),
    "table folder": (["eval", "--data", "FOLDER", "--table", "/nowhere/x.md"], "/nowhere"),
    "no cache": (["replay", "/nowhere"], "recipe.json"),
    "sweep": (["sweep", "beta"], "NAME=VALUES"),
    "sweep twice": (["sweep", "smoothing=1", "smoothing=2", "--limit", "3"], "given twice"),
    "extract": (["extract", "--data", "FOLDER", "--out", "FILE"], "a file is in the way"),
    "get": (["data", "get", "imagenet", "x"], "cannot be downloaded"),
    "datasets": (["datasets", "nonsense"], "unknown"),
    "report": (["report", "/nowhere"], "/nowhere"),
    "long cache": (["replay", "a" * 300], "File name too long; check the path"),
    "long results": (["report", "a" * 300], "File name too long; check the path"),
    "long model": (["eval", "--data", "FOLDER", "--model", "a" * 300], "unknown model 'aaa"),
    "scale": (["simulate", "--scale", "0"], "scale=0.0 of the simulated stream must be positive"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case, folder, tmp_path):
    (tmp_path / "file").write_text("")
    places = {"FOLDER": f"folder:{folder}", "FILE": tmp_path / "file"}
    args, message = BAD[case]
    assert message in refused(*(places.get(a, a) for a in args))


@pytest.mark.parametrize("args", [
    ("--limit", "x"), ("--order", "up"), ("--shuffle", "-1"), ("--protocol", "offline"),
    ("--nonsense",),
], ids=" ".join)  # fmt: skip
def test_bad_values_of_options_are_refused_by_name(args, folder):
    result = call("eval", "--data", f"folder:{folder}", *args)
    assert result.exit_code == 2
    assert args[0] in result.output.splitlines()[-1]


def test_a_flat_folder_is_told_what_is_expected(folder, tmp_path):
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        shutil.copy(path, tmp_path / f"{i}.png")
    said = refused("eval", "--data", f"folder:{tmp_path}")
    assert "one folder per class" in said
    assert "unpack" not in said


@pytest.mark.slow
def test_json_never_swallows_an_argument(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("replay", "--json", cache)  # an argument follows, not a file name
    assert json.loads(result.stdout)["metrics"]["images"] == 6
    assert cache.is_dir()
    assert call("replay", cache, "--json", "out.json").exit_code == 0
    assert json.loads((tmp_path / "out.json").read_text())["metrics"]["images"] == 6


# --------------------------------------------------------------------------- a person's defaults


@pytest.mark.slow
def test_own_defaults_hold_for_images_and_yield(folder, cache, tmp_path, monkeypatch):
    (tmp_path / "adte.toml").write_text(
        '[defaults]\nviews = 2\nseed = 7\ntemplates = "a {}."\n[compare]\nviews = 5\n'
    )
    monkeypatch.chdir(tmp_path)
    source = ("eval", "--data", f"folder:{folder}", "--workers", 0)
    protocol = facts(*source)["protocol"]
    assert (protocol["views"]["count"], protocol["view_seed"]) == (2, 7)
    assert protocol["prompts"]["templates"] == ["a {}."]
    assert facts(*source, "--views", 3)["protocol"]["views"]["count"] == 3
    rows = facts("compare", *source[1:], "--methods", "se")
    assert rows["protocol"]["views"]["count"] == 5
    assert facts("replay", cache)["protocol"]["views"]["count"] == 3  # a cache is as it is
    assert facts("compare", "--methods", "se", "--limit", 2)["protocol"]["views"]["count"] == 64
    assert "device='gpu'" in refused(*source, env={"ADTE_DEVICE": "gpu"})
    assert facts("methods", "se", env={"ADTE_DEVICE": "gpu"})[0]["name"] == "se"


# --------------------------------------------------------------------------- lists


def test_lists():
    rows = [line.split() for line in call("datasets").output.splitlines()]
    listed = {row[0]: row for row in rows if row}
    assert listed["imagenet-a"][3:5] == ["50.6", "70.9"]
    assert listed["imagenet-c"][3:] == ["ImageNet-C"]  # its figures are of one corruption each
    assert json.loads(call("datasets", "pets", "--json").output)[0]["images"] == 3669
    assert "folder:PATH?option=value" in call("datasets", "folder").output.replace("\n", "")
    assert "(auto by default)" in call("datasets", "pets").output  # no markup of rich
    assert "tiny" in call("models", "tiny").output


def test_a_methods_options_stand_under_their_parts():
    lines = call("methods", "zero-shot").output.splitlines()
    starts = [line[1:].split("  ")[0].rstrip() for line in lines if line.startswith(" ")]
    assert [s for s in starts if s in ("order", "adjust", "prior")] == ["order", "adjust", "prior"]
    indented = [line.split()[0] for line in lines if line.startswith("   ") and line.strip()]
    assert {"place", "tau", "estimator", "clip"} <= set(indented)
    assert not any("entropy" in s for s in starts)
    assert any("Options: 1 of its own, " in line for line in lines)
    (row,) = json.loads(call("methods", "zero-shot", "--json").output)
    parts = {o["name"]: [i["name"] for i in o.get("options", [])] for o in row["options"]}
    assert parts["order"] == []
    assert parts["adjust"] == ["place", "tau"]
    assert "clip" in parts["prior"]


# --------------------------------------------------------------------------- image-only models


@pytest.mark.slow
def test_image_only_models_take_part(folder, tmp_path):
    """A timm classifier narrowed to the data's classes: live, from a cache, with its own tower."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    known = tmp_path / "known"
    for name, wnid in (("cat", "n01440764"), ("dog", "n01443537")):
        shutil.copytree(folder / name, known / wnid)
    source = ("--data", f"folder:{known}", "--model", "timm:test_resnet", "--weights", "random")
    rows = facts("compare", *source, "--methods", "zero-shot,average,adte,bn,memo", *FAST)["rows"]
    assert [r["method"] for r in rows] == ["zero-shot", "average", "adte", "bn", "memo"]
    assert "needs features" in refused("eval", *source, *FAST, "--method", "tda")
    assert "reads no prompts" in refused("eval", *source, *FAST, "--template", "a {}.")
    other = refused("eval", "--data", f"folder:{folder}", *source[2:], *FAST)
    assert "'cat' is not among the 1000 fixed classes" in other
    cache = tmp_path / "fixed"
    assert call("extract", *source, *FAST, "--out", cache).exit_code == 0
    assert call("replay", cache, "--method", "adte").exit_code == 0
    assert "needs features" in refused("replay", cache, "--method", "tda")
