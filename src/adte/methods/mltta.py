"""ML-TTA: prompt tuning for images with several labels, by bound entropy minimisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.errors import InputError
from adte.core.options import option
from adte.core.prediction import Prediction
from adte.methods.prompt_tuning import Episode, PromptMethod
from adte.methods.registry import register
from adte.methods.tracking import ANYWHERE, off_record

__all__ = ["MLTTA", "bind"]


def bind(logits: Tensor, k: Tensor) -> Tensor:
    """Lift the k highest logits of every row to its highest, each with its own gradient.

    z′ = z + stop-gradient(max z − z) on the top k: they are equal in value, so the entropy that is
    minimised does not play them off against each other.  (N, L), (N,) → (N, L)

    >>> bind(torch.tensor([[2.0, 1.5, 0.3]]), torch.tensor([2]))
    tensor([[2.0000, 2.0000, 0.3000]])
    """
    order = logits.detach().argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(logits.shape[-1]).to(order) < k.to(order)[:, None]  # (N, L) by rank
    bound = torch.zeros_like(first).scatter(-1, order, first)
    top = logits.detach().amax(-1, keepdim=True)
    return torch.where(bound, top + (logits - logits.detach()), logits)


@register("mltta")
@dataclass(kw_only=True, eq=False)
class MLTTA(PromptMethod):
    """The base view, with prompts tuned on views and captions whose top labels are bound together.

    1. For every view the 16 nearest captions of a bank; their union is the caption set.
    2. Two contexts: logits of the views under one, of the captions under the other.
    3. The top k logits of each are bound (`bind`): k is a caption's number of labels, for a view
       that of its nearest caption.
    4. On each side, the 10 % of lowest entropy are kept and the entropy of their mean distribution
       is minimised: one step of AdamW. Both contexts then are as before.
    5. The base view's logits under the two are averaged; `probs` is their softmax and `scores`
       has a score for every class.

    `set_captions` gives the bank; the authors' is not public. Without one there is the view side
    alone, with k = `labels_per_view`; at 1 that is TPT with ML-TTA's learning rate. The authors
    scale either side's scores by their extremes over the whole test set, which a stream does not
    have. Here each side is scaled by its extremes over the classes of the image, which also takes
    out what raises all of an image's cosines alike. `normalise="none"` leaves the mean cosines:
    with one side, they rank images as the authors' scores do.
    """

    reference = (
        "Wu et al., Multi-Label Test-Time Adaptation with Bound Entropy Minimization, ICLR "
        "2025, arXiv:2502.03777, github.com/Jinx630/ML-TTA"
    )

    lr: float = option(1e-2, "learning rate of AdamW for the views' context", low=0)
    caption_lr: float = option(1e-3, "learning rate of AdamW for the captions' context", low=0)
    labels_per_view: int = option(1, "labels bound per view when there are no captions", low=1)
    neighbours: int = option(16, "captions per view, the nearest ones", low=1)
    normalise: Literal["image", "none"] = option(
        "image", "scores: scaled to [0, 1] over the classes of each image (image), or plain cosines"
    )

    _captions: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    @off_record
    def set_captions(self, features: Tensor, counts: Tensor) -> None:
        """The bank: unit text features (C, D) and every caption's number of labels (C,).

        It is given, not learned: `reset` and `clone` keep it, and it is not in a saved state.
        """
        if features.ndim != 2 or counts.shape != (len(features),) or not len(features):
            raise InputError(
                f"captions of shape {tuple(features.shape)} with counts {tuple(counts.shape)} do "
                "not make a bank; pass (captions, dimensions) and one count per caption"
            )
        self._captions = F.wide(features).clone(), counts.long().clamp_min(1)

    def clone(self) -> MLTTA:
        copy = super().clone()
        assert isinstance(copy, MLTTA)
        copy._captions = self._captions
        return copy

    def adapt(self, e: Episode) -> Prediction:
        z, first = [], []
        for side, k, lr in self._sides(e):
            weights, *rest = self.tune(side, lr, partial(_bind_views, k))
            z.append(e.take([0]).logits(weights)[0])
            first.append(rest)
        scores = self.adjust(torch.stack(z), e.log_prior, *ANYWHERE) / e.scale  # (1 or 2, L)
        if self.normalise == "image":
            low, high = scores.aminmax(dim=-1, keepdim=True)
            scores = (scores - low) / torch.where(high > low, high - low, 1.0)
        entropy, kept = first[0]
        return self.answer(torch.stack(z).mean(0), e.log_prior, entropy, kept, scores.mean(0))

    def _sides(self, e: Episode) -> list[tuple[Episode, Tensor, float]]:
        """The sides to tune, views and captions: rows, labels of each row, and learning rate."""
        device = e.features.device
        if self._captions is None:
            return [(e, torch.full((len(e.features),), self.labels_per_view).to(device), self.lr)]
        bank, counts = self._captions[0].to(e.features), self._captions[1].to(device)
        if bank.shape[1] != e.features.shape[1]:
            raise InputError(
                f"captions of {bank.shape[1]} dimensions do not go with features of "
                f"{e.features.shape[1]}; encode them with the model's own text tower"
            )
        near = (e.features @ bank.T).topk(min(self.neighbours, len(bank))).indices  # (V, 16)
        union = torch.tensor(sorted(set(near.flatten().tolist()))).to(near)
        return [
            (e, counts[near[:, 0]], self.lr),
            (e._replace(features=bank[union]), counts[union], self.caption_lr),
        ]


def _bind_views(k: Tensor, logits: Tensor, views: Tensor) -> Tensor:
    return bind(logits, k[views])
