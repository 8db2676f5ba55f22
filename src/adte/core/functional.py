"""Entropies, q rules, view selection, aggregation and logit adjustment, as pure functions.

Everything works on log-probabilities, is batched over leading dimensions and differentiable.
Shapes: V views, K kept views, L classes, D features; `…` stands for any leading dimensions.
Half-precision input is widened to float32 first.

Reference: Wu et al., "Adaptive Debiasing Tsallis Entropy for Test-Time Adaptation", ICLR 2026.
"The paper" below is that paper, "the release" its published code; where they differ, both exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from adte.core.errors import InputError, unknown

__all__ = [
    "QDirection",
    "QRule",
    "adaptive_tsallis",
    "adjust",
    "keep_count",
    "log_probs",
    "mean_logits",
    "mean_probs",
    "pieces",
    "q_from_prior",
    "rank_views",
    "shannon",
    "soft_mean",
    "soft_weights",
    "take_views",
    "tsallis",
    "vote",
    "weighed_sum",
    "wide",
]

QRule = Literal["minmax", "zscore", "decimal", "sigmoid"]
QDirection = Literal["released", "paper"]
EntropyForm = Literal["paper", "vanishing"]

# Stands in for log 0: far below any float32 log-probability, yet finite, so 0 · log 0 is 0.
_LOG_ZERO = -1e30


# Logits that are worked on at once: on a host, what its caches hold; on a device, 128 MB of them.
_MOST, _MOST_ON_HOST = 1 << 25, 1 << 18


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or as it is if that is float32 or float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities of logits: log-softmax, in float32 or wider.  (…, L) → (…, L)"""
    return torch.log_softmax(wide(logits), dim=-1)


