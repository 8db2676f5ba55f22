"""DeYO: entropy descent on images that are sure because of the shape of what they show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from adte.core import functional as F
from adte.core.options import option
from adte.core.state import State
from adte.methods.norm_tuning import NormTuner
from adte.methods.registry import register

__all__ = ["DeYO", "shuffle_patches"]


def shuffle_patches(pixels: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """Each image cut into grid × grid patches and put together in an order of its own.

    Sides that the grid does not divide are resized to a multiple of it and back.  (N, C, H, W)
    """
    n, c, *size = pixels.shape
    fit = [max(s // grid, 1) * grid for s in size]
    x = pixels if fit == size else _resize(pixels, fit)
    h, w = (s // grid for s in fit)
    patches = x.reshape(n, c, grid, h, grid, w).transpose(3, 4).reshape(n, c, grid * grid, h, w)
    order = torch.stack([torch.randperm(grid * grid, generator=generator) for _ in range(n)])
    index = order.to(x.device)[:, None, :, None, None].expand_as(patches)
    mixed = patches.gather(2, index).reshape(n, c, grid, grid, h, w).transpose(3, 4)
    out = mixed.reshape(n, c, *fit)
    return out if fit == size else _resize(out, size)


def _resize(x: Tensor, size: list[int]) -> Tensor:
    return interpolate(x.float(), size, mode="bilinear", antialias=True).to(x)


class Verdict(NamedTuple):
    """The outcome of a step: the loss of a batch, and which images count with which weight."""

    loss: Tensor | None
    kept: Tensor  # (K,) indices of those that pass both filters
    weight: Tensor  # (K,)
    plpd: Tensor  # (M,) of those that pass the first


@register("deyo")
@dataclass(kw_only=True, eq=False)
class DeYO(NormTuner):
    """The base view, with normalisation layers tuned on images that are recognised by their shape.

    1. The image is predicted with the parameters so far.
    2. H < tau_ent·ln L is kept. Of those, x′ has its 4×4 patches shuffled, which destroys shape
       but neither colour nor texture, and PLPD = P(ŷ|x) − P(ŷ|x′) > tau_plpd is kept, with ŷ the
       class predicted of x.
    3. loss = mean of w·H over the kept, w = exp(ent0·ln L − H) + exp(PLPD) without gradient; one
       step of SGD on scale and shift of all normalisation layers but the top: `layer4` of a
       ResNet, else the last quarter, which for a ViT of 12 blocks is the last three and the final
       norm. If none is kept there is no step.

    The batch is the image's views unless `batch` is set; the paper's is 64. One set of defaults:
    tau_ent 0.5, ent0 0.4, and tau_plpd 0.2, the authors' for streams "in the wild" (0.3 for their
    mild ones), lr 2.5e-4 (1e-3 for their ViT). Theirs for ColoredMNIST is tau_ent=1, ent0=1,
    tau_plpd=0.5, lr=1.25e-3, batch=64.

    `entropy` may replace Shannon's, and `adaptive_where` says in what:
      everywhere  filter, weight and loss, in the form that is zero on a certain prediction; both
                  thresholds are multiplied by its value at the uniform distribution over ln L
      loss        the loss alone, in ADTE's own form Σ P^q/(1 − q); filter and weight are Shannon's
      literal     ADTE's own form everywhere, thresholds as they are. It is never below
                  1/(1 − α) > ln 2, so with few classes nothing passes and nothing is learned
    The powers are taken of log-probabilities, where no gradient is infinite.

    >>> DeYO(entropy="adaptive").params["adaptive_where"]
    'everywhere'
    """

    reference = (
        "Lee et al., Entropy is not Enough for Test-Time Adaptation: From the Perspective of "
        "Disentangled Factors, ICLR 2024, arXiv:2403.07366, github.com/Jhyun17/DeYO"
    )

    tau_ent: float = option(0.5, "entropy below which an image is learned from, as a share of ln L")
    ent0: float = option(
        0.4, "entropy at which the first part of an image's weight is 1, as a share of ln L"
    )
    tau_plpd: float = option(
        0.2, "smallest fall of the predicted class's probability when the patches are shuffled"
    )
    grid: int = option(4, "patches along each side of the image that is shuffled", low=1)
    seed: int = option(0, "seed of the shuffling")
    top: float = option(
        0.25, "share of the normalisation layers, from the last, that are not tuned", low=0, below=1
    )
    adaptive_where: Literal["everywhere", "loss", "literal"] = option(
        "everywhere",
        "where an entropy other than Shannon's is used: in filter, weight and loss (everywhere), "
        "in the loss alone (loss), or everywhere in the paper's own form (literal)",
    )

    def layers(self, norms: list[list[str]]) -> list[list[str]]:
        below = [n for n in norms if "layer4" not in n[0].split(".")]
        if 0 < len(below) < len(norms):
            return below if self.top else norms
        return norms[: max(1, len(norms) - math.ceil(self.top * len(norms)))]

    def measures(
        self, log_p: Tensor, log_prior: Tensor | None = None
    ) -> tuple[Tensor, Tensor, float]:
        """H of filter and weight (N,), H of the loss (N,), and the scale of the thresholds."""
        own, q = self.entropy(log_p, log_prior), self.entropy.class_q(log_prior)
        if self.adaptive_where == "everywhere":
            return own, own, self.entropy.scale(log_p.shape[-1], log_prior)
        literal = own if q is None else F.adaptive_tsallis(log_p, q, "paper")
        return literal if self.adaptive_where == "literal" else F.shannon(log_p), literal, 1.0

    def judge(
        self,
        logits: Tensor,
        shuffled: Callable[[Tensor], Tensor],
        log_prior: Tensor | None = None,
    ) -> Verdict:
        """The loss of a batch's logits (N, L); `shuffled` gives those of x′ for indices (M,)."""
        log_p = self.log_probs(logits, log_prior, "before", "per-view")
        gate, entropy, scale = self.measures(log_p, log_prior)
        unit = scale * math.log(logits.shape[-1])
        sure = (gate < self.tau_ent * unit).nonzero().flatten()
        empty = gate.new_empty(0)
        if not len(sure):
            return Verdict(None, sure, empty, empty)
        with torch.no_grad():
            top = log_p[sure].argmax(-1, keepdim=True)
            other = self.log_probs(shuffled(sure), log_prior, "before", "per-view")
            plpd = (log_p[sure].exp() - other.exp()).gather(-1, top).squeeze(-1)
            passed = plpd > self.tau_plpd
            kept = sure[passed]
            weight = (self.ent0 * unit - gate[kept]).exp() + plpd[passed].exp()
        loss = (weight * entropy[kept]).mean() if len(kept) else None
        return Verdict(loss, kept, weight, plpd)

    def loss(self, run: Callable[[Tensor], Tensor], pixels: Tensor, state: State) -> Tensor | None:
        seed = (self.seed * 1_000_003 + int(state["images"])) % (1 << 63)  # whatever its size
        draw = torch.Generator().manual_seed(seed)

        def shuffled(sure: Tensor) -> Tensor:
            return run(shuffle_patches(pixels[sure], self.grid, draw))

        z = run(pixels)
        return self.judge(z, shuffled, self.log_prior(state, z)).loss
