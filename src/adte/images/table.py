"""Each view of an image as a row of a table that a device can read.

A view has a box with fractions in the pixels of its image, and limits beyond which its filter does
not look: a crop ends at its own edge, as if it had been cut out first; the base view is a part of
the whole image, and its filter looks over the edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from adte.images import Preprocess
from adte.images.boxes import of_base
from adte.images.decode import Picture, Pixels

__all__ = ["ALIGN", "WORDS", "Shown", "show", "where"]

Rows = npt.NDArray[np.int32]

WORDS = 16  # of four bytes a view; see `show`
ALIGN = 48  # bytes, 16 pixels: where an image may begin


class Shown(NamedTuple):
    """An image and the views of it: what is uploaded. Views that are the same are one row."""

    pixels: Pixels  # (H, W, 3)
    rows: Rows  # (U, WORDS)
    which: npt.NDArray[np.intp]  # (V,): the row of each view


def show(
    picture: Picture,
    crops: Iterable[tuple[float, float, float, float, bool]],
    preprocess: Preprocess,
    interpolation: str = "bilinear",
) -> Shown:
    """An image, its base view and its crops: boxes (top, left, height, width, flip) of its pixels.

    The words of a view: 0 where its image begins, in units of ALIGN bytes; 1 the image's width;
    2 and 3 the rows, 4 and 5 the columns that it may look at, first and last plus one; 6 mirrored
    or not; 7 reach of the filter, 1 bilinear, 2 bicubic; 8 to 11 the box as float32: top and left
    as seen from the first row and column, height, width.
    """
    height, width = picture.pixels.shape[:2]
    crops = list(crops)
    rows = np.zeros((1 + len(crops), WORDS), np.int32)
    floats = rows.view(np.float32)
    rows[:, 1] = width
    rows[0, 3], rows[0, 5] = height, width
    rows[0, 7] = _reach(preprocess.interpolation)
    base = of_base(picture, preprocess)
    floats[0, 8:12] = base.top, base.left, base.bottom - base.top, base.right - base.left
    if crops:
        box = np.array(crops, np.float64)  # (V - 1, 5)
        first = np.floor(box[:, :2] + 1e-6).clip(0)
        last = np.ceil(box[:, :2] + box[:, 2:4] - 1e-6)
        rows[1:, 2:6:2], rows[1:, 3:7:2] = first, np.minimum(last, (height, width))
        rows[1:, 6], rows[1:, 7] = box[:, 4], _reach(interpolation)
        floats[1:, 8:10], floats[1:, 10:12] = box[:, :2] - first, box[:, 2:4]
    which = np.arange(len(rows))
    if min(height, width) < preprocess.size:  # crops may be the whole of it: see `Views.enlarge`
        kinds: dict[bytes, int] = {}
        which = np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in rows])
        rows = rows[np.unique(which, return_index=True)[1]]
    return Shown(picture.pixels, rows, which)


def _reach(interpolation: str) -> int:
    return 2 if interpolation == "bicubic" else 1


def where(images: Sequence[Shown]) -> npt.NDArray[np.intp] | None:
    """Which of all rows each view of each image is, (B, V); None where every view has its own."""
    if all(len(i.rows) == len(i.which) for i in images):
        return None
    starts = np.cumsum([0] + [len(i.rows) for i in images[:-1]])
    found: npt.NDArray[np.intp] = np.stack([i.which for i in images]) + starts[:, None]
    return found


def places(images: Iterable[Shown]) -> tuple[list[int], int]:
    """Where each image begins behind the table, in bytes, and the size of it all."""
    images = list(images)
    at = sum(len(i.rows) for i in images) * WORDS * 4
    out = []
    for image in images:
        at = math.ceil(at / ALIGN) * ALIGN
        out.append(at)
        at += image.pixels.size
    return out, at
