"""ECALP: what the authors' code says of three images, a graph made anew each time, its bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from adte import Sample, SimulatedStream, StateError
from adte.methods.ecalp import ECALP
from methods.test_tda import card_samples

STREAM = SimulatedStream(classes=6, images=60, views=2, dim=8)
ALL = [sample for sample, _ in STREAM]
NEW = [replace(s, logits=s.logits[1:], features=s.features[1:]) for s in ALL]  # the second views


@pytest.mark.parametrize(("carry", "second"), [(0.2, 0.5315), (0.0, 0.5175)])
def test_card(carry, second):
    """The released code on these three images, printed, its scores made to sum to one."""
    method = ECALP(carry=carry)
    got = torch.stack([method.step(s).probs[0] for s in card_samples()])
    want = torch.tensor([0.6026, second, 0.0000]).double()
    torch.testing.assert_close(got, want, atol=6e-5, rtol=0)
    if carry:
        method.learn(card_samples()[0])  # the labels of the graph before are settled now
        scores = method.state_dict()["score"][0, :3]
        torch.testing.assert_close(
            scores, torch.tensor([0.1425, 0.1271, 0.1517]), atol=6e-5, rtol=0
        )


class WholeGraph:
    """The three steps in NumPy float64, with the whole graph as matrices for every image."""

    def __init__(self, weights, images=8, classes=3, rounds=3, carry=0.2, size=10**6):
        self.t = weights.double().numpy()
        self.k, self.c, self.rounds, self.carry, self.size = images, classes, rounds, carry, size
        self.x, self.start = [], []

    def likeness(self, old, new):
        weighted = self.t.var(axis=0) * old
        return max(0.0, float(weighted @ new / np.sqrt(weighted @ weighted)))

    def scores(self, x):
        """Y of all nodes, an asked one last."""
        nodes, n, m = [*self.x, x], len(self.x) + 1, len(self.t)
        a = np.zeros((n + m, n + m))
        for i in range(n):
            s = [self.likeness(nodes[min(i, j)], nodes[max(i, j)]) for j in range(n)]
            for j in sorted(range(n), key=lambda j: -round(s[j], 12))[: self.k]:
                a[i, j] = s[j] ** 10
            s = np.maximum(0, self.t @ nodes[i])
            for c in sorted(range(m), key=lambda c: -s[c])[: self.c]:
                a[i, n + c] = s[c] ** 10
        w = a + a.T
        root = 1 / (np.sqrt(w.sum(axis=1)) + 1e-6)
        w = root[:, None] * w * root
        y = np.concatenate([np.reshape([*self.start, np.zeros(m)], (n, m)), np.eye(m)])
        for _ in range(self.rounds):
            y = np.concatenate([(w @ y)[:n], np.eye(m)])
        return y[:n]

    def look(self, x):
        y = self.scores(x)[-1]
        return y / y.sum()

    def learn(self, x):
        if self.x:
            last = self.scores(self.x[-1])[:-1]
            self.start = [self.carry * np.where(r == r.max(), r, 0) for r in last]
        self.x = [*self.x, x][-self.size :]
        self.start = [*self.start, np.zeros(len(self.t))][-self.size :]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"carry": 0.0},
        {"images": 3, "classes": 2, "rounds": 2, "carry": 0.5},
        {"images": 5, "classes": 6, "rounds": 1},
    ],
)
def test_against_the_whole_graph(options):
    method, graph = ECALP(**options), WholeGraph(STREAM.class_weights, **options)
    for s in ALL[:40]:
        x = s.features[0].double().numpy()
        graph.learn(x)
        want = torch.tensor(graph.look(x)).float()
        torch.testing.assert_close(method.step(s).probs, want, atol=1e-4, rtol=0)


def test_the_window_keeps_the_latest_and_their_graph():
    """Against whole graphs of the last twenty, image by image, and against a fresh start there."""
    options = {"size": 20, "carry": 0.0, "images": 4}
    method, graph = (
        ECALP(order="predict-first", **options),
        WholeGraph(STREAM.class_weights, **options),
    )
    for i, s in enumerate(ALL):
        x = s.features[0].double().numpy()
        got = method.step(s).probs
        if i % 5 == 0:
            torch.testing.assert_close(got, torch.tensor(graph.look(x)).float(), atol=1e-4, rtol=0)
        graph.x = [*graph.x, x][-20:]
        graph.start = [np.zeros(6)] * len(graph.x)
    fresh = ECALP(order="predict-first", **options)
    for s in ALL[-20:]:
        fresh.learn(s)
    for s in NEW[:10]:
        torch.testing.assert_close(method.predict(s).probs, fresh.predict(s).probs)


def test_alone_it_has_the_nearest_classes_to_go_by():
    """One image, asked before anything is learned: (s_c)^10 over the root of the class's degree."""
    got = ECALP(rounds=1).predict(ALL[0])
    s = (STREAM.class_weights @ ALL[0].features[0]).clamp_min(0).double()
    top = s.topk(3)
    want = torch.zeros(6, dtype=torch.float64)
    edge = top.values**10
    want[top.indices] = edge / (edge.sqrt() + 1e-6)
    torch.testing.assert_close(got.probs.double(), want / want.sum(), atol=1e-5, rtol=0)


