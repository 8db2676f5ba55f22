"""A slow second opinion on prompt tuning: NumPy float64, plain loops, gradients by differences.

The small model's text tower is written out once more here; nothing comes from the library but the
model's numbers and its tokeniser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

import oracle
from adte import Sample
from adte.testing.small import SmallModel

Array = oracle.Array

NAMES = ("cat", "golden_retriever", "car", "oak tree", "bus")


class Towers:
    """The text tower of a `SmallModel` for class names, as a function of the context (4, w)."""

    def __init__(self, model: SmallModel, names: Sequence[str]) -> None:
        numbers = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}
        self.table, self.positions = numbers["embedding.weight"], numbers["positions"]
        self.mix = numbers["mix.weight"], numbers["mix.bias"]
        self.project = numbers["project.weight"], numbers["project.bias"]
        self.rows = [
            [i for i in row if i > 0]
            for row in model._ids([f"a photo of a {n.replace('_', ' ')}." for n in names]).tolist()
        ]
        self.start = np.stack([self.table[i] for i in self.rows[0][:4]])

    def weights(self, context: Array) -> Array:
        out = []
        for row in self.rows:
            total = np.zeros_like(self.positions[0])
            for place, token in enumerate(row):
                x = context[place] if place < 4 else self.table[token]
                total += np.tanh(self.mix[0] @ (x + self.positions[place]) + self.mix[1])
            vector = self.project[0] @ (total / len(row)) + self.project[1]
            out.append(vector / math.sqrt(sum(v * v for v in vector)))
        return np.stack(out)

    def logits(self, features: Array, context: Array, scale: float) -> Array:
        return scale * features @ self.weights(context).T


def marginal_entropy(z: Array) -> float:
    """Entropy of the mean distribution of the views."""
    return oracle.shannon(oracle.mean_probs(oracle.softmax(z)))


def surest(z: Array, ratio: float) -> list[int]:
    entropy = [oracle.shannon(p) for p in oracle.softmax(z)]
    return oracle.rank(entropy)[: oracle.keep_count(len(z), ratio)]


def slope(f: Callable[[Array], float], x: Array, h: float = 1e-5) -> Array:
    """The gradient by central differences."""
    g = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        g[i] = (f(up) - f(down)) / (2 * h)
    return g


def adamw(
    f: Callable[[Array], float], x: Array, steps: int, lr: float = 5e-3, decay: float = 0.01
) -> Array:
    m, v, x = np.zeros_like(x), np.zeros_like(x), x.copy()
    for t in range(1, steps + 1):
        g = slope(f, x)
        for i in np.ndindex(*x.shape):
            m[i] = 0.9 * m[i] + 0.1 * g[i]
            v[i] = 0.999 * v[i] + 0.001 * g[i] ** 2
            x[i] -= lr * decay * x[i]
            x[i] -= lr * (m[i] / (1 - 0.9**t)) / (math.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
    return x


def world(
    images: int, views: int = 8, names: Sequence[str] = NAMES, seed: int = 1
) -> tuple[SmallModel, list[Sample]]:
    """A model in float64 and samples that lean to one class or another."""
    model, g = SmallModel().double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        texts = [f"a photo of a {n.replace('_', ' ')}." for n in names]
        weights = model.encode_text(texts)
        out = []
        for _ in range(images):
            base = weights[torch.randint(len(names), (1,), generator=g)]
            noise = torch.randn(views, model.dim, generator=g, dtype=torch.float64)
            features = torch.nn.functional.normalize(base + 0.3 * noise, dim=-1)
            logits = model.logits(features, weights)
            out.append(
                Sample(
                    logits, features, weights, model.logit_scale, model=model, classes=list(names)
                )
            )
    return model, out


def trace(model: SmallModel) -> dict[str, object]:
    """Everything of a model that an episode must leave alone."""
    out: dict[str, object] = {k: v.clone() for k, v in model.state_dict().items()}
    for name, p in model.named_parameters():
        out[f"{name} requires_grad"] = p.requires_grad
        out[f"{name} grad"] = None if p.grad is None else p.grad.clone()
    return out | {f"{n} mode": m.training for n, m in model.named_modules()}


def untouched(before: dict[str, object], after: dict[str, object]) -> bool:
    def same(a: object, b: object) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a is b

    return before.keys() == after.keys() and all(same(v, after[k]) for k, v in before.items())
