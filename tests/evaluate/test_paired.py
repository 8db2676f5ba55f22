"""Intervals of gains, paired by image."""

from __future__ import annotations

import numpy as np
import pytest

from adte.evaluate.running.figures import bootstrap_difference
from adte.evaluate.running.rows import Item, gain, interval


def test_images_shown_once_are_drawn_one_by_one():
    more = np.random.default_rng(0).integers(-1, 2, 60).astype(float)
    want = list(bootstrap_difference(more, np.zeros(60)))
    assert interval(more, [str(i) for i in range(60)]) == want
    assert interval(more, [""] * 60) == want  # without names, each is its own


@pytest.mark.parametrize("most", [1, 40], ids=["alike", "one dominates"])
def test_images_shown_unequally_often_are_drawn_whole(most):
    """Against the plain way: draw images, and take the mean of all that they show."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9, 80)
    sizes[0] *= most
    which = np.repeat(np.arange(80), sizes)
    # Those that are shown often gain, the others lose.
    more = np.clip(np.sign(sizes - 4)[which] + rng.integers(-1, 2, len(which)), -1, 1).astype(float)
    sums = np.bincount(which, weights=more)
    draws = rng.integers(0, 80, (4000, 80))
    plain = sums[draws].sum(1) / sizes[draws].sum(1)
    low, high = interval(more, [f"image {i}" for i in which])
    assert low < more.mean() < high
    assert (low, high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.03)
    assert interval(np.array([1.0] * 9 + [0.0]), ["a"] * 9 + ["b"]) == [0.0, 1.0]


def test_gains_are_of_the_same_items_alone():
    a, b = Item("a"), Item("b")
    mine = {a: 1.0, b: 0.5}
    assert gain(mine, {b: 0.5, a: 0.0}) == (0.5, [0.0, 1.0])
    assert gain(mine, {a: 1.0}) is None
    assert gain(mine, None) is None


def test_one_image_has_no_interval():
    """However often it is shown: every draw of the bootstrap would be the same."""
    shown = [Item("a", place=i) for i in range(40)]
    assert gain(dict.fromkeys(shown, 1.0), dict.fromkeys(shown, 0.5)) == (0.5, None)
