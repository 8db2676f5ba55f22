"""The input that a model expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from PIL import Image

from adte.core.options import check, option

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FILTERS", "Preprocess"]

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocess:
    """How pixels are prepared for a model: size, resizing and normalisation.

    The defaults are those of CLIP.
    """

    size: int = option(224, "side of the square input, in pixels", low=1)
    mean: tuple[float, float, float] = option(
        (0.48145466, 0.4578275, 0.40821073), "mean of each colour channel, of values in 0…1"
    )
    std: tuple[float, float, float] = option(
        (0.26862954, 0.26130258, 0.27577711), "standard deviation of each channel", above=0
    )
    interpolation: Literal["bilinear", "bicubic"] = option(
        "bicubic", "filter that resizes the base view"
    )
    resize: Literal["shortest", "squash"] = option(
        "shortest", "base view: the central square (shortest), or the whole image squashed (squash)"
    )
    crop: float = option(
        1.0, "share of the square's side that the base view shows", above=0, high=1
    )

    def __post_init__(self) -> None:
        check(self, "a model's input")

    @property
    def whole(self) -> int:
        """Side of the square that the base view is cut from, in pixels."""
        return int(self.size / self.crop + 1e-6)

    def normalise(self, levels: Tensor) -> Tensor:
        """Normalise pixel values 0…255 (…, 3, H, W), in place."""
        mean, std = levels.new_tensor([self.mean, self.std])[..., None, None]  # (3, 1, 1)
        return levels.mul_(1 / (255 * std)).sub_(mean / std)
