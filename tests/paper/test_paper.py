"""`adte paper`: what its tables name, its seeds, what a difference needs, what it costs."""

from __future__ import annotations

import json
import re
import shlex
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from adte import InputError
from adte.cli import main
from adte.evaluate.features.cache import Cache
from adte.evaluate.running.tasks import Outcome
from adte.evaluate.source import Source
from adte.models import get, load_model
from adte.models.openclip import Published
from adte.paper import Finding, Lab, Row, Settings, find_study, sources
from adte.paper.lab import ADTE, OURS, PAPER, RELEASED
from adte.paper.sources import descriptions_of
from adte.paper.study import averaged, studies
from models.small_towers import add_small_models, needs

open_clip = needs("open_clip", "clip")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "paper.md"
MODEL = "small-ViT-B-16"
WNIDS = ("n01440764", "n01443537", "n01484850")


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    add_small_models(open_clip, tmp_path_factory.mktemp("configs"))


@pytest.fixture
def imagenet(tmp_path):
    """Two noisy photographs of each of three classes, in ImageNet's layout."""
    rng = np.random.default_rng(0)
    for wnid in WNIDS:
        (tmp_path / "imagenet" / "val" / wnid).mkdir(parents=True)
        for i in range(2):
            pixels = rng.integers(0, 256, (70, 80, 3), dtype=np.uint8)
            path = tmp_path / "imagenet" / "val" / wnid / f"ILSVRC2012_val_{i:08d}.JPEG"
            Image.fromarray(pixels).save(path)
    return f"imagenet:{tmp_path / 'imagenet'}?complete=false"


def paper(*args):
    return CliRunner().invoke(main, ["paper", *map(str, args)])


def ood(imagenet, out, *more, study="ood"):
    """The run, and the facts of its table."""
    args = (study, "--data", imagenet, "--model", MODEL, "--views", 4, "--limit", 5,
            "--jobs", 1, "--skip", "tpt", "--skip", "dynaprompt", "--out", out)  # fmt: skip
    done = paper(*args, *more, "--json", out.with_suffix(".json"))
    assert done.exit_code == 0, done.output
    return done.output, json.loads(out.with_suffix(".json").read_text())[0]


@pytest.mark.slow
def test_the_papers_table_on_an_imagenet_folder_names_methods_seeds_and_views(imagenet, tmp_path):
    output, facts = ood(imagenet, tmp_path / "out", "--seeds", 2, "--weights", "random")
    assert "5 images, 4 views, online, 2 seeds of crops and order" in facts["setting"]
    assert facts["seeds"] == 2
    methods = {r["row"]: r["method"] for r in facts["rows"]}
    assert (methods["ADTE"], methods["ADTE, released code"]) == (PAPER, RELEASED)
    assert methods[f"{OURS}, our default"] == OURS
    assert not {"TPT", "Dyna"} & set(methods)
    assert all(r["half_width"] is not None for r in facts["rows"] if r["ours"] is not None)
    assert all(r["difference"] is None for r in facts["rows"])
    reason = f"{MODEL} is not a model of the paper"
    assert reason in facts["no_difference"]
    assert reason in output
    assert PAPER in output
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert PAPER in page
    assert "2 seeds of crops and order" in page
    one, two = (Cache(tmp_path / "out" / "caches" / n) for n in ("imagenet", "imagenet-seed-1"))
    assert [i.id for i in one.images()] == [i.id for i in two.images()]
    pairs = [(a.features, b.features) for a, b in zip(one.images(), two.images(), strict=True)]
    assert all(torch.equal(a[0], b[0]) for a, b in pairs)  # the base view
    assert not any(torch.equal(a[1:], b[1:]) for a, b in pairs)


