"""The pure functions against the oracle, the paper's statements, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import oracle
from adte.core import functional as F
from adte.core.errors import InputError

SHAPES = [(1, 1), (1, 2), (7, 3), (64, 10), (33, 100), (3, 1000), (64, 1000)]
QS = [0.01, 0.1, 0.5, 0.999, 0.999999, 1.0, 1.000001, 1.5, 2.0, 10.0]
RULES = ["minmax", "zscore", "decimal", "sigmoid"]
DIRECTIONS = ["released", "paper"]

quick = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def random_logits(views: int, classes: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=(views, classes))


def random_log_prior(classes: int, seed: int = 0) -> np.ndarray:
    return np.log(np.random.default_rng(seed).dirichlet(np.full(classes, 2.0)))


def random_q(classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.01, 0.9, size=classes)


def log_p(z: np.ndarray) -> Tensor:
    return F.log_probs(torch.from_numpy(z))


@st.composite
def stacks(draw: st.DrawFn, max_views: int = 16, max_classes: int = 40) -> np.ndarray:
    """Logits of some views; the scale goes from nearly uniform to nearly one-hot."""
    views = draw(st.integers(1, max_views))
    classes = draw(st.integers(1, max_classes))
    scale = draw(st.sampled_from([0.01, 1.0, 5.0, 30.0]))
    return random_logits(views, classes, draw(seeds), scale)


# --------------------------------------------------------------------------- oracle agreement


@pytest.mark.parametrize(("views", "classes"), SHAPES)
def test_log_probs_and_shannon_match_the_oracle(views: int, classes: int) -> None:
    z = random_logits(views, classes)
    P = oracle.softmax(z)
    assert_close(log_p(z).exp(), torch.from_numpy(P), rtol=1e-10, atol=1e-12)
    want = [oracle.shannon(p) for p in P]
    np.testing.assert_allclose(F.shannon(log_p(z)), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize(("views", "classes"), SHAPES[:-1])
def test_tsallis_matches_the_oracle(views: int, classes: int, q: float) -> None:
    z = random_logits(views, classes)
    want = [oracle.tsallis(p, q) for p in oracle.softmax(z)]
    np.testing.assert_allclose(F.tsallis(log_p(z), q), want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("views", "classes"), SHAPES)
def test_adaptive_matches_the_oracle_in_both_readings(
    views: int, classes: int, direction: str
) -> None:
    z, log_prior = random_logits(views, classes), random_log_prior(classes)
    P = oracle.softmax(z)
    q_want = oracle.q_from_prior(log_prior, direction=direction)
    q = F.q_from_prior(torch.from_numpy(log_prior), direction=direction)
    np.testing.assert_allclose(q, q_want, rtol=1e-6, atol=1e-9)
    want = [oracle.adaptive(p, q_want) for p in P]
    np.testing.assert_allclose(F.adaptive_tsallis(log_p(z), q), want, rtol=1e-6)
    got32 = F.adaptive_tsallis(log_p(z).float(), q.float())
    np.testing.assert_allclose(got32, want, rtol=1e-4)
    want = [oracle.adaptive_vanishing(p, q_want) for p in P]
    got = F.adaptive_tsallis(log_p(z), q, form="vanishing")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", ["paper", "vanishing"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_selection_and_average_match_the_oracle(direction: str, form: str) -> None:
    """The pipeline of algorithm 2 end to end, in each reading, over several images."""
    entropy = oracle.adaptive if form == "paper" else oracle.adaptive_vanishing
    for seed in range(5):
        z, log_prior = random_logits(64, 20, seed), random_log_prior(20, seed)
        P, q = oracle.softmax(z), oracle.q_from_prior(log_prior, direction=direction)
        order = oracle.rank([entropy(p, q) for p in P])
        got_q = F.q_from_prior(torch.from_numpy(log_prior), direction=direction)
        got_order = F.rank_views(F.adaptive_tsallis(log_p(z), got_q, form))
        assert got_order.tolist() == order
        keep = F.keep_count(64)
        assert keep == 6
        kept = F.take_views(log_p(z), got_order[:keep])
        want = oracle.mean_probs(P[order[:6]])
        np.testing.assert_allclose(F.mean_probs(kept).exp(), want, rtol=1e-6)


@pytest.mark.parametrize("classes", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rule", RULES)
def test_q_rules_match_the_oracle(rule: str, direction: str, classes: int) -> None:
    log_prior = random_log_prior(classes)
    for alpha, beta in ((0.01, 0.9), (0.2, 0.4)):
        got = F.q_from_prior(torch.from_numpy(log_prior), alpha, beta, rule, direction)
        want = oracle.q_from_prior(log_prior, alpha, beta, rule, direction)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("views", "classes"), SHAPES)
def test_means_match_the_oracle(views: int, classes: int) -> None:
    z = random_logits(views, classes)
    want = oracle.mean_probs(oracle.softmax(z))
    np.testing.assert_allclose(F.mean_probs(log_p(z)).exp(), want, rtol=1e-6, atol=1e-12)
    got = F.mean_logits(torch.from_numpy(z)).exp()
    np.testing.assert_allclose(got, oracle.mean_logits(z), rtol=1e-6, atol=1e-12)
    # A view's normalising constant cancels: log-probabilities may stand in for logits.
    assert_close(F.mean_logits(log_p(z)).exp(), got)


@quick
@given(z=stacks(), keep=st.integers(1, 16))
def test_vote_matches_the_oracle(z: np.ndarray, keep: int) -> None:
    keep = min(keep, len(z))
    P = oracle.softmax(z)
    order = oracle.rank([oracle.shannon(p) for p in P])
    got = F.vote(log_p(z), torch.tensor(order), keep)
    np.testing.assert_allclose(got, oracle.vote(P, order, keep), rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_adjustment_at_its_four_places(seed: int) -> None:
    z, log_prior, keep = random_logits(12, 9, seed), random_log_prior(9, seed), 4
    zt, bias = torch.from_numpy(z), torch.from_numpy(log_prior)

    def best(lp: Tensor) -> Tensor:
        return F.rank_views(F.shannon(lp))[:keep]

    plain, adjusted = F.log_probs(zt), F.adjust(zt, bias)
    places = {
        "after": F.adjust(F.mean_probs(F.take_views(plain, best(plain))), bias),
        "per-view": F.mean_probs(F.adjust(F.take_views(zt, best(plain)), bias)),
        "before": F.mean_probs(F.take_views(adjusted, best(adjusted))),
        "base": adjusted[0],
    }
    wants = {
        "after": oracle.adjust_after(z, log_prior, oracle.shannon, keep),
        "per-view": oracle.adjust_per_view(z, log_prior, oracle.shannon, keep),
        "before": oracle.adjust_before(z, log_prior, oracle.shannon, keep),
        "base": oracle.adjust_base(z, log_prior),
    }
    for place, want in wants.items():
        np.testing.assert_allclose(places[place].exp(), want, rtol=1e-6, err_msg=place)
    # Four places, four answers: no two of them may coincide by accident of the code.
    for a in wants:
        for b in wants:
            assert a == b or not np.allclose(places[a], places[b])


# --------------------------------------------------------------------------- batches and dtypes


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3)])
def test_batched_equals_looped(lead: tuple[int, ...]) -> None:
    views, classes, keep = 6, 5, 3
    n = math.prod(lead)
    z = torch.from_numpy(random_logits(n * views, classes)).reshape(*lead, views, classes)
    q = torch.from_numpy(random_q(classes))
    bias = torch.from_numpy(random_log_prior(classes))

    def everything(z: Tensor) -> list[Tensor]:
        lp = F.log_probs(z)
        order = F.rank_views(F.shannon(lp))
        kept = F.take_views(lp, order[..., :keep])
        return [
            lp, F.shannon(lp), F.tsallis(lp, 0.5), F.tsallis(lp, 1.0), F.adaptive_tsallis(lp, q),
            F.adaptive_tsallis(lp, q, "vanishing"), order, kept, F.mean_probs(kept),
            F.mean_logits(z), F.vote(lp, order, keep), F.vote(lp, order, views),
            F.adjust(z, bias),
        ]  # fmt: skip

    singles = [everything(one) for one in z.reshape(n, views, classes)]
    for batched, looped in zip(everything(z), zip(*singles, strict=True), strict=True):
        want = torch.stack(looped)
        assert_close(batched, want.reshape(*lead, *want.shape[1:]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    """What comes out is float32, and is the float32 result of the rounded input."""
    z = torch.from_numpy(random_logits(6, 12)).to(dtype)
    lp = F.log_probs(z)
    assert_close(lp, F.log_probs(z.float()))
    half, order = lp.to(dtype), torch.arange(6)
    q, bias = torch.from_numpy(random_q(12)), torch.from_numpy(random_log_prior(12))
    functions = {
        "shannon": lambda x: F.shannon(x),
        "tsallis": lambda x: F.tsallis(x, 0.5),
        "paper": lambda x: F.adaptive_tsallis(x, q),
        "vanishing": lambda x: F.adaptive_tsallis(x, q, "vanishing"),
        "mean_probs": F.mean_probs,
        "mean_logits": F.mean_logits,
        "adjust": lambda x: F.adjust(x, bias),
        "vote": lambda x: F.vote(x, order, 4),
        "q_from_prior": lambda x: F.q_from_prior(x),
    }
    for name, function in functions.items():
        got = function(half)
        assert got.dtype == torch.float32, name
        assert got.isfinite().all(), name
    assert_close(F.shannon(half), F.shannon(half.float()))
    whole = torch.tensor([[3, 1, 0]])
    assert_close(F.log_probs(whole), F.log_probs(whole.float()))
    assert_close(F.tsallis(half, 0.1), F.tsallis(half.float(), 0.1))


def test_half_precision_votes_are_counted_exactly() -> None:
    """bfloat16 cannot count past 256: 300 against 299 votes must not become a tie."""
    ballots = torch.tensor([1] * 300 + [0] * 299)
    lp = torch.full((599, 2), -4.0).scatter(1, ballots[:, None], -0.02).to(torch.bfloat16)
    got = F.vote(lp, torch.arange(599), 599)
    assert_close(got.double(), torch.tensor([299, 300], dtype=torch.float64) / 599)


# --------------------------------------------------------------------------- gradients


def _gradcheck(function: object, classes: int = 5) -> None:
    lp = log_p(random_logits(3, classes)).requires_grad_()
    assert torch.autograd.gradcheck(function, (lp,))


@pytest.mark.parametrize("q", [0.1, 0.999999, 1.0, 1.000001, 2.0])
def test_gradient_of_tsallis(q: float) -> None:
    _gradcheck(lambda lp: F.tsallis(lp, q))


@pytest.mark.parametrize("form", ["paper", "vanishing"])
def test_gradient_of_adaptive(form: str) -> None:
    q = torch.from_numpy(random_q(5))
    _gradcheck(lambda lp: F.adaptive_tsallis(lp, q, form))


def test_gradient_of_averages_and_adjustment() -> None:
    bias = torch.from_numpy(random_log_prior(5))
    _gradcheck(F.mean_probs)
    _gradcheck(F.mean_logits)
    _gradcheck(lambda z: F.adjust(z, bias))


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_gradients_through_the_logits_are_finite(scale: float) -> None:
    """From flat to saturated views; the probabilities of the last underflow to zero."""
    q = torch.from_numpy(random_q(7)).float()
    for entropy in (
        F.shannon,
        lambda lp: F.tsallis(lp, 0.01),
        lambda lp: F.tsallis(lp, 1.0),
        lambda lp: F.tsallis(lp, 2.0),
        lambda lp: F.adaptive_tsallis(lp, q),
        lambda lp: F.adaptive_tsallis(lp, q, "vanishing"),
    ):
        z = torch.from_numpy(random_logits(4, 7, scale=scale)).float().requires_grad_()
        (gradient,) = torch.autograd.grad(entropy(F.log_probs(z)).sum(), z)
        assert gradient.isfinite().all()


# --------------------------------------------------------------------------- Tsallis and Shannon


@quick
@given(z=stacks(max_views=3))
def test_tsallis_tends_to_shannon_from_both_sides(z: np.ndarray) -> None:
    """T falls in q, so it closes in on S from above for q < 1 and from below for q > 1."""
    lp = log_p(z)
    S = F.shannon(lp)
    x = -lp
    for side in (-1, 1):
        last = torch.full_like(S, torch.inf)
        for d in (0.3, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10):
            difference = -side * (F.tsallis(lp, 1 + side * d) - S)
            noise = 1e-12 * (1 + S)
            assert (difference >= -noise).all()
            assert (difference <= last + noise).all()
            # Taylor with remainder: |T(1 ± d) − S| ≤ d/2 · Σ P^min(q,1) (log P)².
            C = ((-min(1.0, 1 + side * d) * x).exp() * x**2).sum(-1) / 2
            assert (difference <= C * d + noise).all()
            last = difference


# --------------------------------------------------------------------------- invariants


@quick
@given(z=stacks(), seed=seeds)
def test_class_permutation(z: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    perm = torch.from_numpy(rng.permutation(z.shape[1]))
    lp, q = log_p(z), torch.from_numpy(random_q(z.shape[1], seed))
    moved = lp[:, perm]
    tight = {"rtol": 1e-9, "atol": 1e-12}
    assert_close(F.shannon(moved), F.shannon(lp), **tight)
    assert_close(F.tsallis(moved, 0.5), F.tsallis(lp, 0.5), **tight)
    assert_close(F.adaptive_tsallis(moved, q[perm]), F.adaptive_tsallis(lp, q), **tight)
    assert_close(F.adaptive_tsallis(moved, q[perm], "vanishing"),
                 F.adaptive_tsallis(lp, q, "vanishing"), **tight)  # fmt: skip
    for rule in RULES:
        assert_close(F.q_from_prior(lp, rule=rule)[:, perm], F.q_from_prior(moved, rule=rule),
                     rtol=1e-6, atol=1e-9)  # fmt: skip


@quick
@given(classes=st.integers(1, 50), seed=seeds)
def test_one_hot(classes: int, seed: int) -> None:
    """Zero for the vanishing form, 1/(1 − q_l) for the paper's; certain log-probabilities."""
    q = torch.from_numpy(random_q(classes, seed))
    lp = torch.eye(classes, dtype=torch.float64).log()  # row l is certain of class l
    assert_close(F.adaptive_tsallis(lp, q), 1 / (1 - q))
    zeros = torch.zeros(classes, dtype=torch.float64)
    for got in (F.adaptive_tsallis(lp, q, "vanishing"), F.shannon(lp), F.tsallis(lp, 0.1),
                F.tsallis(lp, 1.0), F.tsallis(lp, 3.0)):  # fmt: skip
        assert_close(got, zeros)


