"""A model: random, small, and within the contract."""

import zlib

import torch
from torch import nn
from torch.nn.functional import normalize

from adte import Model, Preprocess
from adte.models import register_model


class Example(Model):
    """Colours of a 4×4 grid on one side, hashed words on the other, into 16 dimensions."""

    name, dim, logit_scale = "example", 16, 20.0

    def __init__(self):
        super().__init__()
        self.preprocess = Preprocess(size=32)
        g = torch.Generator().manual_seed(0)
        self.image = nn.Parameter(torch.randn(3 * 4 * 4, self.dim, generator=g))
        self.words = nn.Parameter(torch.randn(97, self.dim, generator=g))

    def encode_image(self, pixels):
        grid = nn.functional.adaptive_avg_pool2d(pixels, 4).flatten(1)  # (N, 48)
        return normalize(grid.to(self.image) @ self.image, dim=-1).to(self._wide)

    def encode_text(self, texts):
        rows = [[zlib.crc32(w.encode()) % 97 for w in t.split()] or [0] for t in texts]
        vectors = torch.stack([self.words[r].sum(0) for r in rows])
        return normalize(vectors, dim=-1).to(self._wide)

    @property
    def _wide(self):
        return torch.promote_types(self.dtype, torch.float32)


@register_model("example")
def load_example():
    return Example()
