"""The default against its definition, written anew in NumPy, and what it must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.testing import assert_close

import oracle
from adte import Sample, create_method
from adte.batch import Batch, Context
from adte.bias import Sums, frequencies, joint
from adte.errors import InputError
from adte.methods.likeness import (
    all_at_once,
    one_by_one,
    read_at_once,
    read_one_by_one,
    settled,
)

Array = NDArray[np.float64]
SCALE = 20.0


def stream(
    classes: int,
    images: int,
    shown: int,
    views: int = 1,
    dim: int = 12,
    spread: float = 0.1,
    seed: int = 0,
    scale: float = SCALE,
) -> tuple[list[Sample], list[int]]:
    """Images of some classes; the texts of pairs of classes lie close together."""
    rng = np.random.default_rng(seed)
    text = rng.normal(size=(classes, dim))
    text[1::2] = text[: 2 * (classes // 2) : 2] + 0.15 * rng.normal(size=(classes // 2, dim))
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    own = text + 0.15 * rng.normal(size=text.shape)  # where a class's images really are
    labels = rng.integers(0, shown, images) * (classes // shown)
    out = []
    for label in labels:
        x = own[label] + spread * rng.normal(size=(views, dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        features, weights = torch.from_numpy(x), torch.from_numpy(text)
        out.append(Sample(scale * features @ weights.T, features, weights, scale))
    return out, labels.tolist()


def naive(samples: list[Sample], share: float) -> list[Array]:
    """All images before each are looked at anew."""
    out, features, answers = [], [], []
    L = samples[0].logits.shape[1]
    predicted: list[Array] = []
    counted: list[set[int]] = []
    for sample in samples:
        z, x = sample.logits.numpy(), sample.features.numpy()  # type: ignore[union-attr]
        n = len(features)
        r = np.array(answers).reshape(-1, L)
        total, logs = (np.sum(x, 0) + np.zeros(L) for x in (predicted, np.log(predicted)))
        sums = Sums(total, r.sum(0), (r * r).sum(0), np.zeros(L), logs)
        known = joint(sums)
        _, g = frequencies(sums)

        def mixed(z: Array) -> tuple[Array, Array]:
            p = oracle.softmax(z)
            w = np.exp((p * np.log(p)).sum(-1))
            return p, w / w.sum()

        p, w = mixed(z)
        item = w @ p
        feature = w @ x
        feature = feature / np.linalg.norm(feature)
        seen_as = np.log(item) - known.bias + known.shown
        uneven, part = oracle.among(
            np.log(item), known.bias - known.shown, sums.answers, sums.squares, known.shown, g
        )
        adjusted, weights = mixed(z - uneven if n else z)
        said = (1 - share) * (weights @ adjusted) + share * adjusted[0]
        likeness = np.zeros(L)
        likely = np.argsort(-seen_as)[:16]
        if n:
            m = np.mean(features, 0)
            for c in likely:
                mine = [(a[c], f) for a, f, k in zip(answers, features, counted, strict=True)
                        if c in k]  # fmt: skip
                count = sum(a for a, _ in mine)
                middle = sum((a * (f - m) for a, f in mine), np.zeros_like(m)) / (count + 1)
                likeness[c] = middle @ (feature - m)
        h = max(g * part, (float((r * r).sum()) / (n + 5)) ** 2)
        score = np.log(said) + 0.3 * SCALE * h**2 * likeness
        out.append(oracle.softmax(score / (1 + h**2 / 3)))
        answers.append(oracle.softmax(np.log(item) - known.bias + known.shown / 2))
        counted.append(set(likely.tolist()))
        predicted.append(item)
        features.append(feature)
    return out


@pytest.mark.parametrize(
    ("classes", "shown", "views"), [(8, 2, 1), (30, 3, 4), (9, 9, 2), (60, 5, 2), (60, 20, 2)]
)
def test_it_is_what_its_docstring_says(classes: int, shown: int, views: int) -> None:
    samples, _ = stream(classes, 25, shown, views)
    method = create_method("adte")
    for sample, want in zip(samples, naive(samples, 2 / (2 + classes)), strict=True):
        assert_close(method.step(sample).probs.double(), torch.from_numpy(want),
                     rtol=1e-3, atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
def test_products_over_a_batch_say_what_a_loop_says(first: bool) -> None:
    g = torch.Generator().manual_seed(0)
    L, D, B, K = 40, 8, 10, 5
    answers = torch.rand(B, L, generator=g, dtype=torch.float64).softmax(-1)
    classes = answers.topk(K).indices
    x = torch.nn.functional.normalize(torch.randn(B, D, generator=g), dim=-1)
    start = {
        "like.sums": torch.randn(L, D, generator=g),
        "like.counts": torch.rand(L, generator=g) * 3,
        "like.total": torch.randn(D, generator=g).double() * 4,
    }
    loop, together = ({k: v.clone() for k, v in start.items()} for _ in range(2))
    one = one_by_one(loop, x, answers, classes, 7, first)
    settled(loop)
    assert_close(all_at_once(together, x, answers, classes, 7, first), one)
    assert_close(together, loop)
    assert_close(read_at_once(loop, x, classes, 17), read_one_by_one(loop, x, classes, 17))


@pytest.mark.parametrize("images", [1, 6])
def test_a_step_that_fails_changes_nothing_though_little_is_copied(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image changes few rows of what is by far the largest part of the state."""
    samples, _ = stream(40, 30, shown=5, views=2)
    method = create_method("adte")
    method.step_many(samples[:20])
    assert method._state is not None
    where, before = method._state["like.sums"].data_ptr(), method.state_dict()
    batch = Batch.join([s.batch for s in samples[20 : 20 + images]])
    with monkeypatch.context() as m:
        m.setattr(type(method), "decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            method.step(batch)
    assert_close(method.state_dict(), before, rtol=0, atol=0)
    method.step(batch)
    assert method._state["like.sums"].data_ptr() == where
    assert set(method._state) == set(before)
    changed = (method.state_dict()["like.sums"] != before["like.sums"]).any(1)
    assert 0 < int(changed.sum()) <= 16 * images


def test_a_step_that_is_refused_changes_no_sums() -> None:
    samples, _ = stream(40, 12, shown=5, views=2)
    method = create_method("adte")
    method.step_many(samples[:10])
    before, decide = method.state_dict(), method.decide

    def spoil(batch: Batch, readouts: Any) -> Any:
        batch.logits.add_(1)
        return decide(batch, readouts)

    method.decide = spoil  # type: ignore[method-assign]
    with pytest.raises(InputError, match="in place"):
        method.step(samples[10])
    assert_close(method.state_dict(), before, rtol=0, atol=0)


def test_an_image_counts_after_a_hundred_million() -> None:
    samples, _ = stream(20, 2, 2)
    method = create_method("adte")
    method.step(samples[0])
    state = method.state_dict()
    many = {"like.total": state["like.total"] * 1e8, "prior.seen": torch.tensor(10**8)}
    method.load_state_dict(state | many)
    method.step(samples[1])
    x = torch.nn.functional.normalize(samples[1].features[0], dim=-1)  # type: ignore[index]
    taken = method.state_dict()["like.total"] - many["like.total"]
    assert_close(taken, x.double(), rtol=1e-3, atol=1e-6)


def accuracy(samples: list[Sample], labels: list[int], **options: Any) -> float:
    method = create_method("adte", **options)
    said = [method.step(s).index for s in samples]
    return float(np.mean(np.array(said) == np.array(labels)))


def test_images_tell_like_names_apart() -> None:
    """Ten of 200 names are shown, and an image is as far from its text as from its neighbours."""
    found = [
        [accuracy(*stream(200, 300, 10, dim=32, spread=0.2, seed=s), likeness=share)
         for share in (0.0, 0.3)]
        for s in range(4)
    ]  # fmt: skip
    without, likened = np.mean(found, 0)
    assert likened > without + 0.01


@pytest.mark.parametrize("frequencies", ["auto", "equal"])
def test_where_answers_are_sure_images_tell_names_apart_though_all_are_shown(
    frequencies: str,
) -> None:
    found = [
        [accuracy(*stream(20, 400, 20, dim=32, seed=s, scale=100.0), likeness=share,
                  frequencies=frequencies)
         for share in (0.0, 0.3)]
        for s in range(4)
    ]  # fmt: skip
    without, likened = np.mean(found, 0)
    assert likened > without + 0.01


def test_where_all_classes_are_shown_and_answers_unsure_likeness_is_next_to_nothing() -> None:
    samples, _ = stream(6, 80, 6)
    without, likened = create_method("adte", likeness=0), create_method("adte")
    apart = [(without.step(s).probs - likened.step(s).probs).abs().max() for s in samples]
    assert apart[0] == 0  # nothing is known of frequencies yet
    assert torch.stack(apart).mean() < 0.02


@pytest.mark.parametrize(
    "options",
    [{"likeness": 0.0}, {"estimator": "marginal"}, {"adjust": "none"}],
    ids=str,
)
def test_what_leaves_likeness_out_keeps_no_features(options: dict[str, Any]) -> None:
    """And says what it says of logits alone."""
    samples, _ = stream(20, 40, 2)
    likened, alone = create_method("adte", **options), create_method("adte", **options)
    for sample in samples:
        found, want = likened.step(sample), alone.step(Sample(sample.logits))
        assert torch.equal(found.probs, want.probs)
    assert not any(k.startswith("like.") for k in likened.state_dict())
    assert likened.step(Sample(samples[0].logits)).probs.shape == (20,)  # and takes either


def test_logits_alone_are_predicted_without_likeness() -> None:
    samples, _ = stream(20, 40, 2)
    alone, without = create_method("adte"), create_method("adte", likeness=0)
    for sample in samples:
        assert torch.equal(alone.step(Sample(sample.logits)).probs, without.step(sample).probs)
    assert alone.state_dict()["like.sums"].shape == (20, 0)
    with pytest.raises(InputError, match=r"0 feature dimensions \(0: logits alone\).* one of 12"):
        alone.step(samples[0])


def test_the_features_of_a_model_of_fixed_classes_are_its_logits_and_are_not_likened() -> None:
    samples, _ = stream(20, 5, 2)
    fixed, without = create_method("adte"), create_method("adte", likeness=0)
    for sample in samples:
        logits = sample.logits[None]
        batch = Batch(logits, logits, None, Context(unit=False))
        assert torch.equal(fixed.step(batch).probs[0], without.step(sample).probs)


@pytest.mark.parametrize("share", [-1.0, float("nan"), float("inf")])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="likeness"):
        create_method("adte", likeness=share)
