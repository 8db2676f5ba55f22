"""BCA: the card's two images, plain loops, and pooling by counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from adte import Sample, SimulatedStream
from adte.methods.bca import BCA

STREAM = SimulatedStream(classes=6, images=60, views=12, dim=8)
ALL = [sample for sample, _ in STREAM]


def test_card():
    """An example worked by hand."""
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    method = BCA(centre_count=4, row_count=1)

    def step(x):
        f = torch.nn.functional.normalize(torch.tensor([x]), dim=-1)
        return method.step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs

    def near(got, want):
        torch.testing.assert_close(got, torch.tensor(want), atol=6e-5, rtol=0)

    near(step([0.9, 0.3]), [0.7788, 0.0014, 0.2198])
    state = method.state_dict()
    near(state["centres"][0], [0.9980, 0.0638])
    near(state["rows"][0], [0.8894, 0.0007, 0.1099])
    near(step([0.9, 0.5]), [0.4202, 0.0076, 0.5723])
    after = method.state_dict()
    near(after["centres"][2], [0.6641, 0.7476])
    torch.testing.assert_close(after["rows"], state["rows"], rtol=0, atol=0)
    assert after["centre_seen"].tolist() == [1, 0, 1]
    assert after["row_seen"].tolist() == [1, 0, 0]


class LoopBCA:
    """The formulas over lists."""

    def __init__(self, weights, scale, ratio, c1, c2):
        self.mu, self.s, self.ratio = weights.tolist(), scale, ratio
        n = len(self.mu)
        self.r = [[float(i == j) for j in range(n)] for i in range(n)]
        self.c1, self.c2 = [c1] * n, [c2] * n

    def step(self, features):
        def softmax(z):
            e = [math.exp(v - max(z)) for v in z]
            return [v / sum(e) for v in e]

        def shannon(z):
            return -sum(p * math.log(p) for p in softmax(z) if p > 0)

        f = features.tolist()
        z = [[self.s * sum(a * b for a, b in zip(x, m, strict=True)) for m in self.mu] for x in f]
        kept = sorted(range(len(z)), key=lambda i: shannon(z[i]))
        kept = kept[: max(1, int(self.ratio * len(z)))]
        n = len(self.mu)
        u = softmax([sum(z[i][c] for i in kept) / len(kept) for c in range(n)])
        x = [sum(f[i][d] for i in kept) / len(kept) for d in range(len(f[0]))]
        out = [sum(u[m] * self.r[m][c] for m in range(n)) for c in range(n)]
        k = out.index(max(out))
        if out[k] > 0.05:
            mu = [
                (self.c1[k] * a + b) / (self.c1[k] + 1) for a, b in zip(self.mu[k], x, strict=True)
            ]
            size = math.sqrt(sum(a * a for a in mu))
            self.mu[k] = [a / size for a in mu]
            self.c1[k] += 1
        if out[k] > 0.65:
            self.r[k] = [
                (self.c2[k] * a + b) / (self.c2[k] + 1) for a, b in zip(self.r[k], out, strict=True)
            ]
            self.c2[k] += 1
        return out


@pytest.mark.parametrize(("ratio", "views", "c1"), [(0.1, 12, 20000), (0.5, 12, 30), (0.1, 1, 3)])
def test_against_plain_loops(ratio, views, c1):
    loops = LoopBCA(STREAM.class_weights, ALL[0].scale, ratio, c1, 1)
    method = BCA(keep=ratio, centre_count=c1)
    for s in ALL:
        s = replace(s, logits=s.logits[:views], features=s.features[:views])
        want = torch.tensor(loops.step(s.features))
        torch.testing.assert_close(method.step(s).probs, want, atol=1e-4, rtol=1e-3)
    state = method.state_dict()
    assert state["centre_seen"].tolist() == [c - c1 for c in loops.c1]
    assert state["row_seen"].tolist() == [c - 1 for c in loops.c2]
    assert sum(loops.c2) > 12  # the rows were at work


# --------------------------------------------------------------------------- state


def test_merged_rows_are_the_counted_mean():
    """Each side's accepted outputs and the identity, counted once: rebuilt from what was said."""
    sides = [BCA(row_count=2), BCA(row_count=2)]
    total, n = torch.eye(6, dtype=torch.float64) * 2, torch.full((6,), 2.0).double()
    for method, part in zip(sides, (ALL[:25], ALL[25:]), strict=True):
        for s in part:
            p = method.step(s)
            if p.confidence > 0.65:
                total[p.index] += p.probs
                n[p.index] += 1
    sides[0].merge(sides[1])
    state = sides[0].state_dict()
    torch.testing.assert_close(state["rows"].double(), total / n[:, None], atol=1e-6, rtol=1e-5)
    assert (state["row_seen"] + 2).tolist() == n.tolist()
    assert int(state["centre_seen"].sum()) == 60


def test_merged_centres_move_by_both_shares():
    """To first order: the sum of both moves, not their mean."""
    a, b = BCA(centre_count=500), BCA(centre_count=500)
    for s in ALL[:25]:
        a.learn(s)
    for s in ALL[25:]:
        b.learn(s)
    start = a.state_dict()["start"]
    moves = [m.state_dict()["centres"] - start for m in (a, b)]
    a.merge(b)
    merged = a.state_dict()["centres"] - start
    size = (moves[0] + moves[1]).norm()
    assert (merged - moves[0] - moves[1]).norm() < 0.1 * size
    torch.testing.assert_close(a.state_dict()["centres"].norm(dim=1), torch.ones(6))
    empty = BCA(centre_count=500)
    empty.merge(b)
    torch.testing.assert_close(empty.state_dict(), b.state_dict(), rtol=0, atol=0)
    b.learn(ALL[0])  # what was merged in is a copy
    assert int(empty.state_dict()["centre_seen"].sum()) == 35
