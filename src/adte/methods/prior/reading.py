"""What is read of the prior: by images, and by those who ask what a stream is made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Belief", "Reading", "Shares", "shares"]


class Reading(NamedTuple):
    """What images of a batch read of the prior.

    Attributes:
        log_prior: log p̃, float64, a row per image (B, L), or (1, L) for all of them.
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


class Shares(NamedTuple):
    """The estimated share of every class in a stream, with an interval; (L,) each, float64."""

    share: Tensor
    low: Tensor
    high: Tensor


class Belief(NamedTuple):
    """What a method knows of the classes after some images."""

    seen: int
    log_prior: Tensor  # (L,): what logits are divided by, as log-probabilities
    shares: Shares


def shares(answers: Tensor, squares: Tensor, n: int, deviations: float = 1.96) -> Shares:
    """The classes of n images, from the sums N = Σ r and Q = Σ r² of answers r.  (L,) each

    The share of a class is s = N/n. Its variance has two parts: s (1 − s)/n for the images that
    came, and d² with d = (N − Q)/n, all that is unsure, as if images erred together. The ends are
    Wilson's for as many sure images as have that variance; the lower one is no higher than s less
    so many deviations, so that a class of less than an image may be none.

    >>> counts = torch.tensor([30.0, 10.0, 0.0], dtype=torch.float64)
    >>> shares(counts, counts, 40).high
    tensor([0.8581, 0.4019, 0.0876], dtype=torch.float64)
    """
    s, doubt = answers / n, (answers - squares) / n
    spread = (s * (1 - s)).clamp_min(1e-12)
    variance = spread / n + doubt.square()
    z2 = deviations**2 * variance / spread  # z² over the number of sure images
    reach = (z2 * spread + z2.square() / 4).sqrt()
    low = torch.minimum((s + z2 / 2 - reach) / (1 + z2), s - deviations * variance.sqrt())
    return Shares(s, low.clamp_min(0), ((s + z2 / 2 + reach) / (1 + z2)).clamp_max(1))
