"""The class prior: oracle agreement, invariants of every bank, merging, saving, noise, cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import oracle
from adte.core import state as declared
from adte.core.errors import InputError
from adte.methods.prior import FixedPoint, PriorOptions, clipped, fixed_point, rule_of

BANKS = ["all", "gap", "gap-larger", "fifo", "reservoir"]
NAIVE = BANKS[:-1]  # the oracle replays these; a reservoir's draws are its own
PAPER = {"bank": "fifo", "size": 10, "norm": "l1"}
RELEASED = {"bank": "gap", "size": 20, "threshold": 1.0, "norm": "l2", "empty": "zero"}
PUBLISHED = {"estimator": "fixed-point", "smoothing": 0.0, "smoothing_total": 0.0, "clip": 0.0}
RESERVOIR = {"bank": "reservoir", "max_iter": 1}  # of interest is what it holds
EXACT = {"eps": 1e-10, "max_iter": 3000}  # so that both sides iterate to the same point

quick = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**32 - 1)


def stream(classes: int, n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """n log-distributions that favour some classes, as a biased model's would."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=scale, size=(n, classes)) + rng.normal(size=classes)
    return np.log(oracle.softmax(z))


class Estimate:
    """An estimate with a state of its own, as a method holds it."""

    def __init__(self, classes: int, options: PriorOptions) -> None:
        self.options, self.rule, self.classes = options, rule_of(options), classes
        self.state = declared.fresh("class prior", self.rule.entries(), {"L": classes})

    def observe(self, log_p: Tensor) -> bool:
        return self.rule.observe(self.state, log_p.double())

    def merge(self, other: Estimate) -> None:
        both = declared.merge("class prior", self.rule.entries(), self.state, other.state)
        self.rule.refresh(both)
        self.state = both

    @property
    def seen(self) -> int:
        return int(self.state["seen"])

    @property
    def matrix(self) -> Tensor:
        assert isinstance(self.rule, FixedPoint)
        return self.rule.matrix(self.state)

    @property
    def log_prior(self) -> Tensor:
        return self.rule.log_prior(self.state)

    @property
    def prior(self) -> Tensor:
        return self.log_prior.exp()


def published(classes: int, **options: Any) -> Estimate:
    """The published estimator, with the options that a test is about."""
    return Estimate(classes, PriorOptions(**(PUBLISHED | options)))


def observed(rows: Iterable[np.ndarray], classes: int, **options: Any) -> Estimate:
    prior = published(classes, **options)
    for row in rows:
        prior.observe(torch.from_numpy(np.asarray(row)))
    return prior


def bank_of(prior: Estimate) -> list[list[tuple[float, ...]]]:
    """The stored items of every class, sorted: two banks are equal when these are."""
    state = prior.state
    slots = zip(state["items"], state["rank"] < math.inf, strict=True)
    return [sorted(tuple(row) for row in items[used].tolist()) for items, used in slots]


def rebuilt(prior: Estimate) -> np.ndarray:
    """A from the stored items alone, with the oracle's loops."""
    o = prior.options
    naive = oracle.NaiveBank(prior.classes)
    naive.items = [[(0.0, np.array(item)) for item in column] for column in bank_of(prior)]
    return naive.matrix(o.empty, max(o.smoothing, o.smoothing_total / prior.classes))


def assert_distribution(p: Tensor) -> None:
    assert p.dtype == torch.float64
    assert p.isfinite().all()
    assert (p > 0).all()
    assert float(p.sum()) == pytest.approx(1, abs=1e-9)


# --------------------------------------------------------------------------- oracle agreement


