"""What is read of the prior: by images, and by those who ask what a stream is made of."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Reading", "Shares"]


class Reading(NamedTuple):
    """What images of a batch read of the prior.

    Attributes:
        log_prior: log p̃, float64, a row an image (B, L), or (1, L) for all of them.
        since: the first image for which it is in force; those before came too early.
        trust: of the joint estimate, how far frequencies are trusted (B,) or (1,),
        sure: how sure answers are on the whole (B,) or (1,), and
        answers: what each image was taken in as (B, L), float64; None where none was.
        likely: the classes among which frequencies were asked again for each image (B, K), the
            most probable one by the whole stream first; None where none were asked.
    """

    log_prior: Tensor
    since: int = 0
    trust: Tensor | None = None
    sure: Tensor | None = None
    answers: Tensor | None = None
    likely: Tensor | None = None

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
