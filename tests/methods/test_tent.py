"""Tent: card 12, the paper's loop by hand, views as a batch, exact reset, checked state."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import tower_oracle as slow
from adte import InputError, StateError, create_method
from adte.methods.image_tower import Descent
from adte.methods.tent import Tent
from adte.testing.small import SmallModel

NORMS = ("bn1", "bn2", "ln")


def stream(net, count=8, views=5):
    return [slow.image(net, views, seed=i) for i in range(count)]


def adapted(method):
    return {k[10:]: v for k, v in method.state_dict().items() if k.startswith("parameter.")}


def test_batches_of_images_are_the_papers_loop():
    """Against the authors' way: running statistics removed, SGD with momentum on scale and shift.

    The prediction of the last image of a batch is that of the very forward of its update.
    """
    net, size, lr = slow.Net(), 4, 0.05
    images = stream(net, 12, views=2)
    method = Tent(batch=size, lr=lr)
    got = [method.step(s) for s in images]

    hand = copy.deepcopy(net)
    for b in (hand.bn1, hand.bn2):
        b.track_running_stats, b.running_mean, b.running_var = False, None, None
    moving = [p for n in NORMS for p in getattr(hand, n).parameters()]
    speed = [torch.zeros_like(p) for p in moving]
    for start in range(0, 12, size):
        z = hand.classify(torch.cat([s.pixels[:1] for s in images[start : start + size]]))
        torch.testing.assert_close(got[start + size - 1].probs, z[-1].softmax(-1).detach())
        slow.sgd(moving, speed, slow.entropy(z).mean(), lr)
    for n in NORMS:
        for k, p in getattr(hand, n).named_parameters():
            torch.testing.assert_close(adapted(method)[f"{n}.{k}"], p.detach())
    assert int(method.state_dict()["steps"]) == 3


@pytest.mark.parametrize("prior", [None, 0.0, math.inf])
def test_views_as_a_batch_by_plain_loops(prior):
    """Every image: predict the base view among its views, then one step on the surest views."""
    net, lr = slow.Net(), 0.05
    used = 16 if prior is None else prior
    method = Tent(lr=lr, keep=0.5, bn_prior=prior)
    hand = copy.deepcopy(net)
    moving = [p for n in NORMS for p in getattr(hand, n).parameters()]
    speed = [torch.zeros_like(p) for p in moving]
    for s in stream(net, 4):
        p = method.step(s)
        z = slow.logits(hand, s.pixels, used)
        h = slow.entropy(z)
        kept = slow.surest(z, 2)
        torch.testing.assert_close(p.probs, z[0].softmax(-1).detach())
        torch.testing.assert_close(p.entropy, h.detach())
        assert p.kept.tolist() == kept
        slow.sgd(moving, speed, (h[kept[0]] + h[kept[1]]) / 2, lr)
    assert float((p.probs - s.logits[0].softmax(-1)).abs().max()) > 1e-4


def test_descent_is_that_of_torch():
    g = torch.Generator().manual_seed(0)
    start, slopes = torch.randn(4, 6, generator=g), torch.randn(5, 4, 6, generator=g)
    for descent, kind, options in (
        (Descent("sgd", 3e-2, 0.9), torch.optim.SGD, {"momentum": 0.9}),
        (Descent("adam", 3e-2), torch.optim.Adam, {}),
        (Descent("adam", 3e-2, 0, 0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
    ):
        x = start.clone().requires_grad_()
        theirs = kind([x], lr=3e-2, **options)
        ours = {"x": start}
        moments = descent.start(ours)
        for t, s in enumerate(slopes, 1):
            x.grad = s.clone()
            theirs.step()
            ours, moments = descent.step(ours, {"x": s}, moments, t)
        torch.testing.assert_close(ours["x"], x.detach(), rtol=1e-6, atol=1e-7)


def test_only_the_image_towers_norms_are_tuned():
    model = SmallModel()
    model.text_norm = nn.LayerNorm(3)
    method = Tent()
    method.learn(slow.clip_image(model))
    assert sorted(adapted(method)) == [
        f"image_tower.{i}.{k}" for i in (1, 5) for k in ("bias", "weight")
    ]


def test_states_merge_by_weighted_mean():
    net = slow.Net()
    images = stream(net, 9)
    a, b = Tent(lr=0.05), Tent(lr=0.05)
    for s in images[:3]:
        a.learn(s)
    for s in images[3:]:
        b.learn(s)
    want = {k: (3 * adapted(a)[k] + 6 * adapted(b)[k]) / 9 for k in adapted(a)}
    a.merge(b)
    for k, v in adapted(a).items():
        torch.testing.assert_close(v, want[k])
    assert int(a.state_dict()["images"]) == 9
    other = Tent(lr=0.05)
    other.learn(slow.clip_image(SmallModel()))
    with pytest.raises(StateError, match="the same classes, model and options"):
        a.merge(other)


def test_windows_merge_to_the_last_images():
    net = slow.Net()
    images = stream(net, 5, views=2)
    a, b = Tent(batch=4), Tent(batch=4)
    for s in images[:2]:
        a.learn(s)
    for s in images[2:]:
        b.learn(s)
    a.merge(b)
    assert torch.equal(a.state_dict()["window"], torch.cat([s.pixels[:1] for s in images[1:]]))


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, lambda s: s.pop("steps"), "'steps'"),
        ({}, lambda s: s.update(steps=torch.tensor(-1)), "'steps'"),
        ({}, lambda s: s.pop("first.ln.bias"), "'first.ln.bias'"),
        ({}, lambda s: s.update({"first.ln.bias": torch.zeros(2)}), "'first.ln.bias'"),
        ({}, lambda s: s.update({"prior.seen": torch.tensor(1)}), "'prior.seen' is unexpected"),
        ({"optimiser": "adam"}, lambda s: None, "'second"),
        ({"batch": 4}, lambda s: None, "'window'"),
        ({"batch": 4}, lambda s: s.update(window=torch.zeros(2, 3, 9, 9)), "'window'"),
        ({"batch": 4}, lambda s: s.update(window=torch.tensor(1.0)), "'window'"),
        ({"entropy": "adaptive"}, lambda s: None, "'prior.seen' is missing"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(options, change, message):
    net = slow.Net()
    method = Tent()
    method.learn(slow.image(net))
    state = method.state_dict()
    change(state)
    with pytest.raises(StateError, match=message):
        Tent(**options).load_state_dict(state)


def test_bad_input_and_options():
    for options, message in (
        ({"batch": -1}, "batch=-1"),
        ({"bn_prior": -2.0}, "bn_prior=-2"),
        ({"optimiser": "lion"}, "lion"),
        ({"ratio": 0.0}, "ratio=0.0"),
        ({"entropy": "renyi"}, "renyi"),
    ):
        with pytest.raises(InputError, match=message):
            create_method("tent", **options)
    method = Tent(batch=3)
    method.learn(slow.image(slow.Net(4)))
    with pytest.raises(InputError, match="has learned parameter"):
        method.predict(slow.clip_image(SmallModel()))
    with pytest.raises(InputError, match="one size"):
        method.predict(slow.image(slow.Net(4), size=11))
    folded = slow.Net()
    folded.bn1, folded.bn2, folded.ln = nn.Identity(), nn.Identity(), nn.Identity()
    with pytest.raises(InputError, match="no normalisation layers"):
        Tent().learn(slow.image(folded))
