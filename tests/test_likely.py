"""Frequencies among the classes that an image may be of, against loops, and what they must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

import adte.bias.likely as room
import oracle
from adte import bias, create_method
from adte.batch import Batch, Context
from adte.bias import Likely, Sums, concentration_among, joint, take_in
from adte.methods import PriorMethod
from adte.prior import ClassPrior, PriorOptions

Array = NDArray[np.float64]
NONE = torch.zeros(1, dtype=torch.float64)


def items(classes: int, images: int, shown: int, seed: int = 0) -> Array:
    """Log-probabilities of a model with a bias; the first classes are shown."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(images, classes)) + rng.normal(size=classes)
    z[np.arange(images), rng.integers(0, shown, images)] += 4
    return np.asarray(np.log(oracle.softmax(z)))


def between(few: Tensor) -> bool:
    """Whether some images are neither given all of the frequencies nor none."""
    return bool(((few > 0.01) & (few < 0.99)).any())


def answers(shown: int, each: int, sure: float, classes: int = 32) -> tuple[Array, Array]:
    """N and Q of images that are sure of their class, by so much."""
    r = np.full((shown * each, classes), (1 - sure) / (classes - 1))
    r[np.arange(len(r)), np.arange(len(r)) % shown] = sure
    return r.sum(0), (r * r).sum(0)


def counted(n: Array, q: Array, trust: float) -> float:
    rows = (torch.from_numpy(x)[None] for x in (n, q))
    return float(concentration_among(*rows, NONE + trust))


def test_agreements_are_those_of_pairs_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        classes = int(rng.integers(2, 33))
        r = rng.dirichlet(np.full(classes, rng.choice([0.05, 0.3, 1])), int(rng.integers(0, 60)))
        n, q, trust = r.sum(0), (r * r).sum(0), float(rng.choice([0, 0.3, 0.9, 1]))
        want = oracle.concentration_among(n, q, trust)
        assert counted(n, q, trust) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("sure", [0.5, 0.8, 0.99])
def test_among_classes_it_is_these_over_those_in_use(sure: float) -> None:
    for shown in (2, 6, 10, 16, 32):
        assert counted(*answers(shown, 60, sure), 0.0) == pytest.approx(32 / shown, rel=0.1)


def test_unsure_answers_between_like_names_use_no_more_of_them() -> None:
    """Eight of 32 are shown; an image leaves a third of its answer to its three neighbours."""
    r = np.zeros((160, 32))
    for i, row in enumerate(r):
        own = 4 * (i % 8)
        row[own : own + 4] = 1 / 9
        row[own] = 2 / 3
    n, q = r.sum(0), (r * r).sum(0)
    assert 32 * (n @ n) / n.sum() ** 2 == pytest.approx(1.9, abs=0.1)  # by answers as they are
    assert 3.2 < counted(n, q, 0.0) < 4


def test_where_nothing_was_seen_the_whole_stream_speaks() -> None:
    none = np.zeros(32)
    for trust in (0.0, 0.3, 0.75):
        assert counted(none, none, trust) == pytest.approx(1 / (1 - trust))


def test_images_read_what_loops_say() -> None:
    """Image by image, before each is learned and after."""
    z = oracle.of_two_kinds(120)
    options = PriorOptions(estimator="joint")
    for learn_first in (False, True):
        sums, want, parts, shares = Sums(*np.zeros((5, 80))), [], [], []
        for row in z:
            now = joint(sums)
            if learn_first:
                take_in(sums, row, np.exp(row), now.bias, now.shown)
                now = joint(sums)
            counted = (sums.answers, sums.squares, now.shown, now.trust)
            uneven, part = oracle.among(row, now.bias - now.shown, *counted)
            want.append(uneven - np.log(np.exp(uneven).sum()))
            shares.append(part)
            parts.append(now.trust * part)
            if not learn_first:
                take_in(sums, row, np.exp(row), now.bias, now.shown)
        got = options.scan(ClassPrior(80, options).state, torch.from_numpy(z), learn_first)
        assert_close(got.log_prior, torch.from_numpy(np.array(want)), rtol=0, atol=1e-9)
        assert got.trust is not None
        assert_close(got.trust, torch.tensor(parts, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        assert between(torch.tensor(shares))


@pytest.mark.parametrize("order", ["predict-first", "learn-first"])
def test_however_a_stream_is_cut_it_reads_the_same(order: str) -> None:
    z = torch.from_numpy(oracle.of_two_kinds(96))[:, None]
    said = []
    for size in (1, 7, 96):
        method = create_method("adte", order=order)
        said.append(torch.cat([method.step(Batch(part)).probs for part in z.split(size)]))
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])
    options = PriorOptions(estimator="joint")
    read = options.scan(ClassPrior(80, options).state, z[:, 0], order == "learn-first")
    assert between(read.trust[60:] / read.trust[60:].max())  # type: ignore[index]


