"""Pairs of photographs: who is paired, what is shown, and the figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adte import InputError, Sample, load_model
from adte.data import load_dataset
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import Held, Image
from adte.images import Views
from adte.models.prompts import Prompts, class_weights
from adte.paper import multilabel as study
from adte.paper.lab import OURS, Lab, Preset
from adte.paper.multilabel import (
    COLUMNS,
    METHODS,
    Pair,
    collages,
    compare,
    draw_pairs,
    multilabel,
    paired,
    side_by_side,
)

CHEAP = ("zero-shot", "all views averaged", "SE", OURS)


def test_pairs_are_of_two_classes_and_nobody_is_in_two():
    labels = np.random.default_rng(0).integers(0, 4, 50).tolist()
    pairs = draw_pairs(labels, 20, seed=1)
    assert len(pairs) == 20
    assert all(labels[a] != labels[b] for a, b in pairs)
    assert len({i for pair in pairs for i in pair}) == 40
    assert pairs == draw_pairs(labels, 20, seed=1) != draw_pairs(labels, 20, seed=2)
    assert draw_pairs([3, 3, 3], 5) == []


def held(images: int = 8, views: int = 5, classes: int = 4) -> Held:
    draw = torch.Generator().manual_seed(0)

    def unit(n: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(n, 6, generator=draw), dim=-1)

    weights = unit(classes)
    shown = [Image(unit(views).half(), i % classes, str(i)) for i in range(images)]
    return Held(shown, Recipe(model="none", classes=tuple("abcd"), scale=10.0), weights)


def test_a_stand_in_has_crops_of_both_and_the_mean_base_view():
    stream = held()
    ((a, b),) = draw_pairs(stream.labels.tolist(), 1)
    (pair,) = paired(stream, 1)
    samples = list(stream)
    f, g = (samples[i][0].features for i in (a, b))
    shown = pair.sample.features
    assert shown.shape == f.shape
    base = f[0] + g[0]
    assert torch.allclose(shown[0], base / base.norm(), atol=1e-3)  # float16
    assert torch.equal(shown[1:], torch.cat([f[1:3], g[1:3]]))
    assert torch.allclose(pair.sample.logits, 10 * shown @ pair.sample.class_weights.T)
    assert pair.labels == (samples[a][1], samples[b][1])


def test_side_by_side_keeps_both_whole():
    left, right = np.full((4, 6, 3), 10, np.uint8), np.full((8, 8, 3), 200, np.uint8)
    both = side_by_side(left, right)
    assert both.shape == (4, 10, 3)
    assert (both[:, :6] == 10).all()
    assert (both[:, 6:] == 200).all()


def test_figures_of_a_perfect_and_of_a_blind_method():
    weights = torch.eye(4)
    pairs = []
    for a, b in ((0, 1), (2, 3), (1, 2), (0, 3)):
        f = torch.zeros(3, 4)
        f[:, [a, b]] = 0.5**0.5
        pairs.append(Pair(Sample(20 * f @ weights.T, f, weights, 20.0), (a, b)))
    rows, _ = compare(pairs, ["zero-shot", "all views averaged"])
    assert [r.cells for r in rows] == [pytest.approx((1, 1, 1, 1))] * 2
    wrong = [Pair(p.sample, tuple({0, 1, 2, 3} - set(p.labels))) for p in pairs]
    assert compare(wrong, ["zero-shot"])[0][0].cells[2:] == (0, 0)
    with pytest.raises(InputError, match="no pairs"):
        compare([])


def test_scaled_scores_are_ml_ttas_own():
    lab = Lab(preset=Preset(images=40))
    pairs = paired(study._few(lab), 2)
    said = METHODS["ML-TTA, one label bound"](pairs).predict(pairs[0].sample)
    assert torch.allclose(study._scaled(said.probs), said.scores, atol=1e-4)


@pytest.mark.slow
def test_the_study_on_the_bundle():
    finding = multilabel(Lab(preset=Preset(images=30)))
    assert finding.columns == COLUMNS
    assert [r.name for r in finding.rows] == list(METHODS)
    assert all(0 <= c <= 1 for r in finding.rows for c in r.cells)
    assert "3 pairs" in finding.setting
    assert "stand-in" in finding.notes[0]


@pytest.mark.slow
def test_collages_of_real_photographs(shared_data):
    data = load_dataset(f"folder:{shared_data / 'tiny-imagenet-val'}")
    model = load_model("tiny-longtail")
    weights = class_weights(model, data.classes, Prompts.of(data.templates))
    pairs = list(collages(data, model, weights, 40, Views(count=16)))
    assert pairs[0].sample.logits.shape == (16, 200)
    rows, _ = compare(pairs, CHEAP)
    chance = 2 / 200
    assert all(r.cells[3] > 10 * chance for r in rows)  # the first label is one of the two
    # Crops show one photograph at its own scale, which a squashed collage does not.
    assert rows[1].cells[0] > rows[0].cells[0]
