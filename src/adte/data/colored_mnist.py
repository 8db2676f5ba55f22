"""ColoredMNIST as DeYO builds it (Lee et al., ICLR 2024, after IRM): colour is a false friend.

From MNIST's 60,000 training images in file order come three environments of 20,000, the last being
the test set. With y = 0 for the digits 0 to 4 and 1 for 5 to 9:

    ỹ = y, flipped with probability 1/4
    colour = red if ỹ = 0, else green, flipped with probability 0.2, 0.1 and, in the test set, 0.9

The digit goes into the red or the green channel. The training sets carry ỹ, the test set y. The
group of an image is 2y + [red]; report the mean of the four group accuracies, and their minimum.
Both flips of an image are drawn in turn, label first, from NumPy's legacy generator, so that `seed`
stands for `np.random.seed(seed)` in the authors' program.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset, Lazy
from adte.data.cards import published
from adte.data.files import first
from adte.data.registry import Location, Reader

__all__ = ["ColoredMNIST"]

PARTS = ("train1", "train2", "test")
LABEL_FLIP, COLOUR_FLIP = 0.25, {"train1": 0.2, "train2": 0.1, "test": 0.9}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@published("colored-mnist")
@dataclass(frozen=True, kw_only=True)
class ColoredMNIST(Reader):
    """Two classes, four groups."""

    part: Literal["test", "train1", "train2"] = option("test", "environment to read")
    seed: int = option(0, "seed of the random flips of label and colour", low=0, below=2**32)

    def find(self, root: Path) -> Location | None:
        places = ("", "MNIST/raw", "raw", "mnist")
        folder = first(root, places, lambda p: bool(_idx(p, IMAGES) and _idx(p, LABELS)))
        words = f"part {self.part} of MNIST's training files, seed {self.seed}"
        return Location(folder, words, self.info.images) if folder else None

    def read(self, root: Path, location: Location) -> Dataset:
        images, digits = (
            _read_idx(location.folder, IMAGES, 3),
            _read_idx(location.folder, LABELS, 1),
        )
        return self.build(images, digits, root, location.layout)

    def build(
        self,
        images: NDArray[np.uint8],
        digits: NDArray[Any],
        root: Path | None = None,
        split: str = "",
    ) -> Dataset:
        """The environment of these digits: images (N, H, W) and what they show (N,)."""
        if images.dtype != np.uint8 or images.ndim != 3 or digits.shape != images.shape[:1]:
            raise InputError(
                f"digits of {images.dtype} {images.shape} with labels {digits.shape} cannot be "
                "used; give uint8 images (N, H, W) and one digit an image"
            )
        third = len(images) // 3
        draws = np.random.RandomState(self.seed).random_sample((len(images), 2))
        y = (digits >= 5).astype(np.int64)
        noisy = y ^ (draws[:, 0] < LABEL_FLIP)
        start = third * PARTS.index(self.part)
        cut = slice(start, start + third)
        red = (noisy == 0) ^ (draws[:, 1] < COLOUR_FLIP[self.part])
        return Dataset(
            name=self.info.name,
            classes=("zero to four", "five to nine"),
            class_ids=("0-4", "5-9"),
            sources=Lazy(third, partial(_painted, images[cut], red[cut])),
            labels=(y if self.part == "test" else noisy)[cut],
            ids=[f"train/{i:05d}" for i in range(start, start + third)],
            split=split,
            root=root,
            templates=self.info.templates,
            groups=(2 * y + red)[cut],
        )


def _painted(digits: NDArray[np.uint8], red: NDArray[np.bool_], index: int) -> NDArray[np.uint8]:
    """A digit (H, W), in red or green."""
    image = np.zeros((*digits[index].shape, 3), np.uint8)
    image[..., 0 if red[index] else 1] = digits[index]
    return image


def _idx(folder: Path, name: str) -> Path | None:
    return first(folder, (name, f"{name}.gz"), Path.is_file)


def _read_idx(folder: Path, name: str, ndim: int) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, the type (8: uint8), the rank, the sizes, the values."""
    path = _idx(folder, name)
    assert path is not None  # `find` saw it
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if raw[:4] != bytes((0, 0, 8, ndim)):
            raise ValueError("not an IDX file of MNIST")
        shape = np.frombuffer(raw, ">i4", ndim, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim).reshape(shape)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} ({error}); fetch it again") from error
