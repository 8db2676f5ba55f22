"""Bias or frequency: the joint estimate against one written anew in NumPy, and what it must do."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

import oracle
from adte import Sample, create_method
from adte.batch import Batch
from adte.bias import (
    Sums,
    by_chance,
    concentration,
    elsewhere,
    frequencies,
    joint,
    redescending,
    take_in,
)
from adte.bias.host import _itself, _tilt
from adte.errors import InputError
from adte.prior import ClassPrior, PriorOptions, shares
from adte.prior import joint as room

Array = NDArray[np.float64]


# --------------------------------------------------------------------------- the oracle


def naive_redescending(x: Array, k: float) -> Array:
    x = x - np.median(x)
    unit = 1.4826 * np.median(np.abs(x))
    out = []
    for value in x:
        u = value / unit if unit else math.copysign(math.inf, value)
        if u > k:
            u = max(0.0, 2 * k - u)
        out.append(max(u, -k) * unit if unit else 0.0)
    return np.array(out)


def naive_tilt(u: Array, goal: float) -> float:
    """The slope at which the mean of u is the goal, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        half = (low + high) / 2
        low, high = (half, high) if oracle.softmax(half * u) @ u < goal else (low, half)
    return low


def naive_chance(answers: list[Array], logs: Array, whole: float, known: float) -> float:
    """How often two images agree by what the model favours."""
    L, n = len(logs), len(answers)
    said = []
    for label in range(L):
        r = [answer[label] for answer in answers]
        says = sum(x * x for x in r) / sum(r)
        own = sum(r) / says
        left = logs[label] - own * max(math.log(says), -40)
        said.append(min(0.0, left / max(whole - own, whole / 4)))

    u = np.array(said)
    slope = naive_tilt(u, float(np.mean(answers, 0) @ u))
    agreed = sum(answers[i] @ answers[j] for i in range(n) for j in range(i))
    kinds = (n * (n - 1) / 2 + 2 * min(L, 100)) / (agreed + 2)
    t = oracle.softmax(slope * (1 - known) * kinds**3 / (kinds**3 + 25**3) * u)
    return float(t @ t)


def naive_log_prior(
    seen: list[Array], answers: list[Array], before: Array | None = None, logs: float | Array = 0.0
) -> tuple[Array, Array]:
    """log p̃ from all predictions and answers so far, pair by pair; and b − ½ f.

    `before` are predictions that the stream was begun with, their sum; `logs` that of their logs.
    """
    L, n = len(seen[0]), len(seen)
    others = np.zeros(L) if before is None else before
    known = (others.sum() / (others.sum() + n)) ** 2
    sure = ((L * np.mean([r @ r for r in answers]) - 1) / (L - 1)) ** (
        (1 - known) * 0.5 ** (L / 20)
    )

    def told(agreed: float, pairs: float) -> float:
        """The excess that would be there if answers were sure."""
        c = (2 + agreed) / (2 + pairs * chance)
        return min(1 + (c - 1) / sure, L) if c > 1 else c

    logs = np.sum(np.log(seen), 0) + logs
    agreed, chance = sum(answers[i] @ answers[j] for i in range(n) for j in range(i)), 1 / L
    if told(agreed, n * (n - 1) / 2) > 1:
        chance = naive_chance(answers, logs, others.sum() + n, known)
    c = told(agreed, n * (n - 1) / 2)
    trust = max(0.0, 1 - 1 / c)
    held = np.array([min(1.0, 2 * max(n / L, 1.0) / x) for x in np.sum(answers, 0)])
    parts = [held * answer for answer in answers]
    agreed, m = sum(parts[i] @ parts[j] for i in range(n) for j in range(i)), np.sum(parts)
    rest = told(agreed, max(m, 1.0) * (max(m, 1.0) - 1) / 2)
    alpha = (1 - rest / L) / (rest - 1) if rest > 1 else 1e3
    alpha = min(max(alpha, 0.05), 1e3)
    pi = (np.sum(answers, 0) + alpha) / (n + L * alpha)
    shown = (known + (1 - known) * trust) * np.log(L * pi) * (trust > 0)
    extra = max(1.0 * max(c, 1), 20 / L)
    smooth = np.log((np.sum(answers, 0) + extra) / (n / L + extra))
    shape = np.ones(L)
    for _ in range(3):
        uneven = np.log(others + np.sum(seen, 0) + extra * shape)
        uneven -= known * trust * smooth + (1 - known) * trust / 2 * smooth
        slope = max(0.0, np.cov(uneven, logs)[0, 1] / np.var(logs, ddof=1)) * (1 - trust)
        shape = np.exp(slope * L / (L + 40) * (logs - logs.mean()))
        shape /= shape.mean()
    uneven = uneven - np.median(uneven)
    cut = min(1.0, 2 * trust)
    bias = (1 - cut) * uneven + cut * naive_redescending(uneven, 2.0)
    return np.log(oracle.softmax(bias - shown)), bias - shown / 2


