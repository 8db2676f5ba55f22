"""The bases of methods that hold a class prior, and a measure of uncertainty beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State, part_of, prefixed, unprefixed
from adte.methods.base import Method
from adte.methods.parts import Adjustment, Entropy
from adte.methods.prior import Belief, PriorOptions, Reading, Rule, rule_of

__all__ = [
    "ANYWHERE", "EntropyMethod", "PriorMethod", "images", "marginal", "off_record", "runs",
]  # fmt: skip

ANYWHERE = ("before", "per-view", "after")  # an adjustment that began at any place acts

P = ParamSpec("P")
R = TypeVar("R")


def off_record(work: Callable[P, R]) -> Callable[P, R]:
    """Do it without gradients, and not in inference mode, whose tensors no gradient may meet."""

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return work(*args, **kwargs)

    return done


def marginal(log_p: Tensor) -> Tensor:
    """Log of the mean distribution of the views, logsumexp(log P) − log K.  (…, K, L) → (…, L)"""
    return log_p.logsumexp(-2) - math.log(log_p.shape[-2])


def images(batch: Batch, readouts: Reading | None) -> Iterator[tuple[Batch, Tensor | None]]:
    """Each image as a batch of one, with the log prior (L,) that it reads."""
    for i, image in enumerate(batch):
        yield image, None if readouts is None else readouts.row(i)


def runs(batch: Batch, readouts: Reading | None) -> Sequence[tuple[slice, Tensor | None]]:
    """The images of a batch by whether a prior is in force: (which, log p̃ (n or 1, L) or None)."""
    if readouts is None:
        return [(slice(0, len(batch)), None)]
    return readouts.runs(len(batch))


@dataclass(kw_only=True, eq=False)
class PriorMethod(Method):
    """A base class for methods that estimate a class prior, for logit adjustment or more.

    The prior is kept only if something reads it (`tracks`); otherwise there is no state. Readouts
    are a `Reading` of the prior for a whole batch, or None. A method that sets `sequential` gets
    its images one by one, and calls `track` and `log_prior` itself.
    """

    sequential: ClassVar[bool] = False

    adjust: Adjustment = part(Adjustment(), "logit adjustment by the class prior, and its place")
    prior: PriorOptions = part(PriorOptions(), "how the class prior is estimated")

    @property
    def tracks(self) -> bool:
        """Whether the method uses the prior, and so keeps it."""
        return self.adjust.active

    @cached_property
    def _rule(self) -> Rule:
        return rule_of(self.prior)

    @property
    def class_prior(self) -> Belief | None:
        """The estimate so far; None before the first image, or if none is kept."""
        if self._state is None or not self.tracks:
            return None
        state = unprefixed(self._state)
        return Belief(int(state["seen"]), self._rule.log_prior(state))

    def entries(self) -> dict[str, Entry]:
        return prefixed(self._rule.entries()) if self.tracks else {}

    def refresh(self, state: State) -> None:
        if self.tracks:
            with part_of(state) as prior:
                self._rule.refresh(prior)

    def track(self, state: State, logits: Tensor) -> None:
        """Let the prior learn from the logits (B, V, L) of images, changing the state in place."""
        if self.tracks:
            with part_of(state) as prior:
                self._rule.learn(prior, self.prior.evidence(logits))

    def log_prior(self, state: State, like: Tensor) -> Tensor | None:
        """The log prior (L,) with dtype and device of another tensor; None if none is used yet."""
        found = self._rule.read(unprefixed(state)).row(0) if self.tracks else None
        return None if found is None else found.to(like)

    def adjustment(self, logits: Tensor) -> Tensor | None:
        if self._state is None or not self.adjust.active:
            return None
        log_prior = self._rule.read(unprefixed(self._state)).row(0)
        return None if log_prior is None else self.adjust.tau * log_prior

    def evidence(self, batch: Batch) -> Any:
        return batch if self.sequential else self.prior.evidence(batch.logits)

    def scan(self, state: State, evidence: Any) -> tuple[Any, State]:
        if self.sequential:
            return super().scan(state, evidence)
        if not self.tracks:
            return None, state
        with part_of(state) as prior:
            reading = self._rule.scan(prior, evidence, self.order == "learn-first")
        return reading, state

    def absorb(self, state: State, evidence: Any) -> State:
        if self.sequential:
            return super().absorb(state, evidence)
        if self.tracks:
            with part_of(state) as prior:
                self._rule.learn(prior, evidence)
        return state

    def read(self, state: State, evidence: Any) -> Any:
        if self.sequential:
            return super().read(state, evidence)
        return self._rule.read(unprefixed(state)) if self.tracks else None


@dataclass(kw_only=True, eq=False)
class EntropyMethod(PriorMethod):
    """A method with a measure of uncertainty of its choice, which may read the class prior.

    Logit adjustment acts from its place on: `before` on the ranking of views, the loss and the
    answer, `per-view` on the loss and the answer, `after` on the answer.
    """

    entropy: Entropy = part(Entropy(), "the measure of uncertainty: of the ranking and of the loss")

    @property
    def tracks(self) -> bool:
        return self.adjust.active or self.entropy.adaptive

    def log_probs(self, logits: Tensor, log_prior: Tensor | None, *places: str) -> Tensor:
        """Log-probabilities, adjusted if the adjustment has begun at one of the places."""
        return F.log_probs(self.adjust(logits, log_prior, *places))

    def answer(
        self,
        logits: Tensor,
        log_prior: Tensor | None,
        entropy: Tensor | None = None,
        kept: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> Prediction:
        """The prediction from the base view's logits (L,)."""
        return Prediction(
            probs=self.log_probs(logits, log_prior, *ANYWHERE).exp(),
            entropy=entropy,
            kept=kept,
            q=self.entropy.class_q(log_prior),
            prior=None if log_prior is None else log_prior.exp(),
            scores=scores,
        )
