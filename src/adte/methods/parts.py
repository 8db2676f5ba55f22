"""The parts that methods hold: a measure of uncertainty, a choice of views, a logit adjustment.

Each is a frozen dataclass of options with the functions that the options decide. The class prior,
`adte.methods.prior.PriorOptions`, is the fourth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.options import check, option

__all__ = ["Adjustment", "Entropy", "Selection"]


ADAPTIVE = ("kind", "adaptive")


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """The measure of how unsure a prediction is.

      shannon   −Σ P log P
      tsallis   Σ (P^q − P)/(1 − q), one q for all classes
      adaptive  Σ (P^{q_l} − P)/(1 − q_l), q_l from the class prior; Shannon's until it is known

    The adaptive measure is ADTE's, in the form that is zero for a certain prediction. The paper's
    own form (`form="paper"`), Σ P^{q_l}/(1 − q_l), never falls below 1/(1 − α) > 1, so nothing
    would pass a threshold such as ln 2. Measures differ in size: a threshold in nats is multiplied
    by `scale`, the measure of the uniform distribution over ln L, which is 1 for Shannon's. Among
    few classes the q of one class would decide alone, so there α is moved towards β.

    >>> Entropy(kind="tsallis", q=0.5)(torch.tensor([0.5, 0.5]).log())
    tensor(0.8284)
    """

    kind: Literal["shannon", "tsallis", "adaptive"] = option(
        "shannon",
        "entropy of a view: Shannon's, Tsallis' with one q, or ADTE's with a q for each class, "
        "from the class prior (adaptive)",
    )
    q: float = option(
        0.5,
        "parameter q of the Tsallis entropy; values below 1 favour surer views",
        above=0,
        only=("kind", "tsallis"),
    )
    alpha: float = option(0.01, "smallest q of a class", only=ADAPTIVE)
    beta: float = option(0.9, "largest q of a class", only=ADAPTIVE)
    rule: Literal["minmax", "zscore", "decimal", "sigmoid"] = option(
        "minmax", "how the log prior is mapped to the interval from alpha to beta", only=ADAPTIVE
    )
    direction: Literal["released", "paper"] = option(
        "released",
        "which classes get the larger q: favoured ones (released) or neglected ones (paper)",
        only=ADAPTIVE,
    )
    form: Literal["paper", "vanishing"] = option(
        "vanishing",
        "formula: Σ (P^q − P)/(1−q), which is zero for a certain view (vanishing), or Σ P^q/(1−q) "
        "(paper)",
        only=ADAPTIVE,
    )
    few: int = option(
        20,
        "number of classes up to which alpha is moved towards beta, as among few classes the q of "
        "one would decide alone; 0 never moves it",
        low=0,
        only=ADAPTIVE,
    )

    def __post_init__(self) -> None:
        check(self, "the entropy")
        F.check_interval(self.alpha, self.beta)

    @property
    def adaptive(self) -> bool:
        """Whether the measure depends on the class prior."""
        return self.kind == "adaptive"

    def class_q(self, log_prior: Tensor | None) -> Tensor | None:
        """The q of each class from the log prior; None if q is not adaptive.  (…, L) → (…, L)"""
        if not self.adaptive or log_prior is None:
            return None
        classes = log_prior.shape[-1]
        share = min(1.0, max(classes - 1, 0.5) / self.few) if self.few else 1.0
        alpha = max(self.alpha, self.beta - share * (self.beta - self.alpha))  # whatever is rounded
        return F.q_from_prior(log_prior, alpha, self.beta, self.rule, self.direction)

    def __call__(self, log_p: Tensor, log_prior: Tensor | None = None) -> Tensor:
        """The uncertainty of log-probabilities; low is sure.  (…, L) → (…)

        Args:
            log_p: log-probabilities.
            log_prior: log of the class prior (L,), or of a shape that broadcasts.
        """
        if self.kind == "tsallis":
            return F.tsallis(log_p, self.q)
        q = self.class_q(log_prior)
        if q is None:
            return F.shannon(log_p)
        return F.adaptive_tsallis(log_p, q, self.form, check=self.beta > 0.99)

    def scale(self, classes: int, log_prior: Tensor | None = None) -> float:
        """The factor for thresholds in nats: this measure of the uniform distribution over ln L."""
        adaptive = self.adaptive and log_prior is not None
        if classes == 1 or not (adaptive or self.kind == "tsallis"):
            return 1.0
        uniform = torch.full((classes,), -math.log(classes), dtype=torch.float64)
        prior = None if log_prior is None else log_prior.to(uniform)
        return float(self(uniform, prior)) / math.log(classes)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The choice of views: a share `ratio` of them, those of lowest uncertainty.

    >>> Selection(ratio=0.5)(torch.tensor([0.9, 0.1, 0.5, 0.2]))
    tensor([1, 3])
    """

    ratio: float = option(0.1, "share of the views to keep; at least one view is kept")
    count: int | None = option(None, "number of views to keep, instead of a share")

    def __post_init__(self) -> None:
        check(self, "the choice of views")
        F.keep_count(self.count or 1, self.ratio, self.count)

    def number(self, views: int) -> int:
        """How many of so many views are kept."""
        return F.keep_count(views, self.ratio, self.count)

    def __call__(self, entropy: Tensor) -> Tensor:
        """Indices of the views to keep, surest first, from their entropies.  (…, V) → (…, K)

        Ties go to the lower index.
        """
        return F.rank_views(entropy)[..., : self.number(entropy.shape[-1])]


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Logit adjustment z − τ·log p̃ by the class prior p̃, and where it is applied.

    `before`: to all views, before their entropy is measured. `per-view`: to each kept view.
    `after`: to the averaged answer.
    """

    place: Literal["none", "before", "per-view", "after"] = option(
        "none",
        "where the log of the class prior p̃ is subtracted from the logits, z − τ·log p̃: in every "
        "view before selection (before), in each kept view (per-view), or in the average (after)",
    )
    tau: float = option(
        1.0, "strength τ of the logit adjustment", only=("place", "before", "per-view", "after")
    )

    def __post_init__(self) -> None:
        check(self, "the logit adjustment")

    @property
    def active(self) -> bool:
        """Whether logits are adjusted at all."""
        return self.place != "none"

    def __call__(self, logits: Tensor, log_prior: Tensor | None, *places: str) -> Tensor:
        """Adjust the logits if `place` is one of these places, else return them.  (…, L)"""
        if log_prior is None or self.place not in places:
            return logits
        return logits - self.tau * log_prior.to(logits)
