"""Crops and base views, resized within two grey levels of Pillow's `crop(box).resize(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from adte.images.boxes import Crop, coarsest, of_base, unit
from adte.images.decode import Pixels, read_picture
from adte.images.preprocess import FILTERS, Preprocess

__all__ = ["base_view", "resize_pillow", "resize_uint8"]


def base_view(image: Any, preprocess: Preprocess, kernel: str = "pillow") -> Tensor:
    """The whole image, or its central square, as the model expects it (3, S, S).

    A `Picture` is taken as it was decoded, anything else is decoded whole. Pillow makes it; of an
    image above 4 megapixels torch does, where its kernels for bytes are the faster ones.
    """
    picture = read_picture(image, lambda height, width: 1)
    height, width = picture.height, picture.width
    side, full, kind = preprocess.size, preprocess.whole, preprocess.interpolation
    picture = picture.reduced(coarsest(min(height, width), full, picture))
    right, bottom = width / picture.step, height / picture.step  # of the image, in decoded pixels
    base = of_base(picture, preprocess)
    column, row = base.column, base.row
    whole = picture.pixels.shape[:2] == (bottom, right)  # no edge was filled up
    if kernel == "uint8" and whole and unit(height, width) > 1:
        rgb = torch.from_numpy(np.require(picture.pixels, requirements="W")).permute(2, 0, 1)[None]
        made = F.interpolate(rgb, (base.tall, base.wide), mode=kind, antialias=True)[0]
        return preprocess.normalise(made[:, row : row + side, column : column + side].float())
    view = Image.fromarray(picture.pixels)
    if preprocess.resize == "squash":
        view = view.resize((full, full), FILTERS[kind], (0, 0, right, bottom))
        view = view.crop((column, row, column + side, row + side))
    else:
        # torchvision resizes to (wide, tall) and cuts; here, with its rounding, only what stays is
        # resized. One axis at a time: of a cut box Pillow may take them in the other order.
        columns = base.left, 0, base.right, view.height
        view = view.resize((side, view.height), FILTERS[kind], columns)
        view = view.resize((side, side), FILTERS[kind], (0, base.top, side, base.bottom))
    return preprocess.normalise(_levels(view))


def _levels(view: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous().float()  # (3, H, W)


def resize_pillow(
    pixels: Pixels,
    crops: Sequence[Crop],
    preprocess: Preprocess,
    out: Iterable[Tensor],
    interpolation: str,
) -> None:
    """Resize as Pillow does, which clips between its two passes, in an order that it chooses."""
    image, size = Image.fromarray(pixels), (preprocess.size, preprocess.size)
    made: dict[Crop, Tensor] = {}  # of a small image many are the same
    for view, c in zip(out, crops, strict=True):
        if c not in made:
            box = (c.left, c.top, c.left + c.width, c.top + c.height)
            crop = image.crop(box).resize(size, FILTERS[interpolation])
            made[c] = preprocess.normalise(_levels(ImageOps.mirror(crop) if c.flip else crop))
        view.copy_(made[c])


def resize_uint8(
    pixels: Pixels,
    crops: Sequence[Crop],
    preprocess: Preprocess,
    out: Iterable[Tensor],
    rows_first: bool = False,
) -> None:
    """Resize with torch's antialiased kernels for bytes; they need a box that lies in one piece.

    Rows before columns is faster where a box has many rows, and rounds some bytes the other way.
    """
    side = preprocess.size
    space = np.empty(3 * max(c.height * c.width for c in crops), np.uint8)
    for view, (top, left, h, w, flip) in zip(out, crops, strict=True):
        box = space[: h * w * 3].reshape(h, w, 3)
        np.copyto(box, pixels[top : top + h, left : left + w])
        made = torch.from_numpy(box)[None].permute(0, 3, 1, 2)  # (1, 3, h, w), channels last
        for shape in ((side, w), (side, side))[0 if rows_first else 1 :]:
            made = F.interpolate(made, shape, mode="bilinear", antialias=True)
        preprocess.normalise(view.copy_(made[0].flip(-1) if flip else made[0]))
