"""Zero: the views of lowest entropy vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adte.methods.base import ViewMethod
from adte.methods.measure import EntropyMethod
from adte.methods.registry import register
from adte.options import option

__all__ = ["Zero"]


@register("zero")
@dataclass(kw_only=True, eq=False)
class Zero(EntropyMethod, ViewMethod):
    """The views of lowest entropy vote for their top class.

    Averaging at temperature → 0 is a vote. A tie is settled by the remaining views in order of
    confidence. The authors' code first kept 10 % of the views, later 30 %; the ADTE paper compares
    with 10 %, the default here. `entropy` puts Tsallis' or ADTE's measure in Shannon's place.

    >>> import torch
    >>> from adte import Sample
    >>> z = torch.tensor([[2.0, 0.5, 0.1], [0.2, 3.0, 0.1], [1.0, 1.1, 0.9], [0.0, 0.5, 2.5]])
    >>> Zero(ratio=0.5).predict(Sample(z)).probs  # one each for 1 and 2; view 2 settles it
    tensor([0.0000, 0.6667, 0.3333])
    """

    reference = "Farina et al., Frustratingly Easy Test-Time Adaptation of VLMs, NeurIPS 2024"

    aggregate: Literal["probs", "logits", "vote"] = option("vote", "how the kept views decide")
