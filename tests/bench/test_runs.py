"""Every benchmark on the smallest work: rows, ratios, and figures that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from adte.bench import (
    cost,
    encode,
    growth,
    head,
    limit,
    pipeline,
    prior,
    rate,
    step,
    stream,
    subject,
    views,
)
from adte.bench.conditions import processor
from adte.cli import main
from adte.core.batch import Context
from adte.core.errors import InputError
from adte.images import Views
from adte.methods import PriorMethod
from adte.methods.prompt_tuning import PromptLearner
from adte.models import load_model

CONDITIONS = {"device", "dtype", "kernel", "threads", "processor", "torch", "python"}


def check(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The contract of `adte bench`; the rows by name."""
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


@pytest.mark.parametrize("batch", [1, 3])
def test_step(batch: int) -> None:
    result = step.run(views=4, classes=20, dim=8, batch=batch, repeats=3)
    rows = {row["name"]: row for row in result["rows"]}
    assert tuple(rows) == step.METHODS
    assert rows["adte"]["ratio"] == 1
    assert result["ratio"] == rows["tilt"]["ratio"] > 0


def test_head() -> None:
    result = head.run(views=8, classes=50, repeats=3)
    rows = check(result)
    assert result["ratio"] == rows["ADTE head (q from the prior included)"]["ratio"]
    assert rows["Shannon head"]["ratio"] == 1


def test_prior() -> None:
    result = prior.run(classes=30, size=2, repeats=3)
    slow, fast, default = check(result).values()
    assert result["ratio"] == pytest.approx(slow["seconds"] / fast["seconds"])
    assert default["name"] == prior.DEFAULT
    assert result["dtype"] == "float64"


def test_prior_of_many_classes_leaves_the_bank_out() -> None:
    result = prior.run(classes=20_000, repeats=1)
    (row,) = check(result).values()
    assert row["name"] == prior.DEFAULT
    assert result["bank_bytes"] > prior.MOST
    assert "left out" in result["meaning"]


def test_the_limit_counts_all_products() -> None:
    net = subject.load("tiny", dtype="float32")
    counted = limit.tower_flops(net)
    products = sum(p.numel() for p in net.image_tower.parameters() if p.ndim > 1)
    assert counted > 2 * products  # each weight is used at least once, and attention comes on top
    assert limit.matrix_rate(net.device, torch.float32, 1) > 1e6
    found = limit.limit(net, 8)
    assert found["seconds"] == pytest.approx(8 * counted / found["matrix_rate"])


@pytest.mark.slow
def test_rate() -> None:
    result = rate.run(images=3, batch=2, views=4, classes=5, repeats=1, workers=1)
    rows = check(result)
    assert tuple(rows) == rate.NAMES
    assert rows["limit"]["of_limit"] == 1
    assert rows["usual way"]["ratio"] == 1
    assert result["ratio"] == rows["ours"]["ratio"]
    tower, ours = rows["tower alone"]["seconds"], rows["ours"]["seconds"]
    assert result["of_tower"] == pytest.approx(tower / ours)
    assert result["runtime"] == "torch"
    with pytest.raises(InputError, match="images=0"):
        rate.run(images=0)


def test_stream_is_looked_at_by_decades() -> None:
    heard: list[str] = []
    result = stream.run(images=2500, views=2, classes=3, batch=50, report=heard.append)
    rows = check(result)
    assert list(rows) == ["1,000 images", "2,500 images"]
    first, last = rows.values()
    assert result["ratio"] == last["ratio"]
    assert first["state_bytes"] == last["state_bytes"] > 0
    assert len(heard) == 2
    assert stream.decades(10**6) == [1000, 10_000, 100_000, 1_000_000]
    assert stream.decades(7) == [7]
    with pytest.raises(InputError, match="batch=0"):
        stream.run(batch=0)


@pytest.mark.slow
def test_a_longer_stream_takes_no_more_memory() -> None:
    rows = stream.run(images=20_000, views=2, batch=64)["rows"]
    if rows[-1]["resident_bytes"]:
        assert rows[-1]["grown_bytes"] < 16 << 20  # 20,000 images of features would be 5 MB


def test_growth(tmp_path: Path) -> None:
    result = growth.run(views=(1, 2), classes=(5, 50), images=200, repeats=1)
    check(result)
    axes = [(r["axis"], r["at"], r["method"]) for r in result["rows"]]
    assert axes[:2] == [("views", 1, "tilt"), ("views", 2, "tilt")]
    assert ("classes", 50, "zero") in axes
    assert ("images", 200, "tilt") in axes
    pytest.importorskip("matplotlib")
    growth.draw(result, tmp_path / "growth.svg")
    assert "<svg" in (tmp_path / "growth.svg").read_text("utf-8")


def test_views_makes_the_usual_pixels() -> None:
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    result = views.run(image, repeats=1)
    check(result)
    assert result["image"] == [60, 80]
    assert result["max_level_error"] <= 2.01


