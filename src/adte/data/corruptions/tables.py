"""The published parameters: name → image side → a row for each severity 1…5.

From `hendrycks/robustness`, `ImageNet-C/create_c` (Hendrycks and Dietterich, Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations, ICLR 2019): ImageNet-C (224 px),
Tiny-ImageNet-C (64 px) and CIFAR-C (32 px). Lengths are in pixels of that side.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SIDES", "TABLES", "Row"]

Row = tuple[float, ...]
SIDES = (32, 64, 224)


def _each(*values: float) -> list[Row]:
    return [(v,) for v in values]


def _with(rows: Iterable[Row], *last: float) -> list[Row]:
    """Rows with their last entry appended: one for all, or one each."""
    rows = list(rows)
    return [(*r, v) for r, v in zip(rows, last * (len(rows) // len(last)), strict=True)]


def _times(side: float, rows: list[Row]) -> list[Row]:
    return [tuple(side * v for v in row) for row in rows]


_STEPS_64 = _with(_each(1.06, 1.11, 1.16, 1.21, 1.26), 0.01)
_SNOW_64 = [
    (0.1, 0.2, 1, 0.6, 8, 3), (0.1, 0.2, 1, 0.5, 10, 4), (0.15, 0.3, 1.75, 0.55, 10, 4),
    (0.25, 0.3, 2.25, 0.6, 12, 6), (0.3, 0.3, 1.25, 0.65, 14, 12),
]  # fmt: skip

TABLES: dict[str, dict[int, list[Row]]] = {
    # σ of what is added, of 1
    "gaussian_noise": {
        224: _each(0.08, 0.12, 0.18, 0.26, 0.38),
        64: _each(0.04, 0.08, 0.12, 0.15, 0.18),
        32: _each(0.04, 0.06, 0.08, 0.09, 0.10),
    },
    # photons at full white
    "shot_noise": {
        224: _each(60, 25, 12, 5, 3),
        64: _each(250, 100, 50, 30, 15),
        32: _each(500, 250, 100, 75, 50),
    },
    # share of values replaced
    "impulse_noise": {
        224: _each(0.03, 0.06, 0.09, 0.17, 0.27),
        64: _each(0.01, 0.02, 0.05, 0.08, 0.14),
        32: _each(0.01, 0.02, 0.03, 0.05, 0.07),
    },
    # radius of the disk, σ that softens its rim
    "defocus_blur": {
        224: [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
        64: [(0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)],
        32: [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    },
    # σ, largest shift, sweeps
    "glass_blur": {
        224: [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
        64: [(0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)],
        32: [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    },
    # radius, σ
    "motion_blur": {
        224: [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
        64: [(10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)],
        32: [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    },
    # factors from 1 to the first number, in steps of the second
    "zoom_blur": {
        224: [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
        64: _STEPS_64,
        32: _STEPS_64,
    },
    # mean, deviation, zoom, threshold, radius and σ of the streaks, weight of the image
    "snow": {
        224: [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7), (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
        64: _with(_SNOW_64, 0.8, 0.8, 0.7, 0.65, 0.6),
        32: _with(_SNOW_64, 0.95, 0.9, 0.9, 0.85, 0.8),
    },
    # weights of image and frost, scale of the texture
    "frost": {
        224: _with([(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)], 1),
        64: _with([(1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)], 0.3),
        32: _with([(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)], 0.2),
    },
    # strength, decay of the relief from octave to octave
    "fog": {
        224: [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
        64: [(0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)],
        32: [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    },
    # added to the value of HSV
    "brightness": {
        224: _each(0.1, 0.2, 0.3, 0.4, 0.5),
        64: _each(0.1, 0.2, 0.3, 0.4, 0.5),
        32: _each(0.05, 0.1, 0.15, 0.2, 0.3),
    },
    # factor about the channel's mean
    "contrast": {
        224: _each(0.4, 0.3, 0.2, 0.1, 0.05),
        64: _each(0.4, 0.3, 0.2, 0.1, 0.05),
        32: _each(0.75, 0.5, 0.4, 0.3, 0.15),
    },
    # height and σ of the displacement, jitter of the affine map; ImageNet-C multiplies by 244
    "elastic_transform": {
        224: _times(244, [
            (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ]),
        64: _times(64, [
            (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ]),
        32: _times(32, [
            (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ]),
    },
    # side of the small image, of 1
    "pixelate": {
        224: _each(0.6, 0.5, 0.4, 0.3, 0.25),
        64: _each(0.9, 0.8, 0.7, 0.6, 0.5),
        32: _each(0.95, 0.9, 0.85, 0.75, 0.65),
    },
    # quality
    "jpeg_compression": {
        224: _each(25, 18, 15, 10, 7),
        64: _each(65, 58, 50, 40, 25),
        32: _each(80, 65, 58, 50, 40),
    },
    # σ of the factor
    "speckle_noise": {
        224: _each(0.15, 0.2, 0.35, 0.45, 0.6),
        64: _each(0.15, 0.2, 0.25, 0.3, 0.35),
        32: _each(0.06, 0.1, 0.12, 0.16, 0.2),
    },
    # σ
    "gaussian_blur": {
        224: _each(1, 2, 3, 4, 6),
        64: _each(0.5, 0.75, 1, 1.25, 1.5),
        32: _each(0.4, 0.6, 0.7, 0.8, 1),
    },
    # mean, deviation, σ, threshold, strength (water) or σ (mud), 0 water or 1 mud
    "spatter": {
        224: [
            (0.65, 0.3, 4, 0.69, 0.6, 0), (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0), (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ],
        64: [
            (0.62, 0.1, 0.7, 0.7, 0.6, 0), (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0), (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ],
        32: [
            (0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0), (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ],
    },
    # saturation of HSV becomes a·s + b
    "saturate": {
        224: [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
        64: [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)],
        32: [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
    },
}  # fmt: skip
