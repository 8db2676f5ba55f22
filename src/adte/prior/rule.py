"""What an estimate of the class prior defines, and what the estimates share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adte.prior.reading import Reading, Shares
from adte.state import Entry, State

if TYPE_CHECKING:
    from adte.prior.options import PriorOptions

__all__ = ["FLOOR", "Rule", "clipped"]

# No estimated prior is smaller than this, so its logarithm is finite whatever was seen.
FLOOR = 1e-12


class Rule:
    """An estimate, as functions of a state that somebody else holds.

    The state has the declared entries, and `seen`, the number of images. Items are float64
    log-probabilities (L,). What an image reads depends on those before it, not on when it is read.
    """

    def __init__(self, options: PriorOptions) -> None:
        self.options = options

    def entries(self) -> dict[str, Entry]:
        """What is kept besides `seen`."""
        raise NotImplementedError

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        """Take in one item (L,), in place; True if it is kept."""
        raise NotImplementedError

    def log_prior(self, state: State) -> Tensor:
        """log p̃ (L,), float64, finite; uniform before anything was seen."""
        raise NotImplementedError

    def scan(self, state: State, items: Tensor, learn_first: bool) -> Reading:
        """Take in items (B, L) in order, in place; what each image reads by then."""
        raise NotImplementedError

    def learn(self, state: State, items: Tensor) -> None:
        """Take in items (B, L) in order, in place."""
        self.scan(state, items, False)

    def read(self, state: State, items: Tensor | None = None) -> Reading:
        """What images (B, L), or any, read of a state that does not change."""
        return Reading(self.log_prior(state)[None])

    def refresh(self, state: State) -> None:
        """After loading or merging: make what is derived anew, in place."""

    def begin(self, state: State) -> None:
        """Make it, in place, what another stream begins with: what was learned of the model."""

    def shares(self, state: State) -> Shares | None:
        """The share of every class in what was seen, with an interval, where it is known."""
        return None

    # ------------------------------------------------------------------ what they share

    def smoothing(self, classes: int) -> float:
        """Uniform predictions a class that are added to what was seen."""
        return max(self.options.smoothing, self.options.smoothing_total / classes)

    def log(self, p: Tensor) -> Tensor:
        """log of an estimate, normalised and cut.  (…, L) → (…, L)"""
        p = p.clamp_min(FLOOR)
        return clipped(p / p.sum(-1, keepdim=True), self.options.clip).log()


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
