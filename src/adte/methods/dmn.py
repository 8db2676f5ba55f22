"""DMN-ZS: a memory of the stream's surest images, from which each image makes its classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option, part
from adte.core.prediction import Prediction
from adte.core.state import Entry, State
from adte.methods import bank
from adte.methods._features import class_weights_of, features_of
from adte.methods.base import ORDER, Method
from adte.methods.parts import Selection
from adte.methods.registry import register

__all__ = ["DMN"]

_KEY = {"keys": (("D",), torch.float32)}


@register("dmn-zs")
@dataclass(kw_only=True, eq=False)
class DMN(Method):
    """Probabilities from the text plus those from a memory of sure images of each class.

    f is the feature of the base view, t_c the weight of class c.
    1. P̄: mean probabilities of the 10 % of views of lowest entropy; ŷ its top class, H its entropy.
       The memory of ŷ takes (f, H) and keeps the 50 of lowest H.
    2. a_c = normalise(Σ exp(−5.5·(1 − f·k))·k) over t_c and the items k of class c.
    3. out = (softmax(z) + λ·softmax(s·f·aᵀ))/(1 + λ), z being the logits of the base view.
    An image is learned from before it is predicted, so it meets its own key.

    This is the dynamic memory without training and without few-shot images, DMN-ZS, as in the
    authors' code; views serve for ŷ and H alone. The code chooses λ for each data set among 13
    values from 0.001 to 1000 by the accuracy on the test labels; here λ = 1, which it chose for
    ImageNet. It also averages its text over templates and descriptions (`tip_cupl`).

    Memories merge exactly: the union, cut to the lowest H. They are the largest state of all
    methods, 100 MB for 1,000 classes of 512 dimensions; `size` bounds it.

    >>> from adte import Sample
    >>> weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> f = normalize(torch.tensor([[1.0, 0.2]]), dim=-1)
    >>> DMN().step(Sample(10 * f @ weights.T, f, weights, 10.0)).probs.round(decimals=3)
    tensor([0.7020, 0.0000, 0.2980])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = (
        "Zhang et al., Dual Memory Networks: A Versatile Adaptation Approach for "
        "Vision-Language Models, CVPR 2024, arXiv:2403.17589, github.com/YBZh/DMN"
    )

    order: Literal["predict-first", "learn-first"] = option("learn-first", ORDER)
    keep: Selection = part(Selection(), "which views are kept")
    size: int = option(50, "images per class in the memory", low=1)
    sharpness: float = option(5.5, "β, how fast the weight of an image falls with distance", low=0)
    weight: float = option(1.0, "λ, weight of the memory relative to the text", low=0)

    def entries(self) -> dict[str, Entry]:
        return bank.entries(self.size, _KEY)

    def initial(self, batch: Batch) -> State:
        class_weights_of(batch)
        return super().initial(batch)

    def _views(self, image: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (V, L) and entropy (V,) of the views, and which are kept (K,)."""
        log_p = F.log_probs(image.logits[0])
        entropy = F.shannon(log_p)
        return log_p, entropy, self.keep(entropy)

    def update(self, state: State, image: Batch) -> None:
        log_p, _, kept = self._views(image)
        mean = F.mean_probs(log_p[kept])
        item = {"keys": features_of(image)[0, 0]}
        bank.insert(state, "", int(mean.argmax()), float(F.shannon(mean.detach())), item)

    def classifier(self, state: State, image: Batch) -> Tensor:
        """a, the class features that this image reads from text and memory.  → (L, D)"""
        f, text = features_of(image)[0, 0], class_weights_of(image)
        depth = int(bank.filled(state).sum(1).max())  # the slots beyond are empty in every class
        top = {name: state[name][:, :depth] for name in ("rank", "keys")}
        near = bank.affinity(top, "", f, self.sharpness)  # (L, depth)
        out = (-self.sharpness * (1 - text @ f)).exp()[:, None] * text
        return normalize(out + (near[:, None] @ top["keys"].to(f))[:, 0], dim=-1)

    def look(self, state: State, image: Batch) -> Prediction:
        log_p, entropy, kept = self._views(image)
        f = features_of(image)[0, 0]
        read = (image.context.scale * self.classifier(state, image) @ f).softmax(-1)
        out = (log_p[0].exp() + self.weight * read) / (1 + self.weight)
        return Prediction(probs=out, entropy=entropy, kept=kept)
