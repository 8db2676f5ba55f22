"""The class prior: which classes a model favours, estimated from unlabelled predictions.

Two estimators. The *marginal* is the mean of all predictions; its state is one sum a class. For the
*fixed point* a memory bank holds predicted distributions by pseudo-label; column l' of the matrix A
is the mean distribution of the items of class l', and the prior is p̃ = A p̃ (Eqs. 9–11 of the
paper, after Frolic). It is solved whenever the bank changes, from the last solution on, so that the
estimate depends on what was seen and not on when it is read. The cost of an item does not depend on
how many came before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from adte import bank
from adte import functional as F
from adte import state as declared
from adte.errors import InputError, StateError, unknown
from adte.options import option
from adte.state import Entry, State

__all__ = ["ClassPrior", "PriorOptions", "Reading", "clipped", "fixed_point"]

# No estimated prior is smaller than this, so its logarithm is finite whatever the bank holds.
FLOOR = 1e-12

BANKS = ("all", "gap", "gap-larger", "fifo", "reservoir")


def fixed_point(
    matrix: Tensor | Callable[[Tensor], Tensor],
    start: Tensor,
    norm: Literal["l1", "l2"] = "l1",
    eps: float = 1e-6,
    max_iter: int = 500,
    damping: float = 0.0,
    previous: bool = False,
) -> tuple[Tensor, int]:
    """Iterate p ← A p, normalised every step, until it changes by at most eps.

    Args:
        matrix: A (L, L) with the distribution of class l' in column l', or the map p → A p.
        start: where to begin (L,): uniform, or the last solution.
        norm: of the iterate and of the change: `l1` as in the paper, `l2` as in the release.
        damping: λ in A' = (1 − λ) A + λ/L, which keeps a nearly diagonal A well conditioned.
        previous: return the iterate before the last, as the release does.

    Returns:
        The solution, of unit length in `norm`, and the number of steps taken.

    >>> A = torch.tensor([[0.9, 0.2], [0.1, 0.8]], dtype=torch.float64)
    >>> p, steps = fixed_point(A, torch.full((2,), 0.5, dtype=torch.float64))
    >>> p
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    apply = matrix if callable(matrix) else lambda p: matrix @ p
    if norm not in ("l1", "l2"):
        raise unknown("norm", norm, ("l1", "l2"))
    order = {"l1": 1, "l2": 2}[norm]
    p = start / torch.linalg.vector_norm(start, order)
    for step in range(1, max_iter + 1):
        new = apply(p)
        if damping:
            new = (1 - damping) * new + damping * p.sum() / p.numel()
        new = new / torch.linalg.vector_norm(new, order).clamp_min(FLOOR)
        done = bool(torch.linalg.vector_norm(new - p, order) <= eps)
        if done and previous:
            return p, step
        p = new
        if done:
            return p, step
    return p, max_iter


def clipped(p: Tensor, deviations: float) -> Tensor:
    """p with log p held within so many robust deviations of its median, and renormalised.

    A robust deviation is 1.4826 times the median distance from the median, the standard deviation
    where values are normal. Where half of the classes are alike it is nought, and nothing is cut.
    (…, L) → (…, L)

    >>> p = torch.tensor([0.90, 0.04, 0.03, 0.02, 0.01])
    >>> clipped(p, 2.0)
    tensor([0.4996, 0.2002, 0.1501, 0.1001, 0.0500])
    """
    if not deviations:
        return p
    log_p = p.log()
    middle = log_p.median(-1, keepdim=True).values
    reach = deviations * 1.4826 * (log_p - middle).abs().median(-1, keepdim=True).values
    cut = log_p.clamp(middle - reach, middle + reach).exp()
    return torch.where(reach > 0, cut / cut.sum(-1, keepdim=True), p)


