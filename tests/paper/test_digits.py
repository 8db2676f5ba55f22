"""The worlds of benchmarks/digits.py: deterministic, biased as they say; the studies on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

from adte.paper.lab import Lab, Settings
from adte.paper.published import published
from adte.paper.study import find_study

QUICK = Settings(images=16, seeds=2)


@pytest.fixture(scope="module")
def digits(script_of):
    return script_of("digits")


@pytest.fixture(scope="module")
def world(digits):
    return digits.coloured(0, 256, 30)


@pytest.fixture(scope="module")
def stream(digits):
    return digits.corrupted(3, 8, 12, 30, 6)


@pytest.mark.slow
def test_the_seed_decides_everything(digits, world, stream):
    coloured, corrupted = digits.coloured, digits.corrupted
    again, other = coloured(0, 256, 30), coloured(1, 256, 1)
    assert torch.equal(again.pixels, world.pixels)
    for a, b in zip(again.net.state_dict().values(), world.net.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(other.pixels, world.pixels)
    twice = corrupted(3, 8, 12, 30, 6)
    assert all(
        torch.equal(a.features, b.features) and torch.equal(a.pixels, b.pixels)
        for a, b in zip(twice.images(), stream.images(), strict=True)
    )
    assert twice.recipe == stream.recipe
    assert corrupted(4, 8, 1, 1, 6).recipe.fingerprint != stream.recipe.fingerprint


def test_making_a_lab_leaves_the_global_generator_alone(digits):
    before = torch.get_rng_state()
    digits.coloured(0, 64, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_colour_is_a_false_friend(world):
    red = (world.pixels[:, 0] > -1).any(-1).any(-1).numpy()
    assert np.array_equal(world.groups, 2 * world.labels + red)
    # Training says red for 0 to 4; here red mostly stands for 5 to 9.
    assert (red == (world.labels == 1)).mean() > 0.6
    with torch.no_grad():
        said = world.net.classify(world.pixels).argmax(-1).numpy()
    assert (said == np.where(red, 0, 1)).mean() > 0.7


def test_digits_of_any_size_can_be_given(digits):
    grey = np.random.default_rng(0).integers(0, 256, (90, 12, 10), dtype=np.uint8)
    world = digits.coloured(0, 20, 1, given=(grey, np.arange(90) % 10))
    assert world.pixels.shape == (20, 3, 12, 10)


def test_a_corrupted_stream_is_long_tailed_and_whole(digits, stream):
    counts = stream.frequency
    assert (counts.max(), counts.min()) == (60, 6)
    assert [i.domain for i in stream.images()][:4] == [f"{k}/5" for k in digits.KINDS]
    sample, label = next(iter(stream))
    assert sample.pixels.shape == (6, 3, 16, 16)
    assert sample.logits.shape == (6, 10)
    assert 0 <= label < 10
    assert stream.recipe.views.flip == 0
    with torch.no_grad():
        plain = sample.model.classify(sample.pixels)
    assert torch.equal(plain.half().float(), sample.logits)  # kept as a cache keeps them


def test_a_batch_is_learned_from_as_a_whole(digits, world, monkeypatch):
    made = []
    plain = digits.create_method

    def keep(*args, **options):
        made.append(plain(*args, **options))
        return made[-1]

    monkeypatch.setattr(digits, "create_method", keep)
    average, worst, _ = digits.by_batches(*digits.DEYO["DEYO + ADTE"], world)
    assert 0 <= worst <= average <= 1
    assert made[0].class_prior.seen == len(world.labels)  # every image, not one per batch


@pytest.mark.slow
def test_deyo_study(digits):
    finding = digits.deyo(Lab(QUICK))
    known = published("deyo")
    assert set(finding.columns) == set(known.columns)
    names = [r.name for r in finding.rows]
    assert {r.name for r in known.rows} <= set(names)
    assert names[0] == "no adaptation"
    assert all(0 <= r.cells[1] <= r.cells[0] <= 1 < 1000 * r.cells[2] + 1 for r in finding.rows)
    assert "not MNIST" in finding.notes[0]
    beside = find_study("deyo").beside(finding, finding.rows[names.index("DEYO")], "Avg Acc")
    assert beside == pytest.approx(0.7824)


@pytest.mark.slow
def test_unimodal_study(digits):
    finding = digits.unimodal(Lab(QUICK))
    assert finding.lower
    study = find_study("unimodal")
    rows = {r.name: r for r in finding.rows}
    assert {r.name for r in published("unimodal").rows} <= set(rows)
    assert study.beside(finding, rows["MEMO"], "wide network") == pytest.approx(0.432)
    assert study.beside(finding, rows["SE"], "wide network") is None
    assert all(0 <= c <= 1 for r in finding.rows for c in r.cells)
