"""DPE: plain loops with gradients by differences, closed forms at the ends, pooled states."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import oracle
import prompt_oracle as slow
from adte import SimulatedStream
from adte.methods.dpe import DPE

STREAM = SimulatedStream(classes=4, images=24, views=6, dim=4)
ALL = [sample for sample, _ in STREAM]


def unit(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True))


class LoopDPE:
    """The four steps over lists and dictionaries."""

    def __init__(self, weights, scale, ratio, lr, align, threshold, answer):
        self.t, self.s, self.n = np.asarray(weights, dtype=np.float64), scale, 0
        self.ratio, self.lr, self.align, self.threshold = ratio, lr, align, threshold
        self.answer, self.queues = answer, {}

    def logits(self, x, t, v, seen):
        z = self.s * t @ x
        for c, key in zip(seen, v, strict=True):
            z[c] += 6.0 * math.exp(-5.0 * (1 - float(key @ x)))
        return z

    def step(self, features):
        f = np.asarray(features, dtype=np.float64)
        z = self.s * f @ unit(self.t).T
        kept = slow.surest(z, self.ratio)
        query, doubt = f[kept].mean(0), slow.marginal_entropy(z[kept])
        queue = self.queues.setdefault(int(z[kept].mean(0).argmax()), [])
        queue.append((doubt, query))
        queue.sort(key=lambda item: item[0])
        del queue[3:]
        seen = sorted(self.queues)
        v = np.stack([np.mean([key for _, key in self.queues[c]], axis=0) for c in seen])

        def loss(r):
            t_hat, v_hat = unit(self.t + r[: len(self.t)]), unit(v + r[len(self.t) :])
            unsure = oracle.shannon(oracle.softmax(self.logits(query, t_hat, v_hat, seen)))
            apart = 0.0
            for i, c in enumerate(seen):
                row = [self.s * float(v_hat[i] @ t_hat[k]) for k in seen]
                apart -= math.log(oracle.softmax(row)[seen.index(c)])
            return unsure + self.align * apart / len(seen)

        g = slow.slope(loss, np.zeros((len(self.t) + len(v), f.shape[1])))
        r = -self.lr * g / (np.abs(g) + 1e-3)
        t_hat, v_hat = unit(self.t + r[: len(self.t)]), unit(v + r[len(self.t) :])
        mine = [0] if self.answer == "base" else slow.surest(self.s * f @ t_hat.T, self.ratio)
        p = oracle.softmax(self.logits(f[mine].mean(0), t_hat, v_hat, seen))
        if oracle.shannon(p) / math.log2(len(self.t)) < self.threshold:
            self.n += 1
            self.t = self.t * self.n / (self.n + 1) + t_hat / (self.n + 1)
        return p


@pytest.mark.parametrize(
    ("lr", "align", "threshold", "answer"),
    [(6e-4, 0.5, 0.1, "base"), (0.02, 2.5, 0.2, "base"), (0.02, 0.2, 0.1, "kept")],
)
def test_against_plain_loops(lr, align, threshold, answer):
    loops = LoopDPE(STREAM.class_weights, ALL[0].scale, 0.5, lr, align, threshold, answer)
    method = DPE(keep=0.5, lr=lr, align=align, threshold=threshold, answer=answer)
    for s in ALL:
        np.testing.assert_allclose(method.step(s).probs, loops.step(s.features), atol=2e-5)
    state = method.state_dict()
    assert int(state["admitted"]) == loops.n
    assert 0 < loops.n < len(ALL)  # some evolved the prototypes, some did not
    sizes = [len(loops.queues.get(c, ())) for c in range(4)]
    assert (state["visual.rank"] < torch.inf).sum(1).tolist() == sizes
    assert max(sizes) == 3


# --------------------------------------------------------------------------- state


def test_merging_pools_what_was_admitted_and_the_queues():
    a, b = DPE(threshold=0.5), DPE(threshold=0.5)
    for s in ALL[:12]:
        a.learn(s)
    for s in ALL[12:]:
        b.learn(s)
    one, two = a.state_dict(), b.state_dict()
    a.merge(b)
    both = a.state_dict()
    torch.testing.assert_close(both["evolved"], one["evolved"] + two["evolved"])
    assert int(both["admitted"]) == int(one["admitted"]) + int(two["admitted"]) > 0
    ranks = torch.cat([one["visual.rank"], two["visual.rank"]], 1).sort(1).values[:, :3]
    torch.testing.assert_close(both["visual.rank"], ranks, rtol=0, atol=0)
