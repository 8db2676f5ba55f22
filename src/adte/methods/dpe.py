"""DPE: class prototypes of the text and of the stream, aligned on each image, both evolving."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods import bank
from adte.methods._features import class_weights_of, features_of
from adte.methods.base import AdaptingMethod
from adte.methods.parts import Selection
from adte.methods.registry import register
from adte.methods.tracking import off_record

__all__ = ["DPE", "alignment"]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_KEY = {"keys": (("D",), torch.float32)}
_BANK = ("visual.rank", "visual.keys")


def alignment(visual: Tensor, textual: Tensor, scale: float) -> Tensor:
    """InfoNCE: how badly each visual prototype finds its own textual one.  (C, D), (C, D) → ()

    >>> alignment(torch.eye(2), torch.eye(2), 1.0)  # log(1 + 1/e)
    tensor(0.3133)
    """
    own = torch.arange(len(visual), device=visual.device)
    return cross_entropy(scale * visual @ textual.mT, own)


@register("dpe")
@dataclass(kw_only=True, eq=False)
class DPE(AdaptingMethod):
    """Text logits plus similarities to visual prototypes, both tuned on the image.

    Textual prototypes t (L, D) start as the class weights. A queue per class holds the features of
    its 3 surest images; their mean is the class's visual prototype v_c. For an image:
    1. Under normalise(t), the 10 % of its views of lowest entropy are kept. Their mean feature f
       (not normalised again) joins the queue of their mean logits' top class, ranked by the
       entropy of their mean distribution.
    2. t̂ = normalise(t + r), v̂ = normalise(v + r'), residuals zero at first, take one step of AdamW
       down H(softmax(g(f))) + λ·InfoNCE(v̂, t̂), where
       g(x) = s·x·t̂ᵀ + α Σ_c exp(−β(1 − x·v̂_c))·onehot(c).
    3. The answer is g of the base view. Residuals are forgotten.
    4. If its entropy over log₂ L is below 0.1, t becomes the mean of the class weights and of all
       t̂ so admitted.

    Maths and numbers are those of the released code, ε = 1e-3 of AdamW among them: it damps small
    gradients. α = 6, β = 5, λ = 0.5 and lr = 6e-4 are its ImageNet's; it sets λ, and often α, β and
    lr, for each data set. There the loss is the entropy of the kept views' mean logits, so with
    several views not of their mean distribution, and ImageNet-A alone is answered from the kept
    views under t̂ (`answer="kept"`). InfoNCE's temperature is 0.01 there, 1/s here, which is the
    same for CLIP. It runs in half precision. The authors' class weights are means over templates
    and CuPL's descriptions; here they are the caller's.

    `predict` does 1 to 3 and forgets it, `learn` keeps it; `step` does it once. Merging pools the
    admitted t̂ and the queues, the surest staying.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> f = normalize(torch.tensor([[1.0, 0.2]]), dim=-1)
    >>> DPE().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs.round(decimals=3)
    tensor([0.9990, 0.0000, 0.0010])
    """

    needs = frozenset({"features", "class weights"})
    reference = (
        "Zhang et al., Dual Prototype Evolving for Test-Time Generalization of Vision-Language "
        "Models, NeurIPS 2024, arXiv:2410.12790, github.com/zhangce01/DPE-CLIP"
    )

    keep: Selection = part(Selection(), "which views are kept")
    answer: Literal["base", "kept"] = option(
        "base", "feature that is classified: the base view's, or the mean of the kept views"
    )
    size: int = option(3, "images per class in the queue", low=1)
    weight: float = option(6.0, "α, weight of the visual prototypes")
    sharpness: float = option(
        5.0, "β, how fast the weight of a visual prototype falls with distance", low=0
    )
    lr: float = option(6e-4, "learning rate of the residuals", low=0)
    align: float = option(0.5, "λ, weight of the alignment between visual and textual prototypes")
    threshold: float = option(
        0.1, "entropy of the answer, over log₂ L, below which the textual prototypes are updated"
    )

    # ------------------------------------------------------------------ state

    def entries(self) -> dict[str, Entry]:
        return {
            "start": Entry(("L", "D"), torch.float32, "same"),  # the class weights
            "evolved": Entry(("L", "D")),  # Σ t̂ of the images that were admitted
            "admitted": Entry((), torch.int64),
        } | bank.entries(self.size, _KEY, "visual.")

    def initial(self, batch: Batch) -> State:
        weights = class_weights_of(batch)
        state = super().initial(batch)
        state["start"].copy_(weights)
        return state

    # ------------------------------------------------------------------ one image

    def look(self, state: State, image: Batch) -> Prediction:
        mine = state | {name: state[name].clone() for name in _BANK}
        return self.adapted(mine, image, again=True)[0]

    def take(self, state: State, image: Batch, change: Tensor | None) -> None:
        if change is not None:
            state["evolved"] += change.to(state["evolved"])
            state["admitted"] += 1

    @off_record
    def adapted(
        self, state: State, image: Batch, again: bool = False
    ) -> tuple[Prediction, Tensor | None]:
        """The prediction, and t̂ if it is admitted. The image joins its queue, in place.

        `again`: unless it is there, having been learned from before.
        """
        f, scale = features_of(image)[0].clone(), image.context.scale  # (V, D)
        t = (state["start"].to(f) + state["evolved"].to(f)) / (int(state["admitted"]) + 1)
        z = scale * f @ normalize(t, dim=-1).mT
        entropy = F.shannon(F.log_probs(z))
        kept = self.keep(entropy)
        doubt = float(F.shannon(F.mean_probs(F.log_probs(z[kept]))))
        query = f[kept].mean(0)
        label = int(z[kept].mean(0).argmax())
        if not (again and (state["visual.keys"][label] == query).all(-1).any()):
            bank.insert(state, "visual.", label, doubt, {"keys": query})
        seen, v = _means(state, f)

        def logits(x: Tensor, textual: Tensor, visual: Tensor) -> Tensor:
            near = self.weight * (-self.sharpness * (1 - x @ visual.mT)).exp()  # (…, C)
            return (scale * x @ textual.mT).index_add(-1, seen, near)

        def loss(textual: Tensor, visual: Tensor) -> Tensor:
            unsure = F.shannon(F.log_probs(logits(query, textual, visual)))
            return unsure + self.align * alignment(visual, textual[seen], scale)

        t_hat, v_hat = self._tuned(t, v, loss)
        mine = torch.zeros_like(kept[:1])
        if self.answer == "kept":  # chosen anew under t̂
            mine = self.keep(F.shannon(F.log_probs(scale * f @ t_hat.mT)))
        out = F.log_probs(logits(f[mine].mean(0), t_hat, v_hat))
        sure = float(F.shannon(out)) / math.log2(max(2, image.classes)) < self.threshold
        return Prediction(probs=out.exp(), entropy=entropy, kept=mine), t_hat if sure else None

    def _tuned(self, t: Tensor, v: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """normalise(x + r) for both, r after the first step of AdamW from zero."""
        still = [torch.zeros_like(x).requires_grad_() for x in (t, v)]
        with torch.enable_grad():
            at = [normalize(x + r, dim=-1) for x, r in zip((t, v), still, strict=True)]
            slopes = torch.autograd.grad(loss(*at), still)
        moved = (x - self.lr * g / (g.abs() + 1e-3) for x, g in zip((t, v), slopes, strict=True))
        t_hat, v_hat = (normalize(x, dim=-1) for x in moved)
        return t_hat, v_hat


def _means(state: State, like: Tensor) -> tuple[Tensor, Tensor]:
    """The classes whose queues hold something (C,), and the means of those (C, D)."""
    filled = bank.filled(state, "visual.")
    seen = filled.any(1).nonzero().flatten()
    keys = torch.where(filled[..., None], state["visual.keys"], 0.0)[seen].to(like)  # (C, M, D)
    return seen, keys.sum(1) / filled[seen].sum(1, keepdim=True)
