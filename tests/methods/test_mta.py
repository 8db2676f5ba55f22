"""MTA: the card's five views, plain loops, and the corners of the original."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from adte import SimulatedStream
from adte.methods.mta import MTA, find_mode

STREAM = SimulatedStream(classes=6, images=12, views=12, dim=8)


def unit(rows):
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=-1)


VIEWS = unit([[1, 0.1], [1, 0.2], [0.9, 0.3], [0.8, 0.5], [0.1, 1]])


def test_card():
    """An example worked by hand."""
    mode = find_mode(VIEWS, (10 * VIEWS).softmax(-1))
    for got, want in (
        (mode.bandwidth, [0.0691, 0.0691, 0.0879, 0.1671, 0.6231]),
        (mode.weights, [0.9463, 0.0428, 0.0077, 0.0033, 0.0000]),
        (mode.point, [0.9949, 0.1013]),
    ):
        torch.testing.assert_close(got, torch.tensor(want).double(), atol=5e-5, rtol=0)


def loops(f, p, share=0.3, spread=0.2, agreement=4.0):
    """The formulas over lists."""
    n = len(f)

    def square(a, b):
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    near = max(1, int(share * (n - 1)))
    b2 = [sum(sorted(square(f[i], f[j]) for j in range(n) if j != i)[:near]) / near / 2
          for i in range(n)]  # fmt: skip
    affinity = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in p] for a in p]

    def kernel(m):
        return [math.exp(-square(f[i], m) / (2 * b2[i])) for i in range(n)]

    y, m = [1 / n] * n, f[0]
    for _ in range(5):
        k = kernel(m)
        for _ in range(5):
            score = [(k[i] + agreement * sum(affinity[i][j] * y[j] for j in range(n))) / spread
                     for i in range(n)]  # fmt: skip
            e = [math.exp(s - max(score)) for s in score]
            new = [v / sum(e) for v in e]
            moved, y = math.sqrt(square(new, y)), new
            if moved < 1e-6:
                break
        for _ in range(5):
            pull = [a * b for a, b in zip(kernel(m), y, strict=True)]
            new = [sum(pull[i] * f[i][d] for i in range(n)) for d in range(len(m))]
            size = math.sqrt(sum(v * v for v in new))
            new = [v / size for v in new]
            moved, m = math.sqrt(square(new, m)), new
            if moved < 1e-6:
                break
    return y, m


def test_against_plain_loops():
    method = MTA()
    for sample, _ in STREAM:
        f = torch.nn.functional.normalize(sample.features.double(), dim=-1)
        p = sample.logits.double().softmax(-1)
        mode = find_mode(f, p)
        y, m = loops(f.tolist(), p.tolist())
        torch.testing.assert_close(mode.weights, torch.tensor(y).double(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(mode.point, torch.tensor(m).double(), atol=1e-5, rtol=1e-4)
        z = sample.scale * sample.class_weights.double() @ torch.tensor(m).double()
        got = method.predict(sample).probs
        torch.testing.assert_close(got.double(), z.softmax(-1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("views", [1, 2, 3, 4])
def test_few_views_and_duplicates_stay_finite(views):
    """Fewer than five views have no neighbours by the formula; duplicates have no bandwidth."""
    f = VIEWS[:1].repeat(views, 1)
    mode = find_mode(f, (10 * f).softmax(-1))
    torch.testing.assert_close(mode.point, VIEWS[0])
    torch.testing.assert_close(mode.weights, torch.full((views,), 1 / views).double())
    few = find_mode(VIEWS[-views:], (10 * VIEWS[-views:]).softmax(-1))
    assert few.point.isfinite().all()
    assert few.point.norm() == pytest.approx(1)


def test_where_views_are_the_same_the_mode_is_among_them():
    """As of a small image: the whole of it and its mirror image, again and again."""
    g = torch.Generator().manual_seed(0)
    one, *others = normalize(torch.randn(4, 16, generator=g), dim=-1)
    base, whole, mirrored = (normalize(one + 0.5 * other, dim=-1) for other in others)
    features = torch.stack([base] + [whole, mirrored] * 12)
    mode = find_mode(features, torch.full((25, 4), 0.25))
    assert max(mode.point @ whole, mode.point @ mirrored) > 0.99  # and not the base view alone
    assert mode.bandwidth.min() > 0
