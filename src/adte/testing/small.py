"""A small random model of the real contract, for checks that are not about accuracy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adte.images import Preprocess
from adte.models.base import Model

WORDS, LENGTH, WIDTH = 97, 12, 10


class SmallModel(Model):
    """A small vision-language model with random weights, for tests that are not about accuracy.

    Its image tower has a convolution, batch norm, layer norm and a projection; its text tower has
    one attention layer. It offers all that methods can need.

    Args:
        name: name of the model.
        dim: dimension of the features.
    """

    def __init__(self, name: str = "small", dim: int = 16) -> None:
        super().__init__()
        self.name, self.dim, self.logit_scale = name, dim, 20.0
        self.preprocess = Preprocess(
            size=24, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), interpolation="bicubic"
        )
        g = torch.Generator().manual_seed(0)
        self.image_tower = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=3),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.LayerNorm(12 * 9),
            nn.Linear(12 * 9, dim),
        )
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.project = nn.Linear(WIDTH, dim)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.ndim > 1:
                    p.copy_(torch.randn(p.shape, generator=g) * p.shape[-1] ** -0.5)
                elif name.endswith("bias"):
                    p.zero_()
        self.eval()

    def encode_image(self, pixels: Tensor) -> Tensor:
        return nn.functional.normalize(self.image_tower(pixels), dim=-1)

    def _ids(self, texts: Sequence[str]) -> Tensor:
        """One token a word, hashed; 0 pads."""
        rows = [[1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in t.split()] for t in texts]
        padded = torch.tensor([(r + [0] * LENGTH)[:LENGTH] for r in rows])
        return padded.to(self.positions.device)

    def token_embeddings(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids = self._ids(texts)
        return ids, self.embedding(ids)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        real = (ids > 0).unsqueeze(-1).to(embeddings.dtype)
        x = torch.tanh(self.mix(embeddings + self.positions)) * real
        return nn.functional.normalize(self.project(x.sum(1) / real.sum(1)), dim=-1)

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self.encode_embeddings(*self.token_embeddings(texts))
