"""The shared part of methods on the image tower: a twin of the model, batch statistics, descent.

The user's model is read only. A method works on a twin: the same modules over the same tensors, in
evaluation mode, into which adapted parameters are put for the time of a call. So the model's
parameters, buffers, gradients, flags and hooks are untouched, in other threads too, and forgetting
is exact. A twin is made once for a model and lent from call to call.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError, StateError
from adte.models.base import FixedClasses

__all__ = ["MOMENTS", "Descent", "Tower", "Towers", "refuse", "slopes", "stamp", "twin"]

MOMENTS = ("first.", "second.")  # how a state names the moments of a descent
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _BatchNorm)

Module = TypeVar("Module", bound=nn.Module)
Tensors = dict[str, Tensor]


# --------------------------------------------------------------------------- the tower


def _plain(x: Tensor) -> Tensor:
    """Without gradient, and fit for one: tensors of inference mode are copied."""
    return x.detach().clone() if x.is_inference() else x.detach()


def twin(module: Module, known: dict[int, Any] | None = None) -> Module:
    """The same modules over the same tensors, in evaluation mode; the original is not changed."""
    known = {} if known is None else known
    if id(module) in known:
        return known[id(module)]  # type: ignore[no-any-return]
    new = known[id(module)] = object.__new__(type(module))
    new.__dict__ = module.__dict__.copy()

    def shared(p: nn.Parameter | None) -> nn.Parameter | None:
        if p is not None and id(p) not in known:  # tied parameters stay tied
            known[id(p)] = nn.Parameter(_plain(p), requires_grad=False)
        return None if p is None else known[id(p)]

    new.__dict__.update(
        training=False,
        _parameters={n: shared(p) for n, p in module._parameters.items()},
        _buffers={n: None if b is None else _plain(b) for n, b in module._buffers.items()},
        _modules={n: None if m is None else twin(m, known) for n, m in module._modules.items()},
        _forward_pre_hooks=OrderedDict(module._forward_pre_hooks),
    )
    return new


def _renew(prior: float, layer: nn.Module) -> Callable[[nn.Module, Any], None]:
    """A hook that gives a batch norm its statistics just before it runs."""
    mean, var = layer._buffers["running_mean"], layer._buffers["running_var"]
    assert mean is not None
    assert var is not None
    rho = prior / (prior + 1)

    def hook(module: nn.Module, inputs: Any) -> None:
        x: Tensor = inputs[0].detach()  # (N, C, …)
        now: tuple[Tensor | None, Tensor | None] = mean, var
        if x.numel() > x.shape[1]:  # a single value a channel has no variance
            if prior == 0:
                now = None, None  # the batch's own, as in training
            else:
                v, m = torch.var_mean(F.wide(x), [0, *range(2, x.ndim)], correction=1)
                now = (
                    (rho * mean + (1 - rho) * m).to(mean),
                    (rho * var + (1 - rho) * v).to(var),
                )
        module._buffers.update(running_mean=now[0], running_var=now[1])

    return hook


def stamp(model: nn.Module) -> list[tuple[int, torch.dtype, int]]:
    """Another one if the model was moved, cast, rebuilt or trained since."""
    tensors = (*model.parameters(), *model.buffers())
    return [(x.data_ptr(), x.dtype, 0 if x.is_inference() else x._version) for x in tensors]


class Tower(nn.Module):
    """The image tower of a batch's model: pixels to logits, as a function of some parameters.

    Args:
        batch: one with a model, of two towers or of fixed classes.
        bn_prior: N in the statistics of every batch norm, ρ·source + (1 − ρ)·batch with
            ρ = N/(N + 1); the batch's variance is the unbiased one, and no gradient flows through
            them. 0: the batch's alone, as in training, with gradient. Infinite: the source's.

    Attributes:
        source: the model's parameters by name.
        mixes: whether images of one call influence each other, through batch statistics.
    """

    def __init__(self, batch: Batch, bn_prior: float = math.inf) -> None:
        super().__init__()
        model = batch.require("model")
        self.context, self.classes, self.bn_prior = batch.context, batch.classes, bn_prior
        self.stamp, self.weights = stamp(model), None
        if not isinstance(model, FixedClasses):
            self.weights = _plain(F.wide(batch.require("class_weights"))).to(model.device)
        elif model.dim != batch.classes:
            model = model.choose(batch.require("classes"))
        self.model = twin(model)
        self.source = dict(self.model.named_parameters())
        self.like = next(iter(self.source.values())).detach()
        self.mixes = False
        for layer in self.model.modules():
            known = isinstance(layer, _BatchNorm) and layer.running_mean is not None
            if known and bn_prior < math.inf:
                layer.register_forward_pre_hook(_renew(bn_prior, layer))
                self.mixes = True
        self._norms: list[list[str]] = []

    def fits(self, batch: Batch, bn_prior: float) -> bool:
        """Whether it is the tower of this batch too."""
        mine = (self.classes, self.bn_prior) == (batch.classes, bn_prior)
        same = mine and self.context.same(batch.context)
        return same and self.stamp == stamp(batch.require("model"))

    def views(self, image: Batch) -> Tensor:
        """Pixels (V, 3, H, W) of an image, a batch of one, on the model's device in its dtype."""
        return _plain(image.require("pixels")[0]).to(self.like)

    def forward(self, pixels: Tensor) -> Tensor:
        f = F.wide(self.model.encode_image(pixels))  # logits, where classes are fixed
        if self.weights is None:
            return f
        return self.context.scale * f @ self.weights.to(f).T  # a bias changes no softmax

    def logits(self, pixels: Tensor, changed: Mapping[str, Tensor] | None = None) -> Tensor:
        """(N, 3, H, W) → (N, L), float32 or wider, with other values for some parameters."""
        named = {f"model.{n}": p.to(self.source[n]) for n, p in (changed or {}).items()}
        z: Tensor = torch.func.functional_call(self, named, (pixels,))
        return z

    def norms(self, pixels: Tensor) -> list[list[str]]:
        """Names of the scale and shift of each normalisation layer, in the order of the pass."""
        if self._norms:
            return self._norms
        called: list[list[str]] = []
        hooks = []
        for name, layer in self.model.named_modules():
            names = [f"{name}.{k}" for k, p in layer._parameters.items() if p is not None]
            if isinstance(layer, NORMS) and names:
                hooks.append(
                    layer.register_forward_pre_hook(lambda *_, names=names: called.append(names))
                )
        with torch.no_grad():
            self(pixels[:1])
        for hook in hooks:
            hook.remove()
        if not called:
            raise InputError(
                f"the image tower of {type(self.model).__name__} has no normalisation "
                "layers with scale and shift; choose a model that has, and do not fold them"
            )
        self._norms = [names for i, names in enumerate(called) if names not in called[:i]]
        return self._norms

    def start(self, names: list[str]) -> Tensors:
        """The model's own values, float32 or wider."""
        return {n: F.wide(self.source[n]) for n in names}