@pytest.mark.parametrize(("classes", "n"), [(1, 5), (2, 60), (3, 7), (10, 300), (50, 400)])
@pytest.mark.parametrize("options", [PAPER, RELEASED], ids=["paper", "released"])
def test_matrix_and_prior_match_the_oracle(options: dict[str, Any], classes: int, n: int) -> None:
    _compare(options, classes, n, every=max(1, n // 3))


@pytest.mark.parametrize("bank", NAIVE)
@pytest.mark.parametrize(
    "options",
    [{}, {"damping": 0.1}, {"smoothing": 0.7}, {"empty": "zero", "threshold": 0.5},
     {"norm": "l2", "damping": 0.05, "smoothing": 2.0}],
    ids=["plain", "damped", "smoothed", "zero", "mixed"],
)  # fmt: skip
def test_every_bank_matches_the_oracle(bank: str, options: dict[str, Any]) -> None:
    for classes, size, seed in ((2, 1, 0), (6, 3, 1), (20, 2, 2)):
        _compare({"bank": bank, "size": size} | options, classes, 40, every=20, seed=seed)


def _compare(options: dict[str, Any], classes: int, n: int, every: int, seed: int = 0) -> None:
    """Items are stored in float32."""
    get = ({"size": 10, "threshold": 0.0, "empty": "uniform"} | options).get
    naive = oracle.NaiveBank(classes, options["bank"], get("size"), get("threshold"))
    prior = published(classes, **options, **EXACT)
    digits = 1e-9 if options["bank"] == "all" else 1e-6
    for i, row in enumerate(stream(classes, n, seed)):
        assert prior.observe(torch.from_numpy(row)) == naive.observe(np.exp(row))
        if (i + 1) % every and i + 1 < n:
            continue
        empty, smoothing = get("empty"), get("smoothing", 0.0)
        np.testing.assert_allclose(prior.matrix, naive.matrix(empty, smoothing), atol=digits)
        order = {"l1": 1, "l2": 2}[get("norm", "l1")]
        want = naive.prior(empty, smoothing, order, **EXACT, damping=get("damping", 0.0))
        np.testing.assert_allclose(prior.prior, want, rtol=1e3 * digits, atol=digits)
        assert_close(prior.log_prior, prior.prior.log())


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 5.0])
def test_marginal_is_the_mean_of_everything_seen(smoothing: float) -> None:
    """Threshold and bank do not matter to it; smoothing adds uniform items, so many per class."""
    rows = stream(7, 50)
    prior = observed(rows, 7, estimator="marginal", bank="gap", size=1, threshold=3.0,
                     smoothing=smoothing)  # fmt: skip
    want = (np.exp(rows).sum(0) + smoothing) / (50 + 7 * smoothing)
    np.testing.assert_allclose(prior.prior, want, rtol=1e-9)
    assert set(prior.state) == {"seen", "total"}  # linear in the classes


def test_smoothing_is_as_much_per_class_or_in_all_whichever_is_more() -> None:
    rows = stream(4, 10)
    few, many = (observed(rows, 4, estimator="marginal", smoothing_total=t) for t in (20.0, 2.0))
    assert_close(few.prior, observed(rows, 4, estimator="marginal", smoothing=5.0).prior)
    both = observed(rows, 4, estimator="marginal", smoothing=1.0, smoothing_total=2.0)
    assert_close(both.prior, observed(rows, 4, estimator="marginal", smoothing=1.0).prior)
    assert not torch.allclose(few.prior, many.prior)


def test_nothing_seen_is_uniform() -> None:
    for estimator in ("fixed-point", "marginal"):
        prior = published(5, estimator=estimator)
        assert_close(prior.prior, torch.full((5,), 0.2, dtype=torch.float64))
        assert prior.seen == 0


def test_the_gap_bank_replaces_even_by_a_smaller_gap() -> None:
    """The release's habit, and what `gap-larger` mends."""
    big, small = np.log([0.9, 0.1]), np.log([0.6, 0.4])
    assert bank_of(observed([big, small], 2, bank="gap", size=1))[0][0][0] == pytest.approx(0.6)
    kept = bank_of(observed([big, small], 2, bank="gap-larger", size=1))[0]
    assert kept[0][0] == pytest.approx(0.9)


def test_the_threshold_is_inclusive() -> None:
    prior = published(2, threshold=1.0)
    assert prior.observe(torch.tensor([-0.25, -1.25]))
    assert not prior.observe(torch.tensor([-0.25, -1.1875]))


