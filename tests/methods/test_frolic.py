"""Frolic: the card's numbers, plain loops, the running form against the whole set."""

from __future__ import annotations

import math

import pytest
import torch

from adte import Sample, SimulatedStream
from adte.core.prediction import Prediction
from adte.methods import Method, create_method
from adte.methods.frolic import Frolic, gaussian_logits, match_temperature, shrunk_variance

STREAM = SimulatedStream(classes=6, images=60, views=3, dim=8)
ALL = [sample for sample, _ in STREAM]

# An example worked by hand.
X = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
T = torch.eye(2, dtype=torch.float64)


def card_variance() -> torch.Tensor:
    rows = torch.cat([X, T])
    return shrunk_variance(len(rows), rows.sum(0), rows.square().sum(0))


def two_pass(method: Method, samples: list[Sample]) -> list[Prediction]:
    for s in samples:
        method.learn(s)
    return [method.predict(s) for s in samples]


def confidence(logits: torch.Tensor) -> float:
    return float(logits.softmax(-1).amax(-1).mean())


def test_card_gaussian():
    variance = card_variance()
    torch.testing.assert_close(variance, torch.full((2,), 0.9215).double(), atol=5e-5, rtol=0)
    assert (variance[0].item() - 0.9) / 0.1 == pytest.approx(0.2147, abs=5e-5)
    g = gaussian_logits(X[1], T, variance) - (X[1].square() / variance).sum() / 2
    torch.testing.assert_close(g, torch.tensor([-0.2170, -0.4341]).double(), atol=5e-5, rtol=0)


def test_card_matching():
    """The authors' search divides τ by 1.1 until within a tenth; ours goes all the way."""
    g, target, tau, steps = gaussian_logits(X, T, card_variance()), confidence(10 * X @ T.T), 1.0, 0
    assert target == pytest.approx(0.9404, abs=5e-5)
    while confidence(g / tau) < 0.9 * target:
        tau, steps = tau / 1.1, steps + 1
    assert steps == 15
    assert tau == pytest.approx(0.2394, abs=5e-5)
    assert confidence(g / tau) == pytest.approx(0.8508, abs=5e-5)
    grid = torch.linspace(-8, 2, 81, dtype=torch.float64)
    curve = torch.tensor([confidence(g / 2**t) for t in grid.tolist()])
    assert confidence(g / match_temperature(grid, curve, target)) == pytest.approx(target, abs=5e-4)


def test_matching_beyond_the_grid_takes_its_end():
    grid = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    curve = torch.tensor([0.9, 0.5, 0.3], dtype=torch.float64)
    assert match_temperature(grid, curve, 0.95) == 0.5
    assert match_temperature(grid, curve, 0.2) == 2.0
    assert match_temperature(grid, curve, 0.5) == 1.0
    assert match_temperature(grid, curve, 0.7) == pytest.approx(2**-0.5)
    assert match_temperature(grid, torch.ones(3).double(), 1.0) == 2.0  # one class: all the same


def test_matching_where_rounding_lets_a_flat_curve_rise():
    """As where all classes have one weight; it was divided by zero."""
    grid = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    curve = torch.tensor([0.3, 0.2, 0.2, 0.25], dtype=torch.float64)
    assert match_temperature(grid, curve, 0.22) == pytest.approx(2**-0.2)


# --------------------------------------------------------------------------- plain loops


def whole_set(samples):
    """Steps 1 to 4 on all images at once, with loops and bisection: the transductive original."""
    x, t = [s.features[0].tolist() for s in samples], samples[0].class_weights.tolist()
    s, n, dim = samples[0].scale, len(t), len(t[0])
    var = []
    for d in range(dim):
        column = [r[d] for r in x + t]
        mean = sum(column) / len(column)
        var.append(0.9 + 0.1 * sum((v - mean) ** 2 for v in column) / (len(column) - 1))

    def softmax(z):
        e = [math.exp(v - max(z)) for v in z]
        return [v / sum(e) for v in e]

    fc = [[s * sum(a * b for a, b in zip(r, w, strict=True)) for w in t] for r in x]
    fg = [
        [sum(w[d] * r[d] / var[d] - w[d] ** 2 / var[d] / 2 for d in range(dim)) for w in t]
        for r in x
    ]

    def conf(z, tau):
        return sum(max(softmax([v / tau for v in r])) for r in z) / len(z)

    low, high = 1e-6, 1e3
    for _ in range(80):
        mid = math.sqrt(low * high)
        low, high = (mid, high) if conf(fg, mid) > conf(fc, 1.0) else (low, mid)
    fused = [[a + b / mid for a, b in zip(p, q, strict=True)] for p, q in zip(fc, fg, strict=True)]
    columns, counts = [[0.0] * n for _ in range(n)], [0] * n
    for r in fused:
        p = softmax(r)
        k = p.index(max(p))
        columns[k] = [a + b for a, b in zip(columns[k], p, strict=True)]
        counts[k] += 1
    a = [[v / counts[k] for v in columns[k]] if counts[k] else [1 / n] * n for k in range(n)]
    prior = [1 / n] * n
    for _ in range(300):
        prior = [sum(a[k][c] * prior[k] for k in range(n)) for c in range(n)]
    return mid, [softmax([v - math.log(q) for v, q in zip(r, prior, strict=True)]) for r in fused]


@pytest.mark.slow
def test_two_pass_is_the_whole_set():
    """The running form, once all images were learned from, against loops over all of them.

    It differs where an image was taken in with the Σ and τ of its time: a little.
    """
    tau, want = whole_set(ALL)
    method = create_method("frolic", eps=1e-6, max_iter=500)
    got = torch.stack([p.probs for p in two_pass(method, ALL)])
    sums = method.state_dict()
    grid = torch.linspace(-4, 12, 129, dtype=torch.float64)
    found = match_temperature(grid, sums["gaussian"] / 60, float(sums["text"] / 60)) / ALL[0].scale
    assert found == pytest.approx(tau, rel=0.01)
    torch.testing.assert_close(got, torch.tensor(want), atol=0.02, rtol=0)
    assert (got.argmax(1) == torch.tensor(want).argmax(1)).float().mean() > 0.95


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_online_gaussian_is_that_of_the_images_so_far(share):
    method = Frolic(tau=0, covariance=share)
    for s in ALL[:30]:
        method.learn(s)
    rows = torch.cat([torch.stack([s.features[0] for s in ALL[:30]]), STREAM.class_weights])
    g = gaussian_logits(
        ALL[41].features[0], STREAM.class_weights, share * rows.double().var(0) + 1 - share
    )
    sums = method.state_dict()
    grid = torch.linspace(-4, 12, 129, dtype=torch.float64)
    tau = match_temperature(grid, sums["gaussian"] / 30, float(sums["text"] / 30)) / ALL[0].scale
    want = (ALL[41].logits[0] + g / tau).softmax(-1)
    torch.testing.assert_close(method.predict(ALL[41]).probs, want, atol=1e-5, rtol=1e-4)
