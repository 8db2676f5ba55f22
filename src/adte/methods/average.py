"""Plain test-time augmentation: the average over all views."""

from __future__ import annotations

from dataclasses import dataclass

from adte.methods.registry import register
from adte.methods.se import SE
from adte.options import option

__all__ = ["Average"]


@register("average")
@dataclass(kw_only=True, eq=False)
class Average(SE):
    """The mean over all views, without selection.

    Three averages go by the name of test-time augmentation. `aggregate="probs"` is the mean of the
    probabilities and the default; `"logits"` is their normalised geometric mean, which for unit
    features is the mean feature's prediction up to its length; `"vote"` counts top classes.

    >>> import torch
    >>> from adte import Sample
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> Average().predict(Sample(z)).probs
    tensor([0.2957, 0.3843, 0.3201])
    """

    reference = "folklore; as a test-time baseline in Zhang et al., MEMO, NeurIPS 2022"

    ratio: float = option(1.0, "share of the views to keep; 1 keeps all")
