"""Frolic as released: the published steps in plain NumPy, its schedule, and the harm it can do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
from adte import SimulatedStream, StateError
from adte.methods.frolic import FrolicReleased, debiased, proxies

STREAM = SimulatedStream(classes=5, images=40, views=2, dim=8)
ALL = [sample for sample, _ in STREAM]
X = np.stack([s.features[0].double().numpy() for s in ALL])
T = STREAM.class_weights.double().numpy()
SCALE = ALL[0].scale
SMALL = {"steps": 20, "first": 8}


# --------------------------------------------------------------------------- plain NumPy


def sinkhorn(z):
    """Twenty rounds towards the column sums that the predictions have to begin with."""
    P = oracle.softmax(z) / len(z)
    q = P.sum(0)
    for _ in range(20):
        P = P / P.sum(0) * q
        P = P / P.sum(1, keepdims=True) / len(z)
    return P * len(z)


def image_proxies(x, start, labels, temperature, steps):
    labels = labels.copy()
    for row in labels:
        if row.max() > 0.6:
            best = row.argmax()
            row[:] = 0
            row[best] = 1
    base, w, lr, before = x.T @ labels, start.T.copy(), 10.0, np.inf
    for _ in range(steps):
        slope = x.T @ oracle.softmax(x @ w / temperature) - base
        length = np.sqrt((slope**2).sum())
        if length > before:
            lr /= 2
        before = length
        w = w - lr / (len(x) * temperature) * slope
        w = w / np.sqrt((w**2).sum(0))
    return w.T


def power(A):
    p = np.full(len(A), 1 / len(A))
    for _ in range(100):
        new = A @ p / (A @ p).sum()
        if np.abs(new - p).sum() < 1e-3:
            break
        p = new
    return p


def released(x, t, s, steps, rounds=11):
    """The fused logits after all rounds."""
    rows = np.concatenate([x, t])
    var = 0.1 * rows.var(0, ddof=1) + 0.9
    fg = np.array([[w / var @ r - w / var @ w / 2 - r / var @ r / 2 for w in t] for r in x])
    found = [image_proxies(x, t, sinkhorn(s * z), 4 / s, steps) for z in (x @ t.T, fg)]
    z = s * x @ (found[0] + found[1]).T
    L = len(t)
    for _ in range(rounds):
        A, n = np.zeros((L, L)), np.zeros(L)
        for row in z:
            top = np.sort(row)[::-1]
            if top[0] - top[1] > 1 / L:
                A[:, row.argmax()] += oracle.softmax(row)
                n[row.argmax()] += 1
        z = z - np.log(power(A / np.maximum(n, 1)) + 1e-12)
    return z


@pytest.mark.parametrize(("steps", "rounds"), [(0, 1), (1, 0), (60, 1), (60, 11)])
def test_a_fit_is_the_published_steps(steps, rounds):
    method = FrolicReleased(steps=steps, rounds=rounds)
    w, bias = method.fit(torch.from_numpy(X), torch.from_numpy(T), SCALE)
    got = SCALE * torch.from_numpy(X) @ w.T - bias
    np.testing.assert_allclose(got, released(X, T, SCALE, steps, rounds), rtol=0, atol=1e-4)


def test_two_pass_with_one_fit_is_the_whole_set():
    method = FrolicReleased(first=len(ALL), steps=60)
    for s in ALL:
        method.learn(s)
    got = torch.stack([method.predict(s).probs for s in ALL])
    np.testing.assert_allclose(got, oracle.softmax(released(X, T, SCALE, 60)), atol=2e-3)


def test_proxies_stop_where_nothing_moves():
    """The rate halves until no step counts; the rest of the steps is left out."""
    x, t = torch.from_numpy(X[:10]), torch.from_numpy(T)
    labels = (SCALE * x @ t.T).softmax(-1)
    few, many = (proxies(x, t, labels, 4 / SCALE, steps) for steps in (200, 1_000_000))
    torch.testing.assert_close(few, many, rtol=0, atol=1e-9)
    torch.testing.assert_close(few.norm(dim=1), torch.ones(5).double())


def test_a_class_without_images_has_a_zero_column():
    """A = columns (.8, .15, .05), (.3, .6, .1), 0: one round by hand."""
    P = torch.tensor([[0.8, 0.15, 0.05], [0.3, 0.6, 0.1]]).double()
    A = np.array([[0.8, 0.3, 0.0], [0.15, 0.6, 0.0], [0.05, 0.1, 0.0]])
    np.testing.assert_allclose(debiased(P.log(), rounds=1), np.log(power(A)), atol=1e-9)
    same = torch.zeros(4, 3)
    assert not debiased(same).any()  # nothing is told apart


# --------------------------------------------------------------------------- what it does


def test_fits_come_at_the_first_and_when_the_stream_has_grown():
    method, fits = FrolicReleased(steps=1, first=8, growth=0.5, window=20), []
    for s in ALL:
        method.learn(s)
        fits.append(int(method.state_dict()["fitted"]))
    assert sorted(set(fits)) == [0, 8, 12, 18, 27]
    assert fits[7:9] == [8, 8]
    state = method.state_dict()
    assert state["window"].shape == (20, 9)
    torch.testing.assert_close(state["window"][-1], ALL[-1].features[0])
    every = FrolicReleased(steps=1, first=1, growth=0.0)
    for n, s in enumerate(ALL[:5], start=1):
        every.learn(s)
        assert int(every.state_dict()["fitted"]) == n


def test_before_the_first_fit_it_is_zero_shot():
    method = FrolicReleased(first=8)
    for s in ALL[:7]:
        torch.testing.assert_close(
            method.step(s).probs, s.logits[0].softmax(-1), atol=1e-5, rtol=1e-4
        )
    assert not torch.allclose(method.step(ALL[7]).probs, ALL[7].logits[0].softmax(-1), atol=1e-2)


# --------------------------------------------------------------------------- state


def test_merging_joins_the_windows_and_makes_a_fit_due():
    a, b = FrolicReleased(window=16, **SMALL), FrolicReleased(window=16, **SMALL)
    for s in ALL[:10]:
        a.learn(s)
    for s in ALL[10:20]:
        b.learn(s)
    a.merge(b)
    state = a.state_dict()
    assert (int(state["seen"]), int(state["fitted"])) == (20, 0)
    last = torch.stack([s.features[0] for s in ALL[4:20]])
    torch.testing.assert_close(state["window"], last, rtol=0, atol=0)
    a.learn(ALL[20])
    state = a.state_dict()
    assert int(state["fitted"]) == 21
    w, bias = a.fit(state["window"], ALL[0].class_weights, SCALE)
    torch.testing.assert_close((state["proxies"], state["bias"]), (w, bias), rtol=0, atol=0)


def test_loading_is_checked_and_a_loaded_copy_continues_identically():
    method, copied = FrolicReleased(**SMALL), FrolicReleased(**SMALL)
    for s in ALL[:20]:
        method.learn(s)
    good = method.state_dict()
    for bad in (
        good | {"window": good["window"][1:]},
        good | {"fitted": good["seen"] + 1},
    ):
        with pytest.raises(StateError):
            method.load_state_dict(bad)
        torch.testing.assert_close(method.state_dict(), good, rtol=0, atol=0)
    copied.load_state_dict(good)
    for s in ALL[20:]:
        assert torch.equal(copied.step(s).probs, method.step(s).probs)
