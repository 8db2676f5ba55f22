"""The cost of an image under several methods: seconds and peak memory, its views encoded.

Encoding takes most of the time and its noise is larger than what the heads add, so it is timed by
itself and the heads in turns; an image's time is the sum of the two medians. Memory is the peak
above the weights and the inputs: the larger of encoding's and the head's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from adte.bench import timing
from adte.bench.rate import class_names, noise
from adte.core.batch import Context
from adte.core.errors import InputError
from adte.core.machine import PeakMemory
from adte.methods import Method, create_method
from adte.models import Model, load_model
from adte.models.prompts import class_weights
from adte.paper.lab import ADTE, Lab
from adte.paper.study import Finding, Row, study
from adte.pipeline import Pipeline

__all__ = ["measure"]

FILL = 200  # images that a prior has seen: ADTE in its steady state
INNER = 21  # repeats of the fast heads for each of encoding
SLOW = "tpt"


def measure(
    model: Model, methods: Sequence[str], names: list[str], views: int = 64, repeats: int = 7
) -> list[dict[str, Any]]:
    """A row for each method; ratios are to the first one's seconds."""
    pixels, text = noise(model, views), class_weights(model, names).to(model.device)
    context = Context.of(model, text, names)
    encode = partial(Pipeline(model).encode, pixels, 1)
    with PeakMemory(model.device) as peak:
        features = encode()
    encoding, heads, memory = peak.bytes, {}, {}
    for name in methods:
        method = steady(name, context)
        heads[name] = partial(lambda m: m.step(context.batch(features)), method)
        with PeakMemory(model.device) as peak:
            heads[name]()
        memory[name] = max(encoding, peak.bytes)
    tower = timing.medians({"": encode}, repeats, model.device)[""]
    fast = {name: head for name, head in heads.items() if name != SLOW}
    head = timing.medians(fast, INNER * repeats, model.device)
    if SLOW in heads:
        head |= timing.medians({SLOW: heads[SLOW]}, repeats, model.device)
    base = tower + head[methods[0]]
    return [
        {"name": name, "seconds": tower + head[name],
         "ratio": (tower + head[name]) / base, "peak_memory": memory[name],
         "head_seconds": head[name]}
        for name in methods
    ]  # fmt: skip


def steady(name: str, context: Context) -> Method:
    """A method as it is in the middle of a stream."""
    method = create_method(name)
    if method.stateful:
        assert context.class_weights is not None
        weights, g = context.class_weights, torch.Generator().manual_seed(1)
        seen = torch.randn(FILL, 1, weights.shape[-1], generator=g)  # images of one view each
        method.learn(context.batch(torch.nn.functional.normalize(seen, dim=-1).to(weights)))
    return method


@study("cost", "Seconds and memory per image", draws=None)
def cost(lab: Lab) -> Finding:
    """Time and peak memory of TPT, Zero and ADTE per image, all views encoded anew."""
    if not lab.small:
        raise InputError(
            "the cost study runs on the embedded model; for another one use "
            "`python benchmarks/cost.py --model NAME`"
        )
    repeats = 5 if lab.settings.images is None else 1
    names = {"TPT": "tpt", "Zero": "zero", **{name: method for name, (method, _) in ADTE.items()}}
    rows = measure(load_model("tiny"), [*names.values()], class_names(200), repeats=repeats)
    return Finding(
        "tiny, 200 classes, one image with its 64 views encoded, this machine, one run",
        tuple(names),
        [
            Row("Time [s]", tuple(row["seconds"] for row in rows)),
            Row("Mem [GB]", tuple(row["peak_memory"] / 1e9 for row in rows)),
        ],
        ("plain",) * len(names),
        notes=("Published: one A100. Ours: this machine; only ratios may be compared.",),
        lower=True,
        methods=names,
    )
