"""What methods that lower their own uncertainty share: the measure, and how they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import part
from adte.core.prediction import Prediction
from adte.core.state import State
from adte.methods.parts import Entropy
from adte.methods.prior import Reading
from adte.methods.tracking import EntropyMethod

__all__ = ["ANYWHERE", "MeasuredMethod", "images", "marginal", "off_record"]

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


@dataclass(kw_only=True, eq=False)
class MeasuredMethod(EntropyMethod):
    """A method with a measure of uncertainty of its choice, which may read the class prior.

    Logit adjustment acts from its place on: `before` on the ranking of views, the loss and the
    answer, `per-view` on the loss and the answer, `after` on the answer.
    """

    entropy: Entropy = part(Entropy(), "the measure of uncertainty: of the ranking and of the loss")

    def read_prior(self, state: State, image: Batch) -> Tensor | None:
        """log p̃ (L,), float64, on the image's device, if it is in use and in force."""
        return self.log_prior(state, image.logits.double())

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
