"""OnZeta: what the authors' code says of three images, plain loops, and what its state promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adte import SimulatedStream
from adte.methods.onzeta import OnZeta
from methods.test_tda import card_samples
from oracle import softmax

STREAM = SimulatedStream(classes=6, images=60, views=3, dim=8)
ALL = [sample for sample, _ in STREAM]


def near(got, want, atol=6e-5):
    torch.testing.assert_close(got.double(), torch.tensor(want).double(), atol=atol, rtol=0)


def test_card():
    """The released loop on these three images, its temperatures 1/10 and 4/10, printed."""
    method = OnZeta(length=3)
    got = torch.stack([method.step(s).probs for s in card_samples()])
    near(got, [[0.6047, 0.0333, 0.3620], [0.4176, 0.1627, 0.4196], [0.0494, 0.6951, 0.2555]])
    state = method.state_dict()
    near(state["bonus"], [4.5196, 0.0, 3.8484], atol=2e-4)
    near(state["proxies"], [[0.9978, -0.0663], [0.1125, 0.9936], [0.8574, 0.5146]])


class LoopOnZeta:
    """The four steps in NumPy float64, one class at a time."""

    def __init__(self, weights, scale, n, alpha=1.0, beta=0.8):
        self.t = weights.double().numpy()
        self.w, self.rho = self.t.copy(), np.zeros(len(self.t))
        self.s, self.n, self.alpha, self.beta, self.i = scale, n, alpha, beta, 0

    def step(self, x):
        self.i += 1
        raised = [
            math.exp(r) * p for r, p in zip(self.rho, softmax(self.s * self.t @ x), strict=True)
        ]
        p = np.array(raised) / sum(raised)
        v = softmax(self.s / 4 * self.w @ x)
        b = self.beta * math.sqrt(min(1, self.i / self.n))
        for c in range(len(p)):
            self.rho[c] = max(
                0, self.rho[c] - 20 / math.sqrt(self.i) * (p[c] - self.alpha / len(p))
            )
            self.w[c] -= 0.5 / math.sqrt(self.i) * self.s / 4 * (v[c] - p[c]) * x
            self.w[c] /= math.sqrt(sum(self.w[c] ** 2))
        return b * v + (1 - b) * p


@pytest.mark.parametrize(
    ("options", "n"), [({"length": 60}, 60), ({"length": 20}, 20), ({"balance": 0.5}, 300)]
)
def test_against_plain_loops(options, n):
    """Until the end of the stream, beyond it, and where its length is not known: 50 per class."""
    method = OnZeta(**options)
    loops = LoopOnZeta(STREAM.class_weights, ALL[0].scale, n, options.get("balance", 1.0))
    for s in ALL:
        want = loops.step(s.features[0].double().numpy())
        near(method.step(s).probs, want, atol=2e-4)
    assert (loops.rho > 0).sum() > 1  # the bonus was at work
    near(method.state_dict()["bonus"], loops.rho, atol=2e-3)
    near(method.state_dict()["proxies"], loops.w, atol=1e-3)


def test_a_bonus_of_any_size_does_not_overflow():
    method = OnZeta(bonus_rate=1e4)
    for s in ALL[:20]:
        assert method.step(s).probs.isfinite().all()
    assert float(method.state_dict()["bonus"].max()) > 1000


# --------------------------------------------------------------------------- state


def test_merge_weighs_by_what_each_side_has_seen():
    a, b, empty = OnZeta(), OnZeta(), OnZeta()
    for i, s in enumerate(ALL):
        (a if i < 15 else b).learn(s)
    mine, theirs = a.state_dict(), b.state_dict()
    empty.merge(b)
    torch.testing.assert_close(empty.state_dict(), theirs, rtol=0, atol=0)
    a.merge(b)
    merged = a.state_dict()
    assert int(merged["seen"]) == 60
    torch.testing.assert_close(merged["bonus"], mine["bonus"] / 4 + 3 * theirs["bonus"] / 4)
    middle = mine["proxies"] / 4 + 3 * theirs["proxies"] / 4
    torch.testing.assert_close(merged["proxies"], middle / middle.norm(dim=1, keepdim=True))