def items(classes: int, n: int, seed: int, shown: int | None = None) -> Array:
    """Log-predictions of a biased model on a stream that shows some of the classes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, shown or classes, n)
    z = rng.normal(size=(n, classes)) + 0.7 * rng.normal(size=classes)
    z[np.arange(n), label] += 5
    return np.log(oracle.softmax(z))


@pytest.mark.parametrize(("classes", "shown"), [(2, 2), (5, 5), (10, 2), (40, 5), (101, 101)])
def test_joint_matches_pairs_counted_one_by_one(classes: int, shown: int) -> None:
    prior = ClassPrior(classes, PriorOptions(estimator="joint"))
    seen: list[Array] = []
    answers: list[Array] = []
    labels = np.zeros(classes)
    for row in items(classes, 60, classes, shown):
        flat = np.full(classes, -np.log(classes))
        want, half = naive_log_prior(seen, answers) if seen else (flat, flat)
        np.testing.assert_allclose(prior.log_prior, want, atol=1e-9)
        prior.observe(torch.from_numpy(row))
        seen.append(np.exp(row))
        answers.append(oracle.softmax(row - half))
        labels[np.argmax(row - want)] += 1
    assert int(prior.state["seen"]) == 60
    np.testing.assert_allclose(prior.state["answers"], np.sum(answers, 0), rtol=1e-9)
    np.testing.assert_allclose(prior.state["squares"], np.square(answers).sum(0), rtol=1e-9)
    np.testing.assert_array_equal(prior.state["labels"], labels)


@pytest.mark.parametrize("shown", [1, 3, 12])
def test_a_stream_that_was_begun_matches_the_oracle(shown: int) -> None:
    """What is known of the bias leaves the frequencies to be told."""
    prior = ClassPrior(12, PriorOptions(estimator="joint"))
    for row in items(12, 50, 1):
        prior.observe(torch.from_numpy(row))
    logs = prior.state["logs"].numpy().copy()
    prior.options.begin(prior.state)
    before = prior.state["total"].numpy().copy()
    np.testing.assert_allclose(before.sum(), 50)
    seen: list[Array] = []
    answers: list[Array] = []
    for row in items(12, 40, 2, shown):
        if seen:
            want, half = naive_log_prior(seen, answers, before, logs)
            np.testing.assert_allclose(prior.log_prior, want, atol=1e-9)
        else:
            half = prior.log_prior.numpy()
        prior.observe(torch.from_numpy(row))
        seen.append(np.exp(row))
        answers.append(oracle.softmax(row - half))


def test_with_the_bias_known_frequencies_are_believed_sooner() -> None:
    """Two classes of ten, behind a bias that hides them: begun with it, they are found."""
    stream = items(10, 30, 7, shown=2)
    cold, warm = (ClassPrior(10, PriorOptions(estimator="joint")) for _ in range(2))
    for row in items(10, 500, 7):
        warm.observe(torch.from_numpy(row))
    warm.options.begin(warm.state)
    start = warm.log_prior
    for row in torch.from_numpy(stream):
        cold.observe(row)
        warm.observe(row)
    gained = (x[2:].mean() - x[:2].mean() for x in (cold.log_prior, warm.log_prior - start))
    assert next(gained) + 0.5 < next(gained)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 31])
def test_redescending_matches_its_definition(size: int) -> None:
    for seed in range(10):
        x = np.random.default_rng(seed).standard_t(2, size)
        whole = naive_redescending(x, 2.0)
        np.testing.assert_allclose(redescending(x, 2.0), whole, atol=1e-12)
        np.testing.assert_allclose(redescending(x, 2.0, 0.5), whole, atol=1e-12)
        np.testing.assert_allclose(redescending(x, 2.0, 0.0), x - np.median(x), atol=1e-12)
        half = (whole + x - np.median(x)) / 2
        np.testing.assert_allclose(redescending(x, 2.0, 0.25), half, atol=1e-12)


def test_where_half_of_the_classes_are_alike_nothing_passes_for_bias() -> None:
    x = np.array([0.0, 0.0, 0.0, 5.0, -3.0])
    assert not redescending(x, 2.0).any()
    np.testing.assert_array_equal(redescending(x, 0.0), x)


def soft_answer(z: Array, log_prior: Array, base: float) -> Array:
    """All views weighed by exp(−H), and the base view's share, in loops."""
    P = [oracle.softmax(view - log_prior) for view in z]
    weights = np.array([math.exp(sum(x * math.log(x) for x in p)) for p in P])
    mean = sum(w * p for w, p in zip(weights / weights.sum(), P, strict=True))
    share = base / (base + z.shape[1])
    return (1 - share) * mean + share * P[0]


