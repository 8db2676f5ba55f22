"""The common corruptions of ImageNet-C, made on the fly: 15 types and 4 extra, severities 1 to 5.

    >>> image = np.full((64, 64, 3), 128, np.uint8)
    >>> corrupt(image, "gaussian_noise", 3, 0).std().round(-1)
    np.float64(30.0)
    >>> Corruption("fog", 2, seed=7)(image, key="photo.jpg").shape
    (64, 64, 3)

Parameters are the published ones for 224, 64 and 32 px; an image takes the table whose side is
nearest to its short side in ratio, or `table=` says. They are in pixels of the table's side and
are not rescaled to the image's. The published images were drawn without a seed, so these are like
them in distribution and never the same: report results on the published files as such, and these
as generated. ImageNet-C and Tiny-ImageNet-C were also saved as JPEG of quality 85; these are not.

What differs from the published programs: motion blur and snow smear with a line kernel of our own
(`planes.line_blur`) where those call ImageMagick, and frost makes up its texture.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from adte.core.errors import InputError, unknown
from adte.core.options import option

if TYPE_CHECKING:
    from adte.data.corruptions.planes import Pixels

__all__ = ["COMMON", "CORRUPTIONS", "EXTRA", "Corruption", "canonical", "corrupt", "nearest_table"]

COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur",
    "zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate",
    "jpeg_compression",
)  # fmt: skip
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
CORRUPTIONS = COMMON + EXTRA
SIDES = (32, 64, 224)


@cache
def parameters() -> dict[str, dict[str, Any]]:
    """The published parameters: name → image side → a row for each severity 1…5, and "columns".

    From `hendrycks/robustness`, `ImageNet-C/create_c` (Hendrycks and Dietterich, Benchmarking
    Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019): ImageNet-C
    (224 px), Tiny-ImageNet-C (64 px) and CIFAR-C (32 px). Lengths are in pixels of that side.
    """
    text = files("adte.data.corruptions").joinpath("severities.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table


def canonical(name: str) -> str:
    """The name of a corruption in full, from any spelling of it or of its beginning.

    >>> canonical("Elastic"), canonical("motion-blur"), canonical("shot")
    ('elastic_transform', 'motion_blur', 'shot_noise')
    """
    plain = "_".join(str(name).lower().replace("-", " ").replace("_", " ").split())
    begun = [known for known in CORRUPTIONS if known.startswith(plain)]
    if plain in CORRUPTIONS:
        return plain
    if not plain or len(begun) != 1:  # gaussian: noise or blur
        raise unknown("corruption", name, CORRUPTIONS)
    return begun[0]


def nearest_table(height: int, width: int) -> int:
    """Whose parameters an image takes: the side nearest in ratio to its short side.

    >>> nearest_table(375, 500), nearest_table(96, 96), nearest_table(28, 28)
    (224, 64, 32)
    """
    return min(SIDES, key=lambda side: abs(math.log(side / min(height, width))))


def corrupt(
    image: Pixels, name: str, severity: int, rng: int | np.random.Generator, *,
    table: int | None = None,
) -> Pixels:  # fmt: skip
    """An image, corrupted.

    Args:
        image: RGB bytes (H, W, 3) of any size; not changed.
        name: one of CORRUPTIONS, or another spelling that `canonical` knows.
        severity: 1 to 5.
        rng: a seed, or a generator that is drawn from.
        table: 224, 64 or 32, whose parameters to take; None goes by the image's size.
    """
    name = canonical(name)
    _check_numbers(severity, table)
    if not (isinstance(image, np.ndarray) and image.dtype == np.uint8
            and image.ndim == 3 and image.shape[2] == 3 and image.size):  # fmt: skip
        kind = f"a {type(image).__name__}"
        if isinstance(image, np.ndarray):
            kind = f"a {image.dtype} array {image.shape}"
        raise InputError(
            f"an image to corrupt is a uint8 array (H, W, 3), not {kind}; adte.load_image makes one"
        )
    from adte.data.corruptions import plain, weather  # which import torch
    from adte.data.corruptions.planes import to_pixels, to_planes

    row = parameters()[name][str(table or nearest_table(*image.shape[:2]))][severity - 1]
    apply = getattr(weather if hasattr(weather, name) else plain, name)
    return to_pixels(apply(to_planes(image), np.random.default_rng(rng), *row))


def _check_numbers(severity: Any, table: Any) -> None:
    if not isinstance(severity, int | np.integer) or not 1 <= severity <= 5:
        raise InputError(f"severity={severity!r} cannot be used; give a whole number from 1 to 5")
    if table is not None and table not in SIDES:
        raise InputError(f"table={table!r} cannot be used; choose 32, 64 or 224")


@dataclass(frozen=True)
class Corruption:
    """A corruption to apply to many images; what an image gets depends on the seed and its key.

    The draws are the same at every severity, so a picture fogs up gradually under one fog.

    >>> image = np.zeros((32, 32, 3), np.uint8)
    >>> mild = Corruption("shot", 1)
    >>> mild
    Corruption(name='shot_noise', severity=1, seed=0, table=None)
    >>> bool((mild(image, key=3) == mild(image, key=3)).all())
    True
    """

    name: str
    severity: int = option(5, "severity, 1 to 5")
    seed: int = option(0, "seed of the random draws; the key of each image is added to it")
    table: int | None = option(
        None, "size that parameters are for, 224, 64 or 32; by default the nearest"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", canonical(self.name))
        _check_numbers(self.severity, self.table)

    def __call__(self, image: Pixels, key: int | str | None = None) -> Pixels:
        """The corrupted image. `key` names it; None takes a digest of its pixels."""
        kind = "pixels" if key is None else "str" if isinstance(key, str) else "int"
        content = str(key).encode("utf-8", "surrogateescape")
        if key is None:
            content = np.ascontiguousarray(image).tobytes()
        text = f"{self.name}:{self.seed}:{kind}:".encode() + content
        draws = int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
        return corrupt(image, self.name, self.severity, draws, table=self.table)
