"""The knowledge of a stream's classes: their prior, and their shares."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Belief", "Shares", "shares"]


class Shares(NamedTuple):
    """The estimated share of every class in a stream, with an interval; (L,) each, float64."""

    share: Tensor
    low: Tensor
    high: Tensor


class Belief(NamedTuple):
    """The knowledge that a method has of the classes after some images.

    Attributes:
        seen: number of images.
        log_prior: what logits are divided by, as log-probabilities (L,), float64, always finite.
        shares: the shares of the classes, of methods that estimate them.
    """

    seen: int
    log_prior: Tensor
    shares: Shares | None = None

    @property
    def prior(self) -> Tensor:
        """The class prior p̃ (L,), which sums to one."""
        return self.log_prior.exp()


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
