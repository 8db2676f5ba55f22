"""The cost of one more item for the class prior: incremental and warm against rebuilt and cold."""

from __future__ import annotations

from typing import Any

import torch

from adte.bench import timing
from adte.machine import threads
from adte.prior import ClassPrior, PriorOptions, fixed_point

__all__ = ["run"]


def run(classes: int = 1000, size: int = 10, repeats: int = 31) -> dict[str, Any]:
    """One item: column update and warm-started solution, beside a rebuilt A solved from uniform."""
    g = torch.Generator().manual_seed(0)
    bias = torch.linspace(0, 3, classes)[torch.randperm(classes, generator=g)]

    def item() -> torch.Tensor:
        """A prediction with a confusable neighbourhood, as real ones have."""
        z = torch.randn(classes, generator=g) + bias
        z[torch.randint(classes, (5,), generator=g)] += 6
        return torch.log_softmax(z, -1)

    prior = ClassPrior(classes, PriorOptions(bank="fifo", size=size))
    for _ in range(classes * size):
        prior.observe(item())
    _ = prior.prior
    o = prior.options
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    items = [prior._items[c, : int(prior._counts[c])] for c in range(classes)]

    def incremental() -> torch.Tensor:
        prior.observe(item())
        return prior.prior

    def rebuilt() -> torch.Tensor:
        matrix = torch.stack(
            [
                x.double().mean(0) if len(x) else torch.full_like(uniform, 1 / classes)
                for x in items
            ],
            dim=1,
        )
        return fixed_point(matrix, uniform, o.norm, o.eps, o.max_iter)[0]

    cold, warm = "new item, rebuilt matrix, cold solution", "new item, one column, warm solution"
    with threads(1):
        seconds = timing.medians({cold: rebuilt, warm: incremental}, repeats)
    rows = [{"name": n, "seconds": s, "ratio": seconds[cold] / s} for n, s in seconds.items()]
    return timing.result(rows, seconds[cold] / seconds[warm], "times faster than rebuilding")
