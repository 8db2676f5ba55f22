"""SE: keep the views of lowest Shannon entropy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from adte import functional as F
from adte.methods.base import ViewMethod
from adte.methods.registry import register

__all__ = ["SE"]


@register("se")
@dataclass(kw_only=True, eq=False)
class SE(ViewMethod):
    """Mean of the views of lowest Shannon entropy, the paper's baseline.

    H = −Σ P log P for each view; the ⌊ratio·V⌋ lowest are kept and averaged.

    >>> import torch
    >>> from adte import Sample
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> SE(ratio=0.5).predict(Sample(z)).kept
    tensor([1, 3])
    """

    reference = "Shannon 1948; view selection as in Shu et al., TPT, NeurIPS 2022"

    def measure(self, log_p: Tensor, log_prior: Tensor | None) -> Tensor:
        return F.shannon(log_p)