def test_the_default_is_what_its_docstring_says() -> None:
    """Image by image: what an image says, the prior by then, the answer."""
    rng = np.random.default_rng(4)
    L, seen, answers = 6, [], []
    method = create_method("adte")
    flat = np.full(L, -math.log(L))
    for n in range(25):
        z = 2 * rng.normal(size=(7, L)) + rng.normal(size=L) + np.eye(L)[n % 2] * 3
        want, half = naive_log_prior(seen, answers) if seen else (flat, flat)
        got = method.step(Sample(torch.from_numpy(z)))
        np.testing.assert_allclose(got.probs, soft_answer(z, want, 2.0), atol=1e-6)
        if seen:
            np.testing.assert_allclose(got.prior, np.exp(want), atol=1e-6)
        else:
            assert got.prior is None
        item = soft_answer(z, np.zeros(L), 0.0)
        seen.append(item)
        answers.append(oracle.softmax(np.log(item) - half))


# --------------------------------------------------------------------------- what it must do


def sums_of(prior: ClassPrior) -> Sums:
    return Sums(*(prior.state[name].numpy() for name in Sums._fields))


def summed(answers: Array) -> Sums:
    """Of a stream whose predictions are its answers (n, L)."""
    n = answers.sum(0)
    return Sums(n, n, (answers**2).sum(0), n, np.log(np.maximum(answers, 1e-17)).sum(0))


def test_concentration_is_the_classes_over_those_in_use() -> None:
    for used in (1, 5, 50):
        found = concentration(summed(np.eye(50)[np.arange(2000) % used]))
        assert found == pytest.approx(50 / used, rel=0.03)