@quick
@given(z=stacks(), seed=seeds)
def test_paper_form_never_falls_under_its_one_hot_value(z: np.ndarray, seed: int) -> None:
    """P^q ≥ P, so the paper's form is at least 1/(1 − α): DeYO's filter can never pass it."""
    q = torch.from_numpy(random_q(z.shape[1], seed))
    assert (F.adaptive_tsallis(log_p(z), q) >= 1 / (1 - q.min()) - 1e-9).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_minus_infinity_gives_finite_results(dtype: torch.dtype) -> None:
    inf = torch.inf
    lp = torch.tensor([[0.0, -inf, -inf], [-0.7, -0.7, -inf], [-1.1, -1.1, -1.1]], dtype=dtype)
    q = torch.tensor([0.01, 0.5, 0.9])
    for got in (
        F.shannon(lp), F.tsallis(lp, 0.01), F.tsallis(lp, 1.0), F.tsallis(lp, 2.0),
        F.adaptive_tsallis(lp, q), F.adaptive_tsallis(lp, q, "vanishing"),
        F.mean_probs(lp), F.mean_probs(lp[:1]), F.vote(lp, torch.tensor([0, 1, 2]), 2),
    ):  # fmt: skip
        assert got.isfinite().all()
    assert_close(F.shannon(lp)[:2], torch.tensor([0.0, math.log(2)]).to(F.shannon(lp)),
                 rtol=2e-2, atol=1e-6)  # fmt: skip