def pieces(logits: Tensor) -> Iterator[slice]:
    """Slices of a batch (B, V, L) that are small enough to be worked on at once."""
    most = _MOST_ON_HOST if logits.is_cpu else _MOST
    size = max(1, most // (logits.shape[1] * logits.shape[2]))
    for start in range(0, len(logits), size):
        yield slice(start, min(start + size, len(logits)))


def _check_classes(values: Tensor, log_p: Tensor, name: str) -> None:
    if values.ndim and values.shape[-1] != log_p.shape[-1]:
        raise InputError(
            f"{name} has {values.shape[-1]} entries, but there are {log_p.shape[-1]} classes; "
            "give one a class"
        )


# --------------------------------------------------------------------------- entropies


def shannon(log_p: Tensor, p: Tensor | None = None) -> Tensor:
    """Shannon entropy −Σ P log P in nats; `p` is P itself, if it is known.  (…, L) → (…)

    >>> shannon(torch.tensor([0.5, 0.5]).log())
    tensor(0.6931)
    """
    log_p = wide(log_p).clamp_min(_LOG_ZERO)
    return -log_p.mul_(log_p.exp() if p is None else p).sum(-1)


def tsallis(log_p: Tensor, q: float | Tensor) -> Tensor:
    """Tsallis entropy Σ (P^q − P)/(1 − q) for q > 0; Shannon's for q = 1.  (…, L) → (…)

    With one q this is (Σ P^q − 1)/(1 − q). With a q for every class (L,), it is the form that is
    zero on one-hot distributions. Each term is computed as P^min(q,1) · φ(|1−q|, log P) with
    φ(d, x) = −expm1(d·x)/d, which has no cancellation and is smooth at q = 1.

    >>> tsallis(torch.tensor([0.5, 0.5]).log(), 2.0)
    tensor(0.5000)
    """
    log_p = wide(log_p).clamp_min(_LOG_ZERO)
    q = torch.as_tensor(q, dtype=log_p.dtype, device=log_p.device)
    _check_classes(q, log_p, "q")
    if not bool((q > 0).all()):
        raise InputError(f"q={q.tolist()} of a Tsallis entropy must be positive; choose e.g. 0.5")
    d = (1 - q).abs()
    is_one = d == 0
    phi = torch.where(is_one, -log_p, -torch.expm1(d * log_p) / torch.where(is_one, 1.0, d))
    return ((q.clamp_max(1) * log_p).exp() * phi).sum(-1)


def adaptive_tsallis(
    log_p: Tensor, q: Tensor, form: EntropyForm = "paper", check: bool = True
) -> Tensor:
    """ADTE's entropy with a q for every class, 0 < q < 1.  (…, L), (L,) or (…, L) → (…)

    Args:
        log_p: log-probabilities.
        q: the q of each class, as `q_from_prior` gives it.
        form: "paper" is Σ P^q / (1 − q), the paper's Eq. (7). There a view that is certain of class
            l scores 1/(1 − q_l), not 0, so the entropy itself prefers classes of small q.
            "vanishing" is Σ (P^q − P)/(1 − q), which is zero on every one-hot distribution.
        check: whether to check the values of q. False saves waiting for a GPU, and is for a q that
            is known to be at most 0.99.
    """
    if form not in ("paper", "vanishing"):
        raise unknown("entropy form", form, ("paper", "vanishing"))
    log_p = wide(log_p)
    q = q.to(log_p)
    _check_classes(q, log_p, "q")
    if check:
        low, high = (float(x) for x in q.aminmax())
        if not 0 < low <= high < 1:
            raise InputError(
                f"q of the adaptive entropy spans {low} to {high}; every class needs 0 < q < 1, as "
                "q_from_prior gives"
            )
        if form == "vanishing" and high > 0.99:  # the difference below would cancel
            return tsallis(log_p, q)
    terms = (q * log_p).exp()
    if form == "vanishing":
        terms = terms - log_p.exp()
    # A sum of each row by itself: the same numbers in whatever batch a view comes.
    return (terms * (1 / (1 - q))).sum(-1)


# --------------------------------------------------------------------------- q from the prior


def q_from_prior(
    log_prior: Tensor,
    alpha: float = 0.01,
    beta: float = 0.9,
    rule: QRule = "minmax",
    direction: QDirection = "released",
) -> Tensor:
    """The q of each class, in [α, β], from the log of the estimated class prior.  (…, L) → (…, L)

    `direction` says which classes get the large q: "released" gives favoured (head) classes β and
    tail classes α, as the release does; "paper" gives head classes α and tail classes β, as the
    paper's text says.

    `rule` maps x = ±log p̃ to u in [0, 1], and q = α + (β − α)·u:
      minmax   (x − min)/(max − min); a flat prior gives u = 0, so q = α for every class
      zscore   three (population) standard deviations either side of the mean fill it, clipped
      decimal  |log p̃| / 10^j with the smallest j that brings all of it to at most 1
      sigmoid  the logistic function of the min-max, as released: u in [0.5, 0.73]
    In the release z-score and decimal scaling end in a min-max, which makes them equal to
    `minmax`; here they differ.
    """
    check_interval(alpha, beta)
    if direction not in ("released", "paper"):
        raise unknown("direction of q", direction, ("released", "paper"))
    log_prior = wide(log_prior)
    x = log_prior if direction == "released" else -log_prior
    if rule in ("minmax", "sigmoid"):
        low, high = x.aminmax(dim=-1, keepdim=True)
        span = high - low
        u = (x - low) / torch.where(span > 0, span, 1.0)
        u = u.sigmoid() if rule == "sigmoid" else u
    elif rule == "zscore":
        centred = x - x.mean(-1, keepdim=True)
        std = centred.square().mean(-1, keepdim=True).sqrt()
        u = (centred / torch.where(std > 0, std, 1.0) / 6 + 0.5).clamp(0, 1)
    elif rule == "decimal":
        size = log_prior.abs()
        top = size.amax(-1, keepdim=True)
        power = torch.where(top > 0, top.log10().ceil(), 0.0).clamp_min(0)
        share = size / 10**power
        u = share if direction == "paper" else 1 - share
    else:
        raise unknown("q rule", rule, ("minmax", "zscore", "decimal", "sigmoid"))
    return alpha + (beta - alpha) * u


def check_interval(alpha: float, beta: float) -> None:
    if not 0 < alpha < beta < 1:
        raise InputError(
            f"the interval of q is alpha={alpha}, beta={beta}; it must satisfy 0 < alpha < beta < 1"
        )


# --------------------------------------------------------------------------- selection


def keep_count(views: int, ratio: float = 0.1, count: int | None = None) -> int:
    """How many of `views` views to keep: `count`, or ⌊ratio · views⌋, but at least one."""
    if views < 1:
        raise InputError(f"views={views}: there is nothing to keep; make at least one view")
    if count is not None:
        if not 1 <= count <= views:
            raise InputError(
                f"count={count} views to keep is not between 1 and {views}; "
                "lower it or make more views"
            )
        return count
    if not 0 < ratio <= 1:
        raise InputError(f"ratio={ratio} of views to keep is outside (0, 1]; choose e.g. 0.1")
    return max(1, int(ratio * views + 1e-9))  # 0.29 * 100 is 28.999… in binary


def rank_views(entropy: Tensor) -> Tensor:
    """Indices of the views, most confident first; ties go to the lower index.  (…, V) → (…, V)"""
    return entropy.argsort(dim=-1, stable=True)


def take_views(x: Tensor, index: Tensor) -> Tensor:
    """The views of x with these indices.  (…, V, L), (…, K) → (…, K, L)"""
    return x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


def soft_weights(entropy: Tensor) -> Tensor:
    """Weights of views by their entropy, w ∝ exp(−H), so that surer ones count more.
    (…, V) → (…, V)

    >>> soft_weights(torch.tensor([0.0, 0.6931, 2.0]))
    tensor([0.6115, 0.3058, 0.0828])
    """
    return torch.softmax(-entropy, -1)


# --------------------------------------------------------------------------- aggregation


def soft_mean(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the weighted mean Σ w_v P_v of the views, with w ∝ exp(−H(P_v)), and the weights w.
    (…, V, L) → (…, L), (…, V)
    """
    z = wide(logits)
    z = (z - z.amax(-1, keepdim=True)).clamp_min_(_LOG_ZERO)
    e = z.exp()
    total = e.sum(-1)
    weights = soft_weights(total.log() - z.mul_(e).sum(-1) / total)
    mean = weighed_sum(weights / total, e)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log(), weights


def weighed_sum(weights: Tensor, x: Tensor) -> Tensor:
    """The weighted sum Σ w_v x_v over the views.  (…, V), (…, V, L) → (…, L)

    It is not a product of matrices, whose result would depend on how many images come at once. x is
    changed in place, unless a gradient needs it.
    """
    scale = weights.unsqueeze(-1)
    return (x * scale if x.requires_grad or scale.requires_grad else x.mul_(scale)).sum(-2)


def mean_probs(log_p: Tensor) -> Tensor:
    """Log of the mean of the views' probabilities.  (…, K, L) → (…, L)"""
    log_p = wide(log_p)
    return log_p.exp().mean(-2).clamp_min(torch.finfo(log_p.dtype).tiny).log()


def mean_logits(logits: Tensor) -> Tensor:
    """Log-probabilities of the mean of the views' logits.  (…, K, L) → (…, L)

    It is the normalised geometric mean of their probabilities.
    """
    return log_probs(wide(logits).mean(-2))


def vote(log_p: Tensor, order: Tensor, keep: int) -> Tensor:
    """Shares of votes, where each kept view votes for its top class, as in the method Zero.
    (…, V, L), (…, V) → (…, L)

    It is the mean of softmax at a temperature near 0. A tie is settled by the remaining views in
    order of confidence: the first whose top class is among the tied ones adds a vote. If there is
    none, the tied class that scores highest in the most confident unused view wins (in the most
    confident view, if all were kept).

    Args:
        log_p: log-probabilities of the views.
        order: indices of the views, most confident first, as `rank_views` gives them.
        keep: how many of them vote.
    """
    log_p = wide(log_p)
    keep_count(order.shape[-1], count=keep)
    ballots = log_p.argmax(-1).gather(-1, order)  # (…, V) in order of confidence
    votes = torch.zeros_like(log_p[..., 0, :])
    votes.scatter_add_(
        -1, ballots[..., :keep], torch.ones_like(ballots[..., :keep], dtype=votes.dtype)
    )
    tied = votes == votes.amax(-1, keepdim=True)  # (…, L)
    views = order.shape[-1]
    fallback_view = order[..., keep if keep < views else 0]
    scores = take_views(log_p, fallback_view.unsqueeze(-1)).squeeze(-2)
    scores = scores.clamp_min(_LOG_ZERO).masked_fill(~tied, -torch.inf)
    winner = scores.argmax(-1)
    if keep < views:
        rest = ballots[..., keep:]
        decides = tied.gather(-1, rest)  # (…, V−K)
        first = decides.to(torch.uint8).argmax(-1, keepdim=True)
        winner = torch.where(decides.any(-1), rest.gather(-1, first).squeeze(-1), winner)
    is_tie = (tied.sum(-1, keepdim=True) > 1).to(votes.dtype)
    votes.scatter_add_(-1, winner.unsqueeze(-1), is_tie)
    return votes / votes.sum(-1, keepdim=True)


# --------------------------------------------------------------------------- logit adjustment


def adjust(logits: Tensor, log_prior: Tensor, tau: float = 1.0) -> Tensor:
    """Logit adjustment: log-probabilities of z − τ·log p̃, for a class prior p̃.
    (…, L), (L,) → (…, L)

    It can be applied to all views before their entropy is measured, to the kept views before they
    are averaged, or to the averaged distribution, with different results.
    """
    logits = wide(logits)
    _check_classes(log_prior, logits, "the prior")
    return log_probs(logits - tau * log_prior.to(logits))