@pytest.mark.parametrize("used", [2, 5, 10])
@pytest.mark.parametrize("top", [0.4, 0.8])
def test_unsure_answers_hide_no_frequencies(used: int, top: float) -> None:
    """Ten classes, each image's own with `top` and the others alike: the classes in use show."""
    answers = np.full((10, 10), (1 - top) / 9)
    np.fill_diagonal(answers, top)
    answers = np.repeat(answers[:used], 2000 // used, 0)
    found = concentration(summed(answers))
    as_they_are = 10 * (answers.mean(0) ** 2).sum()
    assert as_they_are - 1 <= 0.63 * (10 / used - 1) + 1e-9
    assert found - 1 == pytest.approx(10 / used - 1, rel=0.5, abs=0.01)


def test_answers_that_say_nothing_say_nothing_of_frequencies() -> None:
    alike = summed(np.full((50, 6), 1 / 6))
    for part in (1, 1 - 1e-12):
        log_pi, trust = frequencies(alike._replace(squares=part * alike.squares))
        assert abs(log_pi).max() < 1e-9
        assert trust < 1e-9


def test_frequencies_that_are_equal_are_not_trusted() -> None:
    log_pi, trust = frequencies(summed(np.repeat(np.eye(20), 7, 0)))
    assert trust == 0
    assert not log_pi.any()


def test_few_that_stand_out_say_nothing_of_the_others() -> None:
    """Two classes make half of a stream, 98 the rest, alike: none of those is taken for rare."""
    counts = np.concatenate([[98, 98], np.tile([1, 2, 3], 33)[:98]])
    log_pi, trust = frequencies(summed(np.repeat(np.eye(100), counts, 0)))
    assert trust > 0.9
    assert log_pi[:2].min() > log_pi[2:].max()
    assert log_pi[2:].min() > -0.1
    few = np.eye(100)[np.arange(196) % 2]  # the others are not shown at all
    log_pi, _ = frequencies(summed(few))
    assert log_pi[2:].max() < -1.5


@pytest.mark.parametrize("seed", range(5))
def test_what_a_model_favours_in_all_images_is_no_frequency(seed: int) -> None:
    """A model that lost its way calls much by few names; a stream of few classes is told from it.

    Images agree as often in the one as in the other.
    """
    rng = np.random.default_rng(seed)
    L, n = 300, 400
    noise, few = rng.normal(size=(n, L)), np.arange(L) < 30
    lost = noise + 4 * few + 4 * np.eye(L)[rng.integers(0, L, n)]
    shown = noise + 5 * np.eye(L)[rng.integers(0, 15, n)]
    trusts = []
    for z in (lost, shown):
        prior = ClassPrior(L, PriorOptions(estimator="joint"))
        for row in torch.from_numpy(np.log(oracle.softmax(z))):
            prior.observe(row)
        trusts.append(frequencies(sums_of(prior))[1])
    pairs = [
        L * np.triu(p @ p.T, 1).sum() / (n * (n - 1) / 2)
        for p in map(oracle.softmax, (lost, shown))
    ]
    assert min(pairs) > 2, pairs
    assert pairs[0] > pairs[1], pairs
    assert trusts[0] < 0.1 < 0.4 < trusts[1], trusts


@pytest.mark.parametrize(("classes", "sure"), [(300, 6.0), (1000, 7.0), (1000, 9.0)])
def test_a_stream_of_one_class_is_no_bias(classes: int, sure: float) -> None:
    """All images then say the same, from the first on; and go on being right."""
    rng = np.random.default_rng(classes)
    z = rng.normal(size=(120, classes))
    z[:, :3] += 2  # like names
    z[:, 0] += sure - 2
    prior = ClassPrior(classes, PriorOptions(estimator="joint"))
    right = []
    for row in np.log(oracle.softmax(z)):
        right.append(int(np.argmax(row - prior.log_prior.numpy())) == 0)
        prior.observe(torch.from_numpy(row))
    assert np.mean(right) >= np.mean(z.argmax(1) == 0)
    assert frequencies(sums_of(prior))[1] > 0.8


def test_the_slope_is_found_wherever_it_is() -> None:
    """Newton alone goes from one end to the other where few classes stand far above the rest."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        classes = int(rng.integers(2, 500))
        u = np.minimum(rng.choice([0.01, 0.3, 2, 8]) * rng.normal(size=classes) - 5, 0)
        u[: rng.integers(0, 4)] = 0
        goal = float(rng.dirichlet(np.full(classes, rng.choice([0.01, 0.1, 1]))) @ u)
        assert _tilt(u, goal) == pytest.approx(naive_tilt(u, goal), abs=1e-7)


def test_where_nothing_was_seen_chance_is_that_of_equal_frequencies() -> None:
    none = np.zeros(8)
    for sums in (Sums(*[none] * 5), Sums(none + 5, none, none, none, none - 90)):  # or begun
        assert by_chance(sums) == 1 / 8
        assert np.isfinite(elsewhere(sums)).all()


def test_what_images_say_of_classes_that_they_are_not_of() -> None:
    """Images of two classes, and of a third that is not shown; all hold the first for likely."""
    mine, other = [0.90, 0.01, 0.09], [0.30, 0.69, 0.01]
    first, second, third = elsewhere(summed(np.array([mine, other] * 20)))
    assert first == pytest.approx(math.log(0.30), abs=0.5)
    assert second == pytest.approx(math.log(0.01), abs=0.5)
    assert third == pytest.approx(math.log(0.01), abs=0.7)
    alone = elsewhere(summed(np.array([mine] * 40)))  # nobody is of another class
    assert np.isfinite(alone).all()


@pytest.mark.parametrize("seed", range(5))
def test_classes_hardly_seen_are_told_by_what_all_images_say_of_them(seed: int) -> None:
    """An image for every third class: log p of all of them shows the bias before M can."""
    rng = np.random.default_rng(seed)
    L, n = 300, 100
    truth = rng.normal(size=L)
    z = rng.normal(size=(n, L)) + truth + 5 * np.eye(L)[rng.permutation(L)[:n]]
    prior = ClassPrior(L, PriorOptions(estimator="joint"))
    for row in torch.from_numpy(np.log(oracle.softmax(z))):
        prior.observe(row)
    sums = sums_of(prior)
    with_logs = np.corrcoef(truth, joint(sums).bias)[0, 1]
    without = np.corrcoef(truth, joint(sums._replace(logs=np.zeros(L))).bias)[0, 1]
    assert with_logs > without + 0.05, (with_logs, without)


def test_logs_that_tell_another_tale_are_not_followed() -> None:
    """The slope is counted, and is nought where M falls as G rises."""
    rng = np.random.default_rng(0)
    total = rng.random(50) * 4
    flat, logs = np.full(50, 2.0), -10 * total
    sums = Sums(total, flat, flat / 50, flat, logs)
    np.testing.assert_array_equal(joint(sums).bias, joint(sums._replace(logs=0 * logs)).bias)


def test_a_few_images_change_little() -> None:
    prior = ClassPrior(1000, PriorOptions(estimator="joint"))
    for row in items(1000, 3, 0):
        prior.observe(torch.from_numpy(row))
    assert float((prior.log_prior + math.log(1000)).abs().max()) < 0.1


def told(given: str, stream: Array) -> torch.Tensor:
    prior = ClassPrior(stream.shape[1], PriorOptions(estimator="joint", frequencies=given))
    for row in stream:
        prior.observe(torch.from_numpy(row))
    return prior.log_prior


def test_classes_that_no_answer_has_are_no_trouble_without_smoothing() -> None:
    """Logits far apart, unscaled ones say, leave a probability of exactly nothing."""
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 1, 20))) * 2000
    z[:, :, :2] += 6000
    method = create_method("adte", smoothing=0, smoothing_total=0)
    method.step(Batch(z[:30]))
    assert (method.state_dict()["prior.answers"] == 0).any()
    assert method.step(Batch(z[30:])).probs.isfinite().all()


def test_what_the_user_knows_of_the_frequencies_decides() -> None:
    """Two classes of forty come. If all are equally frequent, the model must favour the two."""
    stream = items(40, 150, 3, shown=2)
    equal, auto, come = (told(g, stream) for g in ("equal", "auto", "as-they-come"))
    assert float(equal[:2].min()) > float(equal[2:].median())
    assert float(auto[:2].max()) < float(auto[2:].min())
    assert float(come[:2].max()) < float(come[2:].min())
    with pytest.raises(InputError, match="frequencies"):
        PriorOptions(frequencies="often")  # type: ignore[arg-type]


def test_equal_frequencies_leave_the_bias_alone() -> None:
    """On a stream of equally frequent classes it ranks them by the model's own bias."""
    rng = np.random.default_rng(0)
    bias = rng.normal(size=20)
    z = rng.normal(size=(2000, 20)) + bias
    z[np.arange(2000), np.arange(2000) % 20] += 3
    found = told("auto", np.log(oracle.softmax(z)))
    assert np.corrcoef(found, bias)[0, 1] > 0.9


def test_merging_adds_the_sums() -> None:
    options = PriorOptions(estimator="joint")
    a, b = ClassPrior(8, options), ClassPrior(8, options)
    rows = torch.from_numpy(items(8, 40, 5, shown=3))
    for row in rows[:25]:
        a.observe(row)
    for row in rows[25:]:
        b.observe(row)
    want = {k: a.state[k] + b.state[k] for k in a.state}
    a.merge(b)
    for name, value in want.items():
        assert_close(a.state[name], value, rtol=0, atol=0)
    kept = {"seen", "total", "answers", "squares", "labels", "logs"}
    assert set(want) == kept  # linear in the classes


def test_another_stream_begins_with_the_bias_alone() -> None:
    """Learned where all classes come alike, used where two do: no worse than without."""
    model = 0.7 * np.random.default_rng(0).normal(size=40)

    def stream(n: int, shown: int, seed: int) -> torch.Tensor:
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(n, 40)) + model
        z[np.arange(n), rng.integers(0, shown, n)] += 3
        return torch.from_numpy(np.log(oracle.softmax(z)))[:, None]

    method = create_method("adte")
    method.learn(Batch(stream(2000, 40, 1)))
    assert method.class_prior is not None
    learned = method.class_prior.log_prior
    method.begin()
    state = method.state_dict()
    assert int(state["prior.seen"]) == 2000
    assert not any(state[f"prior.{name}"].any() for name in ("answers", "squares", "labels"))
    assert np.corrcoef(method.class_prior.log_prior, learned)[0, 1] > 0.99
    assert np.corrcoef(method.class_prior.log_prior, model)[0, 1] > 0.95
    before = method.state_dict()
    method.begin()  # nothing came since
    assert_close(method.state_dict(), before, rtol=0, atol=0)

    few = Batch(stream(60, 2, 2))
    kept = create_method("adte")
    kept.learn(Batch(stream(2000, 40, 1)))
    begun, went_on = (m.step(few).probs[30:, :2].sum(1).mean() for m in (method, kept))
    assert float(begun) > float(went_on) + 0.05


