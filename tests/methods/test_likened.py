"""`adte-open` against its definition, written anew in NumPy, and what it must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.testing import assert_close

import oracle
from adte import Sample, create_method
from adte.bias import Sums, frequencies, joint
from adte.errors import InputError

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
        out.append(Sample(SCALE * features @ weights.T, features, weights, SCALE))
    return out, labels.tolist()


def naive(samples: list[Sample], share: float) -> list[Array]:
    """All images before each are looked at anew."""
    out, features, answers = [], [], []
    L = samples[0].logits.shape[1]
    predicted: list[Array] = []
    for sample in samples:
        z, x = sample.logits.numpy(), sample.features.numpy()  # type: ignore[union-attr]
        n = len(features)
        r = np.array(answers).reshape(-1, L)
        total, logs = (np.sum(x, 0) + np.zeros(L) for x in (predicted, np.log(predicted)))
        sums = Sums(total, r.sum(0), (r * r).sum(0), np.zeros(L), logs)
        known = joint(sums, n)
        _, g = frequencies(sums.answers, sums.squares, n)

        def mixed(z: Array) -> tuple[Array, Array]:
            p = oracle.softmax(z)
            w = np.exp((p * np.log(p)).sum(-1))
            return p, w / w.sum()

        p, w = mixed(z)
        item = w @ p
        feature = w @ x
        feature = feature / np.linalg.norm(feature)
        adjusted, weights = mixed(z - known.bias + known.shown if n else z)
        said = (1 - share) * (weights @ adjusted) + share * adjusted[0]
        likeness = np.zeros(L)
        if n:
            m = np.mean(features, 0)
            for c in range(L):
                mine = [(a[c], f) for a, f in zip(answers, features, strict=True)
                        if (a > a[c]).sum() < 16]  # fmt: skip
                count = sum(a for a, _ in mine)
                middle = sum((a * (f - m) for a, f in mine), np.zeros_like(m)) / (count + 1)
                likeness[c] = middle @ (feature - m)
        score = np.log(said) + 0.3 * SCALE * g**2 * likeness
        out.append(oracle.softmax(score / (1 + g**2 / 3)))
        answers.append(oracle.softmax(np.log(item) - known.bias + known.shown / 2))
        predicted.append(item)
        features.append(feature)
    return out


@pytest.mark.parametrize(("classes", "shown", "views"), [(8, 2, 1), (30, 3, 4)])
def test_it_is_what_its_docstring_says(classes: int, shown: int, views: int) -> None:
    samples, _ = stream(classes, 25, shown, views)
    method = create_method("adte-open")
    for sample, want in zip(samples, naive(samples, 5 / (5 + classes)), strict=True):
        assert_close(method.step(sample).probs.double(), torch.from_numpy(want),
                     rtol=1e-3, atol=1e-5)  # fmt: skip


def accuracy(name: str, samples: list[Sample], labels: list[int], **options: Any) -> float:
    method = create_method(name, **options)
    said = [method.step(s).index for s in samples]
    return float(np.mean(np.array(said) == np.array(labels)))


def test_images_tell_like_names_apart() -> None:
    """Ten of 200 names are shown, and an image is as far from its text as from its neighbours."""
    found = [
        [accuracy(name, *stream(200, 300, 10, dim=32, spread=0.2, seed=s))
         for name in ("adte", "adte-open")]
        for s in range(4)
    ]  # fmt: skip
    plain, opened = np.mean(found, 0)
    assert opened > plain + 0.01


def test_where_all_classes_are_shown_it_is_nearly_the_default() -> None:
    samples, _ = stream(6, 80, 6)
    plain, opened = create_method("adte"), create_method("adte-open")
    apart = [(plain.step(s).probs - opened.step(s).probs).abs().max() for s in samples]
    assert apart[0] == 0  # nothing is known of frequencies yet
    assert torch.stack(apart).mean() < 0.02


def test_who_knows_the_frequencies_to_be_equal_gets_the_default() -> None:
    samples, _ = stream(20, 40, 2)
    plain, opened = (create_method(n, frequencies="equal") for n in ("adte", "adte-open"))
    for sample in samples:
        assert torch.equal(plain.step(sample).probs, opened.step(sample).probs)


def test_nothing_counts_but_the_prior_without_likeness() -> None:
    samples, _ = stream(20, 40, 2)
    plain, opened = create_method("adte"), create_method("adte-open", likeness=0.0)
    for sample in samples:
        assert plain.step(sample).index == opened.step(sample).index


@pytest.mark.parametrize(
    ("options", "word"),
    [({"likeness": -1.0}, "likeness"), ({"likeness": float("nan")}, "likeness"),
     ({"estimator": "marginal"}, "joint"), ({"adjust": "none"}, "adjustment")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        create_method("adte-open", **options)
