"""The image tower's forward written for speed, with the library's own weights; inference only.

It is what open_clip's and transformers' vision transformers compute, in fewer passes over memory:

- Patches are cut by a reshape and embedded by one product; tokens lie images first throughout.
- Query, key and value are one product, and go to `scaled_dot_product_attention` without a copy.
- x + W h is one product that adds into x. Its bias b stays out: the blocks carry x − Σ b of the
  products so far, and each layer norm adds that sum, a vector known beforehand, as it reads x.
- Where the class token alone is read, the last block computes nothing for the others beyond their
  keys and values. That is 5/6 of a block: 7 % of ViT-B, 3.5 % of ViT-L.
- Layer norm and QuickGELU are one Triton kernel each on CUDA; GELU is a part of its product there.

`load_model(…, runtime=…)` chooses what computes the tower where gradients are off:

| runtime | what it is |
|---|---|
| `auto` | `fast` on CUDA where it knows the tower; `torch` elsewhere |
| `torch` | the library's own forward |
| `fast` | this forward, the same numbers but for rounding |

The environment variable ADTE_RUNTIME says what `auto` is, for every command; caches record it. With
gradients, at another image size and in copies for methods that change the tower (Tent, MEMO), the
library's own forward runs under all of them. `benchmarks/tower.py` measures cosine and time.
"""

from __future__ import annotations

import copy
import os
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from adte.core.errors import InputError, unknown
from adte.core.loading import Runtime
from adte.models._vit import Block, Linear, Unknown, Vit, parts, read
from adte.models.base import Model

__all__ = ["FastTower", "accelerate", "check_runtime", "with_runtime"]

COSINE = 0.9995  # with the library's own forward, at least
RUNTIMES: tuple[str, ...] = get_args(Runtime)


