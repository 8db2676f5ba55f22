"""The simulated stream: reproducible, biased as it says."""

from __future__ import annotations

import pytest
import torch

from adte import InputError, SimulatedStream


def test_same_at_every_pass_and_index():
    stream = SimulatedStream(classes=5, images=6, views=3)
    once, twice = list(stream), list(stream)
    for (a, x), (b, y) in zip(once, twice, strict=True):
        assert x == y
        assert torch.equal(a.logits, b.logits)
    assert torch.equal(stream[4][0].logits, once[4][0].logits)
    other = SimulatedStream(classes=5, images=6, views=3, seed=1)
    assert not torch.equal(other[0][0].logits, once[0][0].logits)
    with pytest.raises(IndexError):
        stream[6]


def test_parts_of_a_sample_agree():
    sample, _ = SimulatedStream(classes=5, images=2, views=3, dim=8)[0]
    torch.testing.assert_close(sample.features.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(sample.class_weights.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(
        sample.logits, sample.scale * sample.features @ sample.class_weights.T
    )


def test_bias_of_the_logits_is_the_log_prior():
    """Over random images the mean logit of a class is its log prior, up to a constant and noise."""
    stream = SimulatedStream(classes=20, images=2000, views=1, dim=32)
    mean = torch.stack([s.logits[0] for s, _ in stream]).mean(0).double()
    target = stream.prior.log()
    fit = torch.corrcoef(torch.stack([mean, target]))[0, 1]
    assert fit > 0.97
    slope = ((mean - mean.mean()) @ (target - target.mean())) / (
        target - target.mean()
    ).square().sum()
    assert slope == pytest.approx(1, abs=0.15)


def test_imbalance_and_labels():
    stream = SimulatedStream(classes=30, images=300, imbalance=50)
    assert (stream.prior.max() / stream.prior.min()).item() == pytest.approx(50)
    assert stream.prior.sum().item() == pytest.approx(1)
    assert stream.targets.bincount().tolist() == [10] * 30
    ordered = SimulatedStream(classes=30, images=300, labels="sorted").targets
    assert torch.equal(ordered, ordered.sort().values)
    tailed = SimulatedStream(classes=30, images=3000, labels="long-tailed", imbalance=50)
    counts = tailed.targets.bincount(minlength=30).double()
    assert torch.corrcoef(torch.stack([counts, tailed.prior]))[0, 1] > 0.95


@pytest.mark.parametrize(
    "options", [{"classes": 0}, {"images": 0}, {"views": 0}, {"imbalance": 0.5}, {"labels": "odd"}]
)
def test_bad_options(options):
    with pytest.raises(InputError):
        SimulatedStream(**options)


def test_the_default_dtype_changes_nothing():
    want, before = SimulatedStream(classes=5, images=2)[1][0], torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(SimulatedStream(classes=5, images=2)[1][0].logits, want.logits)
    finally:
        torch.set_default_dtype(before)
