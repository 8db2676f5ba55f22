"""Frequencies among the classes that an image may be of.

A stream that shows few of all classes need not show few of those that an image may be of: of a
thousand names a folder of animals shows a quarter, but of those that are like a given animal all.
Which of these is seen how often is then mostly what the model makes of them, and to follow that is
to follow its errors. And where a class was not seen yet, it may well come if those like it did. So
whether few classes are shown is asked again among the likely ones of each image.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from adte.bias.host import PAIRS, TINY

__all__ = ["LIKELY", "Likely", "among", "concentration_among"]

LIKELY = 32  # classes that an image may be of
ENOUGH = 0.6  # of a trust of one, from where on few of them are shown
STEEP = 8  # how steeply that ends below


class Likely(NamedTuple):
    """What frequencies say to each image.

    Attributes:
        uneven: what its logits are divided by (B, L).
        few: how far few of its likely classes are shown (B,).
        classes: those (B, K), the most probable one by the whole stream first.
    """

    uneven: Tensor
    few: Tensor
    classes: Tensor


def among(items: Tensor, uneven: Tensor, counts: Tensor, shown: Tensor, trust: Tensor) -> Likely:
    """Trust the stream's frequencies among each image's likely classes as far as it shows few.

    With c the concentration of the likely classes (`concentration_among`) and g' = 1 − 1/c, few of
    them are shown as far as φ = min(1, g'/min(g, 0.6))⁸: one where they are as few as of all, or no
    more than two in five; next to nothing where few of all are and three in five of these. Of the
    stream's f an image reads φ·f there, but for a constant: all of them together are as frequent as
    before, which is what the mean of exp f says.

    Args:
        items: log-probabilities (B, L).
        uneven: b − f of the whole stream (B or 1, L).
        counts: N and Q by then (2, B or 1, L).
        shown: f (B or 1, L).
        trust: g of the whole stream (B or 1,).
    """
    classes = (items - uneven).topk(min(LIKELY, items.shape[1])).indices
    n, q, f = (x.expand_as(items).gather(1, classes) for x in (*counts, shown))
    c = concentration_among(n, q, trust)
    few = ((1 - 1 / c).clamp_min(0) / trust.clamp(TINY, ENOUGH)).clamp_max(1) ** STEEP
    told = few[:, None] * f
    less = (f - _even(f)) - (told - _even(told))
    return Likely(uneven.expand_as(items).scatter_add(1, classes, less), few, classes)


def _even(f: Tensor) -> Tensor:
    """Log mean exp.  (B, K) → (B, 1)"""
    return f.logsumexp(1, keepdim=True) - math.log(f.shape[1])


def concentration_among(answers: Tensor, squares: Tensor, trust: Tensor) -> Tensor:
    """How much more often images of some classes share one than they would were these alike.

    A class that is shown has images that are sure of it; another only its part in those of its
    like. So agreements are counted between sure answers, K Σ Q² over (Σ Q)², by N and Q of the
    classes (B, K), less what images make of themselves: the N²/Q images of a class, all alike,
    make Q³/N². Two pairs are taken as seen that agree as those of the whole stream do, by its
    trust (B or 1,).  → (B,)

    >>> import torch
    >>> answers = torch.tensor([[90.0] * 4 + [0.1] * 28, [90.0] * 32])
    >>> concentration_among(answers, answers * 0.8, torch.tensor([0.75])).round(decimals=1)
    tensor([7.8000, 1.0000])
    """
    classes = answers.shape[1]
    own = (squares**3 / (answers * answers).clamp_min(TINY)).sum(1)
    agreed = (squares * squares).sum(1) - own
    pairs = squares.sum(1).square() - own
    whole = 1 / (1 - trust).clamp_min(1 / classes)
    return (classes * agreed + 2 * PAIRS * whole) / (pairs + 2 * PAIRS)