@pytest.mark.parametrize("classes", [2, 3, 10, 16, 100, 1000])
@pytest.mark.parametrize("bank", ["all", "fifo"])
def test_a_tie_at_the_top_goes_to_the_lowest_class(bank: str, classes: int) -> None:
    """Duplicated class names give identical columns; argmax takes the lower index."""
    row = torch.full((classes,), -9.0, dtype=torch.float64)
    row[[0, 1, classes - 1]] = -1.0
    prior = published(classes, bank=bank, size=1)
    prior.observe(torch.log_softmax(row, 0))
    assert prior.state["counts"].nonzero().tolist() == [[0]]


# --------------------------------------------------------------------------- the solver


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_fixed_point_matches_the_oracle_step_by_step(norm: str) -> None:
    """Same number of steps, same iterate, from one step to convergence, for both returns."""
    rng = np.random.default_rng(0)
    order = {"l1": 1, "l2": 2}[norm]
    for L in (1, 2, 5, 40):
        A = rng.dirichlet(np.full(L, 0.5), size=L).T + 1e-3
        start = torch.full((L,), 1 / L, dtype=torch.float64)
        for limit in (1, 2, 5, 500):
            for damping in (0.0, 0.1):
                for previous in (False, True):
                    want, steps = oracle.fixed_point(A, order, 1e-6, limit, damping, previous)
                    got, taken = fixed_point(
                        torch.from_numpy(A), start, norm, 1e-6, limit, damping, previous
                    )
                    assert taken == steps
                    np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_fixed_point_is_the_leading_eigenvector(norm: str) -> None:
    """An answer that no iteration was needed for."""
    A = np.random.default_rng(1).dirichlet(np.full(6, 0.7), size=6).T
    values, vectors = np.linalg.eig(A)
    lead = np.abs(vectors[:, values.real.argmax()].real)
    lead /= np.linalg.norm(lead, {"l1": 1, "l2": 2}[norm])
    start = torch.full((6,), 1 / 6, dtype=torch.float64)
    got, _ = fixed_point(torch.from_numpy(A), start, norm, eps=1e-14, max_iter=10_000)
    np.testing.assert_allclose(got, lead, rtol=1e-9)


def test_damping_tames_a_nearly_diagonal_matrix() -> None:
    """At λ = 1 the prior is uniform; a little of it moves an ill-conditioned one towards that."""
    A = np.array([[0.9999, 0.01], [0.0001, 0.99]])
    start = torch.full((2,), 0.5, dtype=torch.float64)
    tail = [
        float(fixed_point(torch.from_numpy(A), start, damping=d, eps=1e-12, max_iter=10**5)[0][1])
        for d in (0.0, 0.1, 1.0)
    ]
    assert tail[0] < 0.011 < 0.4 < tail[1] < tail[2]
    assert tail[2] == pytest.approx(0.5)


def test_an_unknown_norm_is_named() -> None:
    with pytest.raises(InputError, match="l3"):
        fixed_point(torch.eye(2), torch.ones(2), norm="l3")


@pytest.mark.parametrize("bank", BANKS)
def test_the_estimate_does_not_depend_on_when_it_is_read(bank: str) -> None:
    rows = stream(6, 40)
    unread, read = published(6, bank=bank, size=3), published(6, bank=bank, size=3)
    for row in rows:
        unread.observe(torch.from_numpy(row))
        read.observe(torch.from_numpy(row))
        assert_distribution(read.prior)
    assert torch.equal(read.prior, unread.prior)


# --------------------------------------------------------------------------- invariants


@st.composite
def any_options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "bank": draw(st.sampled_from(BANKS)),
        "estimator": draw(st.sampled_from(["fixed-point", "marginal"])),
        "size": draw(st.integers(1, 4)),
        "threshold": draw(st.sampled_from([0.0, 0.5, 2.0])),
        "norm": draw(st.sampled_from(["l1", "l2"])),
        "damping": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "smoothing": draw(st.sampled_from([0.0, 0.1, 3.0])),
        "smoothing_total": draw(st.sampled_from([0.0, 20.0])),
        "clip": draw(st.sampled_from([0.0, 2.0])),
        "empty": draw(st.sampled_from(["uniform", "zero"])),
        "max_iter": draw(st.sampled_from([1, 50])),
        "seed": draw(st.integers(0, 3)),
    }


