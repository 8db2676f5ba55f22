"""Pairs of photographs in benchmarks/multilabel.py: who is paired, and the figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adte import InputError, Sample, load_model
from adte.data import load_dataset
from adte.images import Views
from adte.models.prompts import Prompts, class_weights

CHEAP = ("zero-shot", "all views averaged", "SE", "tilt")


@pytest.fixture(scope="module")
def script(script_of):
    return script_of("multilabel")


def test_pairs_are_of_two_classes_and_nobody_is_in_two(script):
    draw_pairs = script.draw_pairs
    labels = np.random.default_rng(0).integers(0, 4, 50).tolist()
    pairs = draw_pairs(labels, 20, seed=1)
    assert len(pairs) == 20
    assert all(labels[a] != labels[b] for a, b in pairs)
    assert len({i for pair in pairs for i in pair}) == 40
    assert pairs == draw_pairs(labels, 20, seed=1) != draw_pairs(labels, 20, seed=2)
    assert draw_pairs([3, 3, 3], 5) == []


def test_side_by_side_keeps_both_whole(script):
    left, right = np.full((4, 6, 3), 10, np.uint8), np.full((8, 8, 3), 200, np.uint8)
    both = script.side_by_side(left, right)
    assert both.shape == (4, 10, 3)
    assert (both[:, :6] == 10).all()
    assert (both[:, 6:] == 200).all()


def test_figures_of_a_perfect_and_of_a_blind_method(script):
    Pair, compare = script.Pair, script.compare
    weights = torch.eye(4)
    pairs = []
    for a, b in ((0, 1), (2, 3), (1, 2), (0, 3)):
        f = torch.zeros(3, 4)
        f[:, [a, b]] = 0.5**0.5
        pairs.append(Pair(Sample(20 * f @ weights.T, f, weights, 20.0), (a, b)))
    rows, _ = compare(pairs, ["zero-shot", "all views averaged"])
    assert [cells for _, cells in rows] == [pytest.approx((1, 1, 1, 1))] * 2
    wrong = [Pair(p.sample, tuple({0, 1, 2, 3} - set(p.labels))) for p in pairs]
    assert compare(wrong, ["zero-shot"])[0][0][1][2:] == (0, 0)
    with pytest.raises(InputError, match="no pairs"):
        compare([])


@pytest.mark.slow
def test_collages_of_real_photographs(script, shared_data):
    data = load_dataset(f"folder:{shared_data / 'tiny-imagenet-val'}")
    model = load_model("tiny-longtail")
    weights = class_weights(model, data.classes, Prompts.of(data.templates))
    pairs = list(script.collages(data, model, weights, 40, Views(count=16)))
    assert pairs[0].sample.logits.shape == (16, 200)
    rows, _ = script.compare(pairs, CHEAP)
    chance = 2 / 200
    assert all(cells[3] > 10 * chance for _, cells in rows)  # the first label is one of the two
    # Crops show one photograph at its own scale, which a squashed collage does not.
    assert rows[1][1][0] > rows[0][1][0]
