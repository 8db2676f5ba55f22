"""The cost of one more item for the class prior: incremental and warm against rebuilt and cold.

python benchmarks/prior.py [--classes 1000] [--size 10] [--json FILE]
"""

from __future__ import annotations

from typing import Any

import torch

import timing
from adte import ClassPrior, PriorOptions, fixed_point


def run(classes: int = 1000, size: int = 10, repeats: int = 31) -> dict[str, Any]:
    """One item: column update and warm-started solution, beside a rebuilt A solved from uniform."""
    torch.set_num_threads(1)
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

    seconds = timing.medians(
        {
            "new item, rebuilt matrix, cold solution": rebuilt,
            "new item, one column, warm solution": incremental,
        },
        repeats,
    )
    base = seconds["new item, rebuilt matrix, cold solution"]
    rows = [{"name": n, "seconds": s, "ratio": base / s} for n, s in seconds.items()]
    return {"rows": rows, "ratio": rows[1]["ratio"], "meaning": "times faster than rebuilding"}


if __name__ == "__main__":
    timing.main(run, classes=1000, size=10, repeats=31)
