"""ML-TTA: card 11, plain-loop oracles with and without captions, scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte import InputError, create_method
from adte.methods.mltta import MLTTA, bind


def bound(z, k):
    """Plain loops: the top k of a row at its maximum."""
    out = z.copy()
    for i, row in enumerate(z):
        for j in sorted(range(len(row)), key=lambda j: (-row[j], j))[: k[i]]:
            out[i, j] = row.max()
    return out


def bound_loss(z, k, free):
    """ME of the bound logits as a function of `free`, the lift taken as constant."""
    lift = bound(z, k) - z
    return slow.marginal_entropy(free + lift)


def captions(count=40, dim=16, seed=5):
    g = torch.Generator().manual_seed(seed)
    bank = torch.nn.functional.normalize(torch.randn(count, dim, generator=g).double(), dim=-1)
    return bank, torch.randint(1, 4, (count,), generator=g)


# --------------------------------------------------------------------------- the card


def test_card_11():
    z = torch.tensor([[2.0, 1.5, 0.3]], dtype=torch.float64, requires_grad=True)
    for k, probs, entropy, gradient in (
        (2, [0.4582, 0.4582, 0.0837], 0.9228, [-0.0652, -0.0652, 0.1304]),
        (1, None, 0.9248, [-0.1917, 0.0532, 0.1385]),
    ):
        lifted = bind(z, torch.tensor([k]))
        assert lifted.tolist() == [[2.0, 2.0 if k == 2 else 1.5, 0.3]]
        h = MLTTA().loss(lifted)
        assert float(h.detach()) == pytest.approx(entropy, abs=5e-5)
        (g,) = torch.autograd.grad(h, z)
        np.testing.assert_allclose(g[0], gradient, atol=5e-5)
        if probs:
            np.testing.assert_allclose(lifted.detach().softmax(-1)[0], probs, atol=5e-5)


def test_bind_in_plain_loops():
    g = torch.Generator().manual_seed(0)
    z, k = torch.randn(20, 6, generator=g).double(), torch.randint(0, 9, (20,), generator=g)
    np.testing.assert_array_equal(bind(z, k), bound(z.numpy(), k.tolist()))
    assert bind(torch.ones(1, 3), torch.tensor([2])).tolist() == [[1, 1, 1]]
    ones = torch.autograd.grad(bind(z.requires_grad_(), k).sum(), z)[0]
    assert (ones == 1).all()  # each logit keeps its own gradient


def test_one_label_is_tpt_exactly():
    _, samples = slow.world(4)
    ours, theirs = create_method("mltta", lr=5e-3), create_method("tpt")
    for sample in samples:
        a, b = ours.predict(sample), theirs.predict(sample)
        assert torch.equal(a.probs, b.probs)
        assert torch.equal(a.entropy, b.entropy)
        assert torch.equal(a.kept, b.kept)
    z = samples[0].logits
    assert torch.equal(bind(z, torch.ones(len(z))), z)


# --------------------------------------------------------------------------- the oracle


def side(towers, features, k, scale, lr, steps):
    """One side of the method in plain loops: the tuned context."""
    z = towers.logits(features, towers.start, scale)
    kept = slow.surest(bound(z, k), 0.3)

    def loss(c, at=None):
        now = towers.logits(features[kept], c, scale)
        fixed = now if at is None else towers.logits(features[kept], at, scale)
        return bound_loss(fixed, [k[i] for i in kept], now)

    x, m, v = towers.start.copy(), 0.0, 0.0
    for t in range(1, steps + 1):
        g = slow.slope(lambda c, x=x: loss(c, at=x), x)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        size = np.sqrt(v / (1 - 0.999**t)) + 1e-8
        x = x * (1 - lr * 0.01) - lr * m / (1 - 0.9**t) / size
    return x, kept


@pytest.mark.parametrize("steps", [1, 2])
def test_views_against_plain_loops(steps):
    model, samples = slow.world(2)
    towers = slow.Towers(model, slow.NAMES)
    method = MLTTA(labels_per_view=2, keep=0.3, steps=steps, normalise="none")
    for sample in samples:
        f = sample.features.numpy()
        tuned, kept = side(towers, f, [2] * len(f), sample.scale, 1e-2, steps)
        z = towers.logits(f[:1], tuned, sample.scale)[0]
        got = method.predict(sample)
        assert got.kept.tolist() == kept
        np.testing.assert_allclose(got.probs, oracle.softmax(z), atol=1e-7)
        np.testing.assert_allclose(got.scores, z / sample.scale, atol=1e-7)


@pytest.mark.parametrize("normalise", ["none", "image"])
def test_captions_against_plain_loops(normalise):
    model, samples = slow.world(2)
    towers, (bank, counts) = slow.Towers(model, slow.NAMES), captions()
    method = MLTTA(keep=0.3, neighbours=3, normalise=normalise)
    method.set_captions(bank, counts)
    for sample in samples:
        f, c = sample.features.numpy(), bank.numpy()
        near = [sorted(range(len(c)), key=lambda j, v=v: -(v @ c[j]))[:3] for v in f]
        union = sorted({j for row in near for j in row})
        view, kept = side(towers, f, [int(counts[r[0]]) for r in near], sample.scale, 1e-2, 1)
        text, _ = side(towers, c[union], [int(counts[j]) for j in union], sample.scale, 1e-3, 1)
        z = [towers.logits(f[:1], x, sample.scale)[0] for x in (view, text)]
        got = method.predict(sample)
        assert got.kept.tolist() == kept
        np.testing.assert_allclose(got.probs, oracle.softmax((z[0] + z[1]) / 2), atol=1e-7)
        if normalise == "image":
            z = [(x - x.min()) / (x.max() - x.min()) for x in z]
            want = (z[0] + z[1]) / 2
        else:
            want = (z[0] + z[1]) / 2 / sample.scale
        np.testing.assert_allclose(got.scores, want, atol=1e-7)


# --------------------------------------------------------------------------- scores and captions


def test_captions_are_given_not_learned():
    _, (sample,) = slow.world(1)
    method, (bank, counts) = MLTTA(), captions()
    plain = method.predict(sample).probs
    method.set_captions(bank, counts)
    with_bank = method.predict(sample).probs
    assert not torch.equal(plain, with_bank)
    method.reset()
    assert torch.equal(method.predict(sample).probs, with_bank)
    assert torch.equal(method.clone().predict(sample).probs, with_bank)
    assert not method.state_dict()
    few = MLTTA()
    few.set_captions(bank[:3], torch.zeros(3))  # fewer than 16, and no label counts as one
    assert torch.isfinite(few.predict(sample).scores).all()


def test_bad_input():
    _, (sample,) = slow.world(1)
    method, (bank, counts) = MLTTA(), captions(dim=8)
    for b, c in ((bank[0], counts), (bank, counts[:3]), (bank[:0], counts[:0])):
        with pytest.raises(InputError, match="do not make a bank"):
            method.set_captions(b, c)
    method.set_captions(bank, counts)
    with pytest.raises(InputError, match="8 dimensions"):
        method.predict(sample)
    for options in ({"labels_per_view": 0}, {"neighbours": 0}, {"normalise": "set"}):
        with pytest.raises(InputError):
            create_method("mltta", **options)
