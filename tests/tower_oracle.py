"""Slow, plain versions of what the image-tower methods do, and small nets to do it on."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor, nn

from adte import Preprocess, Sample
from adte.methods.parts import Entropy
from adte.models.base import FixedClasses
from adte.models.prompts import class_weights
from adte.testing.small import SmallModel

NAMES = ("cat", "car", "oak tree", "bus")


class Net(FixedClasses):
    """An image-only classifier with two batch norms and a layer norm."""

    def __init__(self, classes: int = 3, seed: int = 0) -> None:
        super().__init__("net", NAMES[:classes], NAMES[:classes], Preprocess())
        g = torch.Generator().manual_seed(seed)
        self.stem, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv, self.bn2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.ln, self.head = nn.LayerNorm(5), nn.Linear(5, classes)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=g) * 0.5 + (0.5 if p.ndim == 1 else 0)
        for b in (self.bn1, self.bn2):
            b.running_mean.copy_(torch.randn(b.num_features, generator=g))
            b.running_var.copy_(0.5 + torch.rand(b.num_features, generator=g))
        self.double().eval()

    def classify(self, pixels: Tensor) -> Tensor:
        x = self.bn1(self.stem(pixels)).relu()
        x = self.bn2(self.conv(x)).relu()
        return 4 * self.head(self.ln(x.mean((2, 3))))


def batch_norm(x: Tensor, layer: nn.BatchNorm2d, prior: float) -> Tensor:
    """Channel by channel. prior 0: the batch alone, biased, with gradient."""
    out = []
    for c in range(x.shape[1]):
        v = x[:, c].flatten()
        m, n = v.sum() / len(v), len(v)
        squares = ((v - m) ** 2).sum()
        if prior == 0:
            mean, var = m, squares / n
        elif math.isinf(prior):
            mean, var = layer.running_mean[c], layer.running_var[c]
        else:
            rho = prior / (prior + 1)
            mean = (rho * layer.running_mean[c] + (1 - rho) * m).detach()
            var = (rho * layer.running_var[c] + (1 - rho) * squares / (n - 1)).detach()
        out.append((x[:, c] - mean) / (var + layer.eps) ** 0.5 * layer.weight[c] + layer.bias[c])
    return torch.stack(out, 1)


def logits(net: Net, pixels: Tensor, prior: float) -> Tensor:
    x = batch_norm(net.stem(pixels), net.bn1, prior).relu()
    x = batch_norm(net.conv(x), net.bn2, prior).relu().mean((2, 3))
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5) ** 0.5
    return 4 * net.head(x * net.ln.weight + net.ln.bias)


def entropy(z: Tensor) -> Tensor:
    p = torch.exp(z) / torch.exp(z).sum(-1, keepdim=True)
    return -(p * p.log()).sum(-1)


def surest(z: Tensor, count: int) -> list[int]:
    h = entropy(z).tolist()
    return sorted(range(len(h)), key=lambda i: h[i])[:count]


def sgd(moving: list[Tensor], speed: list[Tensor], loss: Tensor, lr: float) -> None:
    """One step with momentum 0.9, in place."""
    for p, v, g in zip(moving, speed, torch.autograd.grad(loss, moving), strict=True):
        v.mul_(0.9).add_(g)
        p.data.sub_(lr * v)


def pixels(views: int, seed: int, size: int = 9) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(views, 3, size, size, generator=g, dtype=torch.float64)


def image(net: FixedClasses, views: int = 5, seed: int = 0, size: int = 9) -> Sample:
    """A sample of an image-only net."""
    x = pixels(views, seed, size)
    with torch.no_grad():
        return Sample(net.classify(x), pixels=x, model=net, classes=net.classes)


def clip_image(model: SmallModel, views: int = 5, seed: int = 0) -> Sample:
    """A sample of a model with two towers."""
    x = pixels(views, seed, 24).to(model.dtype)
    with torch.no_grad():
        w, f = class_weights(model, NAMES), model.encode_image(x)
        z = model.logits(f, w)
    return Sample(z, f, w, model.logit_scale, x, model, NAMES)


def facts(model: nn.Module) -> list[object]:
    """Everything a method might disturb: bits, versions, flags, gradients, modes and hooks."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (
            n,
            id(t),
            t._version,
            t.requires_grad,
            t.grad is None,
            t.detach().clone().numpy().tobytes(),
        )
        for n, t in tensors
    ] + [(n, m.training, *_hooks(m), list(m.__dict__)) for n, m in model.named_modules()]


def _hooks(m: nn.Module) -> list[int]:
    return [len(v) for k, v in m.__dict__.items() if "hooks" in k and v is not None]


def check_untouched(method, model: nn.Module, images: list[Sample]) -> list[Tensor]:
    """The user's model is bit-identical before, during and after every image, and what was learned
    is forgotten: the first answers, which are returned, come again.
    """
    before, looks = facts(model), []

    class Watching(Entropy):  # in the middle of the work
        def __call__(self, *args):
            looks.append(1)
            assert facts(model) == before
            return super().__call__(*args)

    method.entropy = Watching(**asdict(method.entropy))
    with torch.inference_mode():
        first = [method.step(s).probs for s in images]
    assert looks
    assert facts(model) == before
    method.reset()
    assert not method.state_dict()
    for p, s in zip(first, images, strict=True):
        assert torch.equal(p, method.step(s).probs)
    assert facts(model) == before
    return first
