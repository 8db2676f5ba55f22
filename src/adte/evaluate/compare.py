"""Many methods on one labelled stream, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adte.evaluate import metrics
from adte.evaluate.runner import Protocol, Run, Stream, run
from adte.methods import Method, PriorMethod, create_method

__all__ = ["LADDER", "Entry", "Outcome", "compare", "format_rows"]

COLUMNS = ("method", "protocol", "acc.", "vs SE, 95 %", "ECE", "head", "mid", "tail", "img/s")


@dataclass(frozen=True)
class Entry:
    """One row to be: a method by name, its options, a protocol and how the row is called."""

    method: str
    protocol: Protocol = "online"
    options: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.method)


PRIOR: dict[str, Any] = {"estimator": "marginal", "smoothing": 1.0}  # the same for every row

# The paper's ladder, with logit adjustment given to the baselines too, so that it is a fair one.
LADDER: tuple[Entry, ...] = (
    Entry("zero-shot"),
    Entry("average"),
    Entry("se"),
    Entry("te"),
    Entry("zero"),
    *(
        Entry(name, protocol, options, title)
        for protocol in ("online", "two-pass")
        for name, options, title in (
            ("zero-shot", {"adjust": "after", **PRIOR}, "zero-shot + LA"),
            ("se", {"adjust": "before", **PRIOR}, "se + LA"),
            ("adte", {"adjust": "none"}, "adte, no LA"),
            ("adte", {}, ""),
            ("adte-paper", {}, ""),
            ("adte-released", {}, ""),
        )
    ),
)


@dataclass
class Outcome:
    """A row's run and the method in its final state."""

    entry: Entry
    run: Run
    method: Method


def compare(
    stream: Stream,
    entries: Sequence[Entry] = LADDER,
    tick: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run every entry on the stream, which must be re-iterable."""
    outcomes = []
    for entry in entries:
        method = create_method(entry.method, **entry.options)
        outcomes.append(Outcome(entry, run(method, stream, entry.protocol, tick), method))
    return outcomes


def rows(
    outcomes: Sequence[Outcome], frequency: ArrayLike, baseline: str = "se"
) -> list[dict[str, Any]]:
    """The table's facts: accuracies as fractions, the interval of the gain over the baseline.

    `frequency` (L,) says which classes are head, middle and tail; where the prior was estimated,
    `spearman` says how well it ranks the classes by it.
    """
    reference = next((o.run for o in outcomes if o.entry.title == baseline), None)
    third = metrics.thirds(frequency)
    table = []
    for o in outcomes:
        r = o.run
        part = third[r.labels]
        row: dict[str, Any] = {
            "method": o.entry.title,
            "protocol": o.entry.protocol if o.method.stateful else "stateless",
            "accuracy": metrics.accuracy(r.correct),
            "ci95": None,
            "ece": metrics.ece(r.confidence, r.correct),
        }
        if reference is not None:
            row["gain"] = row["accuracy"] - metrics.accuracy(reference.correct)
            row["ci95"] = list(metrics.bootstrap_difference(r.correct, reference.correct))
        for i, name in enumerate(("head", "middle", "tail")):
            row[name] = metrics.accuracy(r.correct[part == i]) if (part == i).any() else None
        row["images_per_s"] = r.images_per_s
        prior = o.method.prior if isinstance(o.method, PriorMethod) else None
        row["spearman"] = (
            None
            if prior is None
            else metrics.spearman(prior.log_prior.numpy(), np.asarray(frequency))
        )
        row["options"] = r.options
        table.append(row)
    return table


def format_rows(table: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Rows as text for a table with `COLUMNS`."""

    def percent(x: float | None, sign: str = "") -> str:
        return "" if x is None else f"{100 * x:{sign}.1f}"

    return [
        [
            r["method"],
            "—" if r["protocol"] == "stateless" else r["protocol"],
            percent(r["accuracy"]),
            ""
            if r["ci95"] is None
            else f"{percent(r['ci95'][0], '+')}…{percent(r['ci95'][1], '+')}",
            percent(r["ece"]),
            percent(r["head"]),
            percent(r["middle"]),
            percent(r["tail"]),
            f"{r['images_per_s']:.0f}",
        ]
        for r in table
    ]
