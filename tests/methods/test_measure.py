"""The measure as an option: the card's numbers, the scale of thresholds, what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from adte import InputError, Sample, StateError
from adte import functional as F
from adte.methods.measure import (
    EntropyOptions,
    check_entries,
    class_weights_of,
    features_of,
)

# METHODS card 16: binary logits, and a prior that gives q = (.9, .01) when released.
LOG_P = torch.tensor([[2.0, 0.0], [0.3, 0.0], [1.5, 0.0]], dtype=torch.float64).log_softmax(-1)
PRIOR = torch.tensor([0.7, 0.3], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("direction", "want"),
    [("released", [0.9809, 0.8991, 0.9751]), ("paper", [0.4016, 0.8038, 0.5206])],
)
def test_adaptive_is_the_vanishing_form(direction, want):
    got = EntropyOptions(entropy="adaptive", direction=direction).measure(LOG_P, PRIOR)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=5e-5, rtol=0)


def test_tsallis_by_hand_and_shannon_where_no_prior_is_known():
    z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    got = EntropyOptions(entropy="tsallis", q=2.0).measure(F.log_probs(z))
    torch.testing.assert_close(
        got, torch.tensor([0.4310, 0.1914, 0.6644, 0.3084]), atol=6e-5, rtol=0
    )
    cold = EntropyOptions(entropy="adaptive")
    torch.testing.assert_close(cold.measure(LOG_P), F.shannon(LOG_P))
    assert cold.class_q(None) is None
    assert EntropyOptions().class_q(PRIOR) is None


@pytest.mark.parametrize("classes", [2, 7, 1000])
@pytest.mark.parametrize("name", ["shannon", "tsallis", "adaptive"])
def test_scaled_thresholds_mean_the_same_for_every_measure(name, classes):
    """A threshold of ln L nats is met exactly by the uniform distribution; certainty is zero."""
    prior = torch.linspace(-1, 1, classes).double().log_softmax(-1)
    options = EntropyOptions(entropy=name, q=0.3)
    scale = options.entropy_scale(classes, prior)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64).log()
    assert float(options.measure(uniform, prior)) == pytest.approx(scale * math.log(classes))
    certain = torch.nn.functional.one_hot(torch.tensor(0), classes).double().log()
    assert float(options.measure(certain, prior)) == pytest.approx(0, abs=1e-9)
    assert (scale == 1) == (name == "shannon")


def test_scale_without_anything_to_scale():
    assert EntropyOptions(entropy="tsallis").entropy_scale(1) == 1
    assert EntropyOptions(entropy="adaptive").entropy_scale(9, None) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entropy": "renyi"}, "renyi"),
        ({"q": 0.0}, "must be positive"),
        ({"alpha": 0.9, "beta": 0.5}, "0 < alpha < beta < 1"),
        ({"rule": "rank"}, "rank"),
        ({"direction": "up"}, "up"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        EntropyOptions(**options).check_entropy()


def test_samples_are_checked_and_widened():
    z, f, w = torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(3, 4)
    assert features_of(Sample(z, f)).dtype == torch.float32
    assert class_weights_of(Sample(z, f, w.double())).dtype == torch.float32
    with pytest.raises(InputError, match="needs features"):
        features_of(Sample(z))
    with pytest.raises(InputError, match="needs class weights"):
        class_weights_of(Sample(z, f))
    with pytest.raises(InputError, match="one row of features a view"):
        features_of(Sample(z, f[:1]))
    with pytest.raises(InputError, match=r"= \(3, 4\)"):
        class_weights_of(Sample(z, f, w[:2]))
    with pytest.raises(InputError, match="NaN"):
        features_of(Sample(z, f * torch.nan))


def test_entries_are_compared_by_name_shape_and_dtype():
    like = {"a": torch.zeros(2), "b": torch.zeros(3)}
    check_entries("m", like, like)
    for bad in ({"a": like["a"]}, like | {"c": like["a"]}):
        with pytest.raises(StateError, match="missing or unexpected"):
            check_entries("m", bad, like)
    for bad in (like | {"b": torch.zeros(4)}, like | {"b": torch.zeros(3).double()}):
        with pytest.raises(StateError, match="entry 'b' is"):
            check_entries("m", bad, like)
