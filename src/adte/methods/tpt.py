"""TPT: tune the prompt on each image until its sure views agree; with it DiffTPT and C-TPT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.methods.parts import Selection
from adte.methods.prompt_tuning import Episode, PromptMethod
from adte.methods.registry import register

__all__ = ["CTPT", "TPT", "DiffTPT", "dispersion"]


@register("tpt")
@dataclass(kw_only=True, eq=False)
class TPT(PromptMethod):
    """The base view, with a prompt tuned on the image's surest views.

    The context c, four token embeddings shared by all classes, starts at "a photo of a".
    1. z = s·f·T(c)ᵀ for all views; the 10 % of lowest entropy are kept, once.
    2. loss = H(p̄), the entropy of the mean distribution of the kept views; AdamW, one step on c.
    3. The base view is predicted under the new c. Then c and the optimiser are as before.

    With one step of a fresh AdamW the size of the gradient plays no part, only its signs. The
    authors blend AugMix into the views of fine-grained sets; here views are the caller's.
    `entropy` replaces Shannon's in both 1 and 2.

    >>> TPT().params["lr"], TPT(entropy="adaptive").stateful
    (0.005, True)
    """

    reference = (
        "Shu et al., Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language "
        "Models, NeurIPS 2022, arXiv:2209.07511, github.com/azshue/TPT"
    )

    def adapt(self, e: Episode) -> Prediction:
        weights, entropy, kept = self.tune(e)
        return self.answer(e.take([0]).logits(weights)[0], e.log_prior, entropy, kept)


@register("difftpt")
@dataclass(kw_only=True, eq=False)
class DiffTPT(TPT):
    """TPT on the views whose logits resemble the original's; some views may be generated images.

    1. c_i = cos(z_0, z_i) of the logit vectors; of the views beyond the first `originals`, the
       80 % of highest c stay. Cosines of CLIP's logits are all near 1: they are ranked.
    2. Of these and the originals together, the 30 % of lowest entropy are kept.
    3. As TPT, with four steps; both choices are made once, before the first.

    View 0 is the original image. With `originals=1`, as published, augmented and generated views
    are filtered alike; set to the number of views that were not generated, only those are.
    Generated images come in as the last views of a `Sample`.

    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> DiffTPT(similar=0.67, keep=0.7).select(z)[1]
    tensor([1, 0])
    """

    reference = (
        "Feng et al., Diverse Data Augmentation with Diffusions for Effective Test-time Prompt "
        "Tuning, ICCV 2023, arXiv:2308.06038, github.com/chunmeifeng/DiffTPT"
    )

    keep: Selection = part(Selection(ratio=0.3), "which of the resembling views are kept")
    steps: int = option(4, "steps of AdamW per image", low=0)
    similar: float = option(
        0.8, "share of the other views that pass the filter by cosine similarity", above=0, high=1
    )
    originals: int = option(1, "number of first views that need not pass the filter", low=1)

    def select(self, logits: Tensor, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
        entropy, _ = super().select(logits, log_prior)
        others = logits[self.originals :]
        pool = torch.arange(len(logits)).to(entropy.device, torch.long)
        if len(others):
            cosine = torch.nn.functional.cosine_similarity(others, logits[:1], dim=-1)
            near = cosine.argsort(descending=True, stable=True) + self.originals
            alike = near[: F.keep_count(len(others), self.similar)].sort().values
            pool = torch.cat([pool[: self.originals], alike])
        return entropy, pool[self.keep(entropy[pool])]


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
