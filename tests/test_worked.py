"""Numbers worked by hand, apart from this code: views, averages, votes, entropies, q, the prior.

The image has 4 views and 3 classes. A number with four decimals is asserted to half a unit of the
fourth.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
from adte.core import functional as F
from adte.core.state import fresh
from adte.methods.prior import PriorOptions, fixed_point, rule_of

Z = torch.from_numpy(oracle.F_LOGITS)
LP = F.log_probs(Z)
PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
# Columns of the matrix: the mean distribution of each class's items.
COLUMNS = [[0.8, 0.15, 0.05], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7]]
A = torch.tensor(COLUMNS, dtype=torch.float64).T
UNIFORM = torch.full((3,), 1 / 3, dtype=torch.float64)


def check(got: Any, want: Any, digits: int = 4) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=0.5 * 10**-digits + 1e-9)


def best(entropy: Tensor, keep: int) -> list[int]:
    return F.rank_views(entropy)[:keep].tolist()


# --------------------------------------------------------------------------- views and averages


def test_fixture() -> None:
    check(LP.exp(), [[0.7285, 0.1625, 0.1090], [0.0545, 0.8962, 0.0493],
                     [0.3322, 0.3672, 0.3006], [0.0674, 0.1112, 0.8214]])  # fmt: skip
    check(F.shannon(LP), [0.7676, 0.4052, 1.0953, 0.5876])
    assert best(F.shannon(LP), 4) == [1, 3, 0, 2]


def test_marginal_entropy() -> None:
    """Entropy of the mean of the two best views , not mean of entropies."""
    kept = LP[[1, 3]]
    check(F.mean_probs(kept).exp(), [0.0610, 0.5037, 0.4354])
    check(F.shannon(F.mean_probs(kept)), 0.8780)
    assert abs(float(F.shannon(kept).mean()) - 0.8780) > 0.1


def test_gradient_of_the_marginal_entropy() -> None:
    """∂ME/∂z_ij = −(1/n)·P_ij·(ln p̄_j − Σ_k P_ik ln p̄_k), against autograd."""
    z = Z[[1, 3]].clone().requires_grad_()
    (got,) = torch.autograd.grad(F.shannon(F.mean_probs(F.log_probs(z))), z)
    P = oracle.softmax(oracle.F_LOGITS[[1, 3]])
    log_mean = np.log(oracle.mean_probs(P))
    want = -P / 2 * (log_mean - (P * log_mean).sum(1, keepdims=True))
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_averages() -> None:
    probabilities, logits = F.mean_probs(LP).exp(), F.mean_logits(Z).exp()
    check(probabilities, [0.2957, 0.3843, 0.3201])
    check(logits, [0.2693, 0.4331, 0.2976])
    assert int(LP[0].argmax()) == 0  # of the base view alone
    assert int(probabilities.argmax()) == int(logits.argmax()) == 1


# --------------------------------------------------------------------------- votes


def test_vote() -> None:
    """Views 1 and 3 tie on classes 1 and 2; view 0 (class 0) is passed over, view 2 decides."""
    order = F.rank_views(F.shannon(LP))
    keep = F.keep_count(4, 0.5)
    assert order[:keep].tolist() == [1, 3]
    shares = F.vote(LP, order, keep)
    check(shares * 3, [0, 2, 1])  # votes (0, 1, 1) and the deciding one
    assert int(shares.argmax()) == 1


def test_soft_vote_of_half_precision() -> None:
    """float16's epsilon as the temperature is no vote at all."""
    cosines = torch.tensor([0.2500, 0.2490, 0.2450], dtype=torch.float64)
    soft = F.log_probs(cosines / torch.finfo(torch.float16).eps).exp()
    check(soft, [0.7325, 0.2631, 0.0044])
    check(F.vote(cosines.log()[None], torch.tensor([0]), 1), [1, 0, 0])


# --------------------------------------------------------------------------- entropies


@pytest.mark.parametrize(
    ("q", "want"),
    [(0.5, [1.1736, 0.8044, 1.4612, 0.9988]),
     (2.0, [0.4310, 0.1914, 0.6644, 0.3084]),
     (0.999, [0.7682, 0.4057, 1.0959, 0.5882])],
)  # fmt: skip
def test_entropies(q: float, want: list[float]) -> None:
    check(F.tsallis(LP, q), want)


def test_order_change() -> None:
    """Shannon and q = 0.5 prefer the first, q = 2 the second."""
    lp = torch.tensor([[0.60, 0.395, 0.005], [0.72, 0.14, 0.14]], dtype=torch.float64).log()
    for got, want, order in (
        (F.shannon(lp), [0.6999, 0.7870], [0, 1]),
        (F.tsallis(lp, 0.5), [0.9476, 1.1937], [0, 1]),
        (F.tsallis(lp, 2.0), [0.4839, 0.4424], [1, 0]),
    ):
        check(got, want)
        assert best(got, 2) == order


