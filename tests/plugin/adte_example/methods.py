"""Two methods: one without state, one that learns from the stream."""

from dataclasses import dataclass

import torch

from adte.core.options import option
from adte.core.prediction import Prediction, Predictions
from adte.core.state import Entry
from adte.methods import Method
from adte.methods.registry import register


@register("example-mean")
@dataclass(kw_only=True, eq=False)
class Mean(Method):
    """The mean prediction of all views."""

    def decide(self, batch, readouts):
        return Predictions(batch.logits.float().softmax(-1).mean(1))  # (B, L)


@register("example-debias")
@dataclass(kw_only=True, eq=False)
class Debias(Method):
    """The base view's prediction, over the running mean of all predictions: P ∝ p₀ / p̄^α."""

    alpha: float = option(0.5, "strength α of the correction")

    def entries(self):
        return {"sum": Entry(("L",)), "seen": Entry((), torch.int64)}

    def evidence(self, batch):
        return batch.logits[:, 0].double().softmax(-1)  # (B, L)

    def look(self, state, image):
        mean = (state["sum"] + 1) / (state["seen"] + image.shape[-1])
        p = image[0] / mean**self.alpha
        return Prediction((p / p.sum()).float())

    def update(self, state, image):
        state["sum"] += image[0]
        state["seen"] += 1
