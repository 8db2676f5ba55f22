"""How rows of a table are made: a value per stream, means over streams, intervals of gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.running.protocol import Protocol, Run
from adte.evaluate.running.rows import interval
from adte.paper.lab import FAMILY, Lab, Rival
from adte.paper.study import Cell, Row

__all__ = [
    "FIXED_POINT",
    "INTERVAL",
    "STAND_INS",
    "Rival",
    "family_like",
    "mean",
    "over",
    "over_streams",
    "rows_of",
    "with_interval",
]

# The published estimator by itself, where a study is about it: no smoothing and no clipping.
FIXED_POINT: dict[str, Any] = {
    "estimator": "fixed-point",
    "smoothing": 0.0,
    "smoothing_total": 0.0,
    "clip": 0.0,
}
STAND_INS = (
    "In small the first column is the bundle of 1,200 photographs in 200 classes; the others are "
    "120 photographs in 40 classes under one corruption each, where the paper has variants of "
    "ImageNet. Published columns stand beside them by position, for orientation."
)
INTERVAL = "In brackets: 95 % of the gain over SE without adjustment, paired by image (bootstrap)."


def family_like(lab: Lab, names: tuple[str, ...] = tuple(FAMILY.values())) -> dict[str, str]:
    """Which published column each column of the family stands for; `names` as a table has them."""
    if lab.small:
        return dict(zip(lab.family(), names, strict=True))
    return dict(zip(FAMILY.values(), names, strict=True))


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, if there are values and none is missing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def over(
    streams: Mapping[str, FeatureStream | None],
    value: Callable[[FeatureStream], float],
    *averages: list[str],
) -> tuple[float | None, ...]:
    """A row: a value for every stream that has images, then the mean over each list of them."""
    cells = {n: value(s) if s is not None and len(s) else None for n, s in streams.items()}
    return (*cells.values(), *(mean([cells[n] for n in names]) for names in averages))


def rows_of(
    lab: Lab,
    rivals: Mapping[str, Rival],
    streams: Mapping[str, FeatureStream | None],
    *averages: list[str],
) -> list[Row]:
    """A row of accuracies for every rival that is not skipped."""
    return [
        Row(name, over(streams, partial(lab.accuracy, method=method, **options), *averages),
            method=method, options=options)
        for name, (method, options) in lab.wanted(rivals).items()
    ]  # fmt: skip


def with_interval(run: Run, base: NDArray[np.bool_]) -> Cell:
    """(accuracy, low, high) with the interval of the gain over the base."""
    low, high = interval(run.correct.astype(float) - base, run.ids)
    return float(run.correct.mean()), low, high


def over_streams(
    lab: Lab,
    streams: Mapping[str, FeatureStream],
    rivals: Mapping[str, Rival],
    protocol: Protocol,
) -> list[Row]:
    """A row for every rival, with the interval of its gain over SE on every stream."""
    base = {n: lab.run(s, "se", protocol).run.correct for n, s in streams.items()}
    return [
        Row(name, tuple(with_interval(lab.run(s, method, protocol, **options).run, base[n])
                        for n, s in streams.items()), method=method, options=options)
        for name, (method, options) in lab.wanted(rivals).items()
    ]  # fmt: skip