class Reading(NamedTuple):
    """What images of a batch read of the prior.

    Attributes:
        log_prior: log p̃, float64, a row an image (B, L), or (1, L) for all of them.
        since: the first image for which it is in force; those before came too early.
    """

    log_prior: Tensor
    since: int = 0

    def runs(self, images: int) -> list[tuple[slice, Tensor | None]]:
        """The images without a prior, and those with theirs; an empty run is left out."""
        early = min(self.since, images)
        rows = self.log_prior if len(self.log_prior) == 1 else self.log_prior[early:]
        runs = [(slice(0, early), None), (slice(early, images), rows)]
        return [(run, prior) for run, prior in runs if run.stop > run.start]

    def row(self, i: int) -> Tensor | None:
        """log p̃ (L,) of one image, if it is in force."""
        if i < self.since:
            return None
        return self.log_prior[i if len(self.log_prior) > 1 else 0]


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """What decides the estimate, and the estimate as functions of a declared state.

    The defaults are those that held up best over our streams; `adte-paper`, `adte-released` and
    `frolic` set what was published.
    """

    estimator: Literal["fixed-point", "marginal"] = option(
        "marginal", "the plain mean of all predictions, or the fixed point of the bank's matrix"
    )
    smoothing: float = option(1.0, "uniform predictions that are added to every class's own")
    smoothing_total: float = option(
        20.0, "uniform predictions that are added in all, at least, however few the classes"
    )
    clip: float = option(
        2.0,
        "robust deviations from the median beyond which log p̃ is cut, so that classes the stream "
        "repeats do not pass for favoured ones; 0 cuts nothing",
    )
    item: Literal["base", "mean-logits"] = option(
        "base", "what the prior learns from an image: its base view, or the mean logits of all"
    )
    warmup: int = option(0, "images to learn from before the prior is used, at least one")
    bank: Literal["all", "gap", "gap-larger", "fifo", "reservoir"] = option(
        "all",
        "which items the fixed point is of: all as running sums; the newest (gap: it replaces the "
        "smallest gap, as released; gap-larger: only if its own is larger); fifo; a reservoir",
    )
    size: int = option(10, "items a class the bank keeps (not for 'all')")
    threshold: float = option(0.0, "smallest top-1 minus top-2 logit that the bank admits")
    norm: Literal["l1", "l2"] = option("l1", "norm of the iteration: l1 (paper), l2 (released)")
    eps: float = option(1e-4, "the iteration stops when it changes by no more than this")
    max_iter: int = option(500, "most steps of one solution")
    damping: float = option(0.0, "share of the uniform distribution mixed into the matrix")
    empty: Literal["uniform", "zero"] = option(
        "uniform", "column of a class without items: uniform, or zero as released"
    )
    noise: float = option(0.0, "share of pseudo-labels replaced by random ones (noise study)")
    seed: int = option(0, "seed of the reservoir and of the noise")

    def __post_init__(self) -> None:
        for name, known in (
            ("bank", BANKS), ("estimator", ("fixed-point", "marginal")), ("norm", ("l1", "l2")),
            ("empty", ("uniform", "zero")), ("item", ("base", "mean-logits")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name, low, high in (
            ("size", 1, None), ("max_iter", 1, None), ("eps", 0, None), ("smoothing", 0, None),
            ("clip", 0, None), ("smoothing_total", 0, None), ("warmup", 0, None),
            ("damping", 0, 1), ("noise", 0, 1), ("threshold", float("-inf"), None),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (value >= low and (high is None or value <= high)):  # NaN compares false
                bound = f"at least {low}" if high is None else f"between {low} and {high}"
                raise InputError(f"{name}={value} of the class prior must be {bound}")

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        """What is kept: linear in the classes for the marginal."""
        count = torch.int64
        own = {"seen": Entry((), count)}
        if self.estimator == "marginal":
            return own | {"total": Entry(("L",))}
        own |= {
            "counts": Entry(("L",), count),  # items in the bank
            "sums": Entry(("L", "L")),  # row l': sum of the items of class l'
            "solution": Entry(("L",), reduce=_mean_solution, fill=1.0),  # up to its length
        }
        if self.bank == "all":
            return own
        own |= {
            "counts": Entry(("L",), count, "derived"),
            "sums": Entry(("L", "L"), reduce="derived"),
        }
        shift = "seen" if self.bank == "fifo" else ""
        return own | bank.entries(self.size, {"items": (("L",), torch.float32)}, shift=shift)

    def refresh(self, state: State) -> None:
        """After loading or merging: what is derived is made anew, and a merged estimate solved."""
        if self.estimator == "marginal":
            return
        if self.bank != "all":
            filled = bank.filled(state)
            state["counts"] = filled.sum(1)
            state["sums"] = torch.where(filled[..., None], state["items"], 0.0).double().sum(1)
        length = torch.linalg.vector_norm(state["solution"], {"l1": 1, "l2": 2}[self.norm])
        if float(length) > 1 + 1e-6:  # a start; a solution has unit length
            self._solve(state)

    # ------------------------------------------------------------------ observing

    def evidence(self, logits: Tensor) -> Tensor:
        """What images say: float64 log-probabilities of their items.  (B, V, L) → (B, L)"""
        z = logits[:, 0] if self.item == "base" else logits.to(_wide(logits)).mean(1)
        return F.log_probs(z).detach().double()

    def scan(self, state: State, items: Tensor, learn_first: bool = False) -> Reading:
        """Take in items (B, L) in order, in place; what each image reads of the prior by then."""
        before, images = int(state["seen"]), len(items)
        first = max(self.warmup, 1) - before - learn_first  # images that still come too early
        since = max(0, first)
        if self.estimator == "marginal":
            sums = torch.cat([state["total"][None], items.exp()]).cumsum(0)  # (B + 1, L)
            seen = before + torch.arange(images + 1, dtype=sums.dtype, device=sums.device)
            state["total"], state["seen"] = sums[-1].clone(), state["seen"] + images
            by_then = slice(1, None) if learn_first else slice(0, -1)
            return Reading(self._marginal(sums[by_then], seen[by_then]), since)
        rows = []
        for item in items:
            if not learn_first:
                rows.append(state["solution"])
            self.observe(state, item)
            if learn_first:
                rows.append(state["solution"])
        return Reading(self._log(torch.stack(rows)), since)

    def learn(self, state: State, items: Tensor) -> None:
        """Take in items (B, L) in order, in place."""
        if self.estimator == "marginal":
            self.scan(state, items)
        else:
            for item in items:
                self.observe(state, item)

    def read(self, state: State) -> Reading:
        """What any image reads of a state that does not change."""
        early = int(state["seen"]) < max(self.warmup, 1)
        return Reading(self.log_prior(state)[None], 1 << 62 if early else 0)

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction (L,), in place; True if the bank keeps it."""
        if self.estimator == "marginal":
            state["total"] += log_p.exp()
            state["seen"] += 1
            return True
        L = len(log_p)
        label = int(log_p.argmax()) if label is None else label  # of equals, the first
        top = log_p.topk(min(2, L)).values
        gap = float(top[0] - top[1]) if L > 1 else float("inf")
        draw = random.Random(f"{self.seed}/{int(state['seen'])}")
        if self.noise and draw.random() < self.noise:
            label = draw.randrange(L)
        state["seen"] += 1
        kept = gap >= self.threshold and self._admit(state, label, log_p.exp(), gap, draw)
        if kept:
            self._solve(state)
        return kept

    def _admit(self, state: State, label: int, p: Tensor, gap: float, draw: random.Random) -> bool:
        if self.bank == "all":
            state["sums"][label] += p
            state["counts"][label] += 1
            return True
        rank = {"fifo": -int(state["seen"]), "reservoir": draw.random()}.get(self.bank, -gap)
        force = self.bank == "gap"  # the smallest gap goes, even for a smaller one
        if not bank.insert(state, "", label, float(rank), {"items": p}, force):
            return False
        filled = bank.filled(state)[label]
        state["counts"][label] = filled.sum()
        # One column anew from its items: as cheap as add-and-subtract, and without drift.
        state["sums"][label] = state["items"][label, filled].double().sum(0)
        return True

    # ------------------------------------------------------------------ the estimate

    def log_prior(self, state: State) -> Tensor:
        """log p̃ (L,), float64, finite; uniform before anything was seen."""
        if self.estimator == "marginal":
            return self._marginal(state["total"], state["seen"].to(state["total"]))
        return self._log(state["solution"])

    def _smoothing(self, classes: int) -> float:
        """Uniform predictions a class."""
        return max(self.smoothing, self.smoothing_total / classes)

    def _marginal(self, total: Tensor, seen: Tensor) -> Tensor:
        """log of the mean of everything seen and of the uniform predictions.  (…, L), (…)"""
        L = total.shape[-1]
        extra = self._smoothing(L)
        weight = (seen + extra * L)[..., None]
        none = weight <= 0  # nothing seen and nothing added: uniform
        mean = torch.where(none, 1 / L, (total + extra) / torch.where(none, 1.0, weight))
        return self._log(mean)

    def _log(self, p: Tensor) -> Tensor:
        p = p.clamp_min(FLOOR)
        return clipped(p / p.sum(-1, keepdim=True), self.clip).log()

    def _solve(self, state: State) -> None:
        if not bool(state["counts"].any()):
            return
        start = state["solution"].clamp_min(FLOOR)  # a zero would stay zero
        state["solution"], _ = fixed_point(
            self.operator(state), start, self.norm, self.eps, self.max_iter, self.damping
        )

    def operator(self, state: State) -> Callable[[Tensor], Tensor]:
        """The map p → A p without forming A. A batch of rows p (…, L) is taken too."""
        L = len(state["counts"])
        extra = self._smoothing(L)
        weight = state["counts"].to(state["sums"].dtype) + extra
        filled = weight > 0
        inverse = torch.where(filled, 1 / weight, 0.0)
        lost = 1.0 if self.empty == "uniform" else 0.0  # what an empty class passes on
        even = torch.where(filled, extra * inverse, lost) / L
        return lambda p: (p * inverse) @ state["sums"] + (p @ even).unsqueeze(-1)


def _mean_solution(name: str, ours: State, theirs: State) -> Tensor:
    """Where the solution of two streams' items begins: between theirs, by the images seen.

    As long as the start of a fresh state, so that `refresh` sees that it is yet to be solved.
    """
    seen = name.replace("solution", "seen")
    n, m = int(ours[seen]), int(theirs[seen])
    a, b = ours[name], theirs[name].to(ours[name])
    return torch.lerp(a / a.sum(), b / b.sum(), m / max(1, n + m)) * len(a)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


class ClassPrior:
    """A running estimate of the model's class prior, for use by itself.

    >>> prior = ClassPrior(2, PriorOptions(estimator="fixed-point", smoothing=0, smoothing_total=0))
    >>> prior.observe(torch.tensor([0.9, 0.1]).log())
    True
    >>> prior.observe(torch.tensor([0.4, 0.6]).log())
    True
    >>> prior.prior
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """

    def __init__(self, num_classes: int, options: PriorOptions | None = None) -> None:
        if num_classes < 1:
            raise InputError(f"num_classes={num_classes}: a prior needs at least one class")
        self.num_classes = num_classes
        self.options = options or PriorOptions()
        self.reset()

    @classmethod
    def of(cls, options: PriorOptions, state: State) -> ClassPrior:
        """Around a state that somebody else holds."""
        new = object.__new__(cls)
        first = next(v for k, v in state.items() if k != "seen")
        new.num_classes, new.options, new.state = len(first), options, state
        return new

    def reset(self) -> None:
        """Forget everything."""
        sizes = {"L": self.num_classes}
        self.state = declared.fresh("class prior", self.options.entries(), sizes)

    @property
    def seen(self) -> int:
        return int(self.state["seen"])

    def observe(self, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction, log-probabilities (L,). True if the bank kept it.

        It counts for the class it finds most probable, or for `label` where a study knows better.
        """
        if log_p.shape != (self.num_classes,):
            raise InputError(
                f"the prior is over {self.num_classes} classes, but a prediction "
                f"of shape {tuple(log_p.shape)} came; pass one row of log-probabilities"
            )
        if bool(log_p.isnan().any()):
            raise InputError(
                "a prediction with NaN reached the class prior; check the model's output"
            )
        return self.options.observe(self.state, log_p.detach().double().cpu(), label)

    @property
    def matrix(self) -> Tensor:
        """A (L, L), float64: column l' is the mean distribution of the items of class l'."""
        if self.options.estimator == "marginal":
            raise InputError("the marginal keeps no matrix; choose estimator='fixed-point'")
        return self.options.operator(self.state)(torch.eye(self.num_classes).double()).T

    @property
    def prior(self) -> Tensor:
        """p̃ (L,), float64, sums to one; uniform before anything was seen."""
        return self.log_prior.exp()

    @property
    def log_prior(self) -> Tensor:
        """log p̃ (L,), float64, finite."""
        return self.options.log_prior(self.state)

    @property
    def bias(self) -> Tensor:
        """The paper's bias, −log p̃: large for the classes that the model neglects."""
        return -self.log_prior

    def state_dict(self) -> State:
        entries = self.options.entries()
        return {k: v.clone() for k, v in self.state.items() if entries[k].reduce != "derived"}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state. Checks everything first: on an error nothing has changed."""
        declared.check("class prior", self.options.entries(), state, {"L": self.num_classes})
        new = {k: v.clone() for k, v in state.items()}
        self.options.refresh(new)
        self.state = new

    def merge(self, other: ClassPrior) -> None:
        """Take in another prior of the same options, as if its stream had followed this one's.

        Exact for the marginal, and for the items of `all`, `fifo` and `gap-larger`. For `gap`,
        which forgets what it overwrote, the items of largest gap stay. For `reservoir` it is a
        uniform sample of both streams; give them seeds of their own, or they draw the same numbers.
        """
        if other.num_classes != self.num_classes:
            raise StateError(
                f"cannot merge a prior over {other.num_classes} classes into one over "
                f"{self.num_classes}; both must have the same classes"
            )
        for f in fields(PriorOptions):
            a, b = getattr(self.options, f.name), getattr(other.options, f.name)
            if a != b and f.name != "seed":
                raise StateError(
                    f"cannot merge priors with {f.name}={a!r} and {f.name}={b!r}; "
                    "give both the same options"
                )
        new = declared.merge("class prior", self.options.entries(), self.state, other.state)
        self.options.refresh(new)
        self.state = new
