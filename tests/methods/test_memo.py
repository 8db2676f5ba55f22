"""MEMO: card 13, one step on all weights by hand, the leaky optimiser, exact reset."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import oracle
import tower_oracle as slow
from adte import Batch, InputError, StateError, create_method
from adte.methods.bn import BN
from adte.methods.measured import marginal
from adte.methods.memo import MEMO
from adte.testing.small import SmallModel

Z = torch.from_numpy(oracle.F_LOGITS)


def near(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=5e-5 + 1e-9)


def test_card_13():
    z = Z.clone().requires_grad_()
    loss = MEMO().loss(z)
    near(marginal(Z.log_softmax(-1)).exp(), [0.2957, 0.3843, 0.3201])
    near(loss.detach(), 1.0924)
    near(torch.autograd.grad(loss, z)[0][0], [0.0093, -0.0086, -0.0008])


def episode(net, pixels, options, moments, t):
    """All weights, one step, by hand: the answer and AdamW's moments after it."""
    hand = copy.deepcopy(net)
    z = slow.logits(hand, pixels[1:] if len(pixels) > 1 else pixels, 16)
    mean = torch.stack([r.softmax(-1) for r in z]).sum(0) / len(z)
    loss = -(mean * mean.log()).sum()
    named = dict(hand.named_parameters())
    if options.get("parameters") == "norm":
        named = {n: p for n, p in named.items() if n.split(".")[0] in ("bn1", "bn2", "ln")}
    grads = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    for n, p in named.items():
        g = grads[n]
        if options.get("optimiser") == "sgd":
            p.data -= options.get("lr", 2.5e-4) * g
            continue
        lr = options.get("lr", 1e-5)
        m, v = moments.get(n, (0 * g, 0 * g))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        moments[n] = m, v
        p.data *= 1 - lr * 0.01
        p.data -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    with torch.no_grad():
        return slow.logits(hand, pixels[:1], 16)[0].softmax(-1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-2},
        {"optimiser": "sgd", "lr": 0.1},
        {"parameters": "norm", "lr": 1e-2},
        {"leak": True, "lr": 1e-2},
        {"leak": True, "parameters": "norm", "lr": 1e-2},
    ],
    ids=str,
)
@pytest.mark.parametrize("views", [1, 5])
def test_an_episode_by_hand(options, views):
    net = slow.Net()
    method = MEMO(**options)
    moments: dict = {}
    for i in range(4):
        sample = slow.image(net, views, seed=i)
        t = i + 1 if options.get("leak") else 1
        if not options.get("leak"):
            moments = {}
        want = episode(net, sample.pixels, options, moments, t)
        got = method.step(sample)
        torch.testing.assert_close(got.probs, want)
        assert sorted(got.kept.tolist()) == (list(range(1, views)) or [0])


def test_leaking_matters():
    net = slow.Net(seed=2)
    clean, leaky = MEMO(lr=1e-2), MEMO(lr=1e-2, leak=True)
    probs = [[m.step(slow.image(net, seed=i)).probs for i in range(3)] for m in (clean, leaky)]
    assert torch.equal(probs[0][0], probs[1][0])
    assert not torch.allclose(probs[0][2], probs[1][2], atol=1e-4)


@pytest.mark.parametrize(("order", "times"), [("predict-first", 1), ("learn-first", 2)])
def test_a_leaking_step_adapts_once_unless_it_learns_first(monkeypatch, order, times):
    net, method = slow.Net(), MEMO(leak=True, order=order)
    adapted, seen = method.adapted, []
    monkeypatch.setattr(method, "adapted", lambda *a: seen.append(1) or adapted(*a))
    method.step(Batch.join([slow.image(net, seed=i).batch for i in range(3)]))
    assert len(seen) == 3 * times


@pytest.mark.parametrize(
    "options", [{}, {"leak": True}, {"entropy": "adaptive", "parameters": "norm"}], ids=str
)
@pytest.mark.parametrize("kind", ["fixed", "clip"])
def test_the_users_model_is_not_touched(options, kind):
    model = SmallModel() if kind == "clip" else slow.Net()
    make = slow.clip_image if kind == "clip" else slow.image
    images = [make(model, seed=i) for i in range(4)]
    method = MEMO(**options)
    first = slow.check_untouched(method, model, images)
    if not method.stateful:
        assert all(torch.equal(p, method.predict(s).probs) for p, s in zip(first, images))  # noqa: B905


def test_only_weights_of_the_image_tower_get_moments():
    method = MEMO(leak=True)
    method.learn(slow.clip_image(SmallModel()))
    names = {k.partition(".")[2] for k in method.state_dict() if k != "steps"}
    assert names == {f"image_tower.{i}.{k}" for i in (0, 1, 5, 6) for k in ("weight", "bias")}


def test_marginal_entropy_falls():
    net = slow.Net()
    sample = slow.image(net, 9)
    tuned = MEMO(lr=1e-2, steps=10, parameters="all")
    plain = MEMO(steps=0)
    assert torch.equal(plain.predict(sample).probs, BN().predict(sample).probs)
    h = [
        float(-(p.log() * p).sum())
        for p in (plain.predict(sample).probs, tuned.predict(sample).probs)
    ]
    assert h[1] < h[0]


def test_entropies_drop_in():
    net = slow.Net()
    out = {}
    for name in ("shannon", "tsallis", "adaptive"):
        method = MEMO(entropy=name, optimiser="sgd", lr=0.5)
        out[name] = [method.step(slow.image(net, seed=i)).probs for i in range(3)][-1]
    assert len({tuple(v.tolist()) for v in out.values()}) == 3


def test_leaky_state_is_saved_and_checked():
    net = slow.Net(4)
    a, b = MEMO(leak=True, lr=1e-2), MEMO(leak=True, lr=1e-2)
    for i in range(3):
        a.step(slow.image(net, seed=i))
    b.load_state_dict(a.state_dict())
    assert torch.equal(*(m.step(slow.image(net, seed=5)).probs for m in (a, b)))
    state = a.state_dict()
    with pytest.raises(StateError, match="keeps no state"):
        MEMO().load_state_dict(state)
    with pytest.raises(StateError, match="steps"):
        a.load_state_dict({k: v for k, v in state.items() if k != "steps"})
    with pytest.raises(StateError, match=r"second\.ln"):
        a.load_state_dict(state | {"second.ln.bias": torch.zeros(1)})
    with pytest.raises(InputError, match="do not go with this model"):
        a.predict(slow.clip_image(SmallModel()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": "some"}, "some"),
        ({"optimiser": "adam"}, "adam"),
        ({"lr": -1.0}, "lr=-1"),
        ({"steps": -1}, "steps=-1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        create_method("memo", **options)
