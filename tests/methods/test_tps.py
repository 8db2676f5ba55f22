"""TPS: one class by hand, plain loops with gradients by differences, nothing kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte import Sample, SimulatedStream
from adte.methods.tps import TPS

STREAM = SimulatedStream(classes=4, images=12, views=10, dim=5)
ALL = [
    Sample(s.logits.double(), s.features.double(), s.class_weights.double(), s.scale)
    for s, _ in STREAM
]


def test_two_classes_by_hand():
    """Slopes along a unit weight are zero, so each weight turns by lr towards or from the image."""
    x, weights = torch.tensor([[0.8, 0.6]]).double(), torch.eye(2).double()
    got = TPS(lr=0.1).predict(Sample(10 * x @ weights.T, x, weights, 10.0)).probs
    near, far = 0.8 + 0.1 * 0.6, 0.6 - 0.1 * 0.8
    want = 1 / (1 + math.exp(-10 * (near - far) / math.hypot(1, 0.1)))
    assert float(got[0]) == pytest.approx(want, abs=1e-6)


def logits(f, weights, shift, scale):
    moved = weights + shift
    return scale * f @ (moved / np.sqrt((moved**2).sum(1, keepdims=True))).T


@pytest.mark.parametrize(("steps", "lr"), [(0, 5e-3), (1, 5e-3), (3, 0.02)])
def test_against_plain_loops(steps, lr):
    method = TPS(keep=0.3, steps=steps, lr=lr)
    for s in ALL[:6]:
        f, weights = s.features.numpy(), s.class_weights.numpy()

        def loss(shift, f=f, weights=weights, s=s):
            z = logits(f, weights, shift, s.scale)
            return slow.marginal_entropy(z[slow.surest(z, 0.3)])

        shift = slow.adamw(loss, np.zeros_like(weights), steps, lr)
        got = method.predict(s)
        want = oracle.softmax(logits(f[:1], weights, shift, s.scale))[0]
        np.testing.assert_allclose(got.probs, want, atol=2e-5)
        assert got.kept.tolist() == slow.surest(s.logits.numpy(), 0.3)
        if not steps:
            np.testing.assert_allclose(got.probs, oracle.softmax(s.logits[0]), atol=1e-5)