@st.composite
def any_stream(draw: st.DrawFn) -> np.ndarray:
    """Flat, ordinary, saturated and exactly one-hot predictions (log-probabilities of −inf)."""
    classes, n = draw(st.integers(1, 7)), draw(st.integers(0, 25))
    rng = np.random.default_rng(draw(seeds))
    rows = []
    for scale in draw(st.lists(st.sampled_from([0.0, 2.0, 1e3, None]), min_size=n, max_size=n)):
        if scale is None:
            with np.errstate(divide="ignore"):
                rows.append(np.log(np.eye(classes)[rng.integers(classes)]))
        else:
            z = scale * rng.normal(size=classes)
            rows.append(z - z.max() - np.log(np.exp(z - z.max()).sum()))
    return np.array(rows).reshape(n, classes)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(rows=any_stream(), options=any_options())
def test_the_prior_is_a_probability_vector(rows: np.ndarray, options: dict[str, Any]) -> None:
    classes = rows.shape[1]
    prior = Estimate(classes, PriorOptions(**options))
    assert_distribution(prior.prior)
    for row in rows:
        prior.observe(torch.from_numpy(row))
        assert_distribution(prior.prior)
    assert prior.log_prior.isfinite().all()
    assert prior.seen == len(rows)
    # Why the paper's table of biases cannot come from an L1 prior (Jensen).
    assert float(prior.log_prior.mean()) <= -math.log(classes) + 1e-9


@quick
@given(seed=seeds, classes=st.integers(1, 9), n=st.integers(0, 60), options=any_options())
def test_the_incremental_matrix_equals_the_rebuilt_one(
    seed: int, classes: int, n: int, options: dict[str, Any]
) -> None:
    rows = stream(classes, n, seed)
    options = options | {"estimator": "fixed-point"}  # the marginal keeps none
    if options["bank"] != "all":
        prior = observed(rows, classes, **options)
        np.testing.assert_allclose(prior.matrix, rebuilt(prior), atol=1e-9)
        return
    prior = observed(rows, classes, **options)
    naive = oracle.NaiveBank(classes, "all", threshold=options["threshold"])
    for row in rows:
        naive.observe(np.exp(row))
    smoothing = max(options["smoothing"], options["smoothing_total"] / classes)
    want = naive.matrix(options["empty"], smoothing)
    np.testing.assert_allclose(prior.matrix, want, atol=1e-9)


@pytest.mark.parametrize("bank", BANKS[1:])
def test_certain_predictions_are_items_too(bank: str) -> None:
    """Their gap is infinite, and a slot that holds one is not empty."""
    with np.errstate(divide="ignore"):
        rows = np.log(np.eye(3)[[0, 1, 0, 0, 1]])
    prior = observed(rows, 3, bank=bank, size=2)
    assert [len(items) for items in bank_of(prior)] == [2, 2, 0]
    assert prior.state["counts"].tolist() == [2, 2, 0]
    lone = observed(np.zeros((3, 1)), 1, bank=bank, size=2)  # one class: no second to lead
    assert lone.state["counts"].tolist() == [2]


@pytest.mark.slow
def test_a_reservoir_is_uniform_over_the_stream() -> None:
    """Over many seeds every position is kept about equally often: 3 of 12, 200 times."""
    rows = [np.log([0.5 + 0.03 * i, 0.5 - 0.03 * i]) for i in range(1, 13)]
    hits = np.zeros(12)
    for seed in range(200):
        for item in bank_of(observed(rows, 2, **RESERVOIR, size=3, seed=seed))[0]:
            hits[round((item[0] - 0.5) / 0.03) - 1] += 1
    assert hits.sum() == 600
    assert ((hits - 50) ** 2 / 50).sum() < 40  # chi-square, 11 degrees: about 1 in 30,000


