"""Noise: gaussian, shot, impulse, speckle. Planes (3, H, W) in 0…255."""

from __future__ import annotations

import numpy as np

from adte.data.corruptions.planes import Floats

__all__ = ["gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise"]


def gaussian_noise(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """x + σε, ε ~ N(0, 1)."""
    return x + np.float32(255 * sigma) * rng.standard_normal(x.shape, np.float32)


def shot_noise(x: Floats, rng: np.random.Generator, photons: float) -> Floats:
    """Pois(cx)/c, with c photons at full white."""
    counts: Floats = rng.poisson(x * np.float32(photons / 255)).astype(np.float32)
    return counts * np.float32(255 / photons)


def impulse_noise(x: Floats, rng: np.random.Generator, share: float) -> Floats:
    """A share of the values becomes 0 or 255, evenly; each channel for itself."""
    u = rng.random(x.shape, np.float32)
    struck = np.where(u < share / 2, np.float32(0), np.float32(255))
    return np.where(u < share, struck, x)


def speckle_noise(x: Floats, rng: np.random.Generator, sigma: float) -> Floats:
    """x + xσε, ε ~ N(0, 1)."""
    return x * (1 + np.float32(sigma) * rng.standard_normal(x.shape, np.float32))
