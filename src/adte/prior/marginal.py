"""The mean of all predictions; its state is one sum per class."""

from __future__ import annotations

import torch
from torch import Tensor

from adte.prior.reading import Reading
from adte.prior.rule import Rule
from adte.state import Entry, State

__all__ = ["Marginal"]


class Marginal(Rule):
    """p̃ ∝ Σ p + what is added, cut beyond `clip` deviations."""

    def entries(self) -> dict[str, Entry]:
        return {"total": Entry(("L",))}

    def observe(self, state: State, log_p: Tensor, label: int | None = None) -> bool:
        state["total"] += log_p.exp()
        state["seen"] += 1
        return True

    def scan(self, state: State, items: Tensor, learn_first: bool) -> Reading:
        before, images = int(state["seen"]), len(items)
        sums = torch.cat([state["total"][None], items.exp()]).cumsum(0)  # (B + 1, L)
        seen = before + torch.arange(images + 1, dtype=sums.dtype, device=sums.device)
        state["total"], state["seen"] = sums[-1].clone(), state["seen"] + images
        by_then = slice(1, None) if learn_first else slice(0, -1)
        return Reading(self.log_mean(sums[by_then], seen[by_then]))

    def log_prior(self, state: State) -> Tensor:
        return self.log_mean(state["total"], state["seen"].to(state["total"]))

    def log_mean(self, total: Tensor, seen: Tensor) -> Tensor:
        """log of the mean of everything seen and of the uniform predictions.  (…, L), (…)"""
        L = total.shape[-1]
        extra = self.smoothing(L)
        weight = (seen + extra * L)[..., None]
        none = weight <= 0  # nothing seen and nothing added: uniform
        mean = torch.where(none, 1 / L, (total + extra) / torch.where(none, 1.0, weight))
        return self.log(mean)
