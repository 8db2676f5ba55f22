"""The cost of one more image for what is known of the classes: of `tilt`, and of the fixed point.

`tilt` keeps sums per class: an image is read and taken in in time linear in the classes. The fixed
point's bank is updated by one column and solved from uniform, beside a matrix that is rebuilt
first. Its bank grows with the classes squared; where it would take more than a few GB it is left
out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adte.bench import timing
from adte.bench.conditions import conditions
from adte.core.batch import Sample
from adte.core.machine import threads
from adte.core.state import fresh
from adte.methods import bank, create_method
from adte.methods.prior import PriorOptions, fixed_point, rule_of

__all__ = ["DEFAULT", "run"]

MOST = 4 << 30  # bytes of a bank
REBUILT, UPDATED = "new item, rebuilt matrix, solved", "new item, one column, solved"
DEFAULT = "new image, the default (tilt): read and taken in"


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
    base = seconds[REBUILT] if fits else seconds[DEFAULT]
    rows = [{"name": n, "seconds": s, "ratio": base / s} for n, s in seconds.items()]
    facts = {"classes": classes, "size": size, "bank_bytes": needed}
    where = conditions(dtype=torch.float64, threads=1)
    if fits:
        ratio, meaning = base / seconds[UPDATED], "the fixed point, times faster than rebuilding"
    else:
        ratio, meaning = 1e3 * base, f"ms; the bank would take {needed / 2**30:.0f} GB: left out"
    return timing.result(rows, ratio, meaning, **where, **facts)


def _default(item: Callable[[], Tensor]) -> Callable[[], object]:
    """One step of an image that comes as logits alone."""
    method, image = create_method("tilt"), Sample(item()[None])
    for _ in range(50):
        method.learn(Sample(item()[None]))
    return lambda: method.step(image)


def _fixed_point(
    classes: int, size: int, item: Callable[[], Tensor]
) -> dict[str, Callable[[], object]]:
    options = PriorOptions(
        estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, bank="fifo", size=size
    )
    rule = rule_of(options)
    state = fresh("the class prior", rule.entries(), {"L": classes})
    for n in range(classes * size):
        p = item().exp()
        bank.insert(state, "", int(p.argmax()), -float(n), {"items": p})
    state["seen"] += classes * size
    rule.refresh(state)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    filled = bank.filled(state)
    items = [state["items"][c, filled[c]] for c in range(classes)]

    def incremental() -> Tensor:
        rule.observe(state, item().double())
        return rule.log_prior(state).exp()

    def rebuilt() -> Tensor:
        even = torch.full_like(uniform, 1 / classes)
        columns = [x.double().mean(0) if len(x) else even for x in items]
        matrix = torch.stack(columns, dim=1)
        return fixed_point(matrix, uniform, options.norm, options.eps, options.max_iter)[0]

    return {REBUILT: rebuilt, UPDATED: incremental}
