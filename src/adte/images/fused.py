"""The views of a packed group by one Triton kernel. `adte.images.render` says the mathematics.

The pixels are first spread to one word each, so that a pixel is one load. Then a program makes a
tile of one view. For every row of the image that the tile needs it sums the columns, rounds as
Pillow does between its passes, and adds the row to the tile. A row is summed anew for each row of
the tile that needs it, two or three as a rule: that costs arithmetic and saves memory. Weights are
made on the way, so any number of them will do.
"""

# Triton reads the annotations of kernels: they are no strings here.
from contextlib import nullcontext

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from adte.images.table import ALIGN, WORDS

__all__ = ["render"]

ROWS, COLUMNS, WARPS = 4, 32, 1  # of a view that one program makes, and its warps
SPREAD = 1024  # pixels a program


def render(buffer: Tensor, out: Tensor, scale: list[float], shift: list[float]) -> None:
    """Write all views of a packed group to `out` (N, 3, S, S): level · scale − shift."""
    count, _, side, _ = out.shape
    table = buffer[: count * WORDS * 4]
    pixels = buffer.numel() // 3  # the table is spread with them, which does no harm
    grid = count, triton.cdiv(side, ROWS), triton.cdiv(side, COLUMNS)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        spread = torch.empty(pixels, dtype=torch.int32, device=buffer.device)
        _spread[(triton.cdiv(pixels, SPREAD),)](buffer, spread, pixels, BLOCK=SPREAD)
        _kernel[grid](
            spread,
            table.view(torch.int32),
            table.view(torch.float32),
            out,
            side,
            *scale,
            *shift,
            WORDS=WORDS,
            ALIGN=ALIGN // 3,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            num_warps=WARPS,
        )


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _spread(levels, words, pixels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Three bytes to a word: red, green, blue from its lowest byte on."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < pixels
    r = tl.load(levels + 3 * i, mask=inside, other=0).to(tl.int32)
    g = tl.load(levels + 3 * i + 1, mask=inside, other=0).to(tl.int32)
    b = tl.load(levels + 3 * i + 2, mask=inside, other=0).to(tl.int32)
    tl.store(words + i, r | (g << 8) | (b << 16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _weight(t, CUBIC: tl.constexpr):  # type: ignore[no-untyped-def]
    """The triangle, or the cubic of Keys with a = −½."""
    t = tl.abs(t)
    if CUBIC:
        near = (1.5 * t - 2.5) * t * t + 1.0
        far = ((2.5 - 0.5 * t) * t - 4.0) * t + 2.0
        w = tl.where(t < 1.0, near, tl.where(t < 2.0, far, 0.0))
    else:
        w = tl.maximum(1.0 - t, 0.0)
    return w


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _level(x):  # type: ignore[no-untyped-def]
    return tl.minimum(tl.maximum(tl.floor(x + 0.5), 0.0), 255.0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _axis(start, step, size, i, inside, CUBIC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each pixel of a view along an axis: its centre, the first and last source, 1/Σ weights."""
    wide = tl.maximum(step, 1.0)
    reach = wide * (2.0 if CUBIC else 1.0)
    # ⌊c + r + ½⌋ − ⌊c − r + ½⌋ is ⌈2r⌉ at most; one more by rounding would have no weight
    taps = tl.ceil(2.0 * reach).to(tl.int32)
    centre = start + (i.to(tl.float32) + 0.5) * step
    first = tl.maximum((centre - reach + 0.5).to(tl.int32), 0)
    last = tl.minimum((centre + reach + 0.5).to(tl.int32), size)
    last = tl.where(inside, last, 0)  # what lies outside of the view looks at nothing
    total = centre * 0.0
    for k in range(0, taps):
        w = _weight((first + k + 0.5 - centre) / wide, CUBIC)
        total += tl.where(first + k < last, w, 0.0)
    return centre, first, last, taps, 1.0 / wide, 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _tile(  # type: ignore[no-untyped-def]
    pixels, width, top, left, tall, broad, start_y, start_x, step_y, step_x, i, j, side,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CUBIC: tl.constexpr,
):  # fmt: skip
    """Levels of a tile, not rounded yet; `top` to `broad` are what the view may look at."""
    cy, first_y, last_y, taps_y, per_y, by_y = _axis(start_y, step_y, tall, i, i < side, CUBIC)
    cx, first_x, last_x, taps_x, per_x, by_x = _axis(start_x, step_x, broad, j, j < side, CUBIC)
    r = tl.zeros((ROWS, COLUMNS), tl.float32)
    g = tl.zeros((ROWS, COLUMNS), tl.float32)
    b = tl.zeros((ROWS, COLUMNS), tl.float32)
    for m in range(0, taps_y):
        y = first_y + m
        wy = tl.where(y < last_y, _weight((y + 0.5 - cy) * per_y, CUBIC) * by_y, 0.0)[:, None]
        line = (top + tl.minimum(y, tall - 1)) * width + left  # without weight, but in the image
        row_r = tl.zeros((ROWS, COLUMNS), tl.float32)
        row_g = tl.zeros((ROWS, COLUMNS), tl.float32)
        row_b = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, taps_x):
            x = first_x + k
            wx = tl.where(x < last_x, _weight((x + 0.5 - cx) * per_x, CUBIC) * by_x, 0.0)[None, :]
            v = tl.load(pixels + (line[:, None] + tl.minimum(x, broad - 1)[None, :]))
            row_r += wx * (v & 255).to(tl.float32)
            row_g += wx * ((v >> 8) & 255).to(tl.float32)
            row_b += wx * ((v >> 16) & 255).to(tl.float32)
        r += wy * _level(row_r)
        g += wy * _level(row_g)
        b += wy * _level(row_b)
    return r, g, b


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    spread, words, floats, out, side, scale_r, scale_g, scale_b, shift_r, shift_g, shift_b,
    WORDS: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    view = tl.program_id(0)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # rows of the view
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)  # columns, before mirroring

    row = view * WORDS
    pixels = spread + tl.load(words + row).to(tl.int64) * ALIGN
    width = tl.load(words + row + 1)
    y0 = tl.load(words + row + 2)
    y1 = tl.load(words + row + 3)
    x0 = tl.load(words + row + 4)
    x1 = tl.load(words + row + 5)
    flip = tl.load(words + row + 6)
    reach = tl.load(words + row + 7)
    start_y = tl.load(floats + row + 8)
    start_x = tl.load(floats + row + 9)
    step_y = tl.load(floats + row + 10) / side
    step_x = tl.load(floats + row + 11) / side

    if reach == 1:
        r, g, b = _tile(pixels, width, y0, x0, y1 - y0, x1 - x0, start_y, start_x, step_y, step_x,
                        i, j, side, ROWS, COLUMNS, False)  # fmt: skip
    else:
        r, g, b = _tile(pixels, width, y0, x0, y1 - y0, x1 - x0, start_y, start_x, step_y, step_x,
                        i, j, side, ROWS, COLUMNS, True)  # fmt: skip

    place = tl.where(flip != 0, side - 1 - j, j)
    plane = side * side
    target = out + view.to(tl.int64) * (3 * plane) + i[:, None] * side + place[None, :]
    inside = (i < side)[:, None] & (j < side)[None, :]
    kind = out.dtype.element_ty
    tl.store(target, (_level(r) * scale_r - shift_r).to(kind), mask=inside)
    tl.store(target + plane, (_level(g) * scale_g - shift_g).to(kind), mask=inside)
    tl.store(target + 2 * plane, (_level(b) * scale_b - shift_b).to(kind), mask=inside)
