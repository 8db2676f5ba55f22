"""The limit: how fast the image tower could be if it were nothing but matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from adte.bench import timing
from adte.models.base import Model

__all__ = ["limit", "matrix_rate", "tower_flops"]


def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> float:
    """Floating-point operations a second of a large square product in this dtype."""
    n = 8192 if device.type == "cuda" else 1536
    g = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(n, n, device=device, generator=g).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    inner = 10 if device.type == "cuda" else 1

    def product() -> None:
        for _ in range(inner):
            torch.mm(a, b, out=out)

    best = timing.medians({"": product}, repeats, device)[""]
    return 2 * n**3 * inner / best


def tower_flops(model: Model) -> int:
    """Of one view through the library's own forward: products and convolutions."""
    side = model.preprocess.size
    pixels = torch.zeros(1, 3, side, side, device=model.device, dtype=model.dtype)
    # With gradients on, no fused operator hides what it computes.
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        model.encode_image(pixels)
    return int(counter.get_total_flops())


def limit(model: Model, views: int) -> dict[str, Any]:
    """Seconds of an image of `views` views at the rate of matrix products, and what it is of."""
    rate, flops = matrix_rate(model.device, model.dtype), tower_flops(model)
    return {"seconds": views * flops / rate, "flops_per_view": flops, "matrix_rate": rate}
