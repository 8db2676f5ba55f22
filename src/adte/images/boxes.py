"""Boxes of an image, and the scale from which each is cut."""

from __future__ import annotations

from typing import NamedTuple

from adte.images.decode import LARGE, Picture
from adte.images.preprocess import Preprocess

__all__ = ["Base", "Crop", "coarsest", "of_base", "placed", "unit"]

GRID = 8  # pixels; the most that a JPEG's decoder reduces by
SHORT = 512  # pixels; a side below this needs every one of them
GAP = 6  # pixels left for one of the view: then a mean of neighbours changes one grey level or two


class Crop(NamedTuple):
    """A box of the image in pixels, and whether it is mirrored left to right afterwards."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


class Base(NamedTuple):
    """The base view: a square of the resized image, and the same box in the pixels decoded.

    The rounding is torchvision's, which resizes the whole image and cuts the square out.
    """

    wide: int  # the size that the whole image is resized to
    tall: int
    column: int  # where the square begins there
    row: int
    left: float  # the ends of the box, in decoded pixels
    top: float
    right: float
    bottom: float

    def crop(self, step: int = 1) -> Crop:
        """Its box in whole pixels of the image, of which decoded ones stand for `step` × `step`."""
        left, top, right, bottom = (round(step * end) for end in self[4:])
        return Crop(top, left, max(1, bottom - top), max(1, right - left))


def of_base(picture: Picture, preprocess: Preprocess) -> Base:
    """The base view of a picture.

    >>> import numpy as np
    >>> picture = Picture(np.zeros((300, 400, 3), np.uint8), 300, 400)
    >>> base = of_base(picture, Preprocess(size=150))
    >>> base
    Base(wide=200, tall=150, column=25, row=0, left=50.0, top=0.0, right=350.0, bottom=300.0)
    >>> base.crop()
    Crop(top=0, left=50, height=300, width=300, flip=False)
    """
    side, full = preprocess.size, preprocess.whole
    height, width = picture.height, picture.width
    wide = tall = full
    if preprocess.resize == "shortest":
        short = min(height, width)
        wide, tall = int(full * width / short), int(full * height / short)
    column, row = round((wide - side) / 2), round((tall - side) / 2)
    right, bottom = width / picture.step, height / picture.step  # of the image
    x, y = right / wide, bottom / tall  # and the size of one pixel of the view
    ends = min((column + side) * x, right), min((row + side) * y, bottom)
    return Base(wide, tall, column, row, column * x, row * y, *ends)


def unit(height: int, width: int) -> int:
    """The corners of boxes lie on multiples of this many pixels.

    Above 4 megapixels it is 8, so that boxes have whole corners at every scale of a JPEG too. The
    last height mod 8 rows and width mod 8 columns of such an image are seen by the base view alone.
    """
    return GRID if height * width > LARGE and min(height, width) >= SHORT else 1


def placed(crops: list[Crop], picture: Picture) -> list[Crop]:
    """Boxes of the image as boxes of the pixels that were decoded."""
    n = picture.step
    if n == 1:
        return crops
    return [Crop(c.top // n, c.left // n, c.height // n, c.width // n, c.flip) for c in crops]


def coarsest(side: float, size: int, picture: Picture) -> int:
    """The step of the pyramid from which a box with this shortest side is cut for a view of `size`.

    A level halves the one below: each pixel is the mean of 2 × 2. The filter that makes a view of
    it then is a little wider than the filter for whole pixels; with `GAP` pixels left for one of
    the view, photographs change by at most two grey levels.
    """
    step = picture.step
    while step < unit(picture.height, picture.width) and side >= 2 * step * GAP * size:
        step *= 2
    return step
