"""Pack a group of images for one upload, and make its views where it arrived.

The fast way is one Triton kernel, `adte.images.fused`. Where there is no Triton, plain matrix
products do the same, one image at a time. A view is Y · X(image): the columns by one matrix,
rounded to whole levels, the rows by another. Each row of the matrices holds the weights of Pillow's
filter, stretched where the image shrinks:

    scale s = extent / S,  f = max(s, 1),  c_i = start + (i + ½)·s
    w_i(x) ∝ k((x + ½ − c_i) / f)   for x from ⌊c_i − r·f + ½⌋ to ⌊c_i + r·f + ½⌋ − 1, within limits

with k the triangle 1 − |t| (reach r = 1) or the cubic of Keys with a = −½ (r = 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adte.core.machine import compiled
from adte.images.preprocess import Preprocess
from adte.images.table import ALIGN, WORDS, Shown, places

__all__ = ["pack", "products", "render"]

Renderer = Callable[[Tensor, Tensor, list[float], list[float]], None]

AT_ONCE = 1 << 25  # numbers in memory


def pack(images: Sequence[Shown], pinned: bool = False) -> Tensor:
    """The table of all rows and the pixels of all images as one uint8 buffer on the host.

    From pinned memory it can be uploaded while the device and this thread do something else.
    """
    starts, size = places(images)
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    data = buffer.numpy()
    table = np.concatenate([i.rows for i in images])
    table[:, 0] = np.repeat([s // ALIGN for s in starts], [len(i.rows) for i in images])
    data[: table.nbytes] = table.view(np.uint8).reshape(-1)
    for image, at in zip(images, starts, strict=True):
        data[at : at + image.pixels.size] = image.pixels.reshape(-1)
    return buffer


def render(buffer: Tensor, out: Tensor, preprocess: Preprocess) -> None:
    """The views of a packed group, normalised, into `out` (N, 3, S, S), in its dtype.

    `buffer` lies on the device of `out`. Nothing here waits for the device, where Triton is.
    """
    std = np.array(preprocess.std)
    scale, shift = (1 / (255 * std)).tolist(), (np.array(preprocess.mean) / std).tolist()
    if out.shape[1:] != (3, preprocess.size, preprocess.size) or not out.is_contiguous():
        raise ValueError(f"views of shape {tuple(out.shape)} are not (N, 3, S, S) in one piece")
    if len(out):
        _renderer(out.device)(buffer, out, scale, shift)


@lru_cache(maxsize=16)
def _renderer(device: torch.device) -> Renderer:
    """The kernel, if Triton is there and can make one for the device; else matrix products."""
    if device.type != "cuda":
        return products

    def trial(room: Any) -> None:
        rows = np.zeros((1, WORDS), np.int32)
        tiny = Shown(np.zeros((1, 1, 3), np.uint8), rows, np.arange(1))
        tiny.rows[0, [1, 3, 5, 7]] = 1
        tiny.rows.view(np.float32)[0, 10:12] = 1
        some = torch.empty(1, 3, 8, 8, dtype=torch.float32, device=device)
        room.render(pack([tiny]).to(device), some, [1.0] * 3, [0.0] * 3)

    fused = compiled("adte.images.fused", trial, "views are made")
    renderer: Renderer = products if fused is None else fused.render
    return renderer


# ------------------------------------------------------------------ by matrix products


def products(buffer: Tensor, out: Tensor, scale: list[float], shift: list[float]) -> None:
    """Write all views of a packed group to `out` (N, 3, S, S): level · scale − shift."""
    count, _, side, _ = out.shape
    table = buffer[: count * WORDS * 4].view(torch.int32).view(count, WORDS)
    floats = table.view(torch.float32)
    here = table.cpu()
    a, b = (out.new_tensor(x, dtype=torch.float32)[:, None, None] for x in (scale, shift))
    for start, end in _images(here):
        width, height = int(here[start, 1]), int(here[start:end, 3].max())
        at = int(here[start, 0]) * ALIGN
        image = buffer[at : at + height * width * 3].view(height, width, 3)
        planes = image.permute(2, 0, 1).float()  # (3, H, W)
        step = max(1, AT_ONCE // (side * (4 * height + width)))
        for i in range(start, end, step):
            some = slice(i, min(i + step, end))
            levels = _resized(planes, table[some], floats[some], side)  # (n, 3, S, S)
            out[some] = (levels * a - b).to(out.dtype)


def _images(table: Tensor) -> list[tuple[int, int]]:
    """Which views are of which image: first and last plus one."""
    first = [0, *(table[1:, 0] != table[:-1, 0]).nonzero().flatten().add(1).tolist()]
    return list(zip(first, [*first[1:], len(table)], strict=True))


def _resized(planes: Tensor, table: Tensor, box: Tensor, side: int) -> Tensor:
    """Whole grey levels (n, 3, S, S) of some views of one image (3, H, W)."""
    height, width = planes.shape[1:]
    low, high, reach = table[:, 2:6:2], table[:, 3:7:2], table[:, 7]
    y = weights(box[:, 8], box[:, 10], low[:, 0], high[:, 0], reach, side, height)  # (n, S, H)
    x = weights(box[:, 9], box[:, 11], low[:, 1], high[:, 1], reach, side, width)  # (n, S, W)
    x = torch.where((table[:, 6] > 0)[:, None, None], x.flip(1), x)
    columns = planes @ x.flatten(0, 1).T  # (3, H, n S)
    columns = columns.view(3, height, -1, side).permute(2, 0, 1, 3)  # (n, 3, H, S)
    return _levels(y[:, None] @ _levels(columns))


def _levels(x: Tensor) -> Tensor:
    return (x + 0.5).floor_().clamp_(0, 255)


def weights(
    start: Tensor, extent: Tensor, low: Tensor, high: Tensor, reach: Tensor, side: int, length: int
) -> Tensor:
    """The weights (n, S, length) of an axis, for n views: how S pixels are made of `length`.

    >>> box = torch.tensor([0.0]), torch.tensor([4.0]), torch.tensor([0]), torch.tensor([4])
    >>> weights(*box, torch.tensor([1]), 2, 4)
    tensor([[[0.4286, 0.4286, 0.1429, 0.0000],
             [0.0000, 0.1429, 0.4286, 0.4286]]])
    """
    start, extent, low, high, reach = (v[:, None, None] for v in (start, extent, low, high, reach))
    scale = extent / side
    wide = scale.clamp_min(1.0)
    centre = start + (torch.arange(side, device=start.device)[:, None] + 0.5) * scale  # (n, S, 1)
    first = (centre - reach * wide + 0.5).int().clamp_min(0)
    last = (centre + reach * wide + 0.5).int().minimum(high - low)
    taps = torch.arange(length, device=start.device) - low  # (n, 1, length)
    t = ((taps + 0.5 - centre) / wide).abs()
    near = torch.where(reach == 1, 1 - t, (1.5 * t - 2.5) * t * t + 1)
    far = torch.where(reach == 1, 0.0, ((2.5 - 0.5 * t) * t - 4) * t + 2)
    w = torch.where(t < 1, near, torch.where(t < 2, far, 0.0))
    w = torch.where((taps >= first) & (taps < last), w, 0.0)
    return w / w.sum(-1, keepdim=True)
