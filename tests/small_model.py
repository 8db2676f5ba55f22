"""A small random model of the real contract, for tests that are not about accuracy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adte.models.base import Model
from adte.views import Preprocess


class SmallModel(Model):
    """A convolution, a pooling and a projection; texts are hashed to vectors."""

    def __init__(self, name: str = "small", dim: int = 16) -> None:
        super().__init__()
        self.name, self.dim, self.logit_scale = name, dim, 20.0
        self.preprocess = Preprocess(
            size=24, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), interpolation="bicubic"
        )
        g = torch.Generator().manual_seed(0)
        self.conv = nn.Conv2d(3, 12, 5, stride=3)
        self.project = nn.Linear(12 * 9, dim)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.2 * torch.randn(p.shape, generator=g))

    def encode_image(self, pixels: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.conv(pixels).relu(), 3).flatten(1)
        return nn.functional.normalize(self.project(x), dim=-1)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        rows = []
        for text in texts:
            g = torch.Generator().manual_seed(zlib.crc32(text.encode()))
            rows.append(torch.randn(self.dim, generator=g))
        return nn.functional.normalize(torch.stack(rows), dim=-1)
