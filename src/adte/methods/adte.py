"""ADTE: keep the views of lowest adaptive debiasing Tsallis entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from adte import functional as F
from adte.errors import InputError, unknown
from adte.methods.base import ViewMethod
from adte.methods.registry import preset, register
from adte.options import option

__all__ = ["ADTE"]


@register("adte")
@dataclass(kw_only=True, eq=False)
class ADTE(ViewMethod):
    """Mean of the views of lowest Tsallis entropy with a q for every class.

    1. p̃, the class prior, is estimated from the stream so far (`adte.prior`).
    2. q_l = α + (β − α)·u_l, with u the min-max of log p̃ (`direction="released"`: favoured
       classes get β) or of −log p̃ (`"paper"`: they get α). Among few classes α comes near β.
    3. H = Σ (P_l^{q_l} − P_l)/(1 − q_l) for each view (`form="paper"`: Σ P_l^{q_l}/(1 − q_l)); the
       lowest are kept and averaged.
    4. The logits are adjusted by −τ·log p̃, where `adjust` says.

    Until the prior is known (`warmup` images) the measure is Shannon's. The defaults are those that
    held up best over our streams (docs/method.md says which, and how they were chosen); the presets
    `adte-paper` and `adte-released` follow the paper's text and its published code.

    >>> import torch
    >>> from adte import Sample
    >>> method = ADTE(warmup=2)
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> for image in (z, z.roll(1, 1), z.roll(2, 1)):
    ...     p = method.step(Sample(image))
    >>> p.q.shape, round(float(p.prior.sum()), 4)
    (torch.Size([3]), 1.0)
    """

    reference = "Wu et al., Adaptive Debiasing Tsallis Entropy for Test-Time Adaptation, ICLR 2026"

    alpha: float = option(0.01, "lower end of the interval of q")
    beta: float = option(0.9, "upper end of the interval of q")
    rule: Literal["minmax", "zscore", "decimal", "sigmoid"] = option(
        "minmax", "how the log prior is brought into the interval"
    )
    direction: Literal["released", "paper"] = option(
        "released", "who gets the large q: favoured classes (released) or neglected ones (paper)"
    )
    form: Literal["paper", "vanishing"] = option(
        "vanishing",
        "Σ (P^q − P)/(1−q), which is zero on a certain view, or the paper's Σ P^q/(1−q)",
    )
    estimator: Literal["fixed-point", "marginal"] = option(
        "marginal", "the plain mean of all predictions, or the fixed point of the bank's matrix"
    )
    few: int = option(
        20,
        "number of classes up to which the interval of q is narrowed, in proportion, towards beta: "
        "among few classes one class's q would decide by itself; 0 never narrows it",
    )
    smoothing: float = option(1.0, "uniform predictions that are added to every class's own")
    smoothing_total: float = option(
        20.0, "uniform predictions that are added in all, at least, however few the classes"
    )
    clip: float = option(
        2.0,
        "robust deviations from the median beyond which log p̃ is cut, so that classes the stream "
        "repeats do not pass for favoured ones; 0 cuts nothing",
    )
    adjust: Literal["none", "before", "per-view", "after"] = option(
        "before", "where the logits are adjusted: before selection, each kept view, the average"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        F.check_interval(self.alpha, self.beta)
        if self.few < 0:
            raise InputError(f"few={self.few} classes is negative; 0 switches it off")
        for name, value, known in (
            ("q rule", self.rule, ("minmax", "zscore", "decimal", "sigmoid")),
            ("direction of q", self.direction, ("released", "paper")),
            ("entropy form", self.form, ("paper", "vanishing")),
        ):
            if value not in known:
                raise unknown(name, value, known)

    @property
    def stateful(self) -> bool:
        return True

    def class_q(self, log_prior: Tensor | None) -> Tensor | None:
        if log_prior is None:
            return None
        share = min(1.0, max(log_prior.numel() - 1, 0.5) / self.few) if self.few else 1.0
        alpha = self.beta - share * (self.beta - self.alpha)
        return F.q_from_prior(log_prior, alpha, self.beta, self.rule, self.direction)

    def measure(self, log_p: Tensor, log_prior: Tensor | None) -> Tensor:
        q = self.class_q(log_prior)
        return F.shannon(log_p) if q is None else F.adaptive_tsallis(log_p, q, self.form)


preset(
    "adte-paper",
    "adte",
    "ADTE by the paper's equations: favoured classes get the small q, bank of the last 10 a class",
    direction="paper",
    form="paper",
    estimator="fixed-point",
    smoothing=0.0,
    clip=0.0,
    few=0,
    smoothing_total=0.0,
    bank="fifo",
    size=10,
    item="base",
    adjust="after",
    norm="l1",
)
preset(
    "adte-released",
    "adte",
    "ADTE as the published code computes it: bank of 20 confident items a class, no adjustment",
    direction="released",
    form="paper",
    estimator="fixed-point",
    smoothing=0.0,
    clip=0.0,
    few=0,
    smoothing_total=0.0,
    bank="gap",
    size=20,
    threshold=1.0,
    item="mean-logits",
    adjust="none",
    norm="l2",
    eps=1e-4,
    empty="zero",
)
