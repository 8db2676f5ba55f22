"""Methods that hold a class prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from adte.core.batch import Batch
from adte.core.options import part
from adte.core.state import Entry, State, part_of, prefixed, unprefixed
from adte.methods.base import Method
from adte.methods.parts import Adjustment, Entropy
from adte.methods.prior import ClassPrior, PriorOptions, Reading, Rule, rule_of

__all__ = ["EntropyMethod", "PriorMethod", "runs"]


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
    def class_prior(self) -> ClassPrior | None:
        """The estimate so far; None before the first image, or if none is kept."""
        if self._state is None or not self.tracks:
            return None
        return ClassPrior.of(self.prior, unprefixed(self._state))

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
    """A method with a measure of uncertainty of its choice, which may read the class prior."""

    entropy: Entropy = part(Entropy(), "the measure of uncertainty")

    @property
    def tracks(self) -> bool:
        return self.adjust.active or self.entropy.adaptive


def runs(batch: Batch, readouts: Reading | None) -> Sequence[tuple[slice, Tensor | None]]:
    """The images of a batch by whether a prior is in force: (which, log p̃ (n or 1, L) or None)."""
    if readouts is None:
        return [(slice(0, len(batch)), None)]
    return readouts.runs(len(batch))
