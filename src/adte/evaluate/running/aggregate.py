"""Rows over seeds: the mean figures of each method under each protocol, and its gain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from adte.evaluate.running import metrics
from adte.evaluate.running.figures import seed_interval
from adte.evaluate.running.paired import gain, right_over_seeds
from adte.evaluate.running.protocol import PROTOCOLS
from adte.evaluate.running.tasks import Outcome

__all__ = ["aggregate", "baseline_of", "by_row"]

Row = tuple[str, str]  # title and protocol

BASELINES = ("se", "zero-shot")  # that gains are over, unless another is asked for


def baseline_of(rows: Collection[Row], asked: str | None = None) -> Row | None:
    """The row that gains are over: what was asked for, else SE, else zero-shot, and online if it
    ran so; None if it is not there, or alone.
    """
    wanted = BASELINES if asked is None else (asked,)
    ordered = sorted(rows, key=lambda row: [*PROTOCOLS].index(row[1]))
    return next((row for n in wanted for row in ordered if row[0] == n and len(rows) > 1), None)


def by_row(outcomes: Iterable[Outcome]) -> dict[Row, list[Outcome]]:
    """Outcomes by the row that they are of, in order of appearance."""
    grouped: dict[Row, list[Outcome]] = {}
    for o in outcomes:
        grouped.setdefault((o.task.name, o.task.protocol), []).append(o)
    return grouped


def aggregate(outcomes: Sequence[Outcome], baseline: str | None = None) -> list[dict[str, Any]]:
    """Rows over seeds.

    `ci95` is the 95 % interval of the accuracy over seeds (Student's t, cut off at 0 and 1; None
    for one seed), and `gain_ci95` that of the gain over the baseline, paired by image (bootstrap).
    `over` is the title of the baseline, see `baseline_of`, and has its protocol where it ran under
    several.
    """
    grouped = by_row(outcomes)
    base = baseline_of(grouped.keys(), baseline)
    reference = None if base is None else right_over_seeds(grouped[base])
    over = base and (base[0] if [t for t, _ in grouped].count(base[0]) == 1 else ", ".join(base))
    rows = []
    for (title, protocol), group in grouped.items():
        figures = [o.record.metrics for o in group]
        values = np.array([f["accuracy"] for f in figures])
        found, ci95 = gain(right_over_seeds(group), reference), seed_interval(values)
        row: dict[str, Any] = {
            "method": title,
            "protocol": protocol if group[0].record.conditions.stateful else "stateless",
            "accuracy": float(values.mean()),
            "ci95": None if ci95 is None else np.clip(ci95, 0.0, 1.0).tolist(),
            "gain": None if found is None else found[0],
            "gain_ci95": None if found is None else found[1],
            "over": over,
            "seeds": len(values),
        }
        row |= metrics.averages(figures)
        row["options"] = group[0].record.conditions.options
        rows.append(row)
    return rows