def test_limits_are_those_of_the_page() -> None:
    """docs/default.md: a log p counts as −40 at least, c as L at most, α is at least 0.05, …"""
    none, one = np.zeros(10), np.zeros(10)
    one[0] = 1000
    sums = Sums(*[none.copy() for _ in range(5)])
    log_p = np.where(one > 0, 0.0, -100.0)
    take_in(sums, log_p, np.exp(log_p), none, none)
    np.testing.assert_array_equal(sums.logs, np.where(one > 0, 0.0, -40.0))
    logs = np.where(one > 0, 0.0, -40e3)
    unsure = Sums(one, one, 0.15 * one, one, logs)
    assert concentration(unsure) == 10
    log_pi, _ = frequencies(Sums(one, one, one, one, logs))
    np.testing.assert_allclose(log_pi[1:], math.log(0.05 / 100.05))
    assert _itself(1.0, 10.0, 10) == pytest.approx(0.001 ** (2**-0.5))


@pytest.mark.parametrize("classes", [2, 10, 50, 200])
def test_what_rounding_leaves_is_no_bias(classes: int) -> None:
    """Every class was said as much as every other, but for the order of the sums."""
    base = np.random.default_rng(classes).normal(size=classes) * 3
    rows = np.log(oracle.softmax(np.stack([np.roll(base, i) for i in range(2 * classes)])))
    prior = ClassPrior(classes, PriorOptions(estimator="joint"))
    prior.options.learn(prior.state, torch.from_numpy(rows))
    np.testing.assert_allclose(prior.prior * classes, 1, rtol=1e-9)


