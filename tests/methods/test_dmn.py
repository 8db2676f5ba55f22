"""DMN-ZS: what the authors' code says of three images, plain loops, and its memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from adte import SimulatedStream
from adte.methods.dmn import DMN
from methods.test_tda import card_samples
from oracle import keep_count, rank, shannon, softmax

STREAM = SimulatedStream(classes=6, images=60, views=12, dim=8, scale=6.0)
ALL = [sample for sample, _ in STREAM]


def test_card():
    """The released classes on these three images, printed."""
    method = DMN()
    want = [[0.7022, 0.0003, 0.2976], [0.5719, 0.0007, 0.4274], [0.0007, 0.9603, 0.0390]]
    got = torch.stack([method.step(s).probs for s in card_samples()])
    torch.testing.assert_close(got, torch.tensor(want).double(), atol=6e-5, rtol=0)
    ranks = method.state_dict()["rank"]
    assert ranks.isfinite().sum(1).tolist() == [2, 1, 0]
    torch.testing.assert_close(ranks[0, :2].tolist(), [0.6241, 0.6976], atol=6e-5, rtol=0)


class LoopDMN:
    """The three steps in NumPy float64, with lists of items."""

    def __init__(self, weights, scale, ratio, size, weight):
        self.t, self.s = weights.double().numpy(), scale
        self.ratio, self.size, self.weight = ratio, size, weight
        self.memory = [[] for _ in self.t]

    def step(self, sample):
        f = sample.features.double().numpy()
        probs = softmax(sample.logits.double().numpy())
        self.kept = rank([shannon(p) for p in probs])[: keep_count(len(probs), self.ratio)]
        mean = sum(probs[i] for i in self.kept) / len(self.kept)
        items = self.memory[int(mean.argmax())]
        items.append((shannon(mean), f[0]))
        items.sort(key=lambda item: item[0])
        del items[self.size :]
        read = []
        for t, items in zip(self.t, self.memory, strict=True):
            a = sum(math.exp(-5.5 * (1 - f[0] @ k)) * k for k in [t, *(k for _, k in items)])
            read.append(self.s * f[0] @ a / math.sqrt(a @ a))
        return (probs[0] + self.weight * softmax(read)) / (1 + self.weight)


@pytest.mark.parametrize(
    ("ratio", "views", "size", "weight"),
    [(0.1, 12, 50, 1.0), (0.5, 12, 3, 1.0), (0.1, 1, 2, 3.0)],
)
def test_against_plain_loops(ratio, views, size, weight):
    loops = LoopDMN(STREAM.class_weights, ALL[0].scale, ratio, size, weight)
    method = DMN(keep=ratio, size=size, weight=weight)
    for s in ALL:
        s = replace(s, logits=s.logits[:views], features=s.features[:views])
        want, got = loops.step(s), method.step(s)
        torch.testing.assert_close(got.probs.double(), torch.tensor(want), atol=1e-5, rtol=1e-4)
        assert got.kept.tolist() == loops.kept
    filled = method.state_dict()["rank"].isfinite().sum(1).tolist()
    assert filled == [len(items) for items in loops.memory]
    assert (max(filled) == size) == (size < 50)  # some memory ran over


# --------------------------------------------------------------------------- state


def test_merged_memories_are_those_of_one_stream():
    whole, a, b = (DMN(size=4) for _ in range(3))
    for i, s in enumerate(ALL):
        whole.learn(s)
        (a if i < 25 else b).learn(s)
    a.merge(b)
    torch.testing.assert_close(a.state_dict(), whole.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(a.predict(ALL[0]).probs, whole.predict(ALL[0]).probs)