def check_runtime(name: str) -> None:
    """Refuse an unknown runtime before anything is loaded."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, RUNTIMES)
    forced = os.environ.get("ADTE_RUNTIME", "auto")
    if name == "auto" and forced not in RUNTIMES:
        raise unknown("runtime in ADTE_RUNTIME", forced, RUNTIMES)


def with_runtime(model: Model, name: str) -> Model:
    """The model with its image tower computed so; `fast` is an error where it cannot be had."""
    check_runtime(name)
    if name == "auto":
        name = os.environ.get("ADTE_RUNTIME", "auto")
    if name == "fast":
        return accelerate(model)
    if name == "auto" and model.device.type == "cuda" and model._visual is not None:
        with suppress(InputError):  # a tower that is not known
            return accelerate(model)
    return model


def accelerate(model: Model) -> Model:
    """Give a model the fast forward for its image tower, used where gradients are off.

    Args:
        model: a model of open_clip or transformers, with a vision transformer as in CLIP and
            SigLIP.

    Returns:
        The same model with shared weights.

    Raises:
        InputError: if the tower is not known, or its features would differ.
    """
    tower = model._visual
    if tower is None:
        raise InputError(
            f"model {model.name!r} has no tower that a faster forward is known for; use it as it "
            "is, with runtime='torch'"
        )
    new = copy.copy(model)
    try:
        new.runner = FastTower(tower)
    except Unknown as error:
        raise InputError(
            f"the image tower of {model.name!r} has no faster forward here: {error}; use it as it "
            "is, with runtime='torch'"
        ) from error
    return _checked(new, model)


@torch.no_grad()
def _checked(new: Model, model: Model) -> Model:
    """Both forwards on four images of noise: a library may have changed behind its names."""
    side = model.preprocess.size
    pixels = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(0))
    pixels = pixels.to(model.device, model.dtype)
    own, fast = model.encode_image(pixels), new.encode_image(pixels)
    cosine = float(F.cosine_similarity(own, fast).min())
    if not cosine >= COSINE:
        raise InputError(
            f"the faster forward of {model.name!r} differs from the library's (cosine "
            f"{cosine:.5f}, below {COSINE}); use it as it is, with runtime='torch'"
        )
    return new


class _Packed(NamedTuple):
    """A tower with what follows from its weights."""

    vit: Vit
    shifts: list[tuple[Tensor, Tensor]]  # Σ b before each block's norms
    last: Tensor  # Σ b behind the last block


class FastTower:
    """Pixels (N, 3, S, S) to what the library's tower gives (N, D).

    The weights are read again when they were moved, cast, changed or replaced, alone or with the
    module that holds them.
    """

    name = "fast"

    def __init__(self, tower: Any) -> None:
        self.tower = tower
        self._stamp: list[Any] = []
        self._packed: _Packed | None = None
        self._pack()

    def __getstate__(self) -> dict[str, Any]:
        return {"tower": self.tower}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, tower: Any, pixels: Tensor) -> Tensor | None:
        """Features; None where it cannot stand for this tower on these pixels as they are."""
        if tower is not self.tower or tower.training or torch.is_grad_enabled():
            return None
        try:
            packed = self._pack()
        except Unknown:  # by a part that was put in since
            return None
        vit, (rows, rest) = packed.vit, divmod(pixels.shape[-1], packed.vit.side)
        tokens = rows * rows + (vit.first is not None)
        square = pixels.shape[-1] == pixels.shape[-2] and not rest
        fits = square and tokens == len(vit.positions) and pixels.dtype == vit.patch.weight.dtype
        return _forward(packed, pixels) if fits else None

    @torch.no_grad()
    def _pack(self) -> _Packed:
        stamp: list[Any] = []
        for module in (m for part in parts(self.tower) for m in part.modules()):
            stamp.append(id(module))
            held = [p for p in module._parameters.values() if p is not None]
            stamp += [(p.data_ptr(), 0 if p.is_inference() else p._version, p.dtype) for p in held]
        if self._packed is None or stamp != self._stamp:
            vit = read(self.tower)
            total = torch.zeros_like(vit.positions[0], dtype=torch.float32)
            shifts = []
            for block in vit.blocks:
                first, total = total, _plus(total, block.out.bias)
                shifts.append((first, total))
                total = _plus(total, block.fc2.bias)
            self._packed, self._stamp = _Packed(vit, shifts, total), stamp
        return self._packed


def _plus(total: Tensor, bias: Tensor | None) -> Tensor:
    return total if bias is None else total + bias.float()


# ---------------------------------------------------------------------- the forward


def _forward(packed: _Packed, pixels: Tensor) -> Tensor:
    vit = packed.vit
    x = _embed(vit, pixels)  # (N, T, W)
    for i, block in enumerate(vit.blocks):
        alone = vit.token and i == len(vit.blocks) - 1
        x = _block(x, block, packed.shifts[i], vit, alone)
    x = x + packed.last.to(x.dtype)
    return vit.head(x[:, 0] if vit.token else x)


def _embed(vit: Vit, pixels: Tensor) -> Tensor:
    """Pixels (N, 3, S, S) to tokens (N, T, W), with their positions."""
    n, side = len(pixels), vit.side
    rows = pixels.shape[-1] // side
    x = pixels.reshape(n, 3, rows, side, rows, side).permute(0, 2, 4, 1, 3, 5)
    x = F.linear(x.reshape(n, rows * rows, 3 * side * side), *vit.patch)
    if vit.first is None:
        x = x + vit.positions
    else:
        tokens = x.new_empty(n, 1 + rows * rows, x.shape[-1])
        tokens[:, 0] = vit.first + vit.positions[0]
        tokens[:, 1:] = x + vit.positions[1:]
        x = tokens
    return x if vit.before is None else layer_norm(x, None, *vit.before)


def _block(x: Tensor, block: Block, shifts: tuple[Tensor, Tensor], vit: Vit, alone: bool) -> Tensor:
    """One block, in place; `alone`: of the first token only.  (N, T, W) → (N, T or 1, W)"""
    n, t, w = x.shape
    h = layer_norm(x, shifts[0], *block.norm1)
    if alone:
        some = Linear(*(None if p is None else p[:w] for p in block.qkv))  # type: ignore[arg-type]
        rest = Linear(*(None if p is None else p[w:] for p in block.qkv))  # type: ignore[arg-type]
        q = F.linear(h[:, :1], *some).view(n, 1, vit.heads, -1).transpose(1, 2)
        k, v = F.linear(h, *rest).view(n, t, 2, vit.heads, -1).permute(2, 0, 3, 1, 4)
        x, t = x[:, :1].contiguous(), 1
    else:
        q, k, v = F.linear(h, *block.qkv).view(n, t, 3, vit.heads, -1).permute(2, 0, 3, 1, 4)
    h = F.scaled_dot_product_attention(q, k, v)  # (N, heads, T, W / heads)
    del q, k, v
    flat = x.view(n * t, w)
    flat = flat.addmm_(h.transpose(1, 2).reshape(n * t, w), block.out.weight.T)
    h = layer_norm(flat, shifts[1], *block.norm2)
    h = activated(h, *block.fc1, vit.act)
    return flat.addmm_(h, block.fc2.weight.T).view(n, t, w)


def layer_norm(x: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm of x + shift over the last axis, in float32 inside.  (…, W), (W) → (…, W)"""
    if kernels := _kernels(x):
        out = torch.empty_like(x)
        kernels.norm(x, shift, weight, bias, eps, out)
        return out
    if shift is None:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    wide = x.float() + shift.float()
    return F.layer_norm(wide, weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def activated(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """The activation of a product.  (M, I), (O, I), (O) → (M, O)

    In half precision on CUDA GELU is a part of the product. It is the approximation by tanh, which
    is nearer to the exact one than the rounding is.
    """
    if kind == "quick":
        return quick_gelu(F.linear(x, weight, bias))
    if x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and bias is not None:
        return torch._addmm_activation(bias, x, weight.T, use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate="tanh" if kind == "tanh" else "none")


def quick_gelu(x: Tensor) -> Tensor:
    """x · σ(1.702 x), in place where it can be."""
    if kernels := _kernels(x):
        kernels.quick_gelu(x, x)
        return x
    return x * torch.sigmoid(1.702 * x)


def _kernels(x: Tensor) -> Any:
    """The Triton kernels, where they can run on this tensor."""
    return _compiled() if x.is_cuda and x.is_contiguous() else None


@lru_cache(maxsize=1)
def _compiled() -> Any:
    try:
        from adte.models import _triton
    except ImportError:
        return None
    return _triton