def test_where_frequencies_are_equal_none_are_trusted() -> None:
    rows = torch.from_numpy(items(10, 50, 1, shown=2))
    for known in ("auto", "equal"):
        prior = ClassPrior(10, PriorOptions(estimator="joint", frequencies=known))  # type: ignore[arg-type]
        trust = prior.options.scan(prior.state, rows, False).trust
        assert trust is not None
        assert (float(trust.max()) > 0.3) == (known == "auto")
        assert bool((trust == 0).all()) == (known == "equal")


@pytest.mark.parametrize("known", ["equal", "as-they-come"])
def test_what_the_user_knows_holds_for_another_stream(known: str) -> None:
    method = create_method("adte", frequencies=known)
    method.learn(Batch(torch.from_numpy(items(10, 300, 4, shown=3))[:, None]))
    assert method.class_prior is not None
    before = method.class_prior.log_prior
    method.begin()
    after = method.class_prior.log_prior
    if known == "equal":
        assert_close(after, before)
    else:
        assert float(after.max() - after.min()) < 1e-9


def test_learn_first_reads_what_it_has_just_learned() -> None:
    z = torch.from_numpy(items(5, 12, 1))[:, None]
    first = create_method("adte", order="learn-first")
    told_ = first.step(Batch(z))
    plain = create_method("adte")
    for i in range(12):
        plain.learn(Batch(z[i : i + 1]))
        assert_close(told_[i].probs, plain.predict(Batch(z[i : i + 1]))[0].probs, rtol=0, atol=0)


