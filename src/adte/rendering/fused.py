"""The views of a packed group by one Triton kernel. `adte.rendering.plain` says the mathematics.

A program makes a tile of one view. For every row of the image that the tile needs it sums the
columns, rounds as Pillow does between its passes, and adds the row to the tile. A row is summed
anew for each row of the tile that needs it, two or three as a rule: that costs arithmetic and saves
memory. Weights are made on the way, so any number of them will do.
"""

# Triton reads the annotations of kernels: they are no strings here.
from contextlib import nullcontext

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from adte.rendering.table import ALIGN, WORDS

__all__ = ["render"]

TILE = 32  # rows and columns of a view that one program makes


def render(buffer: Tensor, out: Tensor, scale: list[float], shift: list[float]) -> None:
    """Write all views of a packed group to `out` (N, 3, S, S): level · scale − shift."""
    count, _, side, _ = out.shape
    table = buffer[: count * WORDS * 4]
    tiles = triton.cdiv(side, TILE)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        _kernel[(count, tiles, tiles)](
            buffer,
            table.view(torch.int32),
            table.view(torch.float32),
            out,
            side,
            *scale,
            *shift,
            WORDS=WORDS,
            ALIGN=ALIGN,
            TILE=TILE,
            num_warps=4,
        )


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _weight(t, reach):  # type: ignore[no-untyped-def]
    """The triangle (reach 1), or the cubic of Keys with a = −½ (reach 2)."""
    t = tl.abs(t)
    line = tl.maximum(1.0 - t, 0.0)
    near = (1.5 * t - 2.5) * t * t + 1.0
    far = ((2.5 - 0.5 * t) * t - 4.0) * t + 2.0
    cubic = tl.where(t < 1.0, near, tl.where(t < 2.0, far, 0.0))
    return tl.where(reach == 1, line, cubic)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _level(x):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(tl.floor(x + 0.5), 0.0), 255.0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    buffer, words, floats, out, side, scale_r, scale_g, scale_b, shift_r, shift_g, shift_b,
    WORDS: tl.constexpr, ALIGN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    view = tl.program_id(0)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)  # rows of the view
    j = tl.program_id(2) * TILE + tl.arange(0, TILE)  # columns, before mirroring

    row = view * WORDS
    pixels = buffer + tl.load(words + row).to(tl.int64) * ALIGN
    width = tl.load(words + row + 1)
    y0 = tl.load(words + row + 2)
    y1 = tl.load(words + row + 3)
    x0 = tl.load(words + row + 4)
    x1 = tl.load(words + row + 5)
    flip = tl.load(words + row + 6)
    reach = tl.load(words + row + 7)
    step_y = tl.load(floats + row + 10) / side
    step_x = tl.load(floats + row + 11) / side
    wide_y = tl.maximum(step_y, 1.0)
    wide_x = tl.maximum(step_x, 1.0)
    reach_y = reach.to(tl.float32) * wide_y
    reach_x = reach.to(tl.float32) * wide_x
    # ⌊c + r + ½⌋ − ⌊c − r + ½⌋ is ⌈2r⌉ at most; one more by rounding would have no weight
    taps_y = tl.ceil(2.0 * reach_y).to(tl.int32)
    taps_x = tl.ceil(2.0 * reach_x).to(tl.int32)

    cy = tl.load(floats + row + 8) + (i.to(tl.float32) + 0.5) * step_y
    cx = tl.load(floats + row + 9) + (j.to(tl.float32) + 0.5) * step_x
    top = tl.maximum((cy - reach_y + 0.5).to(tl.int32), 0)
    left = tl.maximum((cx - reach_x + 0.5).to(tl.int32), 0)
    bottom = tl.minimum((cy + reach_y + 0.5).to(tl.int32), y1 - y0)
    right = tl.minimum((cx + reach_x + 0.5).to(tl.int32), x1 - x0)
    bottom = tl.where(i < side, bottom, 0)  # what lies outside of the view looks at nothing
    right = tl.where(j < side, right, 0)

    sum_y = tl.zeros((TILE,), tl.float32)
    for k in range(0, taps_y):
        w = _weight((top + k + 0.5 - cy) / wide_y, reach)
        sum_y += tl.where(top + k < bottom, w, 0.0)
    sum_x = tl.zeros((TILE,), tl.float32)
    for k in range(0, taps_x):
        w = _weight((left + k + 0.5 - cx) / wide_x, reach)
        sum_x += tl.where(left + k < right, w, 0.0)
    per_y = 1.0 / tl.where(sum_y == 0.0, 1.0, sum_y)
    per_x = 1.0 / tl.where(sum_x == 0.0, 1.0, sum_x)

    r = tl.zeros((TILE, TILE), tl.float32)
    g = tl.zeros((TILE, TILE), tl.float32)
    b = tl.zeros((TILE, TILE), tl.float32)
    for m in range(0, taps_y):
        y = top + m
        use_y = y < bottom
        wy = tl.where(use_y, _weight((y + 0.5 - cy) / wide_y, reach) * per_y, 0.0)
        line = (y0 + y) * width + x0
        row_r = tl.zeros((TILE, TILE), tl.float32)
        row_g = tl.zeros((TILE, TILE), tl.float32)
        row_b = tl.zeros((TILE, TILE), tl.float32)
        for k in range(0, taps_x):
            x = left + k
            use_x = x < right
            wx = tl.where(use_x, _weight((x + 0.5 - cx) / wide_x, reach) * per_x, 0.0)[None, :]
            use = use_y[:, None] & use_x[None, :]
            at = pixels + (line[:, None] + x[None, :]) * 3
            row_r += wx * tl.load(at, mask=use, other=0).to(tl.float32)
            row_g += wx * tl.load(at + 1, mask=use, other=0).to(tl.float32)
            row_b += wx * tl.load(at + 2, mask=use, other=0).to(tl.float32)
        r += wy[:, None] * _level(row_r)
        g += wy[:, None] * _level(row_g)
        b += wy[:, None] * _level(row_b)

    place = tl.where(flip != 0, side - 1 - j, j)
    plane = side * side
    target = out + view.to(tl.int64) * (3 * plane) + i[:, None] * side + place[None, :]
    inside = (i < side)[:, None] & (j < side)[None, :]
    kind = out.dtype.element_ty
    tl.store(target, (_level(r) * scale_r - shift_r).to(kind), mask=inside)
    tl.store(target + plane, (_level(g) * scale_g - shift_g).to(kind), mask=inside)
    tl.store(target + 2 * plane, (_level(b) * scale_b - shift_b).to(kind), mask=inside)