class Towers:
    """The towers that a method has made, to be lent again. While one is lent, others make theirs.

    Copies begin without: towers hold the model.
    """

    def __init__(self) -> None:
        self._idle: list[Tower] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Towers, ()

    @contextmanager
    def lend(self, batch: Batch, bn_prior: float) -> Iterator[Tower]:
        """A tower for the batch, to one borrower at a time: adapted parameters go into it."""
        try:
            tower = self._idle.pop()
        except IndexError:
            tower = Tower(batch, bn_prior)
        if not tower.fits(batch, bn_prior):
            tower = Tower(batch, bn_prior)
        yield tower
        self._idle.append(tower)


# --------------------------------------------------------------------------- descent


@dataclass(frozen=True)
class Descent:
    """SGD with momentum, or Adam (β 0.9 and 0.999, ε 1e-8), as a function of named tensors.

    It is spelled out because torch.optim takes seconds to import its compiler. Decay is decoupled:
    x ← x·(1 − lr·decay) before the step, so Adam with decay is AdamW.
    """

    kind: Literal["sgd", "adam"]
    lr: float
    momentum: float = 0.0
    decay: float = 0.0

    @property
    def orders(self) -> tuple[str, ...]:
        """The moments that it keeps."""
        return ("first",) if self.kind == "sgd" else ("first", "second")

    def start(self, x: Tensors) -> Tensors:
        """Moments of zero."""
        return {f"{o}.{n}": torch.zeros_like(p) for o in self.orders for n, p in x.items()}

    def odd(self, x: Tensors, state: Tensors) -> list[str]:
        """Names of moments that are missing, unexpected or of another shape, for values x."""
        want, came = self.start(x), {k for k in state if k.startswith(MOMENTS)}
        other = [k for k, v in want.items() if k in came and state[k].shape != v.shape]
        return sorted(came ^ want.keys()) + other

    def step(self, x: Tensors, slope: Tensors, moments: Tensors, t: int) -> tuple[Tensors, Tensors]:
        """New values and moments after step t = 1, 2, …; what has no slope stays."""
        x, moments = dict(x), dict(moments)
        for n, g in slope.items():
            first = moments[f"first.{n}"]
            if self.kind == "sgd":
                move = first = self.momentum * first + g
            else:
                first = 0.9 * first + 0.1 * g
                second = moments[f"second.{n}"] = 0.999 * moments[f"second.{n}"] + 0.001 * g * g
                move = first / (1 - 0.9**t) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            moments[f"first.{n}"] = first
            x[n] = x[n] * (1 - self.lr * self.decay) - self.lr * move
        return x, moments


def refuse(owner: str, odd: list[str]) -> None:
    """Refuse a saved state if entries are odd: those of tower and descent must go together."""
    if odd:
        raise StateError(
            f"state of {owner!r} does not fit: entry {odd[0]!r} does not go with the others; it "
            "was saved for another model or with other options"
        )


def slopes(x: Tensors, loss: Callable[[Tensors], Tensor | None]) -> Tensors:
    """The gradient of the loss, where there is one; empty if there is no loss."""
    x = {n: p.detach().requires_grad_() for n, p in x.items()}
    with torch.enable_grad():
        value = loss(x)
        if value is None:
            return {}
        if not value.requires_grad:
            raise InputError(
                "no gradient reaches the parameters of the image tower; "
                "pass the model itself, not a compiled or scripted one"
            )
        found = torch.autograd.grad(value, list(x.values()), allow_unused=True)
    return {n: g for n, g in zip(x, found, strict=True) if g is not None}
