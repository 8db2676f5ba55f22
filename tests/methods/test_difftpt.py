"""DiffTPT: card 5, a plain-loop oracle, views that were generated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte.methods.tpt import TPT, DiffTPT

Z = torch.from_numpy(oracle.F_LOGITS)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / np.sqrt((a @ a) * (b @ b))


def filtered(z, similar, ratio, originals=1):
    """The kept views by the card's steps, in plain loops."""
    others = range(originals, len(z))
    near = sorted(others, key=lambda i: (-cosine(z[0], z[i]), i))
    pool = list(range(min(originals, len(z)))) + near[: oracle.keep_count(len(near), similar)]
    entropy = {i: oracle.shannon(oracle.softmax(z[i])) for i in pool}
    ranked = sorted(pool, key=lambda i: (entropy[i], i))
    return ranked[: oracle.keep_count(len(pool), ratio)]


def test_card_5():
    near = [cosine(oracle.F_LOGITS[0], oracle.F_LOGITS[i]) for i in (1, 2, 3)]
    np.testing.assert_allclose(near, [0.3076, 0.7360, 0.0950], atol=5e-5)
    method = DiffTPT(similar=0.67, keep=0.7)
    entropy, kept = method.select(Z)
    assert kept.tolist() == [1, 0]
    assert entropy.shape == (4,)
    assert float(method.loss(Z[kept])) == pytest.approx(0.9046, abs=5e-5)


def test_published_numbers_of_views():
    """127 others: 101 pass the cosine filter; of these and the original, 30 are kept."""
    z = torch.randn(128, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, kept = DiffTPT().select(z)
    assert len(kept) == 30
    assert kept.tolist() == filtered(z.numpy(), 0.8, 0.3)


@pytest.mark.parametrize("originals", [1, 2, 5, 9, 20])
def test_originals_are_exempt_from_the_cosine_filter(originals):
    z = torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, kept = DiffTPT(originals=originals, similar=0.5, keep=0.6).select(z)
    if originals < 9:
        assert kept.tolist() == filtered(z.numpy(), 0.5, 0.6, originals)
    else:
        assert kept.tolist() == TPT(keep=0.6).select(z)[1].tolist()


@pytest.mark.parametrize("steps", [1, 4])
def test_against_plain_loops(steps):
    model, samples = slow.world(2, views=10)
    towers, method = slow.Towers(model, slow.NAMES), DiffTPT(steps=steps)
    for sample in samples:
        f = sample.features.numpy()
        kept = filtered(towers.logits(f, towers.start, sample.scale), 0.8, 0.3)

        def loss(c, f=f, kept=kept, sample=sample):
            return slow.marginal_entropy(towers.logits(f[kept], c, sample.scale))

        tuned = slow.adamw(loss, towers.start, steps)
        got = method.predict(sample)
        assert got.kept.tolist() == kept
        want = oracle.softmax(towers.logits(f[:1], tuned, sample.scale))[0]
        np.testing.assert_allclose(got.probs, want, atol=1e-7)


def test_generated_views_reach_the_prediction():
    """Views appended to a sample take part; all of them drifted, they change nothing."""
    _, (sample,) = slow.world(1, views=6)
    method = DiffTPT(originals=6, similar=0.5, keep=1.0)
    twice = replace(
        sample,
        logits=torch.cat([sample.logits, sample.logits[:4]]),
        features=torch.cat([sample.features, sample.features[:4]]),
    )
    kept = method.predict(twice).kept.tolist()
    assert len(kept) == 8
    assert {6} < set(kept)  # view 6 repeats view 0: cosine 1
