# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The kernels of `fast.py`, one row a program. Imported only where Triton is."""

# Triton reads the annotations of kernels: they are no strings here.
import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

__all__ = ["norm", "quick_gelu"]


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _norm(
    x, shift, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SHIFTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    v = tl.load(x + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    if SHIFTED:
        v += tl.load(shift + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / WIDTH
    v = tl.where(inside, v - mean, 0.0)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / WIDTH + eps)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, (v * w + b).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _quick_gelu(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    v = tl.load(x + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    v = v * tl.sigmoid(1.702 * v)
    tl.store(out + row * WIDTH + at, v.to(out.dtype.element_ty), mask=inside)


def _shape(x: Tensor) -> tuple[int, int, int, int]:
    """Rows, width, the power of two above it, and warps for it."""
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    return x.numel() // width, width, block, max(1, min(8, block // 256))


def norm(
    x: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float, out: Tensor
) -> None:
    rows, width, block, warps = _shape(x)
    given = weight if shift is None else shift
    with torch.cuda.device_of(x):
        _norm[(rows,)](
            x, given, weight, bias, out, eps, width, block, shift is not None, num_warps=warps
        )


def quick_gelu(x: Tensor, out: Tensor) -> None:
    rows, width, block, warps = _shape(x)
    with torch.cuda.device_of(x):
        _quick_gelu[(rows,)](x, out, width, block, num_warps=warps)
