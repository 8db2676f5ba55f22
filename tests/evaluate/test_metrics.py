"""Metrics against hand-made cases and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from adte.evaluate import metrics


def test_ece_of_hand_made_cases():
    assert metrics.ece([1, 1, 1, 1], [1, 1, 1, 1]) == 0
    assert metrics.ece([1, 1, 1, 1], [1, 1, 0, 0]) == pytest.approx(0.5)
    # Two bins: 0.55 with one of two right, 0.95 with both right.
    assert metrics.ece([0.55, 0.55, 0.95, 0.95], [1, 0, 1, 1]) == pytest.approx(0.05)
    assert metrics.ece([0.0], [0]) == 0


def test_ece_against_plain_loops():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.4
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.sum() * abs(correct[inside].mean() - confidence[inside].mean())
    assert metrics.ece(confidence, correct) == pytest.approx(total / 500)


def test_thirds():
    assert metrics.thirds([5, 1, 9, 3, 7, 2]).tolist() == [1, 2, 0, 1, 0, 2]
    assert metrics.thirds([1, 1, 1, 1]).tolist() == [0, 1, 1, 2]
    assert metrics.thirds([1]).tolist() == [1]


def test_spearman_is_scipys():
    rng = np.random.default_rng(1)
    for a, b in ((rng.random(40), rng.random(40)), (rng.integers(0, 5, 40), rng.random(40))):
        assert metrics.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert metrics.spearman([1, 1, 1], [1, 2, 3]) == 0


def test_bootstrap_covers_the_difference():
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(100):
        a, b = rng.random(300) < 0.6, rng.random(300) < 0.5
        low, high = metrics.bootstrap_difference(a, b, draws=400, seed=trial)
        assert low <= (a.mean() - b.mean()) <= high
        inside += low <= 0.1 <= high
    assert 85 <= inside <= 100  # nominal 95
    assert metrics.bootstrap_difference(a, a) == (0, 0)
