"""DeYO: cards 15 and 16, a step by hand, patches by loops, which layers, exact reset."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

import tower_oracle as slow
from adte.core import functional as F
from adte.methods.deyo import DeYO, shuffle_patches
from adte.methods.parts import Entropy

X = torch.tensor([[2.0, 0.0], [0.3, 0.0], [1.5, 0.0]], dtype=torch.float64)
SHUFFLED = torch.tensor([[0.2, 0.0], [0.0, 0.3], [1.4, 0.0]], dtype=torch.float64)
COLOURED = {"tau_ent": 1.0, "ent0": 1.0, "tau_plpd": 0.3}
OPEN = {"tau_ent": 1.1, "ent0": 1.0, "tau_plpd": -1.0}


def near(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=5e-5 + 1e-9)


ADAPTIVE = Entropy(kind="adaptive", few=0)


def judged(method, prior=None):
    log_prior = None if prior is None else torch.tensor(prior).double().log()
    return method.judge(X, lambda sure: SHUFFLED[sure], log_prior)


def adapted(method):
    return {k[10:]: v for k, v in method.state_dict().items() if k.startswith("parameter.")}


# --------------------------------------------------------------------------- the cards


def test_card_15():
    method = DeYO(**COLOURED)
    near(method.measures(F.log_probs(X))[0], [0.3653, 0.6820, 0.4751])
    v = judged(method)
    near(v.plpd, [0.3310, 0.1489, 0.0154])
    assert v.kept.tolist() == [0]
    near(v.weight, [2.7802])
    near(v.loss, 1.0157)


@pytest.mark.parametrize(
    ("prior", "own", "vanishing"),
    [
        ((0.7, 0.3), [9.9093, 7.0734, 9.3351], [0.9809, 0.8991, 0.9751]),  # q = (.9, .01)
        ((0.3, 0.7), [2.4834, 5.6397, 3.1707], [0.4016, 0.8038, 0.5206]),  # q = (.01, .9)
    ],
)
def test_card_16(prior, own, vanishing):
    log_p = F.log_probs(X)
    for where, gate, loss in (
        ("everywhere", vanishing, vanishing),
        ("loss", [0.3653, 0.6820, 0.4751], own),
        ("literal", own, own),
    ):
        method = DeYO(entropy=ADAPTIVE, adaptive_where=where, **COLOURED)
        log_prior = torch.tensor(prior).double().log()
        got = method.measures(log_p, log_prior)
        near(got[0], gate)
        near(got[1], loss)
        top = method.measures(torch.full((1, 2), 0.5).double().log(), log_prior)[0]
        near(got[2], float(top) / math.log(2) if where == "everywhere" else 1)


def test_the_adaptive_verdict_by_hand():
    """`everywhere`: filter, weight and loss on one scale."""
    v = judged(DeYO(entropy=ADAPTIVE, **COLOURED), (0.3, 0.7))
    q = (0.01, 0.9)

    def h(p):
        return sum((p[i] ** q[i] - p[i]) / (1 - q[i]) for i in (0, 1))

    p = [[1 / (1 + math.exp(-a)), 1 / (1 + math.exp(a))] for a in (2.0, 0.3, 1.5)]
    plpd = p[0][0] - 1 / (1 + math.exp(-0.2))
    weight = math.exp(h((0.5, 0.5)) - h(p[0])) + math.exp(plpd)
    assert v.kept.tolist() == [0]
    assert float(v.weight[0]) == pytest.approx(weight, abs=1e-9)
    assert float(v.loss) == pytest.approx(weight * h(p[0]), abs=1e-9)


# --------------------------------------------------------------------------- patches


@pytest.mark.parametrize("size", [(8, 8), (12, 20), (4, 4)])
def test_patches_by_loops(size):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, *size, generator=g)
    got = shuffle_patches(x, 4, torch.Generator().manual_seed(5))
    draw = torch.Generator().manual_seed(5)
    h, w = size[0] // 4, size[1] // 4
    for n in range(3):
        order = torch.randperm(16, generator=draw).tolist()
        for to, at in enumerate(order):
            r, c = divmod(to, 4)
            a, b = divmod(at, 4)
            want = x[n, :, a * h : (a + 1) * h, b * w : (b + 1) * w]
            assert torch.equal(got[n, :, r * h : (r + 1) * h, c * w : (c + 1) * w], want)
    assert not torch.equal(got[0], got[1])


# --------------------------------------------------------------------------- the stream


@pytest.mark.parametrize("batch", [0, 3])
def test_a_stream_by_hand(batch):
    """Filters, weights and steps by plain loops on a copy of the net; the shuffled images are
    normalised with the statistics of those that passed the first filter."""
    net, lr = slow.Net(), 0.05
    options = {"tau_ent": 0.9, "ent0": 0.4, "tau_plpd": -0.05, "batch": batch, "lr": lr}
    method, hand = DeYO(**options), copy.deepcopy(net)
    moving = [*hand.bn1.parameters(), *hand.bn2.parameters()]  # the layer norm is the top
    speed = [torch.zeros_like(p) for p in moving]
    prior, steps = (0, 0) if batch else (16, 0)
    images = [slow.image(net, 4, seed=i) for i in range(9)]
    for i, s in enumerate(images):
        method.step(s)
        if batch and (i + 1) % batch:
            continue
        x = torch.cat([t.pixels[:1] for t in images[i + 1 - batch : i + 1]]) if batch else s.pixels
        z = slow.logits(hand, x, prior)
        h, p = slow.entropy(z), z.softmax(-1).detach()
        sure = [j for j in range(len(x)) if h.tolist()[j] < 0.9 * math.log(3)]
        if not sure:
            continue
        mixed = shuffle_patches(x[sure], 4, torch.Generator().manual_seed(i))
        other = slow.logits(hand, mixed, prior).softmax(-1).detach()
        total, count = 0, 0
        for k, j in enumerate(sure):
            top = int(p[j].argmax())
            fall = float(p[j, top] - other[k, top])
            if fall > -0.05:
                weight = math.exp(0.4 * math.log(3) - h.tolist()[j]) + math.exp(fall)
                total, count = total + weight * h[j], count + 1
        if count:
            slow.sgd(moving, speed, total / count, lr)
            steps += 1
    assert steps >= 2
    assert int(method.state_dict()["steps"]) == steps
    want = {f"{n}.{k}": p for n in ("bn1", "bn2") for k, p in getattr(hand, n).named_parameters()}
    assert adapted(method).keys() == want.keys()
    for k, v in adapted(method).items():
        torch.testing.assert_close(v, want[k].detach())


def test_the_top_is_left_alone():
    layers = DeYO().layers
    vit = [[f"blocks.{i}.norm{k}.weight"] for i in range(12) for k in (1, 2)] + [["norm.weight"]]
    assert layers(vit)[-1] == ["blocks.8.norm2.weight"]
    clip = [["ln_pre.weight"], *vit]
    assert layers(clip)[-1] == ["blocks.8.norm2.weight"]
    resnet = [["net.bn1.weight"]] + [
        [f"net.layer{i}.0.bn{k}.weight"] for i in (1, 2, 3, 4) for k in (1, 2)
    ]
    assert layers(resnet)[-1] == ["net.layer3.0.bn2.weight"]
    assert layers([["norm.weight"]]) == [["norm.weight"]]
    assert DeYO(top=0.0).layers(vit) == vit
    assert DeYO(top=0.0).layers(resnet) == resnet
