"""How the class prior is estimated: options, and the estimate as functions of a declared state.

Three estimators. The *marginal* is the mean of all predictions; its state is one sum per class. The
*joint* estimate tells the model's bias from the stream's frequencies (`adte.bias`); its state is
five sums per class. For the *fixed point* a memory bank holds predicted distributions by
pseudo-label; column l' of the matrix A is the mean distribution of the items of class l', and the
prior is p̃ = A p̃ (Eqs. 9–11 of the paper, after Frolic). It is solved whenever the bank changes,
from the last solution on, so that the estimate depends on what was seen and not on when it is read.
The cost of an item does not depend on how many came before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte import bank, bias
from adte import functional as F
from adte.errors import InputError, unknown
from adte.estimation import FLOOR, Shares, clipped, fixed_point, shares
from adte.machine import compiled
from adte.options import option
from adte.state import Entry, State

__all__ = ["PriorOptions", "Reading"]

Array = NDArray[np.float64]
X = TypeVar("X", Array, Tensor)
Follow = Callable[
    [Tensor, Tensor, tuple[float, float], float], tuple[Tensor, Tensor, Tensor, Tensor]
]  # `adte.bias.device.follow`

BANKS = ("all", "gap", "gap-larger", "fifo", "reservoir")
ESTIMATORS = ("fixed-point", "marginal", "joint")
FREQUENCIES = ("auto", "equal", "as-they-come")


class Reading(NamedTuple):
    """What images of a batch read of the prior.

    Attributes:
        log_prior: log p̃, float64, a row an image (B, L), or (1, L) for all of them.
        since: the first image for which it is in force; those before came too early.
        trust: of the joint estimate, how far frequencies are trusted (B,) or (1,), and
        answers: what each image was taken in as (B, L), float64; None where none was.
    """

    log_prior: Tensor
    since: int = 0
    trust: Tensor | None = None
    answers: Tensor | None = None

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

    The defaults are the plain ones; `adte` sets the joint estimate, and `adte-paper`,
    `adte-released` and `frolic` what was published.
    """

    estimator: Literal["fixed-point", "marginal", "joint"] = option(
        "marginal",
        "the plain mean of all predictions; the fixed point of the bank's matrix; or bias and "
        "frequencies told apart",
    )
    frequencies: Literal["auto", "equal", "as-they-come"] = option(
        "auto",
        "what is known of the classes in the stream, for 'joint': nothing (auto); that they are "
        "about equally frequent (equal); that the model has no bias (as-they-come)",
    )
    smoothing: float = option(1.0, "uniform predictions that are added to every class's own")
    smoothing_total: float = option(
        20.0, "uniform predictions that are added in all, at least, however few the classes"
    )
    clip: float = option(
        2.0,
        "robust deviations from the median beyond which the bias is cut, so that classes the "
        "stream repeats do not pass for favoured ones; 0 cuts nothing",
    )
    item: Literal["base", "mean-logits", "soft"] = option(
        "base",
        "what the prior learns from an image: its base view, the mean logits of all views, or the "
        "mean of all weighed by exp(−entropy)",
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
            ("bank", BANKS), ("estimator", ESTIMATORS), ("norm", ("l1", "l2")),
            ("empty", ("uniform", "zero")), ("item", ("base", "mean-logits", "soft")),
            ("frequencies", FREQUENCIES),
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
        """What is kept: linear in the classes, but for the fixed point."""
        count = torch.int64
        own = {"seen": Entry((), count)}
        if self.estimator == "marginal":
            return own | {"total": Entry(("L",))}
        if self.estimator == "joint":
            return own | {name: Entry(("L",)) for name in bias.Sums._fields}
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
        if self.estimator != "fixed-point":
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
        return self.weighed(logits)[0]

    def weighed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the weights of the views in it.  (B, V, L) → (B, L), (B, V)"""
        logits = logits.detach()
        if self.item == "soft" and logits.shape[1] > 1:
            parts = [F.soft_mean(logits[i]) for i in F.pieces(logits)]
            means, weights = (torch.cat(x) for x in zip(*parts, strict=True))
            return means.double(), weights
        weights = torch.zeros(logits.shape[:2], dtype=_wide(logits), device=logits.device)
        if self.item == "mean-logits":
            weights += 1 / logits.shape[1]
            return F.log_probs(logits.to(weights).mean(1)).double(), weights
        weights[:, 0] = 1
        return F.log_probs(logits[:, 0]).double(), weights

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
        if self.estimator == "joint":
            return self._follow(state, items, learn_first)._replace(since=since)
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
        if self.estimator == "fixed-point":
            for item in items:
                self.observe(state, item)
        else:
            self.scan(state, items)

    def read(self, state: State) -> Reading:
        """What any image reads of a state that does not change."""
        early = int(state["seen"]) < max(self.warmup, 1)
        since = 1 << 62 if early else 0
        if self.estimator != "joint":
            return Reading(self.log_prior(state)[None], since)
        sums = _sums(state)
        known = self._joint(sums)
        uneven = torch.from_numpy(self._uneven(sums.total, known.bias, known.shown))[None]
        there = self._told(uneven, int(state["seen"])).to(state["total"].device)
        return Reading(there, since, there.new_tensor([known.trust]))

    def begin(self, state: State) -> None:
        """Make it, in place, what another stream begins with: what the model favours stays.

        How often classes came is forgotten, where the joint estimate tells the two apart; the
        other estimates do not.
        """
        if self.estimator != "joint":
            return
        sums, there = _sums(state), state["total"].device
        new = bias.begun(sums, (self.smoothing, self.smoothing_total), self.clip)
        if self.frequencies == "equal":  # all that is uneven is the model's
            new = new._replace(total=sums.total)
        state.update({k: torch.from_numpy(v).to(there) for k, v in new._asdict().items()})

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one prediction (L,), in place; True if the bank keeps it."""
        if self.estimator == "marginal":
            state["total"] += log_p.exp()
            state["seen"] += 1
            return True
        if self.estimator == "joint":
            self._follow(state, log_p[None])
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

    def _follow(self, state: State, items: Tensor, learn_first: bool = False) -> Reading:
        """The joint estimate, image by image, in place: what each reads."""
        before = int(state["seen"])
        state["seen"] += len(items)
        if (follow := _follower(items.device)) is not None:
            return self._follow_there(follow, state, items, before, learn_first)
        sums, answers = _sums(state), []
        known = [self._joint(sums)]
        rows = [self._uneven(sums.total, known[0].bias, known[0].shown)]
        both = torch.stack([items, items.exp()]).cpu().numpy()  # one question to the device
        for seen, (log_p, p) in enumerate(zip(*both, strict=True), before + 1):
            answers.append(bias.take_in(sums, log_p, p, known[-1].bias, known[-1].shown))
            if learn_first or seen < before + len(items):
                known.append(self._joint(sums))
                rows.append(self._uneven(sums.total, known[-1].bias, known[-1].shown))
        if items.device.type == "cpu":
            kept = tuple(torch.from_numpy(v) for v in sums)
        else:
            kept = torch.from_numpy(np.stack(sums)).to(items.device).unbind()
        state.update(zip(sums._fields, kept, strict=True))
        told = self._told(torch.from_numpy(np.stack(rows[learn_first:])), before + learn_first)
        trust = told.new_tensor([k.trust for k in known[learn_first:]])
        said = torch.from_numpy(np.stack(answers))
        told, trust, said = (x.to(items.device) for x in (told, trust, said))
        return Reading(told, 0, trust, said)

    def _follow_there(
        self, follow: Follow, state: State, items: Tensor, before: int, learn_first: bool
    ) -> Reading:
        """The same on the items' device, without a question to it."""
        names, smoothing = bias.Sums._fields, (self.smoothing, self.smoothing_total)
        sums = torch.stack([state[name] for name in names])
        favoured, shown, totals, trust = follow(sums, items, smoothing, self.clip)
        state.update(zip(names, sums.unbind(), strict=True))
        by_then = slice(1, None) if learn_first else slice(0, -1)
        rows = self._uneven(totals[by_then], favoured[by_then], shown[by_then])
        said = torch.softmax(items - favoured[:-1] + shown[:-1] / 2, -1)
        return Reading(self._told(rows, before + learn_first), 0, trust[by_then], said)

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
        if self.estimator == "fixed-point":
            return self._log(state["solution"])
        return self.read(state).log_prior[0]

    def _joint(self, sums: bias.Sums) -> bias.Joint:
        return bias.joint(sums, (self.smoothing, self.smoothing_total), self.clip)

    def _uneven(self, total: X, favoured: X, shown: X) -> X:
        """What is to be divided by, by what is known of the frequencies; not normalised yet."""
        if self.frequencies == "equal":  # all that is uneven is the model's
            return total + 0.0
        return -shown if self.frequencies == "as-they-come" else favoured - shown

    def _told(self, uneven: Tensor, seen: int) -> Tensor:
        """log p̃ (B, L) of neighbouring images, the first of which came after `seen` others."""
        if self.frequencies != "equal":
            return torch.log_softmax(uneven, -1)
        return self._marginal(uneven, torch.arange(seen, seen + len(uneven)).to(uneven))

    def shares(self, state: State) -> Shares | None:
        """The share of every class in what was seen, with an interval; the joint estimate's."""
        return shares(_sums(state)) if self.estimator == "joint" else None

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


def _sums(state: State) -> bias.Sums:
    """The sums of the joint estimate; on a host, the state's own."""
    sums = [state[name] for name in bias.Sums._fields]
    if sums[0].device.type == "cpu":
        return bias.Sums(*(x.numpy() for x in sums))
    return bias.Sums(*torch.stack(sums).cpu().numpy())  # one question to the device


@lru_cache(maxsize=16)
def _follower(device: torch.device) -> Follow | None:
    """What follows a stream on its device: a kernel, where Triton can make one."""
    if device.type != "cuda":
        return None
    sums = torch.zeros(5, 2, dtype=torch.float64, device=device)
    room = compiled(
        "adte.bias.device",
        lambda room: room.follow(sums, sums[:1].clone(), (1.0, 1.0), 1.0),
        "the prior is followed",
    )
    follow: Follow | None = None if room is None else room.follow
    return follow


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
