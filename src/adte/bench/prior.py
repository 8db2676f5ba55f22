"""The cost of one more item for the class prior: incremental and warm against rebuilt and cold."""

from __future__ import annotations

from typing import Any

import torch

from adte import bank
from adte.bench import timing
from adte.bench.conditions import conditions
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

    options = PriorOptions(
        estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, bank="fifo", size=size
    )
    prior = ClassPrior(classes, options)
    for n in range(classes * size):  # filled without a solution per item, and solved at the end
        p = item().exp()
        bank.insert(prior.state, "", int(p.argmax()), -float(n), {"items": p})
    prior.state["seen"] += classes * size
    options.refresh(prior.state)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    filled = bank.filled(prior.state)
    items = [prior.state["items"][c, filled[c]] for c in range(classes)]

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
        return fixed_point(matrix, uniform, options.norm, options.eps, options.max_iter)[0]

    cold, warm = "new item, rebuilt matrix, cold solution", "new item, one column, warm solution"
    with threads(1):
        seconds = timing.medians({cold: rebuilt, warm: incremental}, repeats)
    rows = [{"name": n, "seconds": s, "ratio": seconds[cold] / s} for n, s in seconds.items()]
    ratio, facts = seconds[cold] / seconds[warm], {"classes": classes, "size": size}
    where = conditions(dtype=torch.float64, threads=1)
    return timing.result(rows, ratio, "times faster than rebuilding", **where, **facts)
