"""Studies in small: the paper's shapes, the published beside, the lab's own streams."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte import InputError
from adte.cli import main
from adte.core.errors import StateError
from adte.data import Dataset, make_stream
from adte.evaluate.features.cache import Cache, begun, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import fewer_views, narrowed
from adte.evaluate.running.tasks import Outcome, Task, key_of
from adte.evaluate.source import Source
from adte.images import Views
from adte.methods import create_method
from adte.methods.prior import FixedPoint
from adte.models import load_model
from adte.models.prompts import class_weights
from adte.paper import Finding, Lab, Row, Settings, find_study, studies, study
from adte.paper.comparisons import prior_options
from adte.paper.lab import OURS, PAPER, RELEASED, interleaved
from adte.paper.ours import streams_of, verdict
from adte.paper.published import list_published, published
from adte.paper.render import findings_page, grids, to_markdown
from adte.paper.sources import prepare
from adte.paper.study import STUDIES, chosen, conduct
from adte.paper.tables import family_like, over_se, table
from adte.testing.small import SmallModel

NAMES = ("red", "green", "blue")
FIGURES = {"te-q", "views", "tcr-curves", "two-classes", "vlm-bias"}
SCRIPTS = {"deyo", "unimodal", "cost"}  # of benchmarks/
SLOW = {"ood", "cross-domain"}  # they tune prompts
APART = {"tail-classes", "successors", "imagenet-c", "percentiles"}  # in small
ACCURACIES = {"ablation", "entropies", "intervals", "normalisations", "confidence-intervals"}
TINY = Settings(images=40, tuned=2, seeds=2)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(Settings(images=24, tuned=1, seeds=2))


def live(count: int) -> Live:
    """Pictures of one colour each, noisy, through a small model."""
    labels = np.arange(count) % len(NAMES)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 128, (count, 30, 40, 3), dtype=np.uint8)
    pictures[np.arange(count), :, :, labels] += 120
    data = Dataset(
        "imagenet-a", NAMES, NAMES, list(pictures), labels, [str(i) for i in range(count)]
    )
    model = SmallModel()
    stream = make_stream(data, order="listed")
    return Live(model, class_weights(model, NAMES), stream, Views(count=5))


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def test_every_table_and_figure_of_the_paper_is_a_study():
    assert {s.name for s in studies(ours=False)} - SCRIPTS == set(
        list_published()
    ) - SCRIPTS | FIGURES
    assert {s.name for s in studies(ours=True)} >= {"robust", "few-names"}
    assert all(s.about and s.title for s in studies())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({s.name for s in studies(ours=False)} - SLOW - SCRIPTS - {"bank-size"})
)
def test_studies_have_the_shape_of_the_paper(lab, name):
    study = find_study(name)
    finding = study.run(lab)
    assert finding.rows
    assert len(finding.units) == len(finding.columns)
    for row in finding.rows:
        assert len(row.cells) == len(finding.columns)
        for cell, unit in zip(row.cells, finding.units, strict=True):
            values = [] if cell is None else np.atleast_1d(np.array(cell, dtype=float))
            assert np.isfinite(values).all()
            if unit == "percent" and name in ACCURACIES:
                assert (np.asarray(values) <= 1).all()
    for row in finding.rows:  # ADTE is the paper's, wherever it stands
        if row.method and row.name.startswith("ADTE"):
            assert row.method == (RELEASED if "released" in row.name else PAPER)
    for column, method in finding.methods.items():
        if "ADTE" in column:
            assert method == (RELEASED if "released" in column else PAPER)
    printed = study.published
    if printed is not None and name not in APART:
        beside = {
            (r.name, c) for r in finding.rows for c in finding.columns
            if study.beside(finding, r, c) is not None
        }  # fmt: skip
        assert beside, "no published number stands beside ours"
    facts = study.facts(finding)
    json.dumps(facts, allow_nan=False)
    assert len(facts["rows"]) == len(finding.rows) * len(finding.columns)
    assert all(r["difference"] is None for r in facts["rows"])  # another model


@pytest.mark.slow
def test_systems_of_the_main_tables_at_their_smallest(lab):
    few = Lab(Settings(images=3, tuned=1, seeds=2))
    finding = find_study("ood").run(few)
    names = [r.like or r.name for r in finding.rows]
    for name in ("CLIP", "TPT", "TDA", "Zero", "Dyna", "BCA", "ADTE", "CuPL", "Frolic"):
        assert name in names
    zero = next(r for r in finding.rows if r.name == "Zero")
    *cells, mean, ood = zero.cells
    assert mean == pytest.approx(np.mean(cells))
    assert ood == pytest.approx(np.mean(cells[1:]))
    assert find_study("ood").beside(finding, zero, "photographs") == pytest.approx(0.709)
    assert find_study("ood").beside(finding, zero, "OOD Avg") == pytest.approx(0.65)


def test_published_stands_beside_in_our_units():
    study = find_study("confidence-intervals")
    finding = Finding("", ("a",), [Row("ADTE", (0.5,)), Row("ADTE 95% interval", (0.5,))],
                      like={"a": "ImageNet-A"}, block="ViT-B/16")  # fmt: skip
    assert study.beside(finding, finding.rows[0], "a") == pytest.approx(0.655)
    assert study.beside(finding, finding.rows[1], "a") == pytest.approx((0.6572, 0.005))
    rows = study.facts(finding)["rows"]
    assert rows[0]["difference"] == pytest.approx(0.5 - 0.655)
    assert rows[1]["difference"] == pytest.approx(0.5 - 0.6572)  # of the means
    pairs = Finding("", ("Pets",), [Row("0%-10%", ((0.9, 0.5),))], block="ViT-B/16")
    difference = find_study("percentiles").facts(pairs)["rows"][0]["difference"]
    assert difference == pytest.approx((-0.1, -0.45))  # of each by itself


def test_streams_of_the_lab(lab):
    assert [len(s) for s in lab.family().values()] == [24] * 5
    said = "tiny-longtail, 5 streams of 24 images, 16–64 views, online"
    assert lab.setting(lab.family().values()) == said
    assert family_like(lab)["photographs"] == "IN"
    main_stream = lab.main()
    some = narrowed(main_stream, sorted(set(main_stream.labels.tolist()))[:4], "four")
    assert len(some.classes) == 4
    for sample, label in some:
        assert sample.logits.shape[-1] == 4
        assert 0 <= label < 4
    back = [main_stream.classes.index(some.classes[label]) for _, label in some]
    assert set(back) <= set(main_stream.labels.tolist())
    assert [s.logits.shape[0] for s, _ in fewer_views(main_stream.first(2), 5)] == [5, 5]
    shifts = lab.shifts()
    mixed = interleaved({"a": shifts["clean"], "b": shifts["glass_blur/3"]})
    assert len(mixed) == 48
    assert {i.domain for i in mixed.images()} == {"a", "b"}
    assert len(lab.cross()) == 10


def test_a_run_is_done_once(lab):
    ticks = []
    mine = Lab(TINY, tick=ticks.append)
    stream = mine.main().first(5)
    a = mine.run(stream, "adte")
    count = len(ticks)
    assert mine.run(stream, "adte") is a
    assert len(ticks) == count
    assert mine.run(fewer_views(stream, 4), "adte") is not a
    assert mine.run(stream, "adte", beta=0.5) is not a


def test_se_of_the_ablation_has_the_prior_of_its_variant():
    theirs = create_method(PAPER)
    se = create_method("se", **prior_options(PAPER))
    assert se.prior == theirs.prior
    assert se.adjust == theirs.adjust
    assert se.entropy.kind == "shannon"


def test_entropies_have_the_prior_of_the_papers_adte():
    lab = Lab(Settings(images=3))
    find_study("entropies").run(lab)
    estimators: dict[str, set[str]] = {}
    for done in lab.shared.values():
        if not isinstance(done, Outcome):
            continue
        options = done.record.conditions.options
        estimators.setdefault(done.task.method, set()).add(options.get("prior.estimator"))
    theirs = {create_method(PAPER).params["prior.estimator"]}
    assert estimators["se"] == estimators["te"] == estimators[PAPER] == theirs


def test_robust_says_where_the_default_is_best_and_where_it_loses():
    rows = [Row("SE", ((0.5, 0.0, 0.0), (0.5, 0.0, 0.0), (0.6, 0.0, 0.0))),
            Row(OURS, ((0.6, 0.05, 0.15), (0.4, -0.2, -0.05), (0.597, -0.1, 0.1))),
            Row("Zero", ((0.7, 0.1, 0.3), (0.3, -0.3, -0.1), (0.5, -0.2, 0.0))),
            Row(f"{OURS}, warm", ((0.9, 0.1, 0.3), None, None))]  # fmt: skip
    said = verdict(Finding("", ("a", "b", "c"), rows))
    assert said == {"streams": 3, "best_or_near": 1, "losses": 1,
                    "gain_over_se": pytest.approx(-0.001)}  # fmt: skip


def test_every_stream_counts_once(tmp_path):
    folder = str(extract(live(24), tmp_path / "cache").folder)
    for images in (None, 12):
        lab = Lab(Settings(caches={"mine": [folder], "other": [folder]}, images=images))
        assert [n for n in streams_of(lab) if n in lab.sets()] == ["other"]


@pytest.mark.slow
def test_tables_show_the_published_and_the_difference_where_it_is_fair(lab):
    study = find_study("bias-stability")
    finding = study.run(lab)
    ours, theirs = grids(study, finding)
    assert "No difference is shown: the model is not the paper's." in theirs.caption
    assert len(theirs.rows) == len(published("bias-stability").rows)
    finding.block = "ViT-B/16"
    assert len(grids(study, finding)) == 2  # not of ImageNet
    finding.fair, finding.block = True, "ViT-L/14"
    assert len(grids(study, finding)) == 2  # the table is of another model
    finding.block = "ViT-B/16"
    mine, gap, _ = grids(study, finding)
    assert gap.title == "Ours less published"
    assert gap.rows[0]["1"] == pytest.approx(mine.rows[0]["1"] + 5.2248)
    assert ours.rows[0]["1"] == mine.rows[0]["1"]
    assert "Published" in to_markdown([(study, finding)])


@pytest.mark.slow
def test_the_page_is_whole_and_self_contained(lab):
    done = [(find_study(n), find_study(n).run(lab)) for n in ("two-classes", "tcr", "low-bias")]
    page = findings_page("Studies", "In small.", done)
    assert page.count("<section") == page.count("</section>") == 3
    assert "<svg" in page
    assert not re.search(r'(src|href)="https?:', page)
    assert findings_page("S", "x", done, plots=False).count("<svg") == 0


@pytest.mark.slow
def test_studies_run_side_by_side_as_one_by_one(tmp_path):
    wanted = chosen(["two-classes", "successors"], ours=False)
    settings = replace(TINY, runs=str(tmp_path / "runs"))
    one = {s.name: f for s, f in conduct(wanted, settings, jobs=1)}
    two = {s.name: f for s, f in conduct(wanted, settings, jobs=2)}
    assert one == two
    with pytest.raises(InputError, match="adte study robust"):
        chosen(["robust"], ours=False)


@pytest.mark.slow
def test_the_command_writes_page_tables_and_json(tmp_path):
    target, table = tmp_path / "x.json", tmp_path / "t.md"
    args = ("paper", "two-classes", "successors", "--preset", "tiny", "--jobs", 1)
    result = call(*args, "--out", tmp_path / "out", "--json", target, "--table", table)
    assert result.exit_code == 0, result.output
    assert "seed 2" in result.output
    facts = json.loads(target.read_text())
    assert [f["name"] for f in facts] == ["two-classes", "successors"]
    assert facts[1]["rows"][0]["ours"] <= 1
    assert "<svg" in (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "tiny-longtail, seed 2" in table.read_text("utf-8")
    listing = json.loads(call("paper", "--list", "--json").output)
    assert {"ood", "te-q"} <= {row["name"] for row in listing}


@pytest.mark.slow
def test_studies_on_ones_own_data(tmp_path):
    cache = extract(live(12), tmp_path / "cache", shard=5)
    lab = Lab(Settings(caches={"imagenet-a": [str(cache.folder)]}))
    finding = find_study("entropies").run(lab)
    assert finding.columns == ("IN-A",)
    assert find_study("entropies").beside(finding, finding.rows[0], "IN-A") == pytest.approx(0.64)
    with pytest.raises(InputError, match="needs a cross-domain data set"):
        find_study("cross-domain").run(lab)


def test_bad_input_of_the_command(tmp_path):
    for args, message in (
        (("paper", "nothing"), "unknown study"),
        (("paper", "ood", "--model", "ViT-B-16/openai"), "--model needs --data"),
        (("study", "ood"), "adte paper ood"),
        (("paper", "two-classes", "--preset", "huge"), "unknown preset"),
    ):
        result = call(*args, "--out", tmp_path / "out")
        assert result.exit_code == 2, result.output
        assert message in result.output


def test_runs_of_other_streams_and_defaults_have_other_names(lab):
    whole = lab.main()
    halves = [narrowed(whole, part, "half") for part in (range(100), range(100, 200))]
    streams = [whole, whole.first(5), fewer_views(whole, 5), *halves]
    streams += [interleaved({"a": whole, "b": whole}, seed) for seed in (0, 1)]
    keys = {key_of(s, Task("adte")) for s in streams}
    assert len(keys) == len(streams)
    before = key_of(whole, Task("adte"))
    assert key_of(whole, Task("adte", {"clip": 3.0})) != before
    assert key_of(whole, Task("adte", {"clip": 0.0})) == before  # what it is by default


def test_true_labels_alone_fill_the_bank_of_the_noise_study(monkeypatch):
    seen = []
    observe = FixedPoint.observe

    def counted(self, state, log_p, label=None):
        seen.append(label)
        return observe(self, state, log_p, label)

    monkeypatch.setattr(FixedPoint, "observe", counted)
    lab = Lab(Settings(images=7))
    find_study("label-noise").run(lab)
    labels = lab.main().labels.tolist()
    assert seen[:7] == labels
    assert seen[7:14] == [None] * 7  # pseudo-labels
    assert len(seen) == 2 * 7 * 7  # the paper's bank, and the released one
    assert all(a != b for a, b in zip(seen[-7:], labels, strict=True))  # all wrong


def test_an_image_shown_five_times_is_one_draw(lab, monkeypatch):
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(40), 5)
    right, base = rng.random(40) < 0.6, rng.random(40) < 0.5
    se = SimpleNamespace(run=SimpleNamespace(correct=base[images]))
    monkeypatch.setattr(Lab, "run", lambda self, stream, method: se)
    widths = []
    for ids in ([f"image {i}" for i in images], [f"image {i}" for i in range(200)]):
        run = SimpleNamespace(correct=right[images], ids=ids)
        _, low, high = over_se(lab, [None], [run])
        widths.append(high - low)
    assert widths[0] > 1.8 * widths[1]


def test_a_study_of_ones_own_is_found_by_name_and_a_name_is_taken_once():
    @study("test-own", "Made up", ours=True)
    def own(lab):
        "Accuracy of ADTE on a few photographs."
        return table(lab, {"a": ("se", {})}, {"acc.": lab.main().first(3)})

    try:
        assert find_study("test-own") in studies(ours=True)
        assert chosen(["test-own"], ours=True)[0].about == "Accuracy of ADTE on a few photographs."
        with pytest.raises(InputError, match="'robust' is registered already, by adte"):
            study("robust", "Another", ours=True)(own)
        with pytest.raises(InputError, match="unknown study 'nothing'"):
            find_study("nothing")
        assert find_study("test-own").run(Lab(TINY)).rows[0].cells[0] <= 1
    finally:
        STUDIES._things.pop("test-own")


def test_caches_tell_the_model_and_are_refused_with_another(tmp_path):
    cache = extract(live(6), tmp_path / "cache", shard=5)
    source = Source(data=[f"cache:{cache.folder}"])
    settings = prepare(source, Settings(), tmp_path)
    assert settings.model == "small"
    assert Lab(settings).sets()[next(iter(settings.caches))].model is None
    with pytest.raises(InputError, match=r"of model 'small', not of 'tiny'; leave --model out"):
        prepare(replace(source, model="tiny"), Settings(), tmp_path)
    with pytest.raises(InputError, match="two of the data sets are called"):
        prepare(replace(source, data=source.data * 2), Settings(), tmp_path)


def test_who_listens_is_told_of_each_set(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (30, 30), "red").save(tmp_path / "photos" / name / "0.png")
    source = Source(data=[f"folder:{tmp_path / 'photos'}"], model=SmallModel(), views={"count": 2})
    told = []

    def begin(name, images):
        told.append((name, images))
        return told.append

    settings = prepare(source, Settings(), tmp_path / "out", begin=begin)
    assert told == [("folder", 2), 1, 1]
    assert Cache(settings.caches["folder"][0]).recipe.views == Views(2)


def test_the_paper_crops_small_images_as_any_other(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (30, 30), "red").save(tmp_path / "photos" / name / "0.png")
    given = ["--data", f"folder:{tmp_path / 'photos'}", "--views", "2", "--preset", "tiny"]
    for verb, name, enlarge in (("paper", "views", 0.0), ("study", "few-names", 2.0)):
        out = tmp_path / verb
        assert begun(out / "caches" / "folder") == {}
        done = CliRunner().invoke(main, [verb, name, *given, "--jobs", "1", "--out", str(out)])
        assert Cache(out / "caches" / "folder").recipe.views.enlarge == enlarge, done.output
    source = Source(data=[f"folder:{tmp_path / 'photos'}"], model=load_model("tiny"))
    source = replace(source, views={"count": 2})  # a cache that is there is gone on with
    settings = prepare(source, Settings(), tmp_path / "paper")
    assert begun(settings.caches["folder"][0]) == {"enlarge": 0.0}


def test_a_tower_of_other_weights_is_refused(lab):
    stream = lab.main().first(2)
    other = Lab(TINY)
    other.shared["model"] = SmallModel()
    with pytest.raises(StateError, match="other weights"):
        other.run(stream, "tpt")
