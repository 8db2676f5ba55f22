"""What an image costs under zero-shot, Zero, ADTE and TPT: seconds and peak memory, in one run.

Every figure includes encoding the views. Encoding takes most of the time and its noise is larger
than what the heads add, so it is timed once a turn and the heads apart, in turns; an image's time
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
from adte.machine import PeakMemory
from adte.methods import create_method
from adte.methods.base import Method, Sample
from adte.methods.prompt_tuning import PromptLearner
from adte.models.base import Model
from adte.prompts import class_weights

__all__ = ["PUBLISHED", "run"]

METHODS = ("zero-shot", "zero", "adte", "tpt")
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
    device: str | None = None,
    dtype: str | None = None,
    report: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Rows of every method, and of TPT's gradient in chunks; `report` hears of the progress."""
    repeats = repeats or (7 if model == "tiny" else 2)
    report(f"loading {model}")
    net = subject.load(model, weights, device, dtype)
    names = subject.class_names(net, classes)
    pixels = subject.noise(net, views)
    report(f"encoding {len(names)} class names")
    text = class_weights(net, names)
    image = partial(_sample, net, text, names)
    report(f"memory: encoding {views} views")
    with PeakMemory(net.device) as peak:
        features = _encode(net, pixels)
    exact, encoding = peak.exact, peak.bytes
    heads, memory = {}, {}
    for name in METHODS:
        report(f"memory: {name}")
        heads[name] = _steady(name, net, text)
        with PeakMemory(net.device) as peak:
            heads[name].step(image(features))
        memory[name] = max(encoding, peak.bytes)
    encode, head = _times(net, pixels, heads, image, repeats, report)
    base = encode + head["zero-shot"]
    rows = [
        {
            "name": name,
            "seconds": encode + head[name],
            "ratio": (encode + head[name]) / base,
            "peak_memory": memory[name],
            "head_seconds": head[name],
            "published_seconds": PUBLISHED.get(name, (None, None))[0],
            "published_gb": PUBLISHED.get(name, (None, None))[1],
        }
        for name in METHODS
    ]
    if chunks:
        del heads, image
        rows += _chunks(net, names, report)
    facts = subject.facts(net, views, classes=len(names), repeats=repeats, exact_memory=exact)
    ratio = (encode + head["adte"]) / (encode + head["zero"])
    meaning = "ADTE over Zero, seconds an image; encoding and heads timed apart and added"
    weigh = sum(p.numel() * p.element_size() for p in net.parameters())
    return timing.result(rows, ratio, meaning, encode_seconds=encode, weights_bytes=weigh, **facts)


@torch.no_grad()
def _encode(model: Model, pixels: Tensor) -> Tensor:
    return model.encode_image(pixels)


def _sample(model: Model, text: Tensor, names: list[str], features: Tensor) -> Sample:
    logits = model.logits(features, text)
    return Sample(logits, features, text, model.logit_scale, model=model, classes=names)


def _steady(name: str, model: Model, text: Tensor) -> Method:
    """A method as it is in the middle of a stream."""
    method = create_method(name)
    if method.stateful:
        g = torch.Generator().manual_seed(1)
        for _ in range(FILL):
            looks = torch.nn.functional.normalize(torch.randn(1, model.dim, generator=g), dim=-1)
            method.learn(Sample(model.logits(looks.to(text.device), text)))
    return method


def _times(
    model: Model,
    pixels: Tensor,
    heads: dict[str, Method],
    image: Callable[[Tensor], Sample],
    repeats: int,
    report: Callable[[str], object],
) -> tuple[float, dict[str, float]]:
    """Median seconds of encoding, and of every head."""
    encoding: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in heads}
    fast = [name for name in heads if name != "tpt"]
    features = torch.empty(0)

    def encode() -> None:
        nonlocal features
        features = _encode(model, pixels)

    def decide(name: str) -> None:
        heads[name].step(image(features))

    for turn in range(repeats):
        encoding.append(timing.seconds(encode, model.device))
        report(f"turn {turn + 1} of {repeats}: {len(pixels)} views took {encoding[-1]:.3g} s")
        order = [n for i in range(INNER) for n in fast[:: -1 if i % 2 else 1]]
        for name in [*order, "tpt"]:
            times[name].append(timing.seconds(partial(decide, name), model.device))
    return timing.median_times({"": encoding})[""], timing.median_times(times)


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
