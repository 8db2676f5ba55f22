"""`tilt` against its definition, written anew in NumPy from its docstring, and what it must do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from adte import Batch, Context, Method, create_method
from adte.core.errors import InputError

Array = NDArray[np.float64]
SCALE = 20.0
AS_SEEN = {"answers", "squares"}  # what depends on when an image came


# --------------------------------------------------------------------------- the definition


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mixed(z: Array) -> tuple[Array, Array]:
    """Probabilities of the views (V, L), and their weights."""
    P = softmax(z)
    H = np.array([-sum(x * math.log(x) for x in row if x > 0) for row in P])
    return P, softmax(-H)


class Naive:
    """All images so far in lists; every number is computed anew."""

    def __init__(self, classes: int, first: bool = False, **options: Any) -> None:
        self.L, self.first = classes, first
        self.o = {"likeness": 0.5, "smoothing": 50.0, "frequencies": "auto"} | options
        self.p: list[Array] = []  # of this stream
        self.r: list[Array] = []
        self.features: list[tuple[Array, Array]] = []  # p and x of all streams
        self.before, self.roots = 0, np.zeros(classes)  # of the streams before

    def estimate(self) -> tuple[Array, float, Array]:
        """log w, the strength of the likeness, and E[bias]."""
        n, L, e = len(self.p), self.L, self.o["smoothing"]
        p = np.array(self.p).reshape(n, L)
        M = p.sum(0) + e / L
        A = self.roots + (p**0.6).sum(0) + e / L**0.6
        b = np.log(A) / 0.6
        agreed = np.triu(p @ p.T, 1).sum()  # over pairs of images
        c = (2 * agreed + 1) / (n * (n - 1) * np.square(A / A.sum()).sum() + 1)
        g = max(0.0, 1 - 1 / c)
        if self.o["frequencies"] == "equal":
            g = 0.0
        s = float(np.mean([x @ x for x in p])) if n else 0.0
        k = self.before / (self.before + n) if n + self.before else 0.0
        bias = (1 - g * (1 - k)) * b
        if self.o["frequencies"] == "as-they-come":
            bias = 0 * b
        log_w = s * g * (np.log(M) - k * b) - bias
        return log_w - log_w.mean(), max(g, s * s) ** 2, bias

    def answer(self, z: Array, f: Array | None) -> tuple[Array, Array, Array | None]:
        """y of an image's logits (V, L), and what it is learned by."""
        P, w = mixed(z)
        p, x = w @ P, None if f is None or not self.o["likeness"] else w @ f
        x = None if x is None else x / np.linalg.norm(x)
        log_w, strength, _ = self.estimate()
        P, w = mixed(z + log_w)
        y = w @ P
        if x is not None and self.features:
            m = np.mean([other for _, other in self.features], 0)
            log_y, strength = np.log(np.maximum(y, 1e-300)), strength * (1 - y.max())
            for c in np.argsort(-y)[:16]:
                S, N = np.zeros_like(m), 0.0
                for theirs, other in self.features:
                    if c in np.argsort(-theirs)[:16]:
                        S, N = S + theirs[c] * other, N + theirs[c]
                alike = (S - N * m) / (N + 0.5) @ (x - m)
                log_y[c] += self.o["likeness"] * SCALE * strength * alike
            y = softmax(log_y)
        return y, p, x

    def step(self, z: Array, f: Array | None) -> tuple[Array, Array]:
        """The answer, and the prior that it was given by."""
        out = None if self.first else (self.answer(z, f)[0], softmax(-self.estimate()[0]))
        _, p, x = self.answer(z, f)
        self.r.append(softmax(np.log(np.maximum(p, 1e-300)) + self.estimate()[0]))
        self.p.append(p)
        if x is not None:
            self.features.append((p, x))
        return out or (self.answer(z, f)[0], softmax(-self.estimate()[0]))

    def begin(self) -> None:
        A = self.roots + (np.array(self.p) ** 0.6).sum(0)
        self.roots = softmax(0.6 * self.estimate()[2]) * A.sum()
        self.before += len(self.p)
        self.p, self.r = [], []


# --------------------------------------------------------------------------- streams


