"""The shape that most studies share: a row for every rival, a column for every setting.

A column is a stream or several, a rival a method with its options; a column may add options of its
own. A cell is the accuracy, or the accuracy with the interval of its gain over SE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.running.protocol import Protocol, Run
from adte.evaluate.running.rows import interval
from adte.paper.lab import FAMILY, Lab, Rival
from adte.paper.study import Cell, Finding, Row

__all__ = [
    "FIXED_POINT", "INTERVAL", "STAND_INS", "accuracy", "family_like", "gain", "mean", "on_family",
    "over_se", "rows_of", "table",
]  # fmt: skip

Column = FeatureStream | Sequence[FeatureStream]
Value = Callable[..., Cell]  # of a lab, streams, a method, a protocol, and options of the method

# The published estimator by itself, where a study is about it: no smoothing and no clipping.
FIXED_POINT: dict[str, Any] = {
    "estimator": "fixed-point", "smoothing": 0.0, "smoothing_total": 0.0, "clip": 0.0
}  # fmt: skip
STAND_INS = (
    "In small the first column is the bundle of 1,200 photographs in 200 classes; the others are "
    "120 photographs in 40 classes under one corruption each, where the paper has variants of "
    "ImageNet. Published columns stand beside them by position, for orientation."
)
INTERVAL = "In brackets: 95 % of the gain over SE without adjustment, paired by image (bootstrap)."


def mean(values: Sequence[Cell]) -> float | None:
    """The mean; None of no values, and where one is missing."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def accuracy(lab: Lab, streams: Sequence[FeatureStream], method: str, **options: Any) -> Cell:
    """The mean accuracy over streams."""
    return mean([lab.accuracy(s, method, **options) if len(s) else None for s in streams])


def gain(
    lab: Lab,
    streams: Sequence[FeatureStream],
    method: str,
    protocol: Protocol | None = None,
    **options: Any,
) -> Cell:
    """(accuracy, low, high) over all images, with the interval of the gain over SE."""
    return over_se(lab, streams, [lab.run(s, method, protocol, **options).run for s in streams])


def over_se(lab: Lab, streams: Sequence[FeatureStream], runs: Sequence[Run]) -> Cell:
    """The same of runs on these streams."""
    mine = np.concatenate([r.correct for r in runs]).astype(float)
    base = np.concatenate([lab.run(s, "se").run.correct for s in streams])
    low, high = interval(mine - base, [i for r in runs for i in r.ids])
    return float(mine.mean()), low, high


def rows_of(
    lab: Lab,
    rivals: Mapping[str, Rival],
    columns: Mapping[str, Column],
    *,
    value: Value = accuracy,
    added: Mapping[str, Mapping[str, Any]] | None = None,
    means: Sequence[Sequence[str]] = (),
    protocol: Protocol | None = None,
) -> list[Row]:
    """A row for every rival that is not skipped: its columns, then means over lists of them.

    `added` are the options of each column.
    """
    streams = {c: [s] if isinstance(s, FeatureStream) else list(s) for c, s in columns.items()}
    rows = []
    for name, (method, options) in lab.wanted(rivals).items():
        cells = {
            c: value(lab, s, method, protocol=protocol, **options, **(added or {}).get(c, {}))
            for c, s in streams.items()
        }
        averages = [mean([cells[c] for c in some]) for some in means]
        row = Row(name, (*cells.values(), *averages), method=method, options=options)
        rows.append(row)
    return rows


def table(
    lab: Lab,
    rivals: Mapping[str, Rival],
    columns: Mapping[str, Column],
    *,
    value: Value = accuracy,
    added: Mapping[str, Mapping[str, Any]] | None = None,
    means: Mapping[str, Sequence[str]] | None = None,
    protocol: Protocol | None = None,
    **facts: Any,
) -> Finding:
    """A finding of such rows; `means` are columns by name, `facts` go to the finding."""
    means = means or {}
    rows = rows_of(lab, rivals, columns, value=value, added=added, means=[*means.values()],
                   protocol=protocol)  # fmt: skip
    named = {id(s): s for c in columns.values()
             for s in ([c] if isinstance(c, FeatureStream) else c)}  # fmt: skip
    setting = lab.setting(named.values(), protocol)
    return Finding(setting, (*columns, *means), rows, **facts)


def family_like(lab: Lab, names: tuple[str, ...] = tuple(FAMILY.values())) -> dict[str, str]:
    """The published column beside each column of the family; `names` as a table has them."""
    return dict(zip(lab.family() if lab.small else FAMILY.values(), names, strict=True))


def on_family(
    lab: Lab,
    rivals: Mapping[str, Rival],
    names: tuple[str, ...] = tuple(FAMILY.values()),
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Finding:
    """Such a table on ImageNet and its variants, which the paper's table calls by these names."""
    notes = (*notes, *((STAND_INS,) if lab.small else ()))
    return table(lab, rivals, lab.family(), like=family_like(lab, names), notes=notes, **more)
