"""An image under zero-shot, Zero, ADTE and TPT: seconds and peak memory, its views encoded.

    python benchmarks/cost.py                                    # `tiny`; the paper's table of cost
    python benchmarks/cost.py --model ViT-B-16 --weights random --classes 1000 --device cuda

Ratios are to zero-shot. Encoding takes most of the time and its noise is larger than what the heads
add, so it is timed by itself and the heads in turns; an image's time is the sum of the two medians.
Memory is the peak above the weights and the inputs: the larger of encoding's and the head's.

Prompt tuning keeps the text tower's activations for the way back. All classes at once, they grow
with the number of classes; in chunks they do not, and the last rows show it: the gradient that TPT
needs, for all classes and for half of them, with their ratio to the gradient of all at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adte import create_method, load_model
from adte.bench import timing
from adte.bench.rate import class_names, noise
from adte.core.batch import Context
from adte.core.machine import PeakMemory
from adte.methods import Method
from adte.methods.prompt_tuning import PromptLearner
from adte.models import Model
from adte.models.prompts import class_weights
from adte.paper.published import published
from adte.pipeline import Pipeline

PUBLISHED = {"tpt": "TPT", "zero": "Zero", "adte": "ADTE"}  # columns of the paper's table
METHODS = ("zero-shot", "zero", "adte", "adte-released", "tilt", "tpt")
CHUNK = 64
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


def in_chunks(model: Model, names: list[str]) -> list[dict[str, Any]]:
    """TPT's gradient for all classes at once, in chunks, and in chunks for half the classes."""
    rows: list[dict[str, Any]] = []
    gradient(PromptLearner(model, names[:2], chunk=1))  # warm
    for chunk, some in ((0, names), (CHUNK, names), (CHUNK, names[: len(names) // 2])):
        name = f"tpt gradient, {len(some)} classes, " + (f"chunk={chunk}" if chunk else "at once")
        learner = PromptLearner(model, some, chunk=chunk)
        with PeakMemory(model.device) as peak:
            taken = timing.seconds(partial(gradient, learner), model.device)
        rows.append({"name": name, "seconds": taken, "ratio": 1.0, "peak_memory": peak.bytes})
        rows[-1]["ratio"] = taken / rows[0]["seconds"]
        del learner
    return rows


def gradient(learner: PromptLearner) -> Tensor:
    context = learner.initial.clone().requires_grad_()
    spread = learner.class_weights(context).std(0).sum()
    return torch.autograd.grad(spread, context)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    for name in ("weights", "device", "dtype"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--repeats", type=int, help="turns; by default 7 for tiny, else 2")
    parser.add_argument("--json", type=Path, metavar="FILE")
    o = parser.parse_args()
    net = load_model(o.model, weights=o.weights, device=o.device, dtype=o.dtype)
    names = class_names(o.classes)
    repeats = o.repeats or (7 if o.model == "tiny" else 2)
    rows = measure(net, METHODS, names, o.views, repeats)
    for row in rows:
        for key, unit in (("published_seconds", "Time [s]"), ("published_gb", "Mem [GB]")):
            cell = published("cost").cell(unit, PUBLISHED.get(row["name"], ""))
            row[key] = cell[0] if isinstance(cell, tuple) else cell
    zero, adte = (next(r["seconds"] for r in rows if r["name"] == n) for n in ("zero", "adte"))
    rows += in_chunks(net, names)
    for row in rows:
        mb = row["peak_memory"] / 2**20
        print(f"{row['name']:40}{row['seconds']:10.4g} s{row['ratio']:8.2f}{mb:10,.0f} MB")
    ratio, meaning = adte / zero, "ADTE over Zero, seconds per image"
    print(f"{meaning}: {ratio:.3f}")
    if o.json:
        facts = {"model": net.name, "views": o.views, "classes": len(names), "repeats": repeats,
                 **timing.conditions(net.device, net.dtype)}  # fmt: skip
        found = {"rows": rows, "ratio": ratio, "meaning": meaning, **facts}
        o.json.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