def test_an_image_on_the_other_side_of_all_classes_is_left_to_the_model():
    weights = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    x = torch.tensor([[-1.0, 0.0]])
    sample = Sample(10 * x @ weights.T, x, weights, 10.0)
    torch.testing.assert_close(ECALP().step(sample).probs, sample.logits[0].softmax(-1))


def test_classes_of_one_weight_have_no_channels_to_prefer():
    weights = torch.tensor([[0.6, 0.8], [0.6, 0.8]])
    x = torch.tensor([[0.8, 0.6]])
    got = ECALP().step(Sample(10 * x @ weights.T, x, weights, 10.0))
    torch.testing.assert_close(got.probs, torch.tensor([0.5, 0.5]))


def test_an_image_without_a_channel_that_tells_classes_apart():
    weights = torch.tensor([[0.6, 0.8, 0.0], [0.6, -0.8, 0.0]])
    x = torch.tensor([[1.0, 0.0, 0.0]])
    method = ECALP()
    for _ in range(3):
        got = method.step(Sample(10 * x @ weights.T, x, weights, 10.0))
        torch.testing.assert_close(got.probs, torch.tensor([0.5, 0.5]))


# --------------------------------------------------------------------------- state


@pytest.mark.parametrize("size", [100, 40])
def test_merged_graphs_are_those_of_one_stream(size):
    """All are kept, or the latest forty of the sixty."""
    whole, a, b = (ECALP(size=size, carry=0.0) for _ in range(3))
    for i, s in enumerate(ALL):
        whole.learn(s)
        (a if i < 25 else b).learn(s)
    a.merge(b)
    assert int(a.state_dict()["seen"]) == 60
    for s in NEW[:10]:
        torch.testing.assert_close(a.predict(s).probs, whole.predict(s).probs)
    a.learn(ALL[0])  # and it goes on
    whole.learn(ALL[0])
    torch.testing.assert_close(a.predict(NEW[1]).probs, whole.predict(NEW[1]).probs)


def test_merge_refuses_other_classes():
    """Also the same in another order, which the variance does not tell apart."""
    a = ECALP()
    a.learn(ALL[0])
    for weights in (-ALL[0].class_weights, ALL[0].class_weights.flip(0)):
        b = ECALP()
        b.learn(replace(ALL[0], class_weights=weights))
        with pytest.raises(StateError, match="different class weights"):
            a.merge(b)


def test_a_graph_that_points_outside_is_refused():
    method = ECALP(size=30)
    for s in ALL[:20]:
        method.learn(s)
    good = method.state_dict()
    for bad in (
        good | {"to": good["to"] + 30},
        good | {"class_to": good["class_to"] - 1},
        good | {"label": good["label"] + 6},
    ):
        with pytest.raises(StateError):
            method.load_state_dict(bad)
        torch.testing.assert_close(method.state_dict(), good, rtol=0, atol=0)
