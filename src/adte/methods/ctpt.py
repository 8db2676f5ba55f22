"""C-TPT: tune the prompt so that sure views agree and class weights stay apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adte.core.options import option
from adte.methods.registry import register
from adte.methods.tpt import TPT

__all__ = ["CTPT", "dispersion"]


def dispersion(weights: Tensor) -> Tensor:
    """The mean distance of class weights from their centre.  (L, D) → ()

    Where all are one, as with a single class, its slope is zero.

    >>> dispersion(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(0.7071)
    """
    away: Tensor = torch.linalg.vector_norm(weights - weights.mean(0), dim=-1)  # (L,)
    return away.mean()


@register("ctpt")
@dataclass(kw_only=True, eq=False)
class CTPT(TPT):
    """TPT whose loss also drives the class weights apart, for calibration.

    The context c starts at "a photo of a".
    1. z = s·f·T(c)ᵀ for all views; the 10 % of lowest entropy are kept, once.
    2. loss = H(p̄) − λ·D, with H(p̄) the entropy of the mean distribution of the kept views and
       D = mean_l ‖t_l − t̄‖ the dispersion of the class weights T(c); AdamW, one step on c.
    3. The base view is predicted under the new c. Then c and the optimiser are as before.

    The authors found that prompts under which class weights lie apart are better calibrated, at
    equal accuracy; tuning for entropy alone makes TPT overconfident. λ = 50 is theirs for
    ImageNet and the ten fine-grained sets, 20 for ImageNet's variants. One step of a fresh AdamW
    reads the signs of the gradient only, so λ decides which of the two losses each coordinate
    follows, not how far it goes. They blend AugMix into the views of the fine-grained sets and of
    ImageNet's variants; here views are the caller's. Their code can also take one step for either
    loss in turn; none of their scripts does. `entropy` replaces Shannon's in both 1 and 2.

    >>> CTPT().params["spread"], CTPT(entropy="adaptive").stateful
    (50.0, True)
    """

    reference = (
        "Yoon et al., C-TPT: Calibrated Test-Time Prompt Tuning for Vision-Language Models via "
        "Text Feature Dispersion, ICLR 2024, arXiv:2403.14119, github.com/hee-suk-yoon/C-TPT"
    )

    spread: float = option(
        50.0, "λ, weight of the term that drives the class weights apart; 0 is plain TPT", low=0
    )

    def penalty(self, weights: Tensor) -> Tensor:
        return -self.spread * dispersion(weights)
