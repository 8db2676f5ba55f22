"""MEMO: card 13, and one step on all weights by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import oracle
import tower_oracle as slow
from adte.methods.memo import MEMO
from adte.methods.tracking import marginal

Z = torch.from_numpy(oracle.F_LOGITS)


def near(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=5e-5 + 1e-9)


def test_card_13():
    z = Z.clone().requires_grad_()
    loss = MEMO().loss(z)
    near(marginal(Z.log_softmax(-1)).exp(), [0.2957, 0.3843, 0.3201])
    near(loss.detach(), 1.0924)
    near(torch.autograd.grad(loss, z)[0][0], [0.0093, -0.0086, -0.0008])


def episode(net, pixels, options):
    """The answer after one step on all weights, by hand; AdamW's moments begin at zero."""
    hand = copy.deepcopy(net)
    z = slow.logits(hand, pixels[1:] if len(pixels) > 1 else pixels, 16)
    mean = torch.stack([r.softmax(-1) for r in z]).sum(0) / len(z)
    loss = -(mean * mean.log()).sum()
    named = dict(hand.named_parameters())
    if options.get("parameters") == "norm":
        named = {n: p for n, p in named.items() if n.split(".")[0] in ("bn1", "bn2", "ln")}
    for p, g in zip(named.values(), torch.autograd.grad(loss, list(named.values())), strict=True):
        if options.get("optimiser") == "sgd":
            p.data -= options.get("lr", 2.5e-4) * g
        else:
            lr = options.get("lr", 1e-5)
            p.data *= 1 - lr * 0.01
            p.data -= lr * g / (g.abs() + 1e-8)
    with torch.no_grad():
        return slow.logits(hand, pixels[:1], 16)[0].softmax(-1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-2},
        {"optimiser": "sgd", "lr": 0.1},
        {"parameters": "norm", "lr": 1e-2},
    ],
    ids=str,
)
@pytest.mark.parametrize("views", [1, 5])
def test_an_episode_by_hand(options, views):
    net = slow.Net()
    method = MEMO(**options)
    for i in range(4):
        sample = slow.image(net, views, seed=i)
        got = method.step(sample)
        torch.testing.assert_close(got.probs, episode(net, sample.pixels, options))
        assert sorted(got.kept.tolist()) == (list(range(1, views)) or [0])
