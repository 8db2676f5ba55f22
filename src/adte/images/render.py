"""Pack a group of images for one upload, and make its views where it arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adte.core.machine import compiled
from adte.images import Preprocess, plain
from adte.images.table import ALIGN, WORDS, Shown, places

__all__ = ["pack", "render"]

Renderer = Callable[[Tensor, Tensor, list[float], list[float]], None]


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
        return plain.render

    def trial(room: Any) -> None:
        rows = np.zeros((1, WORDS), np.int32)
        tiny = Shown(np.zeros((1, 1, 3), np.uint8), rows, np.arange(1))
        tiny.rows[0, [1, 3, 5, 7]] = 1
        tiny.rows.view(np.float32)[0, 10:12] = 1
        some = torch.empty(1, 3, 8, 8, dtype=torch.float32, device=device)
        room.render(pack([tiny]).to(device), some, [1.0] * 3, [0.0] * 3)

    fused = compiled("adte.images.fused", trial, "views are made")
    renderer: Renderer = plain.render if fused is None else fused.render
    return renderer