@pytest.mark.slow
def test_a_difference_needs_the_published_file_and_not_its_name(imagenet, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCKS", {MODEL: "ViT-B/16"})
    published, other = tmp_path / "published.pt", tmp_path / "other.pt"
    for seed, file in enumerate((published, other)):
        torch.manual_seed(seed)
        torch.save(open_clip.create_model(MODEL).state_dict(), file)
    digest = sha256(published.read_bytes()).hexdigest()
    wanted = Published(f"https://openaipublic.azureedge.net/clip/models/{digest}/x.pt", "", ())
    monkeypatch.setattr(get, "checkpoint_of", lambda name: wanted)
    for weights, reason in (
        ("random", f"{MODEL} has random weights"),
        (other, "is not the one published"),
        (published, ""),
    ):
        name = tmp_path / f"out-{getattr(weights, 'stem', weights)}"
        output, facts = ood(
            imagenet, name, "--seeds", 1, "--weights", weights, study="confidence-intervals"
        )
        assert reason in facts["no_difference"]
        assert bool(reason) == ("No difference is shown: " in " ".join(output.split()))
        assert bool(reason) != ("Ours less published" in output)
        for row in facts["rows"]:
            known = row["published"] is not None and row["ours"] is not None
            assert (row["difference"] is not None) == (known and not reason)
    assert "weights are the published ones" in (name / "index.html").read_text("utf-8")
    # Features of other weights are not the published ones' either, whatever their recipe says.
    source = Source(data=["cache:x"], model=load_model(MODEL, weights=str(published)))
    assert "made with other weights" in sources._unlike(
        Source(data=["cache:x"], model=source.model, weights=str(published)), MODEL, "0" * 16
    )


def test_the_papers_adte_in_one_command(imagenet, tmp_path):
    """The two commands that docs/paper.md begins with, on a small folder and a small model."""
    lines = re.findall(r"^\$ adte (eval .*)$", PAGE.read_text("utf-8"), re.M)
    ways = {}
    for i, line in enumerate(lines):
        out = tmp_path / f"{i}.json"
        line = line.replace("imagenet:/data/imagenet", imagenet)
        words = shlex.split(line.replace("ViT-B-16/openai", f"{MODEL} --weights random"))
        quick = ("--views", "4", "--template", "a {}.", "--json", str(out))
        done = CliRunner().invoke(main, [*words, *quick])
        assert done.exit_code == 0, done.output
        (row,) = json.loads(out.read_text())["rows"]
        ways[row["method"]] = row["protocol"]
        assert row["images"] == 6
    assert ways == {PAPER: "online", RELEASED: "two-pass"}


def test_the_page_has_every_tables_command():
    text = PAGE.read_text("utf-8")
    named = re.findall(r"^\| `adte paper ([\w-]+)` \|", text, re.M)
    scripts = {"deyo", "unimodal"}
    assert named == [s.name for s in studies(ours=False) if s.name not in scripts]
    for command in ("digits.py deyo", "digits.py unimodal", "cost.py"):
        assert f"| `python benchmarks/{command}` |" in text


def test_what_is_published_is_compared_by_its_sha_256(tmp_path):
    with pytest.raises(InputError, match="random weights"):
        get.check_published("ViT-B-16/openai", "random")
    with pytest.raises(InputError, match="models get ViT-B-16/openai"):
        get.check_published("ViT-B-16/openai", str(tmp_path / "absent.pt"))
    (tmp_path / "own.pt").write_bytes(b"mine")
    with pytest.raises(InputError, match="is not the one published for ViT-B-16/openai"):
        get.check_published("ViT-B-16/openai", str(tmp_path / "own.pt"))


def test_a_dry_run_counts_passes_and_does_nothing(imagenet, tmp_path):
    out = tmp_path / "out"
    args = ("ood", "te-q", "--data", imagenet, "--model", "ViT-B-16/openai",
            "--out", out, "--dry-run")  # fmt: skip
    done = paper(*args, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["studies"] == ["ood", "te-q"]
    rows = {r["name"]: r["passes"] for r in facts["rows"]}
    assert rows["imagenet"] == 6 * 64 * 3
    assert rows["ood, tpt, imagenet"] == 6 * 3 * 1000 * 2  # a step, and the answer
    assert facts["passes"] == sum(rows.values())
    few = json.loads(paper(*args, "--json", "--skip", "tpt", "--seeds", 1, "--limit", 2).output)
    assert few["rows"][0]["passes"] == 2 * 64
    assert not any("tpt" in r["name"] for r in few["rows"])
    assert "6 images × 64 views × 3 seeds" in paper(*args).output
    assert not out.exists()


def test_descriptions_are_of_a_data_set_or_of_all(tmp_path):
    own, every = tmp_path / "own.json", str(tmp_path / "every.json")
    for file in (own, Path(every)):
        file.write_text("{}")
    sets = ["imagenet", "pets", "dtd"]
    assert descriptions_of([f"dtd={own}"], sets) == {"dtd": str(own)}
    found = descriptions_of([f"dtd={own}", every], sets)
    assert found == {"imagenet": every, "pets": every, "dtd": str(own)}
    with pytest.raises(InputError, match="'cats' is none of pets; write it as pets=FILE"):
        descriptions_of([f"cats={own}"], ["pets"])
    with pytest.raises(InputError, match="is no file"):
        descriptions_of([str(tmp_path)], ["cars"])


@pytest.mark.slow
def test_templates_and_descriptions_reach_the_tables(imagenet, tmp_path):
    from adte.data.names import imagenet_names

    file = tmp_path / "imagenet.json"
    file.write_text(json.dumps({n: [f"{n}, seen."] for n in imagenet_names()}))
    more = ("--template", "a drawing of a {}.", "--descriptions", f"imagenet={file}")
    _, facts = ood(imagenet, tmp_path / "out", "--weights", "random", "--seeds", 1, *more)
    assert {"CuPL", "ADTE with descriptions"} <= {r["row"] for r in facts["rows"]}
    cache = Cache(tmp_path / "out" / "caches" / "imagenet")
    assert cache.recipe.prompts["templates"] == ["a drawing of a {}."]


def test_findings_of_seeds_are_averaged_with_half_of_their_intervals():
    def one(value):
        rows = [Row("a", (value, (value, 1.0))), Row("b", (0.5, None))]
        return Finding("", ("x", "y"), rows)

    found = averaged([one(0.1), one(0.2), one(0.3)])
    a, b = found.rows
    assert a.cells == (pytest.approx(0.2), pytest.approx((0.2, 1.0)))
    assert a.spread == (pytest.approx(4.303 * 0.1 / 3**0.5, abs=1e-3), None)
    assert (b.cells, b.spread[0]) == ((0.5, None), 0)
    assert found.seeds == 3


@pytest.mark.slow
def test_embedded_seeds_draw_the_order_and_say_so():
    shared = {}
    finding = find_study("confidence-intervals").conduct(Settings(images=3), shared)
    assert finding.setting.endswith("3 seeds of the order alone (crops as they are cached)")
    rows = {r.name: r for r in finding.rows}
    assert set(rows) >= set(ADTE)
    assert not any(rows["SE"].spread)  # no state: one run
    methods = [done.task.method for done in shared.values() if isinstance(done, Outcome)]
    assert methods.count("se") == 5
    assert methods.count(PAPER) == 3 * 5


def test_figure_1a_is_a_figure_of_head_and_tail():
    finding = find_study("vlm-bias").run(Lab())
    accuracy, confidence = (row.cells for row in finding.rows)
    assert len(accuracy) == len(finding.plot.at) == 10
    assert accuracy[0] > accuracy[-1] + 0.1
    assert confidence[0] > confidence[-1] + 0.1
    assert [row.name for row in finding.rows] == ["accuracy", "confidence"]


def test_a_skipped_method_must_exist_and_leave_something(tmp_path):
    args = ("views", "--preset", "tiny", "--jobs", 1, "--out", tmp_path)
    assert "unknown method 'nothing'" in paper(*args, "--skip", "nothing").output
    done = paper("intervals", *args[1:], "--skip", PAPER)
    assert "all of its methods are skipped" in done.output
