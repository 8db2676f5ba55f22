"""Rows over seeds: the mean figures of each method under each protocol, and its gain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from adte.evaluate.running import metrics
from adte.evaluate.running.figures import seed_interval
from adte.evaluate.running.paired import Drawn, drawn, gain, right_over_seeds
from adte.evaluate.running.protocol import PROTOCOLS
from adte.evaluate.running.tasks import Outcome

__all__ = ["Row", "aggregate", "baseline_of", "by_row", "row_of"]

Row = tuple[str, str]  # title and protocol, or title and "stateless"

BASELINES = ("se", "zero-shot")  # that gains are over, unless another is asked for


def baseline_of(rows: Collection[Row], asked: str | None = None) -> Row | None:
    """The row that gains are over: what was asked for, else SE, else zero-shot, and online if it
    ran so; None if it is not there, or alone.
    """
    wanted = BASELINES if asked is None else (asked,)
    ordered = sorted(rows, key=lambda row: ["stateless", *PROTOCOLS].index(row[1]))
    return next((row for n in wanted for row in ordered if row[0] == n and len(rows) > 1), None)


def row_of(outcome: Outcome) -> Row:
    """The row that an outcome is of: one for every protocol, if the method keeps a state."""
    stateful = outcome.record.conditions.stateful
    return outcome.task.name, outcome.task.protocol if stateful else "stateless"


def by_row(outcomes: Iterable[Outcome]) -> dict[Row, list[Outcome]]:
    """Outcomes by the row that they are of, in order of appearance.

    A method that keeps no state counts once for each draw: its other orders and protocols say the
    same.
    """
    grouped: dict[Row, list[Outcome]] = {}
    for o in outcomes:
        group = grouped.setdefault(row_of(o), [])
        if o.record.conditions.stateful or drawn(o) not in map(drawn, group):
            group.append(o)
    return grouped


def aggregate(outcomes: Sequence[Outcome], baseline: str | None = None) -> list[dict[str, Any]]:
    """Rows over seeds.

    Figures are means over draws, each the mean over its orders; so is the gain. `ci95` is the 95 %
    interval of the accuracy (Student's t, cut off at 0 and 1) over draws, over orders where there
    is one draw, and None for one of those. `gain_ci95` is that of the gain over the baseline,
    paired by image (bootstrap). `over` is the title of the baseline, see `baseline_of`, and has its
    protocol where it ran under several. A row that lacks some of the draws is `aside`.
    """
    every = set(map(drawn, outcomes))
    grouped = by_row(outcomes)
    base = baseline_of(grouped.keys(), baseline)
    reference = None if base is None else right_over_seeds(grouped[base])
    over = base and (base[0] if [t for t, _ in grouped].count(base[0]) == 1 else ", ".join(base))
    rows = []
    for (title, protocol), group in grouped.items():
        orders: dict[Drawn, list[dict[str, Any]]] = {}
        for o in group:
            orders.setdefault(drawn(o), []).append(o.record.metrics)
        draws = [metrics.averages(figures) for figures in orders.values()]
        seeds = draws if len(draws) > 1 else [o.record.metrics for o in group]
        ci95 = seed_interval([f["accuracy"] for f in seeds])
        found, means = gain(right_over_seeds(group), reference), metrics.averages(draws)
        row: dict[str, Any] = {
            "method": title,
            "protocol": protocol,
            "accuracy": means["accuracy"],
            "ci95": None if ci95 is None else np.clip(ci95, 0.0, 1.0).tolist(),
            "gain": None if found is None else found[0],
            "gain_ci95": None if found is None else found[1],
            "over": over,
            "seeds": len(group),
            "draws": len(draws),
            "aside": len(draws) < len(every),
        }
        row |= means
        about = group[0].record.conditions
        row |= {"options": about.options, "own_prompt": about.own_prompt}
        rows.append(row)
    return rows
