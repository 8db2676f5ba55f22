"""The paper's method and its published code, each against a NumPy version of its own algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adte import Sample, create_method
from adte.evaluate import predictions
from adte.evaluate.features.cache import Cache, bundle
from adte.methods import method_info

Array = NDArray[np.float64]
Said = tuple[list[int], Array | None, Array]  # kept views, q, answer
ALPHA, BETA, EPSILON, STEPS, SHARE = 0.01, 0.9, 1e-4, 500, 0.1
NEAR = 1e-5  # how far q and the answers may be from those of NumPy


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def into_interval(x: Array) -> Array:
    """Min-max into [α, β]; α for all where all are alike."""
    span = x.max() - x.min()
    return ALPHA + (BETA - ALPHA) * (x - x.min()) / span if span else np.full(len(x), ALPHA)


def surest(P: Array, q: Array | None) -> list[int]:
    """The views with the smallest H; Shannon's, the limit q → 1, where no q is known."""
    H = -(P * np.log(P)).sum(1) if q is None else (P**q / (1 - q)).sum(1)
    return np.argsort(H, kind="stable")[: max(1, int(SHARE * len(P)))].tolist()


# --------------------------------------------------------------------------- the paper


def algorithm_1(a: Array) -> Array:
    """−log p̃. Where T steps run out, of the last of them, as in the published code."""
    p = np.full(len(a), 1 / len(a))
    for _ in range(STEPS):
        new = a @ p
        new = new / np.abs(new).sum()
        if np.abs(new - p).sum() <= EPSILON:
            break
        p = new
    return -np.log(p)


def paper(stream: list[Array]) -> Iterator[Said]:
    """Algorithm 2 over images (V, L), then logit adjustment."""
    classes = stream[0].shape[1]
    bank: list[list[Array]] = [[] for _ in range(classes)]
    for z in stream:
        P, bias, q = softmax(z), None, None
        if any(bank):
            even = np.full(classes, 1 / classes)
            bias = algorithm_1(np.stack([np.mean(x, 0) if x else even for x in bank], 1))
            q = into_interval(bias)
        kept = surest(P, q)
        answer = P[kept].mean(0)
        if bias is not None:
            answer = softmax(np.log(answer) + bias)
        yield kept, q, answer
        column = bank[int(P[0].argmax())]
        column.append(P[0])
        del column[:-10]


# --------------------------------------------------------------------------- the published code


def compute_P(bank: list[list[Array]]) -> Array:
    zero = np.zeros(len(bank))
    return np.stack([softmax(np.array(x)).mean(0) if x else zero for x in bank], 1)


def estimate_q(P: Array) -> Array:
    q = np.ones(len(P)) / len(P)
    for _ in range(STEPS):
        new = P @ q
        new = new / np.linalg.norm(new)
        if np.linalg.norm(new - q) < EPSILON:
            break
        q = new
    return q


def released(stream: list[Array]) -> Iterator[Said]:
    classes = stream[0].shape[1]
    bank: list[list[Array]] = [[] for _ in range(classes)]
    gaps: list[list[float]] = [[] for _ in range(classes)]
    for z in stream:
        mean = z.mean(0)
        second, first = np.sort(mean)[-2:]
        if first - second >= 1.0:
            label, gap = int(mean.argmax()), float(first - second)
            if len(bank[label]) < 20:
                bank[label].append(mean)
                gaps[label].append(gap)
            else:  # the smallest gap goes, even for a smaller one
                slot = int(np.argmin(gaps[label]))
                bank[label][slot], gaps[label][slot] = mean, gap
    q = into_interval(np.log(estimate_q(compute_P(bank))))
    for z in stream:
        P = softmax(z)
        kept = surest(P, q)
        yield kept, q, P[kept].mean(0)


# --------------------------------------------------------------------------- the comparison


def made(
    own: float, size: float = 1.0, classes: int = 4, shown: int = 3, apart: float = 0.0
) -> list[Array]:
    """70 images (24 views) of the first classes, by a model that favours some.

    The logit of its class is so much higher, those of classes that are not shown are `apart`.
    """
    rng, images = np.random.default_rng(0), 70
    z = rng.normal(size=classes) + 0.6 * rng.normal(size=(images, 1, classes))
    z = size * (z + 0.8 * rng.normal(size=(images, 24, classes)))
    z += own * np.eye(classes)[rng.permutation(images) % shown][:, None]
    z[..., shown:] -= apart
    return list(z)


def of_the_bundle() -> list[Array]:
    """Real features of a model that the package carries."""
    batches = Cache(bundle("replay")).first(150).batches(50)
    return [z.double().numpy() for batch, _ in batches for z in batch.logits]


STREAMS: dict[str, Callable[[], list[Array]]] = {
    "gentle": lambda: made(3.0),
    "sure": lambda: made(24.0, 8.0),
    "one-hot": lambda: made(12.0, shown=4),  # the first step changes less than ε
    "two classes": lambda: made(8.0, 2.0, classes=2, shown=2),
    "logits spread by 45": lambda: made(9.0, 1.5, apart=30.0),
    "bundle": of_the_bundle,
}
CASES = [pytest.param(s, marks=[pytest.mark.slow] if s == "bundle" else []) for s in STREAMS]


@pytest.mark.parametrize("stream", CASES)
@pytest.mark.parametrize(("name", "published"), [("adte", paper), ("adte-released", released)])
def test_it_is_what_was_published(
    name: str, published: Callable[[list[Array]], Iterator[Said]], stream: str
) -> None:
    images = STREAMS[stream]()
    samples = [Sample(torch.from_numpy(z)) for z in images]
    ours = predictions(create_method(name), samples, method_info(name).protocol)
    for number, (got, (kept, q, answer)) in enumerate(zip(ours, published(images), strict=True)):
        assert got.kept.tolist() == kept, number
        assert (got.q is None) == (q is None)
        if q is not None:
            rounded = 1e-2 if stream == "one-hot" else NEAR  # items are kept in float32
            np.testing.assert_allclose(got.q, q, rtol=0, atol=rounded, err_msg=str(number))
        np.testing.assert_allclose(got.probs, answer, rtol=0, atol=NEAR, err_msg=str(number))


def test_classes_that_the_model_neglects_have_a_prior_far_below_rounding() -> None:
    """On the stream above: a floor under the prior would change q, and which views are kept."""
    bank: list[list[Array]] = [[] for _ in range(4)]
    for z in STREAMS["logits spread by 45"]():
        bank[int(z.mean(0).argmax())].append(z.mean(0))
    assert estimate_q(compute_P(bank)).min() < 1e-15