def test_a_state_that_stays_says_what_the_next_image_reads() -> None:
    """Of each image its own, as it is said when the image is learned from."""
    rng = np.random.default_rng(1)
    kinds = rng.normal(size=(2, 16)).repeat(40, 0)
    text = torch.nn.functional.normalize(
        torch.from_numpy(kinds + rng.normal(size=(80, 16))), dim=-1
    )
    labels = np.where(np.arange(140) % 2, 41, rng.integers(0, 40, 140))
    x = text[labels][:, None] + 0.1 * torch.from_numpy(rng.normal(size=(140, 2, 16)))
    x = torch.nn.functional.normalize(x, dim=-1)
    context = Context(text, 20.0)
    for options in ({}, {"likeness": 0.0}):
        method = create_method("adte", **options)
        method.step(context.batch(x[:120]))
        priors = []
        for i in range(120, 140):
            one = context.batch(x[i : i + 1])
            frozen = method.predict(one)
            priors.append(frozen.prior[0])  # type: ignore[index]
            assert torch.equal(frozen.probs, method.step(one).probs)
        assert float((priors[0] - priors[1]).abs().sum()) > 0.01


def test_what_comes_off_an_image_s_logits_is_what_it_reads() -> None:
    z = torch.from_numpy(oracle.of_two_kinds(140))[:, None]
    method = create_method("adte", tau=0.5)
    assert isinstance(method, PriorMethod)
    method.step(Batch(z[:120]))
    taken = [method.adjustment(image) for image in z[120:]]
    prior = method.predict(Batch(z[120:])).prior
    assert prior is not None
    for row, one in zip(prior, taken, strict=True):
        assert one is not None
        assert_close(one, 0.5 * row.log())
    assert float((prior[0] - prior[1]).abs().sum()) > 0.01


@pytest.mark.parametrize(("classes", "known"), [(32, "auto"), (70, "equal"), (70, "as-they-come")])
def test_it_is_not_asked_again_of_all_classes_nor_where_the_user_said_it(
    classes: int, known: Any
) -> None:
    options = PriorOptions(estimator="joint", frequencies=known)
    state = ClassPrior(classes, options).state
    z = torch.from_numpy(items(classes, 40, 4))
    got = options.scan(state, z)
    assert got.likely is None
    again = options.read(state, z[:3])
    assert again.likely is None
    assert_close(again.log_prior[0], options.log_prior(state), rtol=0, atol=0)


def test_what_is_known_of_the_stream_is_no_image_s() -> None:
    """The estimate that users see does not depend on the image that asks."""
    options = PriorOptions(estimator="joint")
    state = ClassPrior(80, options).state
    z = torch.from_numpy(oracle.of_two_kinds(300))
    options.learn(state, z)
    known = options.read(state)
    assert len(known.log_prior) == 1
    read = options.read(state, z)
    assert read.log_prior.shape == (300, 80)
    assert read.likely is not None
    assert read.likely.shape == (300, room.LIKELY)
    assert known.trust is not None
    assert read.trust is not None
    many, few = (read.trust[kind::2] / known.trust for kind in (0, 1))
    assert float(many.max()) < 0.2  # of a kind that is shown whole
    assert float(few.min()) > 0.99
    assert not torch.equal(read.log_prior[0], read.log_prior[1])


def test_among_them_all_are_as_frequent_as_before() -> None:
    """And nothing changes for the others."""
    options = PriorOptions(estimator="joint")
    state = ClassPrior(80, options).state
    z = torch.from_numpy(oracle.of_two_kinds(300))
    options.learn(state, z)
    sums = Sums(*(state[name].numpy() for name in Sums._fields))
    now = joint(sums)
    b, shown = torch.from_numpy(now.bias), torch.from_numpy(now.shown)
    counts = torch.from_numpy(np.array([sums.answers, sums.squares]))[:, None]
    found = room.among(z, (b - shown)[None], counts, shown[None], NONE + now.trust)
    told = b - found.uneven
    assert float(found.few.min()) < 0.2
    assert float(found.few.max()) == 1
    mass, before = (x.exp().gather(1, found.classes).sum(1) for x in (told, shown.expand_as(z)))
    assert_close(mass, before)
    others = torch.ones_like(told).scatter(1, found.classes, 0).bool()
    assert_close(told[others], shown.expand_as(z)[others], rtol=0, atol=1e-12)
    assert torch.allclose(told[1::2], shown.expand_as(z)[1::2])
    assert float((told - shown)[::2].abs().max()) > 0.1


def test_a_folder_of_animals_is_not_taken_for_a_few_of_them(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real CLIP, the first quarter of ImageNet's list: frequencies of the whole lose more."""
    data = np.load(shared_data / "clip-vit-b32-imagenet.npz")
    x, text = (torch.nn.functional.normalize(torch.from_numpy(data[k]).float(), dim=-1)
               for k in ("image", "text"))  # fmt: skip
    truth = torch.from_numpy(data["label"].astype(np.int64))
    rows = torch.from_numpy(np.random.default_rng(1).permutation(np.flatnonzero(truth < 250)))
    context = Context(text, 100.0)

    def accuracy(**options: Any) -> float:
        method = create_method("adte", **options)
        said = [method.step(context.batch(x[part][:, None])).probs for part in rows.split(64)]
        return float((torch.cat(said).argmax(-1) == truth[rows]).double().mean())

    asked, equal = accuracy(), accuracy(frequencies="equal")

    def whole(items: Tensor, uneven: Tensor, counts: Tensor, f: Tensor, trust: Tensor) -> Likely:
        found = room.among(items, uneven, counts, f, trust)
        return Likely(uneven.expand_as(items), torch.ones_like(found.few), found.classes)

    monkeypatch.setattr(bias, "among", whole)
    assert asked > accuracy() + 0.03
    assert asked > equal - 0.04
