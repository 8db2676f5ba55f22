"""An image under zero-shot, Zero, ADTE and TPT: seconds and peak memory, its views encoded.

    python benchmarks/cost.py
    python benchmarks/cost.py --model ViT-B-16 --weights random --classes 1000 --device cuda

Ratios are to zero-shot. Prompt tuning keeps the text tower's activations for the way back. All
classes at once, they grow with the number of classes; in chunks they do not, and the last rows show
it: the gradient that TPT needs, for all classes and for half of them, with their ratio to the
gradient of all at once.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adte import load_model
from adte.bench import timing
from adte.bench.rate import class_names
from adte.core.machine import PeakMemory
from adte.methods.prompt_tuning import PromptLearner
from adte.models import Model
from adte.paper.cost import measure

PUBLISHED = {"tpt": (0.57, 17.66), "zero": (0.06, 1.40), "adte": (0.07, 1.46)}  # s, GB on an A100
CHUNK = 64


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
    rows = measure(net, ("zero-shot", "zero", "adte", "tpt"), names, o.views, repeats)
    for row in rows:
        row["published_seconds"], row["published_gb"] = PUBLISHED.get(row["name"], (None, None))
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
