"""MTA: the densest point of the views, by a mean shift that weighs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.options import option
from adte.core.prediction import Predictions
from adte.methods._features import class_weights_of, features_of
from adte.methods.base import Method
from adte.methods.registry import register

__all__ = ["MTA", "Mode", "find_mode"]

_TINY = 1e-10  # a squared bandwidth: duplicates of a view are at distance zero


class Mode(NamedTuple):
    """Where the views are densest."""

    point: Tensor  # (D,) unit
    weights: Tensor  # (V,) inlierness, sums to one
    bandwidth: Tensor  # (V,)


def find_mode(
    features: Tensor,
    probs: Tensor,
    neighbours: float = 0.3,
    spread: float = 0.2,
    agreement: float = 4.0,
    rounds: int = 5,
    inner: int = 5,
    eps: float = 1e-6,
) -> Mode:
    """The mode of the views' features (V, D), with a weight for each view.

    b_i² = half the mean squared distance to the nearest ⌊0.3 (V − 1)⌋ views, at least one; where
    they are all the same view, to the nearest that is another. Begin at view 0 with equal weights
    y; alternate, with K_i = exp(−‖f_i − m‖²/2b_i²) and W = P Pᵀ:
      y ← softmax((K + λ_q W y)/λ_y)
      m ← normalise(Σ K_i y_i f_i / Σ K_i y_i)
    each up to `inner` times or until it moves by less than eps, for a fixed number of rounds.
    """
    views, m = len(features), features[0]
    y = torch.full_like(features[:, 0], 1 / views)
    if views == 1:
        return Mode(normalize(m, dim=-1), y, torch.zeros_like(y))
    near = max(1, int(neighbours * (views - 1) + 1e-9))
    square = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    square.fill_diagonal_(torch.inf)  # a view is no neighbour of its own; its duplicates are
    variance = square.topk(near, largest=False).values.mean(1) / 2
    another = square.masked_fill(square == 0, torch.inf).amin(1) / 2
    variance = torch.where((variance == 0) & another.isfinite(), another, variance)
    affinity, width = probs @ probs.T, 2 * variance.clamp_min(_TINY)

    def kernel(point: Tensor) -> Tensor:
        return (-(features - point).square().sum(-1) / width).exp()

    for _ in range(rounds):
        density = kernel(m)
        for _ in range(inner):
            y, old = ((density + agreement * affinity @ y) / spread).softmax(-1), y
            if torch.linalg.vector_norm(y - old) < eps:
                break
        for _ in range(inner):
            pull = kernel(m) * y
            m, old = normalize(pull @ features / pull.sum().clamp_min(1e-30), dim=-1), m
            if torch.linalg.vector_norm(m - old) < eps:
                break
    return Mode(m, y, variance.sqrt())


@register("mta")
@dataclass(kw_only=True, eq=False)
class MTA(Method):
    """The prediction at the point where the views are densest, found by weighted mean shift.

    P = softmax(s·m·Tᵀ) with m of `find_mode`: no view is thrown away, each weighs by how close it
    lies to the mode and how far its prediction agrees with the others'. It keeps no state. With
    one view it is zero-shot.

    >>> from adte import Sample
    >>> f = normalize(torch.tensor([[1, 0.1], [1, 0.2], [0.9, 0.3], [0.8, 0.5], [0.1, 1]]), dim=-1)
    >>> MTA().predict(Sample(10 * f, f, torch.eye(2), 10.0)).probs.round(decimals=4)
    tensor([9.9990e-01, 1.0000e-04])
    """

    needs = frozenset({"logits", "features", "class weights"})
    reference = (
        "Zanella and Ben Ayed, On the Test-Time Zero-Shot Generalization of Vision-Language "
        "Models: Do We Really Need Prompt Learning?, CVPR 2024, arXiv:2405.02266, "
        "github.com/MaxZanella/MTA"
    )

    neighbours: float = option(
        0.3, "share of the other views that set a view's bandwidth", above=0, high=1
    )
    spread: float = option(
        0.2, "λ_y: larger values spread the weights more evenly over the views", above=0
    )
    agreement: float = option(
        4.0, "λ_q: how much views with similar predictions support each other"
    )
    rounds: int = option(5, "rounds of updating the weights, then the mode", low=1)

    def decide(self, batch: Batch, readouts: None) -> Predictions:
        features, weights = features_of(batch), class_weights_of(batch)
        options = self.neighbours, self.spread, self.agreement, self.rounds
        rows = []
        for f, z in zip(features, batch.logits, strict=True):
            mode = find_mode(f, F.log_probs(z).exp().to(f), *options)
            rows.append((batch.context.scale * mode.point @ weights.T).softmax(-1))
        return Predictions(torch.stack(rows))
