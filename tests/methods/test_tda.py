"""TDA: the card's three images, plain loops, and what its state promises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from adte import Sample, SimulatedStream, create_method
from adte.methods.parts import Entropy, Selection
from adte.methods.tda import TDA

STREAM = SimulatedStream(classes=6, images=60, views=12, dim=8, scale=6.0)
ALL = [sample for sample, _ in STREAM]


def card_samples() -> list[Sample]:
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], dtype=torch.float64)
    out = []
    for x in ([1.0, 0.2], [0.95, 0.3], [0.1, 1.0]):
        f = torch.nn.functional.normalize(torch.tensor([x], dtype=torch.float64), dim=-1)
        out.append(Sample(10 * f @ weights.T, f, weights, 10.0))
    return out


def test_card():
    """By hand; logits are compared up to what softmax forgets, a constant."""
    method = TDA()
    wanted = [(11.6888, 1.9612, 8.9043), (13.2446, 3.0113, 9.2021), (1.0286, 11.9504, 6.6447)]
    for sample, want in zip(card_samples(), wanted, strict=True):
        out = method.step(sample).probs.double().log()
        logits = torch.tensor(want, dtype=torch.float64)
        torch.testing.assert_close(out - out[0], logits - logits[0], atol=2e-4, rtol=0)
    ranks = method.state_dict()
    assert ranks["positive.rank"].isfinite().sum(1).tolist() == [2, 1, 0]
    assert ranks["negative.rank"].isfinite().sum(1).tolist() == [2, 0, 0]
    torch.testing.assert_close(ranks["positive.rank"][0, 0].item(), 0.6241, atol=5e-5, rtol=0)


# --------------------------------------------------------------------------- plain loops


def softmax(z: list[float]) -> list[float]:
    top = max(z)
    e = [math.exp(v - top) for v in z]
    return [v / sum(e) for v in e]


def shannon(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p if v > 0)


def mean(rows: list[list[float]]) -> list[float]:
    return [sum(c) / len(rows) for c in zip(*rows, strict=True)]


class LoopTDA:
    """The formulas with dictionaries of lists; `dot` and friends spelled out."""

    def __init__(self, ratio: float = 0.1, newest: bool = False) -> None:
        self.pos: dict[int, list] = {}
        self.neg: dict[int, list] = {}
        self.ratio, self.newest = ratio, newest

    def look(self, sample: Sample):
        z, f = sample.logits.tolist(), sample.features.tolist()
        order = sorted(range(len(z)), key=lambda i: shannon(softmax(z[i])))
        self.kept = order[: max(1, int(self.ratio * len(z)))]
        zs, fs = mean([z[i] for i in self.kept]), mean([f[i] for i in self.kept])
        return zs, fs, mean([softmax(z[i]) for i in self.kept])

    def positive(self, f, label):
        return self.score(f, self.pos.get(label, []), 5.0)

    def score(self, f, items, beta):
        return sum(
            math.exp(-beta * (1 - sum(a * b for a, b in zip(f, k, strict=True)))) for k, *_ in items
        )

    def step(self, sample: Sample) -> list[float]:
        z, f, p = self.look(sample)
        h, label = shannon(p), z.index(max(z))
        self.pos[label] = sorted([*self.pos.get(label, []), (f, h)], key=lambda i: i[1])[:3]
        if 0.2 < h / math.log2(len(z)) < 0.5:
            items = [*self.neg.get(label, []), (f, h, [0.03 < v < 1 for v in p])]
            self.neg[label] = items[-2:] if self.newest else sorted(items, key=lambda i: i[1])[:2]
        out = list(z)
        for c in range(len(z)):
            out[c] += 2.0 * self.positive(f, c)
            for items in self.neg.values():
                for item in items:
                    out[c] -= 0.117 * self.score(f, [item], 1.0) * item[2][c]
        return softmax(out)


@pytest.mark.parametrize(("ratio", "views"), [(0.1, 12), (0.5, 12), (0.1, 1)])
@pytest.mark.parametrize("keep", ["surest", "newest"])
def test_against_plain_loops(ratio, views, keep):
    method, loops = TDA(keep=ratio, negative_keep=keep), LoopTDA(ratio, keep == "newest")
    for s in ALL:
        s = replace(s, logits=s.logits[:views], features=s.features[:views])
        got = method.step(s)
        want = torch.tensor(loops.step(s))
        torch.testing.assert_close(got.probs, want, atol=1e-5, rtol=1e-4)
        assert got.kept.tolist() == loops.kept
    assert sum(map(len, loops.neg.values())) > 4  # both caches were at work, and one ran over
    assert max(map(len, loops.pos.values())) == 3


# --------------------------------------------------------------------------- options


@pytest.mark.parametrize("entropy", ["tsallis", "adaptive"])
def test_the_measure_enters_caches_and_choice(entropy):
    """Entropy of the views is the measure's; ranks are it over its scale, comparable with nats."""
    method = TDA(entropy=Entropy(kind=entropy, q=0.4), keep=Selection(ratio=0.25))
    for s in ALL[:30]:
        method.learn(s)
    got, prior = method.predict(ALL[30]), method.class_prior
    log_p = ALL[30].logits.log_softmax(-1)
    log_prior = None if prior is None else prior.log_prior.float()
    torch.testing.assert_close(got.entropy, method.entropy(log_p, log_prior))
    assert got.kept.tolist() == got.entropy.argsort(stable=True)[:3].tolist()
    assert (got.q is not None) == (entropy == "adaptive")
    assert (prior is not None) == (entropy == "adaptive")
    ranks = method.state_dict()["negative.rank"]
    share = ranks[ranks.isfinite()] / math.log2(6)
    assert len(share) > 3
    assert share.min() > 0.2
    assert share.max() < 0.5


# --------------------------------------------------------------------------- state


@pytest.mark.parametrize(
    "options",
    [{}, {"negative_keep": "newest"}, {"adjust": "after"}, {"adjust": "after", "bank": "fifo",
      "estimator": "fixed-point", "negative_keep": "newest"}],
)  # fmt: skip
def test_merged_caches_are_those_of_one_stream(options):
    whole, first, second, empty = (create_method("tda", **options) for _ in range(4))
    for i, s in enumerate(ALL):
        whole.learn(s)
        (first if i < 25 else second).learn(s)
    empty.merge(second)  # into nothing: as it is
    torch.testing.assert_close(empty.predict(ALL[3]).probs, second.predict(ALL[3]).probs)
    first.merge(second)
    for key, value in whole.state_dict().items():
        if key != "prior.solution":  # what it is solved from is the same
            torch.testing.assert_close(first.state_dict()[key], value)
    probs = first.predict(ALL[0]).probs
    torch.testing.assert_close(probs, whole.predict(ALL[0]).probs, atol=1e-3, rtol=0)
