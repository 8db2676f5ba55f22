"""BoostAdapter: the card's union, plain loops, and TDA where there is nothing to add."""

from __future__ import annotations

import pytest
import torch

from adte import Sample
from adte.core import state as declared
from adte.methods import bank
from adte.methods.tda import TDA, BoostAdapter, Query
from methods.test_tda import ALL, LoopTDA, shannon, softmax


def test_card():
    """By hand: [.2, .5, .9] joined by [.1, .6] with δ = 1 is [.1, .2, .5, .6]."""
    method = BoostAdapter(boost=1, positive_sharpness=3.0)
    state = declared.fresh("boostadapter", method.entries(), {"L": 2, "D": 4})
    keys = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    for rank, key in zip((0.2, 0.5, 0.9), keys, strict=True):
        bank.insert(state, "positive.", 0, rank, {"keys": key})
    before = declared.copy(state)
    views = torch.nn.functional.normalize(torch.randn(2, 4), dim=-1)
    query = Query(
        feature=views[0], logits=torch.zeros(2), probs=torch.zeros(2), entropy=0.3,
        view_features=views, view_logits=torch.tensor([[2.0, 0.0], [1.0, 0.0]]),
        view_entropy=torch.tensor([0.2, 1.2]), scale=2.0, kept=torch.tensor([0, 1]),
        mine=torch.tensor([0]), log_prior=None,
    )  # fmt: skip
    total = method.positive(state, query)
    used = torch.stack([views[0], keys[0], keys[1], views[1]])  # .1, .2, .5, .6 after scaling
    want = (-3 * (1 - used @ views[0])).exp().sum()
    torch.testing.assert_close(total, torch.stack([want, torch.tensor(0.0)]))
    torch.testing.assert_close(state, before, rtol=0, atol=0)


class LoopBoost(LoopTDA):
    """The temporary cache as a copied list."""

    boost = 1

    def step(self, sample: Sample) -> list[float]:
        self.sample = sample
        return super().step(sample)

    def positive(self, f, label):
        items = list(self.pos.get(label, []))
        z, features = self.sample.logits.tolist(), self.sample.features.tolist()
        touched = False
        for i in self.kept:
            if z[i].index(max(z[i])) == label:
                items.append((features[i], shannon(softmax(z[i]))))
                touched = True
        items = sorted(items, key=lambda i: i[1])[: 3 + self.boost] if touched else items
        return self.score(f, items, 5.0)


@pytest.mark.parametrize("boost", [0, 1, 3])
def test_against_plain_loops(boost):
    method, loops = BoostAdapter(keep=0.5, boost=boost), LoopBoost(0.5, newest=True)
    loops.boost = boost
    tda, differs = TDA(keep=0.5, negative_keep="newest"), 0
    for s in ALL:
        got = method.step(s).probs
        torch.testing.assert_close(got, torch.tensor(loops.step(s)), atol=1e-5, rtol=1e-4)
        differs += not torch.allclose(got, tda.step(s).probs, atol=1e-3)
    assert differs > 30