@pytest.mark.parametrize("empty", ["uniform", "zero"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_an_empty_class_never_gives_minus_infinity(norm: str, empty: str) -> None:
    """No item, and no other class leaks to it: the release's log p̃ reaches −inf here."""
    with np.errstate(divide="ignore"):
        rows = np.log(np.eye(3)[[0, 1, 0, 1, 1]])
    prior = observed(rows, 3, norm=norm, empty=empty, bank="gap")
    assert_distribution(prior.prior)
    assert prior.log_prior.isfinite().all()
    if empty == "zero":
        assert float(prior.prior[2]) < 1e-9


# --------------------------------------------------------------------------- merging


@st.composite
def two_streams(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    classes = draw(st.integers(1, 6))
    sizes = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    a, b = (stream(classes, n, draw(seeds)) for n in sizes)
    return a.reshape(-1, classes), b.reshape(-1, classes)


@pytest.mark.slow
@quick
@given(two=two_streams(), smoothing=st.sampled_from([0.0, 0.5]))
def test_merging_all_equals_the_joined_stream(
    two: tuple[np.ndarray, np.ndarray], smoothing: float
) -> None:
    a, b = two
    for estimator in ("fixed-point", "marginal"):
        options = {"smoothing": smoothing, "estimator": estimator, "damping": 0.8, **EXACT}
        merged, other = (observed(rows, a.shape[1], **options) for rows in (a, b))
        merged.merge(other)
        joined = observed(np.concatenate([a, b]), a.shape[1], **options)
        assert merged.seen == joined.seen
        for name, value in joined.state.items():
            assert_close(merged.state[name], value, rtol=1e-9, atol=1e-12)
        assert_close(merged.prior, joined.prior, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@quick
@given(two=two_streams(), size=st.integers(1, 5), bank=st.sampled_from(["fifo", "gap-larger"]))
def test_merging_fifo_and_gap_larger_is_exact(
    two: tuple[np.ndarray, np.ndarray], size: int, bank: str
) -> None:
    a, b = two
    classes = a.shape[1]
    # Damped, so that a bank of confident items does not take thousands of steps to solve.
    options = {"bank": bank, "size": size, "threshold": 0.3, "damping": 0.8, **EXACT}
    merged = observed(a, classes, **options)
    merged.merge(observed(b, classes, **options))
    joined = observed(np.concatenate([a, b]), classes, **options)
    assert bank_of(merged) == bank_of(joined)
    assert_close(merged.prior, joined.prior, rtol=1e-6, atol=1e-9)
    for row in stream(classes, 10, seed=99):  # and the two go on alike
        assert merged.observe(torch.from_numpy(row)) == joined.observe(torch.from_numpy(row))
    assert bank_of(merged) == bank_of(joined)


@pytest.mark.parametrize("bank", ["fifo", "gap-larger"])
def test_merging_is_exact_when_gaps_tie(bank: str) -> None:
    """Items of one class and one gap: which of them stays must not depend on where the cut is."""
    shapes = [[7, 6, 2, 1], [8, 5, 2, 1], [8, 5, 1, 2], [9, 4, 2, 1]]
    rows = np.log(np.array(shapes) / 16)  # the middle two tie
    for picks in itertools.permutations(range(4)):
        ordered = rows[list(picks)]
        joined = bank_of(observed(ordered, 4, bank=bank, size=2))
        for cut in (1, 2, 3):
            merged = observed(ordered[:cut], 4, bank=bank, size=2)
            merged.merge(observed(ordered[cut:], 4, bank=bank, size=2))
            assert bank_of(merged) == joined, (picks, cut)


@quick
@given(two=two_streams(), size=st.integers(1, 5), bank=st.sampled_from(["gap", "reservoir"]))
def test_merging_gap_and_reservoir_keeps_items_of_either_side(
    two: tuple[np.ndarray, np.ndarray], size: int, bank: str
) -> None:
    classes = two[0].shape[1]
    merged, other = (observed(rows, classes, bank=bank, size=size) for rows in two)
    mine, theirs = bank_of(merged), bank_of(other)
    merged.merge(other)
    for got, left, right in zip(bank_of(merged), mine, theirs, strict=True):
        both = sorted(left + right)
        assert len(got) == min(size, len(both))
        for item in got:
            both.remove(item)  # raises if it is of neither side, or taken twice
        if bank == "gap":  # the items of largest gap stay
            gaps = sorted((_gap(item) for item in left + right), reverse=True)
            assert sorted((_gap(i) for i in got), reverse=True) == pytest.approx(gaps[: len(got)])
    assert bank_of(other) == theirs
    np.testing.assert_allclose(merged.matrix, rebuilt(merged), atol=1e-9)
    assert_distribution(merged.prior)


def _gap(item: tuple[float, ...]) -> float:
    top = sorted(item, reverse=True)
    return math.log(top[0] / top[1]) if len(top) > 1 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("same_seed", [True, False])
def test_a_merged_reservoir_draws_in_proportion_to_what_was_offered(same_seed: bool) -> None:
    """45 items against 15: three quarters of the merged bank should come from the longer side."""
    left = 0
    for seed in range(60):
        a = observed([np.log([0.9, 0.1])] * 45, 2, **RESERVOIR, size=4, seed=seed)
        other = seed if same_seed else seed + 1000
        a.merge(observed([np.log([0.6, 0.4])] * 15, 2, **RESERVOIR, size=4, seed=other))
        left += sum(item[0] > 0.8 for item in bank_of(a)[0])
    assert 0.66 < left / 240 < 0.84  # a draw from the joined stream: 0.75 ± 0.03


# --------------------------------------------------------------------------- cost


@pytest.mark.parametrize("bank", BANKS)
def test_the_state_does_not_grow_with_the_stream(bank: str) -> None:
    """Of 5 classes, 10 items each: nothing but what is declared, however long the stream."""
    rows = np.exp(stream(5, 300))
    for i, row in enumerate(rows):  # each class in turn on top, so that every column fills
        top = row.argmax()
        row[[i % 5, top]] = row[[top, i % 5]]
    prior = published(5, bank=bank, size=10)
    size = declared.nbytes(prior.rule.entries(), {"L": 5})
    for row in rows:
        prior.observe(torch.from_numpy(np.log(row)))
    assert sum(value.nbytes for value in prior.state.values()) == size < 10_000


def test_the_marginal_of_many_classes_is_small_and_the_matrix_is_refused() -> None:
    assert declared.nbytes(rule_of(PriorOptions()).entries(), {"L": 20_000}) < 200_000
    with pytest.raises(InputError, match="estimator='marginal'"):
        published(20_000)


def test_clipping_holds_back_outliers_and_leaves_the_rest() -> None:
    """Against the definition in plain loops; few outliers are cut, an even spread is not."""
    log_p = np.log(np.array([0.5, 0.2, 0.06, 0.05, 0.05, 0.04, 0.04, 0.03, 0.02, 0.01]))
    middle = sorted(log_p)[4]  # of an even number, the lower one
    reach = 2 * 1.4826 * sorted(abs(log_p - middle))[4]
    want = np.exp([min(max(v, middle - reach), middle + reach) for v in log_p])
    got = clipped(torch.from_numpy(np.exp(log_p)), 2.0)
    np.testing.assert_allclose(got, want / want.sum(), rtol=1e-12)
    even = torch.softmax(torch.linspace(-1, 1, 50, dtype=torch.float64), 0)
    torch.testing.assert_close(clipped(even, 2.0), even)
    alike = torch.tensor([0.25, 0.25, 0.25, 0.2, 0.05])
    assert torch.equal(clipped(alike, 2.0), alike)  # half are equal: no spread to measure by
    assert clipped(even, 0.0) is even
    both = torch.stack([torch.from_numpy(np.exp(log_p)), torch.full((10,), 0.1).double()])
    assert torch.equal(clipped(both, 2.0), torch.stack([got, both[1]]))  # rows by themselves


def test_a_stream_of_few_classes_does_not_pass_for_a_biased_model() -> None:
    """A fair model of 100 classes that is shown five of them: the clipped prior says so."""
    g = torch.Generator().manual_seed(0)
    plain, cut = (Estimate(100, PriorOptions(clip=clip)) for clip in (0.0, 2.0))
    for i in range(400):
        z = torch.randn(100, generator=g)
        z[i % 5] += 3.0
        for prior in (plain, cut):
            prior.observe(torch.log_softmax(z, -1))
    spread = [float(p.log_prior.max() - p.log_prior.median()) for p in (plain, cut)]
    assert spread[0] > 1.2
    assert spread[1] < 0.3
