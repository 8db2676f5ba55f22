"""The cost of one more item for the class prior: the default's, and the fixed point's.

The default keeps five sums per class: an image is taken in and the prior read in time linear in the
classes. The fixed point's bank is updated by one column and solved from the last solution on,
beside a matrix that is rebuilt and solved from uniform. Its bank grows with the classes squared;
where it would take more than a few GB it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adte import bank
from adte.bench import timing
from adte.bench.conditions import conditions
from adte.machine import threads
from adte.methods import PriorMethod, create_method
from adte.prior import ClassPrior, PriorOptions, fixed_point

__all__ = ["DEFAULT", "run"]

MOST = 4 << 30  # bytes of a bank
COLD, WARM = "new item, rebuilt matrix, cold solution", "new item, one column, warm solution"
DEFAULT = "new image, the default (adte): read and taken in"


def run(classes: int = 1000, size: int = 10, repeats: int = 31) -> dict[str, Any]:
    """Seconds of one item under each estimate."""
    g = torch.Generator().manual_seed(0)
    bias = torch.linspace(0, 3, classes)[torch.randperm(classes, generator=g)]

    def item() -> Tensor:
        """A prediction with a confusable neighbourhood, as real ones have."""
        z = torch.randn(classes, generator=g) + bias
        z[torch.randint(classes, (5,), generator=g)] += 6
        return torch.log_softmax(z, -1)

    needed = (4 * size + 8) * classes**2
    fits = needed <= MOST
    candidates = {**(_fixed_point(classes, size, item) if fits else {}), DEFAULT: _default(item)}
    with threads(1):
        seconds = timing.medians(candidates, repeats)
    base = seconds[COLD] if fits else seconds[DEFAULT]
    rows = [{"name": n, "seconds": s, "ratio": base / s} for n, s in seconds.items()]
    facts = {"classes": classes, "size": size, "bank_bytes": needed}
    where = conditions(dtype=torch.float64, threads=1)
    if fits:
        ratio, meaning = base / seconds[WARM], "the fixed point, times faster than rebuilding"
    else:
        ratio, meaning = 1e3 * base, f"ms; the bank would take {needed / 2**30:.0f} GB: left out"
    return timing.result(rows, ratio, meaning, **where, **facts)


def _default(item: Callable[[], Tensor]) -> Callable[[], object]:
    """What a stream does for each image: read the prior by then, and take the image in."""
    method = create_method("adte")
    assert isinstance(method, PriorMethod)
    options, prior = method.prior, ClassPrior(len(item()), method.prior)
    options.learn(prior.state, torch.stack([item() for _ in range(50)]).double())
    given = item().double()[None]  # made beforehand: at 20,000 classes that takes as long
    return lambda: options.scan(prior.state, given)


def _fixed_point(
    classes: int, size: int, item: Callable[[], Tensor]
) -> dict[str, Callable[[], object]]:
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

    def incremental() -> Tensor:
        prior.observe(item())
        return prior.prior

    def rebuilt() -> Tensor:
        even = torch.full_like(uniform, 1 / classes)
        columns = [x.double().mean(0) if len(x) else even for x in items]
        matrix = torch.stack(columns, dim=1)
        return fixed_point(matrix, uniform, options.norm, options.eps, options.max_iter)[0]

    return {COLD: rebuilt, WARM: incremental}
