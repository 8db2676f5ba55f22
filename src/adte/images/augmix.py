"""AugMix: chains of distortions mixed into a crop, as TPT does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from adte.images.preprocess import Preprocess

__all__ = ["DISTORTIONS", "augmix"]


def _warp(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


# AugMix at severity 1: the strength u is in ±[0.1, 1], a tenth of each operation's maximum.
DISTORTIONS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, u: ImageOps.autocontrast(image),
    lambda image, u: ImageOps.equalize(image),
    lambda image, u: ImageOps.posterize(image, 4),
    lambda image, u: image.rotate(int(3 * u), Image.Resampling.BILINEAR),
    lambda image, u: ImageOps.solarize(image, 256 - int(25.6 * abs(u))),
    lambda image, u: _warp(image, 1, 0.03 * u, 0, 0, 1, 0),
    lambda image, u: _warp(image, 1, 0, 0, 0.03 * u, 1, 0),
    lambda image, u: _warp(image, 1, 0, int(image.width * u / 30), 0, 1, 0),
    lambda image, u: _warp(image, 1, 0, 0, 0, 1, int(image.height * u / 30)),
)


def augmix(view: Tensor, preprocess: Preprocess, random: np.random.Generator) -> None:
    """Blend a crop (3, S, S), in place, with a mix of three chains of distortions of it."""
    black, white = preprocess.normalise(view.new_tensor([0, 255]).repeat(3, 1).T[..., None, None])
    levels = ((view - black) * (255 / (white - black))).round().clamp(0, 255).byte()
    plain = levels.permute(1, 2, 0).cpu().numpy()
    chains = []
    for _ in range(3):
        image = Image.fromarray(plain)
        for _ in range(random.integers(1, 4)):
            strength = random.uniform(0.1, 1) * random.choice((-1, 1))
            image = DISTORTIONS[random.integers(len(DISTORTIONS))](image, strength)
        chains.append(np.asarray(image, np.float32))
    mix = np.tensordot(random.dirichlet(np.ones(3)).astype(np.float32), np.stack(chains), 1)
    mixed = torch.from_numpy(mix).permute(2, 0, 1).to(view.device)  # (3, S, S)
    view.lerp_(preprocess.normalise(mixed), 1 - random.beta(1, 1))
