"""Single-point batch norm: card 14, a plain-loop oracle, and towers without batch norm."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tower_oracle as slow
from adte import InputError, Preprocess, Sample, create_method
from adte.methods import image_tower
from adte.methods.bn import BN
from adte.methods.image_tower import Tower, twin
from adte.methods.memo import MEMO
from adte.models.base import FixedClasses


class Single(FixedClasses):
    """One batch norm over the pixels of one channel; its logits are what it says of them."""

    def __init__(self, classes: str = "abcd") -> None:
        super().__init__("single", classes, classes, Preprocess())
        self.norm = nn.BatchNorm2d(1).double().eval()

    def classify(self, pixels):
        return self.norm(pixels).flatten(1)


def test_card_14():
    x = torch.tensor([1.0, 3.0, 2.0, 6.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    sample = Sample(torch.zeros(1, 4), pixels=x, model=Single())
    z = Tower(sample.batch, 16).logits(x)[0]
    assert float(z[3]) == pytest.approx(5.2817, abs=5e-5)  # 5.4374 with the biased variance
    mean, var = 3 / 17, (16 + 14 / 3) / 17
    assert (mean, var) == pytest.approx((0.17647, 1.21569), abs=5e-6)
    torch.testing.assert_close(z, (x.flatten() - mean) / math.sqrt(var + 1e-5))


@pytest.mark.parametrize("prior", [0.0, 2.0, 16.0, math.inf])
def test_every_layer_sees_what_earlier_ones_changed(prior):
    net = slow.Net()
    sample = slow.image(net, views=3)
    got = BN(bn_prior=prior).predict(sample).probs
    with torch.no_grad():
        want = slow.logits(net, sample.pixels[:1], prior)[0].softmax(-1)
    torch.testing.assert_close(got, want)
    if math.isinf(prior):
        torch.testing.assert_close(got, sample.logits[0].softmax(-1))


def test_a_single_value_has_no_variance():
    """One position a channel: the source's statistics stand, whatever the prior."""
    net = Single("a")
    sample = Sample(torch.zeros(1, 1), pixels=torch.full((1, 1, 1, 1), 3.0), model=net)
    for prior in (0, 16):
        z = Tower(sample.batch, prior).logits(sample.pixels.double())
        assert float(z) == pytest.approx(3, 1e-4)


def test_twin_shares_tensors_and_ties_and_nothing_else():
    net = slow.Net()
    net.conv2 = net.conv
    other = twin(net)
    assert other.conv2 is other.conv
    assert other.conv is not net.conv
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert a.data_ptr() == b.data_ptr()
        assert not b.requires_grad
    other.bn1.register_forward_pre_hook(lambda *_: None)
    assert not net.bn1._forward_pre_hooks


def test_a_tower_is_made_once_for_a_model(monkeypatch):
    made = []

    class Counted(Tower):
        def __init__(self, *args):
            made.append(self)
            super().__init__(*args)

    monkeypatch.setattr(image_tower, "Tower", Counted)
    net, method = slow.Net(), BN()
    samples = [slow.image(net, seed=i) for i in range(3)]
    first = [method.predict(s).probs for s in samples]
    assert len(made) == 1
    net.bn1.weight.data = net.bn1.weight.data + 1  # not the tensor that the twin shares
    assert not torch.equal(method.predict(samples[0]).probs, first[0])
    assert len(made) == 2
    method.bn_prior = 2.0
    want = BN(bn_prior=2.0).predict(samples[0]).probs
    assert torch.equal(method.predict(samples[0]).probs, want)
    for other in (copy.deepcopy(method), pickle.loads(pickle.dumps(method)), method.clone()):
        assert not other._towers._idle
        assert torch.equal(other.predict(samples[0]).probs, want)


def test_threads_do_not_share_a_tower():
    nets = [slow.Net(), slow.Net(seed=1)]
    samples = [slow.image(nets[i % 2], seed=i) for i in range(40)]
    method = MEMO(lr=0.1)
    want = [method.predict(s).probs for s in samples]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda s: method.predict(s).probs, samples))
    assert all(map(torch.equal, got, want))


def test_classes_of_a_fixed_head_are_chosen_by_name():
    net = slow.Net(4)
    full = slow.image(net)
    names = (net.classes[3], net.classes[1])
    part = Sample(full.logits[:, [3, 1]], pixels=full.pixels, model=net, classes=names)
    z = Tower(full.batch).logits(full.pixels)[0]
    torch.testing.assert_close(Tower(part.batch).logits(full.pixels)[0], z[[3, 1]])
    wrong = Sample(full.logits[:, :2], pixels=full.pixels, model=net, classes=("cat", "unicorn"))
    with pytest.raises(InputError, match="unicorn"):
        BN().predict(wrong)


def test_bad_input():
    net = slow.Net()
    sample = slow.image(net)
    with pytest.raises(InputError, match="needs pixels"):
        BN().predict(Sample(sample.logits, model=net))
    with pytest.raises(InputError, match="needs model"):
        BN().predict(Sample(sample.logits, pixels=sample.pixels))
    with pytest.raises(InputError, match="pass \\(views, 3, height, width\\)"):
        BN().predict(Sample(sample.logits, pixels=sample.pixels[:, 0], model=net))
    with pytest.raises(InputError, match="do not go with logits"):
        BN().predict(Sample(sample.logits, pixels=sample.pixels[:2], model=net))
    with pytest.raises(InputError, match="pixels hold NaN"):
        BN().predict(Sample(sample.logits, pixels=sample.pixels * torch.nan, model=net))
    with pytest.raises(InputError, match="bn_prior=-1"):
        create_method("bn", bn_prior=-1)