def test_ranking_needs_only_the_sum() -> None:
    for q in (0.1, 0.5, 2.0, 10.0):
        total = (q * LP).exp().sum(-1)
        assert best(F.tsallis(LP, q), 4) == best(total if q < 1 else -total, 4)


# --------------------------------------------------------------------------- q from the prior


def test_released() -> None:
    q = F.q_from_prior(PRIOR.log())
    check(q, [0.9, 0.4038, 0.01])
    H = F.adaptive_tsallis(LP, q)
    check(H, [9.3127, 3.3139, 5.8265, 2.5819])
    assert best(H, 2) == [3, 1]
    check(F.mean_probs(LP[best(H, 2)]).exp(), [0.0610, 0.5037, 0.4354])
    check(F.adaptive_tsallis(LP, q, "vanishing"), [1.6451, 1.2159, 1.5847, 0.8915])


def test_paper() -> None:
    q = F.q_from_prior(PRIOR.log(), direction="paper")
    check(q, [0.01, 0.5062, 0.9])
    H = F.adaptive_tsallis(LP, q)
    check(H, [3.1742, 3.5631, 5.6085, 10.0266])
    assert best(H, 2) == [0, 1]
    check(F.mean_probs(LP[best(H, 2)]).exp(), [0.3915, 0.5294, 0.0791])


def test_the_printed_equation_leaves_the_interval() -> None:
    """With the min and max of p̃ itself every q exceeds 1, so no option offers it."""
    check(oracle.q_literal(PRIOR.tolist()), [1.473, 2.988, 4.191], digits=3)
    for direction in ("released", "paper"):
        q = F.q_from_prior(PRIOR.log(), direction=direction)
        assert bool(((q >= 0.01) & (q <= 0.9)).all())


def test_bounds_of_the_mean_logarithm() -> None:
    """1000 classes: at most −6.91 under L1 and −3.45 under L2; the paper prints −3.87."""
    flat = torch.full((1000,), 1e-3, dtype=torch.float64)
    check(flat.log().mean(), -6.91, digits=2)
    check((flat / flat.norm()).log().mean(), -3.45, digits=2)


def test_one_hot_scores() -> None:
    """1/(1 − q_l), between 1.01 and 10: the direction of q decides which sure views survive."""
    one_hot = torch.eye(3, dtype=torch.float64).log()
    H = F.adaptive_tsallis(one_hot, F.q_from_prior(PRIOR.log()))
    check(H[[0, 2]], [10.0, 1.01], digits=2)


def test_a_vanishing_probability_counts_half_a_unit() -> None:
    lp = torch.tensor([0.0, math.log(1e-30)])
    q = torch.tensor([0.01, 0.01])
    check(F.adaptive_tsallis(lp, q) - 1 / 0.99, 0.506, digits=3)


# --------------------------------------------------------------------------- the fixed point


def test_solution() -> None:
    p, _ = fixed_point(A, UNIFORM)
    check(p, [0.5641, 0.2564, 0.1795])
    check(F.q_from_prior(p.log()), [0.9, 0.2872, 0.01])
    check(sorted(np.linalg.eigvals(A.numpy()).real, reverse=True), [1, 0.6366, 0.4634])


def test_as_frolic_returns_it() -> None:
    p, steps = fixed_point(A, UNIFORM, eps=1e-3, max_iter=100, previous=True)
    check(p, [0.5631, 0.2561, 0.1808])
    assert steps == 12


def test_as_adte_releases_it() -> None:
    p, steps = fixed_point(A, UNIFORM, "l2", eps=1e-4, previous=True)
    check(p, [0.8744, 0.3974, 0.2785])
    assert steps == 17
    # The converged solution has q = .2872; this iterate gives .2867.
    check(F.q_from_prior(p.log()), [0.9, 0.2867, 0.01])


def test_from_a_bank() -> None:
    """The same answers when the columns come in as predictions, the empty class included."""
    rule = rule_of(
        PriorOptions(
            estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, empty="zero", eps=1e-9
        )
    )
    state = fresh("prior", rule.entries(), {"L": 3})
    for column in COLUMNS[:2]:
        assert rule.observe(state, torch.tensor(column, dtype=torch.float64).log())
    check(rule.log_prior(state).exp(), [0.6452, 0.2893, 0.0655])
    rule.observe(state, torch.tensor(COLUMNS[2], dtype=torch.float64).log())
    check(rule.matrix(state), A)
    check(rule.log_prior(state).exp(), [0.5641, 0.2564, 0.1795])


def test_placement() -> None:
    """After the mean, or on every kept view before it: two labels."""
    kept = F.take_views(Z, F.rank_views(F.shannon(LP))[:2])
    after = F.adjust(F.mean_probs(F.log_probs(kept)), PRIOR.log())
    check(after.exp(), [0.0307, 0.4221, 0.5473])
    assert int(after.argmax()) == 2
    per_view = F.mean_probs(F.adjust(kept, PRIOR.log()))
    check(per_view.exp(), [0.0309, 0.4870, 0.4821])
    assert int(per_view.argmax()) == 1