KERNEL = """
import sys
import torch
sys.path[:0] = [{tests!r}]
import adte.prior.joint as room
from adte.bias.device import follow
from adte.prior import ClassPrior, PriorOptions, shares
from test_estimation import items
for classes, shown, known, clip in (
    (2, 2, "as-they-come", 2.0), (10, 2, "equal", 0.0), (131, 12, "auto", 3.0), (9, 1, "auto", 2.0)
):
    for learn_first in (False, True):
        z = torch.from_numpy(items(classes, 7, 5, shown))
        options = PriorOptions(estimator="joint", frequencies=known, clip=clip)
        host, there = (ClassPrior(classes, options).state for _ in range(2))
        for part in z.split(5):
            room.follower = lambda device: None
            want = options.scan(host, part, learn_first)
            room.follower = lambda device: follow
            got = options.scan(there, part, learn_first)
            for name in ("log_prior", "trust", "sure", "answers"):
                got_, want_ = getattr(got, name), getattr(want, name)
                torch.testing.assert_close(got_, want_, rtol=1e-7, atol=1e-7)
            options.begin(host)
            options.begin(there)
        assert host.keys() == there.keys()
        for name, value in host.items():
            torch.testing.assert_close(there[name], value, rtol=1e-9, atol=1e-9)
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_a_device_follows_the_stream_as_the_host_does() -> None:
    """The kernel, interpreted on the CPU."""
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    code = KERNEL.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("learn_first", [False, True])
@pytest.mark.parametrize("known", ["auto", "equal", "as-they-come"])
@pytest.mark.parametrize("classes", [9, 80])
def test_around_a_kernel_images_read_what_they_read_on_a_host(
    classes: int, known: str, learn_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another stream begun in between, and the host's own numbers in the kernel's place."""

    def follow(sums: Tensor, items: Tensor, smoothing: Any, clip: float) -> tuple[Tensor, ...]:
        own, rows = Sums(*sums.numpy()), []
        for item in (*items, None):
            now = joint(own, smoothing, clip)
            rows.append((now.bias, now.shown, own.total.copy(), np.array(now.trust)))
            if item is not None:
                take_in(own, item.numpy(), item.exp().numpy(), now.bias, now.shown)
        return tuple(torch.from_numpy(np.stack(x)) for x in zip(*rows, strict=True))

    options = PriorOptions(estimator="joint", frequencies=known)  # type: ignore[arg-type]
    host, there = (ClassPrior(classes, options).state for _ in range(2))
    z = oracle.of_two_kinds(120) if classes == 80 else items(classes, 24, 5, 3)
    for number, part in enumerate(torch.from_numpy(z).split(len(z) // 3)):
        monkeypatch.setattr(room, "follower", lambda device: None)
        want = options.scan(host, part, learn_first)
        monkeypatch.setattr(room, "follower", lambda device: follow)
        got = options.scan(there, part, learn_first)
        for name in ("log_prior", "trust", "sure", "answers"):
            assert_close(getattr(got, name), getattr(want, name), rtol=1e-9, atol=1e-9)
        if number == 1:
            options.begin(host)
            options.begin(there)
    assert bool((want.sure > 0).any())  # type: ignore[union-attr]
    if (classes, known) == (80, "auto"):  # asked again, each image gets its own
        assert len(want.trust.unique()) > 20  # type: ignore[union-attr]


# --------------------------------------------------------------------------- shares


def test_shares_of_sure_images_are_counts_with_the_usual_interval() -> None:
    counts = np.array([30.0, 10.0, 0.0])
    found = shares(Sums(*[counts] * 5))
    np.testing.assert_allclose(found.share, counts / 40)
    n, z = 40, 1.96
    for s, low, high in zip(*(x.tolist() for x in found), strict=True):
        centre = (s + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(s * (1 - s) / n + z * z / (4 * n * n))
        fewer = s - z * math.sqrt(s * (1 - s) / n)
        assert low == pytest.approx(max(0, min(centre - half, fewer)), abs=1e-6)
        assert high == pytest.approx(centre + half, abs=1e-6)


def test_one_image_says_little() -> None:
    one = shares(Sums(*[np.array([1.0, 0.0])] * 5))
    assert one.low.tolist() == pytest.approx([0.2065, 0], abs=1e-3)
    assert one.high.tolist() == pytest.approx([1, 0.7935], abs=1e-3)


def test_unsure_images_widen_the_interval() -> None:
    counts = np.array([30.0, 10.0])
    sure = shares(Sums(*[counts] * 5))
    unsure = shares(Sums(counts, counts, counts / 2, counts, counts))
    assert bool((unsure.high - unsure.low > sure.high - sure.low).all())
    nothing = shares(Sums(*[0 * counts] * 5))
    assert float(nothing.low.max()) == 0
    assert float(nothing.high.min()) > 0.7


def test_labels_count_as_far_as_frequencies_are_trusted() -> None:
    answers, labels = np.array([5.0, 5.0, 5.0, 5.0]), np.array([20.0, 0.0, 0.0, 0.0])
    even = shares(Sums(answers, answers, answers / 4, labels, answers))
    np.testing.assert_allclose(even.share, 0.25)
    answers = np.array([17.0, 1.0, 1.0, 1.0])
    sums = Sums(answers, answers, answers / 2, labels, answers)
    _, trust = frequencies(sums)
    assert trust > 0.5
    found = shares(sums)
    np.testing.assert_allclose(found.share, ((1 - trust) * answers + trust * labels) / 20)


def test_a_method_tells_the_shares_of_its_stream() -> None:
    method = create_method("adte")
    method.learn(Batch(torch.from_numpy(items(10, 400, 2, shown=4))[:, None]))
    assert method.class_prior is not None
    found = method.class_prior.shares
    assert found is not None
    assert float(found.share.sum()) == pytest.approx(1)
    assert float(found.share[:4].sum()) > 0.7
    assert bool(((found.low <= found.share) & (found.share <= found.high)).all())
    other = create_method("adte-tsallis")
    other.learn(Batch(torch.zeros(1, 1, 3)))
    assert other.class_prior is not None
    assert other.class_prior.shares is None


# --------------------------------------------------------------------------- the weights of views


@pytest.mark.parametrize("options", [{"soft": -1.0}, {"base": math.inf}, {"soft": math.nan}])
def test_weights_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))}="):
        create_method("se", **options)


@pytest.mark.parametrize("aggregate", ["vote", "logits"])
def test_votes_and_logits_know_no_weights(aggregate: str) -> None:
    with pytest.raises(InputError, match="no weights"):
        create_method("se", aggregate=aggregate, soft=1.0)


def test_soft_weights_of_the_kept_views_alone() -> None:
    z = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    found = create_method("se", ratio=0.5, soft=0.7).predict(Sample(z))
    assert len(found.kept) == 4
    P = z[found.kept].softmax(-1)
    w = (-found.entropy[found.kept] / 0.7).softmax(-1)
    assert_close(found.probs, w @ P)
    base = create_method("se", ratio=0.5, base=5.0).predict(Sample(z))
    assert_close(base.probs, (P.mean(0) + z[0].softmax(-1)) / 2)
