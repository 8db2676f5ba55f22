"""C-TPT: the dispersion, plain loops with gradients by differences, and what sets it off TPT."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte.methods.tpt import CTPT, TPT, dispersion


def spread(weights):
    centre = weights.mean(0)
    return np.mean([np.sqrt(((w - centre) ** 2).sum()) for w in weights])


def test_dispersion():
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    assert float(dispersion(w)) == pytest.approx(spread(w.numpy()), abs=1e-12)
    one = torch.ones(1, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(dispersion(one), one)
    assert not slope.any()  # one class, or equal ones: nowhere to go, and no NaN


@pytest.mark.parametrize(("strength", "steps"), [(20.0, 1), (50.0, 1), (0.5, 3)])
def test_against_plain_loops(strength, steps):
    model, samples = slow.world(3)
    towers, method = slow.Towers(model, slow.NAMES), CTPT(keep=0.3, spread=strength, steps=steps)
    for sample in samples:
        f = sample.features.numpy()
        kept = slow.surest(towers.logits(f, towers.start, sample.scale), 0.3)

        def loss(c, f=f, kept=kept, sample=sample):
            views = slow.marginal_entropy(towers.logits(f[kept], c, sample.scale))
            return views - strength * spread(towers.weights(c))

        tuned = slow.adamw(loss, towers.start, steps)
        want = oracle.softmax(towers.logits(f[:1], tuned, sample.scale))[0]
        got = method.predict(sample)
        assert got.kept.tolist() == kept
        np.testing.assert_allclose(got.probs, want, atol=1e-6)


def test_without_dispersion_it_is_tpt():
    _, samples = slow.world(4)
    for s in samples:
        a, b = CTPT(spread=0.0).predict(s), TPT().predict(s)
        assert torch.equal(a.probs, b.probs)
        assert torch.equal(a.kept, b.kept)
