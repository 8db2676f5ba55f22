"""What an image costs under zero-shot, Zero, ADTE and TPT: seconds and peak memory, in one run.

Every figure includes encoding the views. Encoding takes most of the time and its noise is larger
than what the heads add, so it is timed once per turn and the heads apart, in turns; an image's time
is the sum of the two medians. Memory is the peak above the weights and the inputs: the larger of
encoding's and the head's.

Prompt tuning keeps the text tower's activations for the way back. All classes at once, they grow
with the number of classes; in chunks they do not, and the last rows show it: the gradient that TPT
needs, for all classes and for half of them.

Published (Wu et al., ICLR 2026; ViT-B/16, ImageNet, one A100): another machine, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adte.bench import subject, timing
from adte.core.batch import Context
from adte.core.machine import PeakMemory
from adte.methods import Method, create_method
from adte.methods.prompt_tuning import PromptLearner
from adte.models import Model
from adte.models.prompts import class_weights
from adte.pipeline import Pipeline

__all__ = ["PUBLISHED", "run"]

# Seconds and GB on an A100, as published (Wu et al., ICLR 2026, table on cost).
PUBLISHED = {"tpt": (0.57, 17.66), "zero": (0.06, 1.40), "adte": (0.07, 1.46)}
FILL = 200  # images that the prior has seen: ADTE in its steady state
CHUNK = 64
INNER = 21  # turns of the fast heads for each of encoding


def run(
    model: str = "tiny",
    weights: str | None = None,
    classes: int | None = None,
    views: int = 64,
    repeats: int | None = None,
    chunks: bool = True,
    adte: tuple[str, ...] = ("adte",),
    device: str | None = None,
    dtype: str | None = None,
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Rows of every method, and of TPT's gradient in chunks; `report` hears of the progress.

    `adte` are the variants of ADTE; the first stands for it in the ratio.
    """
    repeats = repeats or (7 if model == "tiny" else 2)
    report(f"loading {model}")
    net = subject.load(model, weights, device, dtype)
    names = subject.class_names(net, classes)
    pixels = subject.noise(net, views)
    report(f"encoding {len(names)} class names")
    text = class_weights(net, names).to(net.device)
    context = Context.of(net, text, names)
    encode = partial(Pipeline(net).encode, pixels, 1)
    report(f"memory: encoding {views} views")
    with PeakMemory(net.device) as peak:
        features = encode()
    exact, encoding = peak.exact, peak.bytes
    heads, memory = {}, {}
    for name in ("zero-shot", "zero", *adte, "tpt"):
        report(f"memory: {name}")
        heads[name] = _steady(name, context)
        with PeakMemory(net.device) as peak:
            heads[name].step(context.batch(features))
        memory[name] = max(encoding, peak.bytes)
    tower, head = _times(encode, heads, context, repeats, report)
    base = tower + head["zero-shot"]
    published = {**PUBLISHED, adte[0]: PUBLISHED["adte"]}
    rows = [
        {
            "name": name,
            "seconds": tower + head[name],
            "ratio": (tower + head[name]) / base,
            "peak_memory": memory[name],
            "head_seconds": head[name],
            "published_seconds": published.get(name, (None, None))[0],
            "published_gb": published.get(name, (None, None))[1],
        }
        for name in heads
    ]
    if chunks:
        del heads, encode, context
        rows += _chunks(net, names, report)
    facts = subject.facts(net, views, classes=len(names), repeats=repeats, exact_memory=exact)
    ratio = (tower + head[adte[0]]) / (tower + head["zero"])
    meaning = "ADTE over Zero, seconds per image; encoding and heads timed apart and added"
    weigh = sum(p.numel() * p.element_size() for p in net.parameters())
    return timing.result(rows, ratio, meaning, encode_seconds=tower, weights_bytes=weigh, **facts)


def _steady(name: str, context: Context) -> Method:
    """A method as it is in the middle of a stream."""
    method = create_method(name)
    if method.stateful:
        assert context.class_weights is not None
        weights, g = context.class_weights, torch.Generator().manual_seed(1)
        looks = torch.randn(FILL, 1, weights.shape[-1], generator=g)  # an image of one view each
        method.learn(context.batch(torch.nn.functional.normalize(looks, dim=-1).to(weights)))
    return method


def _times(
    encode: Callable[[], Tensor],
    heads: dict[str, Method],
    context: Context,
    repeats: int,
    report: Callable[[str], object],
) -> tuple[float, dict[str, float]]:
    """Median seconds of encoding, and of every head."""
    tower: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in heads}
    fast = [name for name in heads if name != "tpt"]
    features = encode()

    def decide(name: str) -> None:
        heads[name].step(context.batch(features))

    for turn in range(repeats):
        tower.append(timing.seconds(encode, features.device))
        report(f"turn {turn + 1} of {repeats}: {features.shape[1]} views took {tower[-1]:.3g} s")
        order = [n for i in range(INNER) for n in fast[:: -1 if i % 2 else 1]]
        for name in [*order, "tpt"]:
            times[name].append(timing.seconds(partial(decide, name), features.device))
    return timing.median_times({"": tower})[""], timing.median_times(times)


def _chunks(
    model: Model, names: list[str], report: Callable[[str], object]
) -> list[dict[str, Any]]:
    """TPT's gradient for all classes at once, in chunks, and in chunks for half the classes."""
    rows: list[dict[str, Any]] = []
    half = names[: len(names) // 2]
    _gradient(PromptLearner(model, names[:2], chunk=1))  # warm
    for chunk, some in ((0, names), (CHUNK, names), (CHUNK, half)):
        name = f"tpt gradient, {len(some)} classes, " + (f"chunk={chunk}" if chunk else "at once")
        report(f"memory: {name}")
        learner = PromptLearner(model, some, chunk=chunk)
        with PeakMemory(model.device) as peak:
            taken = timing.seconds(partial(_gradient, learner), model.device)
        rows.append({"name": name, "seconds": taken, "ratio": 1.0, "peak_memory": peak.bytes})
        rows[-1]["ratio"] = taken / rows[0]["seconds"]
        del learner
    return rows


def _gradient(learner: PromptLearner) -> Tensor:
    context = learner.initial.clone().requires_grad_()
    spread = learner.class_weights(context).std(0).sum()
    return torch.autograd.grad(spread, context)[0]