def test_encode_counts_an_image_not_a_batch() -> None:
    result = encode.run(views=4, batches=(1, 8), repeats=3)
    one, many = check(result).values()
    assert one["ratio"] == 1
    assert many["seconds"] < 3 * one["seconds"]  # eight images' time would be far more
    assert many["images_per_s"] == pytest.approx(1 / many["seconds"])
    assert result["model"] == "tiny"


@pytest.mark.slow
def test_pipeline_shares_add_up(tmp_path: Path) -> None:
    result = pipeline.run(images=2, views=4, classes=5)
    rows = check(result)
    assert list(rows) == ["decode", "views", "encode", "method", "an image"]
    assert sum(rows[s]["ratio"] for s in pipeline.STAGES) == pytest.approx(1)
    assert result["images"] == 2
    assert pipeline.run(images=3, batch=2, views=2, classes=3)["batch"] == 2
    for file, jpeg in enumerate(pipeline.photographs(3, None)):
        (tmp_path / f"{file}.jpg").write_bytes(jpeg)
    assert pipeline.run(images=2, folder=tmp_path, views=2, classes=3)["images"] == 2
    for name in ("images", "batch"):
        with pytest.raises(InputError, match=f"{name}=0"):
            pipeline.run(**{name: 0})


@pytest.mark.slow
def test_cost() -> None:
    heard: list[str] = []
    result = cost.run(classes=12, views=6, repeats=1, report=heard.append)
    rows = check(result)
    assert list(rows)[:4] == ["zero-shot", "zero", "adte", "tpt"]
    assert len(rows) == 7
    for name in list(rows)[:4]:
        row = rows[name]
        assert row["seconds"] == pytest.approx(result["encode_seconds"] + row["head_seconds"])
        assert row["peak_memory"] >= 0
    assert rows["tpt"]["head_seconds"] > rows["zero"]["head_seconds"]
    assert rows["zero-shot"]["ratio"] == 1
    assert result["ratio"] == pytest.approx(rows["adte"]["seconds"] / rows["zero"]["seconds"])
    assert rows["adte"]["published_seconds"] == 0.07
    assert any("turn 1 of 1" in line for line in heard)


def test_adte_is_timed_in_its_steady_state() -> None:
    context = Context(torch.eye(3, 128), 20.0)
    method = cost._steady("adte", context)
    assert isinstance(method, PriorMethod)
    assert method.class_prior is not None
    assert method.class_prior.seen == cost.FILL
    assert not cost._steady("zero", context).stateful


def kept(learner: PromptLearner) -> int:
    """Bytes that wait for the way back, the weights and the inputs aside."""
    given = (learner.ids, learner.embeddings, *learner.twin.parameters())
    known = {x.untyped_storage().data_ptr() for x in given}
    found: dict[int, int] = {}

    def note(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    context = learner.initial.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        weights = learner.class_weights(context)
    assert weights.requires_grad
    return sum(found.values())


def test_chunks_keep_what_waits_from_growing_with_the_classes() -> None:
    model = load_model("tiny")
    names = subject.class_names(model, 96)
    whole, half = (kept(PromptLearner(model, names[:n], chunk=0)) for n in (96, 48))
    assert whole == pytest.approx(2 * half, rel=0.3)
    assert kept(PromptLearner(model, names, chunk=16)) < half / 20


def test_class_names() -> None:
    model = load_model("tiny")
    assert len(set(subject.class_names(model, 1500))) == 1500
    assert len(subject.class_names(model)) == 200
    with pytest.raises(InputError, match="1 classes"):
        subject.class_names(model, 1)


class TestCommand:
    def call(self, *args: str) -> Any:
        return CliRunner().invoke(main, ["bench", *args])

    def test_help_teaches(self) -> None:
        text = self.call("--help").output
        for verb in (
            "rate",
            "growth",
            "stream",
            "views",
            "head",
            "prior",
            "encode",
            "pipeline",
            "cost",
        ):
            assert verb in text
            assert self.call(verb, "--help").exit_code == 0

    def test_a_table_and_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "head.json"
        said = self.call("head", "--classes", "20", "--repeats", "3", "--json", str(file))
        assert said.exit_code == 0, said.output
        assert "Shannon head" in said.output
        assert len(check(json.loads(file.read_text("utf-8")))) == 3

    @pytest.mark.slow
    def test_cost_prints_both_tables(self) -> None:
        said = self.call("cost", "--classes", "8", "--views", "4", "--repeats", "1")
        assert said.exit_code == 0, said.output
        for words in ("zero-shot", "A100 GB", "17.66", "chunk=64", "ADTE over Zero"):
            assert words in said.output

    def test_json_alone_on_standard_output(self) -> None:
        said = self.call("encode", "--views", "2", "--batches", "1,2", "--repeats", "1", "--json")
        assert len(check(json.loads(said.stdout))) == 2

    @pytest.mark.parametrize("batches", ["", "1,x", "0,2"])
    def test_bad_batches_are_named(self, batches: str) -> None:
        said = self.call("encode", "--batches", batches)
        assert said.exit_code == 2
        assert "--batches" in said.output
