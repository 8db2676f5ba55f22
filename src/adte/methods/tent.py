"""Tent: scale and shift of the normalisation layers descend the entropy of the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from adte import functional as F
from adte.methods.image_tower import log_probs, prior_like
from adte.methods.norm_tuning import NormTuner
from adte.methods.registry import register
from adte.options import option

__all__ = ["Tent"]


@register("tent")
@dataclass(kw_only=True, eq=False)
class Tent(NormTuner):
    """The base view under normalisation layers tuned to lower the entropy of what came before.

    1. The image is predicted with the parameters so far.
    2. loss = mean H over the batch; one step on scale and shift of every batch, layer and group
       norm of the image tower. They and the optimiser's moments stay for the next image.

    The paper adapts batch norm in batches of images, with the batch's own statistics; CLIP's
    transformers have layer norm, which is tuned likewise. Here the default batch is the image's
    own views, all of them unless `ratio` selects the surest, and batch norm mixes their statistics
    with the source's as `bn` does, for those of one image alone are poor. `batch=64` is the
    paper's way. One optimiser serves all: SGD with momentum 0.9 and learning rate 2.5e-4, the
    authors' for ImageNet; theirs for CIFAR is optimiser="adam", lr=1e-3.

    Entropy has a trivial minimum: all images in one class. Long streams, large learning rates and
    streams in order of class drift towards it, so look at how often each class is predicted.

    >>> Tent().params["lr"], Tent(batch=64).stateful
    (0.00025, True)
    """

    reference = "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021"

    ratio: float = option(1.0, "share of the image's views to learn from, at least one view")
    count: int | None = option(None, "number of views to learn from, instead of the ratio")

    def __post_init__(self) -> None:
        super().__post_init__()
        F.keep_count(self.count or 1, self.ratio, self.count)

    def explain(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        entropy, _ = super().explain(logits)
        keep = F.keep_count(len(entropy), self.ratio, self.count)
        return entropy, F.rank_views(entropy)[:keep]

    def loss(self, run: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
        z = run(pixels)
        if not self.batch:
            z = z[self.explain(z.detach())[1]]
        prior = prior_like(self, z)
        return self.measure(log_probs(self, z, prior, "before per-view"), prior).mean()
