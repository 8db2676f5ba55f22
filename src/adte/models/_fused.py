"""Row by row: layer norm of a shifted input, and the activation; as one kernel each on CUDA.

Each can round its rows to float8 (e4m3) with a scale a row, as float8 products want them. The plain
torch of each says what it computes; it is used elsewhere than on CUDA, where Triton is missing, and
inside torch.compile, which fuses by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["TOP", "activate", "activated", "layer_norm", "rows8"]

TOP = 448.0  # the largest number of float8 e4m3
_KINDS = {"quick": 0, "erf": 1, "tanh": 2}


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
    half = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16)
    if half and kind != "quick" and bias is not None and not torch.compiler.is_compiling():
        return torch._addmm_activation(bias, x, weight.T, use_gelu=True)
    return activate(F.linear(x, weight, bias), kind)


def activate(x: Tensor, kind: str) -> Tensor:
    """The activation, in place where it can be.  (M, W) → (M, W)"""
    if kind != "quick":
        return F.gelu(x, approximate="tanh" if kind == "tanh" else "none")
    if kernels := _kernels(x):
        kernels.activate(x, _KINDS[kind], x)
        return x
    return x * torch.sigmoid(1.702 * x)


def rows8(x: Tensor, kind: str = "") -> tuple[Tensor, Tensor]:
    """Rows in float8 with their scales, activated first if `kind` is named.  (M, W) → ~, (M, 1)"""
    if kernels := _kernels(x):
        out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        kernels.activate(x, _KINDS.get(kind, 3), out, scale)
        return out, scale
    wide = (activate(x, kind) if kind else x).float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / TOP
    return (wide / scale).to(torch.float8_e4m3fn), scale


def _kernels(x: Tensor) -> Any:
    """The kernels, where they can run on this tensor."""
    if not x.is_cuda or torch.compiler.is_compiling() or not x.is_contiguous():
        return None
    return _compiled()


@lru_cache(maxsize=1)
def _compiled() -> Any:
    try:
        from adte.models import _triton
    except ImportError:
        return None
    return _triton
