"""TE: keep the views of lowest Tsallis entropy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from adte import functional as F
from adte.errors import InputError
from adte.methods.base import ViewMethod
from adte.methods.registry import register
from adte.options import option

__all__ = ["TE"]


@register("te")
@dataclass(kw_only=True, eq=False)
class TE(ViewMethod):
    """Mean of the views of lowest Tsallis entropy, one q for all classes.

    H = (Σ P^q − 1)/(1 − q); q → 1 is Shannon's. The default q is that of the paper's table.

    >>> import torch
    >>> from adte import Sample
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> TE(q=0.5).predict(Sample(z)).entropy
    tensor([1.1736, 0.8044, 1.4612, 0.9988])
    """

    reference = "Wu et al., Adaptive Debiasing Tsallis Entropy, ICLR 2026; Tsallis 1988"

    q: float = option(0.5, "the non-extensive parameter q > 0; below 1 it favours surer views")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.q > 0:
            raise InputError(f"q={self.q} of the Tsallis entropy must be positive; choose e.g. 0.5")

    def measure(self, log_p: Tensor, log_prior: Tensor | None) -> Tensor:
        return F.tsallis(log_p, self.q)