def stream(
    classes: int, images: int = 40, shown: int = 0, views: int = 4, seed: int = 0,
    dim: int = 12, spread: float = 0.1, scale: float = SCALE,
) -> tuple[Batch, Array]:  # fmt: skip
    """Images of some classes, and their labels; the texts of pairs of classes are alike."""
    rng = np.random.default_rng(seed)
    text = rng.normal(size=(classes, dim))
    text[1::2] = text[: 2 * (classes // 2) : 2] + 0.15 * rng.normal(size=(classes // 2, dim))
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    own = text + 0.15 * rng.normal(size=text.shape)  # where a class's images really are
    shown = shown or classes
    labels = rng.integers(0, shown, images) * (classes // shown)
    x = own[labels][:, None] + spread * rng.normal(size=(images, views, dim))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    batch = Context(torch.from_numpy(text), scale).batch(torch.from_numpy(x))
    return batch, labels


def said(method: Method, batch: Batch, size: int = 64) -> Tensor:
    return torch.cat(
        [method.step(batch[at : at + size]).probs for at in range(0, len(batch), size)]
    )


# --------------------------------------------------------------------------- the comparison

CASES: list[dict[str, Any]] = [
    {},
    {"views": 1},
    {"views": 8, "likeness": 0.0},
    {"views": 8, "logits": torch.float64},
    {"classes": 60, "shown": 3, "views": 2},
    {"classes": 60, "shown": 40, "views": 1},
    {"classes": 2, "views": 1},
    {"classes": 1},
    {"order": "learn-first", "classes": 20, "shown": 3, "views": 1},
    {"frequencies": "equal", "shown": 2},
    {"frequencies": "as-they-come", "shown": 2},
    {"smoothing": 3.0, "likeness": 2.0, "shown": 4},
    {"shown": 2, "scale": 200.0, "logits": torch.float32},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_its_docstring_says(case: dict[str, Any]) -> None:
    """On a stream, and on another that begins with what was learned of the first."""
    of_stream = {"classes": 8, "views": 4} | {
        k: v for k, v in case.items() if k in ("classes", "views", "shown", "scale")
    }
    options = {k: v for k, v in case.items() if k not in {*of_stream, "logits"}}
    method = create_method("tilt", **options)
    first = options.pop("order", "") == "learn-first"
    naive = Naive(of_stream["classes"], first, **options)
    for seed in (0, 0, 1):
        batch, _ = stream(**of_stream, images=25, seed=seed)
        if "logits" in case:  # alone, in another dtype
            batch = Batch(batch.logits.to(case["logits"]))
        got = method.step(batch)
        for i, (z, p) in enumerate(zip(batch.logits, got, strict=True)):
            f = None if batch.features is None else batch.features[i].double().numpy()
            y, prior = naive.step(z.double().numpy(), f)
            np.testing.assert_allclose(p.probs, y, rtol=0, atol=1e-5, err_msg=str(i))
            np.testing.assert_allclose(p.prior, prior, rtol=0, atol=1e-5, err_msg=str(i))
        known = method.class_prior
        assert known is not None
        assert known.seen == len(naive.p)
        np.testing.assert_allclose(known.log_prior.exp(), softmax(-naive.estimate()[0]), atol=1e-6)
        np.testing.assert_allclose(known.shares.share, np.mean(naive.r, 0), atol=1e-6)
        np.testing.assert_allclose(method.adjustment(z), -naive.estimate()[0], atol=1e-5)
        if seed == 0:
            method.begin()
            naive.begin()


@pytest.mark.parametrize("learn", [True, False])
def test_images_that_go_together_read_what_they_read_one_by_one(learn: bool) -> None:
    """As on a GPU, where a batch is one step."""
    batch, _ = stream(40, 50, views=2)
    method = create_method("tilt")
    method.step(batch[:20])
    loop, together = (method.state_dict() for _ in range(2))
    log_p, x = method.evidence(batch[20:])
    one = [method._step(loop, log_p[i : i + 1], x[i : i + 1], learn) for i in range(30)]
    all_at_once = method._step(together, log_p, x, learn)
    for got, parts in zip(all_at_once, zip(*one, strict=True), strict=True):
        assert_close(got, torch.cat(parts), rtol=1e-5, atol=1e-6)
    assert_close(together, loop, rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------- the state


def learned(batch: Batch) -> Method:
    method = create_method("tilt")
    method.learn(batch)
    return method


def test_the_state_is_a_sum_over_images_in_whatever_order() -> None:
    """All of it but the answers, which images give by what came before them."""
    batch, _ = stream(40, 60, shown=5)
    whole = learned(batch).state_dict()
    one, two = learned(batch[:37]), learned(batch[37:])
    halves = one.state_dict(), two.state_dict()
    one.merge(two)
    again, other = learned(batch[37:]), learned(batch[:37])
    again.merge(other)
    shuffled = Batch.join([batch[i : i + 1] for i in np.random.default_rng(0).permutation(60)])
    for found in (one, again, learned(shuffled)):
        state = found.state_dict()
        differ = {k for k, v in state.items() if not torch.allclose(v, whole[k], atol=1e-5)}
        assert differ == AS_SEEN
        assert_close(state["answers"].sum(), whole["answers"].sum())
    for name, value in one.state_dict().items():
        assert_close(value, halves[0][name] + halves[1][name], rtol=0, atol=0)


def test_what_two_streams_began_with_counts_once() -> None:
    batch, _ = stream(12, 90)
    start = learned(batch[:30])
    start.begin()
    parts = [create_method("tilt") for _ in range(2)]
    for method, images in zip(parts, (batch[30:60], batch[60:]), strict=True):
        method.load_state_dict(start.state_dict())
        method.learn(images)
    parts[0].merge(parts[1], start)
    start.learn(batch[30:])
    state, want = parts[0].state_dict(), start.state_dict()
    assert (int(state["before"]), int(state["seen"])) == (30, 60)
    for name in state.keys() - AS_SEEN:
        assert_close(state[name], want[name], rtol=1e-5, atol=1e-5)


def test_logits_alone_are_predicted_without_likeness() -> None:
    batch, _ = stream(20, 40, shown=2)
    alone, without, fixed = (create_method("tilt", likeness=x) for x in (0.5, 0.0, 0.5))
    want = said(without, batch)
    assert torch.equal(said(alone, Batch(batch.logits)), want)
    assert not {"features", "counts", "total"} & set(without.state_dict())
    assert alone.state_dict()["features"].shape == (20, 0)
    with pytest.raises(InputError, match=r"0 feature dimensions \(0: logits alone\).* one of 12"):
        alone.step(batch)
    # A model of fixed classes has its logits for features.
    assert torch.equal(
        said(fixed, Batch(batch.logits, batch.logits, None, Context(unit=False))), want
    )


def test_an_image_counts_after_a_hundred_million() -> None:
    batch, _ = stream(20, 2, shown=2)
    method = learned(batch[:1])
    state = method.state_dict()
    many = {"total": state["total"] * 1e8, "seen": torch.tensor(10**8)}
    method.load_state_dict(state | many)
    _, x = method.evidence(batch[1:])
    method.step(batch[1:])
    assert_close(method.state_dict()["total"] - many["total"], x[0].double(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 30])
def test_probabilities_of_nothing_are_no_trouble(classes: int) -> None:
    """Logits far apart, unscaled ones say, and next to no smoothing."""
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3, classes))) * 2000
    z[:, :, 0] += 9000
    method = create_method("tilt", smoothing=1e-12)
    assert said(method, Batch(z), 7).isfinite().all()
    assert method.class_prior.log_prior.isfinite().all()


# --------------------------------------------------------------------------- what it must do


def biased(classes: int, images: int, shown: int, own: float = 3.0, seed: int = 0) -> Batch:
    """Of the first classes, by one and the same model with a bias."""
    rng, model = np.random.default_rng(seed), np.random.default_rng(99).normal(size=classes)
    z = rng.normal(size=(images, classes)) + 0.7 * model
    z[np.arange(images), np.arange(images) % shown] += own
    return Batch(torch.from_numpy(z)[:, None])


def log_prior(batch: Batch, **options: Any) -> Array:
    method = create_method("tilt", **options)
    method.learn(batch)
    return np.asarray(method.class_prior.log_prior)


def bias_of(classes: int) -> Array:
    return np.random.default_rng(99).normal(size=classes)


def test_what_the_user_knows_of_the_frequencies_decides() -> None:
    """Two classes of forty come. If all are equally frequent, the model must favour the two."""
    batch = biased(40, 150, shown=2, own=5.0)
    equal, auto, come = (log_prior(batch, frequencies=f) for f in ("equal", "auto", "as-they-come"))
    assert equal[:2].min() > np.median(equal[2:])
    assert auto[:2].max() < auto[2:].min()
    assert come[:2].max() < come[2:].min()


def test_what_a_model_favours_in_all_images_is_no_frequency() -> None:
    """A model that lost its way calls much by few names; a stream of few classes is told from it.

    Images agree as often in the one as in the other.
    """
    rng = np.random.default_rng(0)
    L, n = 300, 400
    noise, rows = rng.normal(size=(n, L)), np.arange(n)
    lost = noise + 4 * (np.arange(L) < 30)
    lost[rows, rng.integers(0, L, n)] += 4
    few = noise.copy()
    few[rows, rng.integers(0, 15, n)] += 5
    lost, few = (log_prior(Batch(torch.from_numpy(z)[:, None])) for z in (lost, few))
    against = lost[:30].mean() - lost[30:].mean(), few[:15].mean() - few[15:].mean()
    assert against[0] > 2 * against[1]
    assert against[0] > 0.5


@pytest.mark.parametrize(("classes", "own"), [(300, 6.0), (1000, 9.0)])
def test_a_stream_of_one_class_is_no_bias(classes: int, own: float) -> None:
    """All images then say the same, from the first on; and go on being right."""
    z = np.random.default_rng(classes).normal(size=(120, classes))
    z[:, :3] += 2  # like names
    z[:, 0] += own - 2
    probs = said(create_method("tilt"), Batch(torch.from_numpy(z)[:, None]))
    assert (probs.argmax(1) == 0).double().mean() >= (z.argmax(1) == 0).mean()


def test_another_stream_begins_with_the_bias_alone() -> None:
    """Learned where all classes come alike, used where two do: no worse than without."""
    method = learned(biased(40, 1000, shown=40))
    before = method.class_prior.log_prior
    method.begin()
    state = method.state_dict()
    assert (int(state["seen"]), int(state["before"])) == (0, 1000)
    assert not any(state[name].any() for name in ("probs", "sure", "answers", "squares"))
    assert np.corrcoef(method.class_prior.log_prior, before)[0, 1] > 0.99
    assert np.corrcoef(method.class_prior.log_prior, bias_of(40))[0, 1] > 0.95
    method.begin()  # nothing came since
    assert_close(method.state_dict(), state, rtol=0, atol=0)
    few = biased(40, 60, shown=2, seed=2)
    begun, cold, went_on = method, create_method("tilt"), learned(biased(40, 1000, shown=40))
    right = [float(said(m, few)[30:, :2].sum(1).mean()) for m in (begun, cold, went_on)]
    assert right[0] > right[1] + 0.02
    assert right[0] > right[2]


@pytest.mark.parametrize(
    ("of_stream", "options"),
    [({"classes": 200, "images": 300, "shown": 10, "spread": 0.2}, {}),
     ({"classes": 20, "images": 400, "scale": 100.0}, {}),
     ({"classes": 20, "images": 400, "scale": 100.0}, {"frequencies": "equal"})],
    ids=["few of many names", "sure answers", "sure, equal"],
)  # fmt: skip
def test_images_tell_like_names_apart(of_stream: dict[str, Any], options: dict[str, Any]) -> None:
    """An image is as far from its text as from its neighbours."""
    right = np.zeros(2)
    for seed in range(2):
        batch, labels = stream(**of_stream, dim=32, seed=seed, views=1)
        for i, likeness in enumerate((0.0, 0.5)):
            probs = said(create_method("tilt", likeness=likeness, **options), batch)
            right[i] += np.mean(probs.argmax(1).numpy() == labels) / 2
    assert right[1] > right[0] + 0.01