# --------------------------------------------------------------------------- q from the prior


@quick
@given(classes=st.integers(2, 60), seed=seeds, rule=st.sampled_from(RULES))
def test_q_stays_inside_its_interval_and_follows_its_direction(
    classes: int, seed: int, rule: str
) -> None:
    log_prior = torch.from_numpy(random_log_prior(classes, seed))
    head, tail = int(log_prior.argmax()), int(log_prior.argmin())
    for direction in DIRECTIONS:
        q = F.q_from_prior(log_prior, 0.05, 0.8, rule, direction)
        assert (q >= 0.05 - 1e-9).all()
        assert (q <= 0.8 + 1e-9).all()
        low, high = (tail, head) if direction == "released" else (head, tail)
        assert q[low] <= q[high]
    if rule == "sigmoid":
        return
    both = [F.q_from_prior(log_prior, 0.05, 0.8, rule, d) for d in DIRECTIONS]
    # The directions mirror each other: u and 1 − u.
    assert_close(both[0] + both[1], torch.full_like(log_prior, 0.85), rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------- selection and votes


@quick
@given(views=st.integers(1, 200), thousandths=st.integers(1, 1000))
def test_keep_count_is_the_floor_and_at_least_one(views: int, thousandths: int) -> None:
    ratio = thousandths / 1000
    assert F.keep_count(views, ratio) == oracle.keep_count(views, ratio)


def test_keep_count_means_the_decimal_that_was_written() -> None:
    """0.29 · 100 is 28.999… in binary, and 28 in a code that trusts it."""
    for views, ratio, want in ((100, 0.29, 29), (50, 0.58, 29), (1000, 0.001, 1), (100, 0.57, 57)):
        assert F.keep_count(views, ratio) == oracle.keep_count(views, ratio) == want


@quick
@given(entropy=st.lists(st.integers(0, 3), min_size=1, max_size=64))
def test_ranking_is_stable_under_ties(entropy: list[int]) -> None:
    """Few distinct values, many ties: the lowest index first, in every floating type."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        got = F.rank_views(torch.tensor(entropy, dtype=dtype)).tolist()
        assert got == oracle.rank(entropy)


def _views(*tops: int, classes: int = 4) -> Tensor:
    """Log-probabilities of views that favour the given classes, with every score distinct."""
    lp = torch.full((len(tops), classes), -3.0, dtype=torch.float64)
    lp -= torch.arange(classes) * 0.01
    return lp.scatter(1, torch.tensor(tops)[:, None], -0.1)


def test_vote_tie_goes_to_the_next_confident_view_among_the_tied() -> None:
    lp = _views(1, 2, 3, 2, 1)  # 1 : 1, then class 3 (not tied), then class 2 decides
    assert_close(F.vote(lp, torch.arange(5), 2), torch.tensor([0, 1, 2, 0]).double() / 3)
    # The order of confidence decides, not the order of the rows.
    got = F.vote(lp, torch.tensor([0, 1, 2, 4, 3]), 2)
    assert_close(got, torch.tensor([0, 2, 1, 0]).double() / 3)


def test_vote_fallback_is_the_most_confident_unused_view() -> None:
    lp = _views(1, 2, 3, 0)  # neither 3 nor 0 is tied
    lp[2, 2] = -2.0  # among the tied 1 and 2, the unused view 2 prefers 2
    lp[3, 1] = -2.0  # and view 3 would prefer 1: it comes too late
    assert_close(F.vote(lp, torch.arange(4), 2), torch.tensor([0, 1, 2, 0]).double() / 3)
    got = F.vote(lp, torch.tensor([0, 1, 3, 2]), 2)
    assert_close(got, torch.tensor([0, 2, 1, 0]).double() / 3)


# --------------------------------------------------------------------------- bad input

LP = torch.tensor([[0.6, 0.3, 0.1]]).log()
BAD = {
    "alpha zero": (lambda: F.q_from_prior(LP, alpha=0.0), "0.0"),
    "beta one": (lambda: F.q_from_prior(LP, beta=1.0), "1.0"),
    "alpha above beta": (lambda: F.q_from_prior(LP, alpha=0.7, beta=0.3), "0.7"),
    "alpha equal to beta": (lambda: F.q_from_prior(LP, alpha=0.5, beta=0.5), "0.5"),
    "alpha nan": (lambda: F.q_from_prior(LP, alpha=math.nan), "nan"),
    "rule": (lambda: F.q_from_prior(LP, rule="minmix"), "minmix"),
    "direction": (lambda: F.q_from_prior(LP, direction="sideways"), "sideways"),
    "form": (lambda: F.adaptive_tsallis(LP, torch.full((3,), 0.5), "vanish"), "vanish"),
    "ratio zero": (lambda: F.keep_count(8, 0.0), "0.0"),
    "ratio negative": (lambda: F.keep_count(8, -0.25), "-0.25"),
    "ratio above one": (lambda: F.keep_count(8, 1.5), "1.5"),
    "ratio nan": (lambda: F.keep_count(8, math.nan), "nan"),
    "count zero": (lambda: F.keep_count(8, count=0), "0"),
    "count above views": (lambda: F.keep_count(8, count=9), "9"),
    "no views": (lambda: F.keep_count(0), "0"),
    "vote keeps none": (lambda: F.vote(LP, torch.tensor([0]), 0), "0"),
    "vote keeps more than there are": (lambda: F.vote(LP, torch.tensor([0]), 2), "2"),
    "tsallis q zero": (lambda: F.tsallis(LP, 0.0), "0.0"),
    "tsallis q negative": (lambda: F.tsallis(LP, -1.5), "-1.5"),
    "tsallis q nan": (lambda: F.tsallis(LP, math.nan), "nan"),
    "adaptive q one": (lambda: F.adaptive_tsallis(LP, torch.tensor([0.5, 1.0, 0.5])), "1.0"),
    "adaptive q zero": (lambda: F.adaptive_tsallis(LP, torch.tensor([0.0, 0.5, 0.5])), "0.0"),
    "adaptive q of other classes": (lambda: F.adaptive_tsallis(LP, torch.full((5,), 0.5)), "5"),
    "prior of other classes": (lambda: F.adjust(LP, torch.zeros(5)), "5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    call, value = BAD[case]
    with pytest.raises(InputError) as error:
        call()
    assert value in str(error.value)


def test_a_weighed_sum_uses_its_input_up_unless_a_gradient_needs_it() -> None:
    weights, x = torch.rand(2, 3), torch.rand(2, 3, 4)
    wanted = (weights.unsqueeze(-1) * x).sum(-2)
    kept = x.clone().requires_grad_()
    found = F.weighed_sum(weights, kept)
    assert torch.equal(found, wanted)
    found.sum().backward()
    assert kept.grad is not None
    assert torch.equal(kept.detach(), x)
    assert torch.equal(F.weighed_sum(weights, x), wanted)
    assert not torch.equal(kept.detach(), x)


def test_gradient_of_the_soft_mean() -> None:
    z = torch.as_tensor(random_logits(3, 5)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: F.soft_mean(z)[0], (z,))
