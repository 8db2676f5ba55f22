"""Tent: scale and shift of the normalisation layers descend the entropy of the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from adte.core.errors import InputError
from adte.core.options import part
from adte.core.state import State
from adte.methods.norm_tuning import NormTuner
from adte.methods.parts import Selection
from adte.methods.registry import register

__all__ = ["Tent"]


@register("tent")
@dataclass(kw_only=True, eq=False)
class Tent(NormTuner):
    """The base view, with normalisation layers tuned to lower the entropy of earlier images.

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

    reference = (
        "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021, "
        "arXiv:2006.10726, github.com/DequanWang/tent"
    )

    keep: Selection = part(Selection(ratio=1.0), "which of the image's views are learned from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch and (self.keep.ratio < 1 or self.keep.count is not None):
            raise InputError(
                f"batch={self.batch} learns from the base views of several images, so there are no "
                "views to choose; leave ratio and count out, or batch=0"
            )

    def explain(self, logits: Tensor, log_prior: Tensor | None) -> tuple[Tensor, Tensor | None]:
        entropy, _ = super().explain(logits, log_prior)
        return entropy, self.keep(entropy)

    def loss(self, run: Callable[[Tensor], Tensor], pixels: Tensor, state: State) -> Tensor:
        z = run(pixels)
        prior = self.log_prior(state, z)
        if not self.batch:
            z = z[self.explain(z.detach(), prior)[1]]
        return self.entropy(self.log_probs(z, prior, "before", "per-view"), prior).mean()
