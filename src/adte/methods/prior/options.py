"""The options of the class prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from adte.core import functional as F
from adte.core.options import check, option

__all__ = ["PriorOptions"]

FIXED = ("estimator", "fixed-point")


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """Options of how the class prior is estimated.

    The class prior says which classes a model's predictions favour. The defaults here are the
    plainest; `adte`, `adte-released` and `frolic` set what was published. `adte methods NAME` lists
    the options with their defaults.
    """

    estimator: Literal["fixed-point", "marginal"] = option(
        "marginal",
        "how the prior is estimated: the mean of all predictions (marginal), or the fixed point of "
        "the bank's matrix (fixed-point)",
    )
    smoothing: float = option(
        1.0, "uniform predictions added per class, which keep an early estimate even", low=0
    )
    smoothing_total: float = option(
        20.0, "smallest number of uniform predictions added in all, for few classes", low=0
    )
    clip: float = option(
        2.0,
        "robust deviations from the median at which the bias of a class is cut off, so that a "
        "class that the stream repeats does not pass for a favoured one; 0 cuts nothing",
        low=0,
    )
    item: Literal["base", "mean-logits"] = option(
        "base",
        "what the prior learns from an image: its base view (base), or the mean logits of all "
        "views (mean-logits)",
    )
    warmup: int = option(0, "images to learn from before the prior is used; 0 counts as 1", low=0)
    bank: Literal["all", "gap", "gap-larger", "fifo", "reservoir"] = option(
        "all",
        "predictions that the fixed point is computed from: all, as running sums; or a few per "
        "class, where in a full class a new one replaces that with the smallest gap between its "
        "top two logits (gap, as released; gap-larger: only if the new gap is larger), the oldest "
        "(fifo) or a random one (reservoir)",
        only=FIXED,
    )
    size: int = option(
        10,
        "predictions per class that the bank keeps",
        low=1,
        only=("bank", "gap", "gap-larger", "fifo", "reservoir"),
    )
    threshold: float = option(
        0.0, "smallest gap between the top two logits that the bank admits", only=FIXED
    )
    norm: Literal["l1", "l2"] = option(
        "l1", "norm of the iteration: l1 as in the paper, l2 as in the released code", only=FIXED
    )
    eps: float = option(
        1e-4,
        "the iteration stops when a step changes the estimate by no more than this",
        low=0,
        only=FIXED,
    )
    iterate: Literal["last", "last-but-one"] = option(
        "last",
        "which iterate is the solution: the one that met the tolerance (last), or the one before "
        "it, as in Algorithm 1 of the paper and in the released code (last-but-one)",
        only=FIXED,
    )
    max_iter: int = option(500, "maximum number of steps of the iteration", low=1, only=FIXED)
    damping: float = option(
        0.0, "share of the uniform distribution mixed into the matrix", low=0, high=1, only=FIXED
    )
    empty: Literal["uniform", "zero"] = option(
        "uniform",
        "matrix column of a class without predictions: uniform, or zero as released",
        only=FIXED,
    )
    seed: int = option(0, "seed of the reservoir", only=("bank", "reservoir"))

    def __post_init__(self) -> None:
        check(self, "the class prior")

    def evidence(self, logits: Tensor) -> Tensor:
        """The items that the prior learns: float64 log-probabilities.  (B, V, L) → (B, L)"""
        logits = logits.detach()
        z = logits[:, 0] if self.item == "base" else F.wide(logits).mean(1)
        return F.log_probs(z).double()
