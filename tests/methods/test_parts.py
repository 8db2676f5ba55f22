"""The parts of methods: the card's entropies, the scale of thresholds, what each refuses."""

from __future__ import annotations

import math

import pytest
import torch

from adte import InputError, Sample, create_method
from adte.core import functional as F
from adte.core.batch import Batch, Context
from adte.methods import bank, dpe
from adte.methods.parts import Adjustment, Entropy

# By hand: binary logits, and a prior that gives q = (.9, .01) when released.
LOG_P = torch.tensor([[2.0, 0.0], [0.3, 0.0], [1.5, 0.0]], dtype=torch.float64).log_softmax(-1)
PRIOR = torch.tensor([0.7, 0.3], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("direction", "want"),
    [("released", [0.9809, 0.8991, 0.9751]), ("paper", [0.4016, 0.8038, 0.5206])],
)
def test_adaptive_is_the_vanishing_form(direction, want):
    got = Entropy(kind="adaptive", direction=direction, few=0)(LOG_P, PRIOR)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=5e-5, rtol=0)


def test_tsallis_by_hand_and_shannon_where_no_prior_is_known():
    z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    got = Entropy(kind="tsallis", q=2.0)(F.log_probs(z))
    torch.testing.assert_close(
        got, torch.tensor([0.4310, 0.1914, 0.6644, 0.3084]), atol=6e-5, rtol=0
    )
    cold = Entropy(kind="adaptive")
    torch.testing.assert_close(cold(LOG_P), F.shannon(LOG_P))
    assert cold.class_q(None) is None
    assert Entropy().class_q(PRIOR) is None


@pytest.mark.parametrize("classes", [2, 7, 1000])
@pytest.mark.parametrize("name", ["shannon", "tsallis", "adaptive"])
def test_scaled_thresholds_mean_the_same_for_every_measure(name, classes):
    """A threshold of ln L nats is met exactly by the uniform distribution; certainty is zero."""
    prior = torch.linspace(-1, 1, classes).double().log_softmax(-1)
    entropy = Entropy(kind=name, q=0.3)
    scale = entropy.scale(classes, prior)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64).log()
    assert float(entropy(uniform, prior)) == pytest.approx(scale * math.log(classes))
    certain = torch.nn.functional.one_hot(torch.tensor(0), classes).double().log()
    assert float(entropy(certain, prior)) == pytest.approx(0, abs=1e-9)
    assert (scale == 1) == (name == "shannon")


# --------------------------------------------------------------------------- views, adjustment


def test_adjustment_acts_in_its_place_alone():
    z, prior = torch.tensor([1.0, 2.0]), torch.tensor([0.8, 0.2]).log()
    adjust = Adjustment(place="after", tau=0.5)
    torch.testing.assert_close(adjust(z, prior, "per-view", "after"), z - 0.5 * prior)
    assert adjust(z, prior, "before") is z
    assert adjust(z, None, "after") is z
    assert not Adjustment().active
    for bad, message in (({"place": "later"}, "later"), ({"tau": math.inf}, "tau=inf")):
        with pytest.raises(InputError, match=message):
            Adjustment(**bad)


def test_weights_of_nan_are_refused_before_anything_is_learned():
    x, weights = torch.eye(3)[None], torch.eye(3)
    weights[1, 1] = torch.nan
    for name in ("bca", "onzeta", "ecalp", "tps"):
        method = create_method(name)
        with pytest.raises(InputError, match="class weights hold NaN"):
            method.step(Batch(x, x, context=Context(weights)))
        assert method.state_dict() == {}


@pytest.mark.parametrize("name", ["tilt", "adte"])
def test_logits_of_any_size_leave_a_good_state(name):
    method = create_method(name)
    for _ in range(2):
        p = method.step(Sample(torch.tensor([[3e38, -3e38, 0.0], [1.0, 2.0, 0.0]])))
        assert p.probs.isfinite().all()


def test_a_sample_of_a_batch_says_what_the_batch_does():
    """The features of a model with fixed classes are its logits, and no unit vectors."""
    z = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0))
    batch = Batch(z, z, context=Context(torch.eye(5), 2.0, bias=-1.0, unit=False))
    assert Sample.of(batch, 2).batch.context.same(batch.context)
    whole, lone = create_method("tilt"), create_method("tilt")
    want = whole.step(batch)
    for i, p in enumerate(want):
        assert torch.equal(lone.step(Sample.of(batch, i)).probs, p.probs)


def test_dpe_holds_an_image_once():
    """Learned from and then predicted, as in two passes, it is in its queue once."""
    g = torch.Generator().manual_seed(0)
    weights = torch.nn.functional.normalize(torch.randn(5, 8, generator=g), dim=-1)
    x = torch.nn.functional.normalize(torch.randn(1, 4, 8, generator=g), dim=-1)
    batch = Context(weights, 50.0).batch(x)
    counted = []

    def spy(state, like, means=dpe._means):
        counted.append(int(bank.filled(state, "visual.").sum()))
        return means(state, like)

    method = create_method("dpe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpe, "_means", spy)
        method.learn(batch)
        method.predict(batch)
    assert counted == [1, 1]
