"""The paper's own numbers, as data: a study's results are set beside them.

Every table of "Adaptive Debiasing Tsallis Entropy for Test-Time Adaptation" (ICLR 2026), under the
name of the study that reproduces it. Figures are kept as printed, slips included; the tests list
those that do not add up. Where a table's units change from row to row it is turned, so that a
column has one unit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeAlias

from adte.core.errors import unknown

__all__ = ["Cell", "Published", "Row", "list_published", "published"]

Cell: TypeAlias = float | tuple[float, ...] | None


@dataclass(frozen=True)
class Row:
    """One row, printed or ours; `block` tells rows of one name apart.

    Of ours, `like` names the published row beside it, where that has another name. `method` is the
    registered name behind it, `options` what differs from its preset. A row that is `aside` saw
    other images than the rest and is not ranked with them. `spread` has, for every cell that is a
    mean over seeds, half of its 95 % interval.
    """

    name: str
    cells: tuple[Cell, ...]
    like: str = ""
    block: str | None = None
    aside: bool = False
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    spread: tuple[float | None, ...] = ()

    @property
    def variant(self) -> str:
        """The method with its options, as in "adte adjust=none"."""
        return " ".join([self.method, *(f"{k}={v}" for k, v in self.options.items())])


@dataclass(frozen=True)
class Published:
    """One table of the paper.

    A cell is a number, several where the paper prints several (accuracy and confidence, value and
    half-width), or None where it prints a dash. `units` has "percent" or "plain" for every column.
    """

    name: str
    label: tuple[str, ...]
    title: str
    model: str
    data: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    units: tuple[str, ...]

    def cell(self, row: str, column: str, block: str | None = None) -> Cell:
        """The printed cell, in the column's unit; None where nothing is printed.

        `block` is needed only where several blocks have a row of that name.

        >>> published("ood").cell("ADTE", "IN-A", "ViT-B/16 templates")
        65.5
        """
        found = [r for r in self.rows if r.name == row and block in (None, r.block)]
        known = found and column in self.columns
        return found[0].cells[self.columns.index(column)] if known else None

    def percent(self, column: str) -> bool:
        """Whether the column's cells are percentages."""
        return self.units[self.columns.index(column)] == "percent"

    def fraction(self, cell: Cell, column: str) -> Cell:
        """A cell of that column with percentages as fractions."""
        if cell is None or not self.percent(column):
            return cell
        return tuple(x / 100 for x in cell) if isinstance(cell, tuple) else cell / 100


@lru_cache(maxsize=1)
def _tables() -> dict[str, Published]:
    text = files("adte").joinpath("assets", "paper.json").read_text(encoding="utf-8")
    return {name: _table(name, entry) for name, entry in json.loads(text).items()}


def _table(name: str, entry: dict[str, Any]) -> Published:
    label, columns = entry.pop("label"), tuple(entry.pop("columns"))
    unit = entry.pop("unit", None)
    rows = tuple(
        Row(r["name"], tuple(tuple(c) if isinstance(c, list) else c for c in r["cells"]),
            block=r.get("block"))
        for r in entry.pop("rows")
    )  # fmt: skip
    units = tuple(entry.pop("units", (unit,) * len(columns)))
    label = (label,) if isinstance(label, str) else tuple(label)
    return Published(name=name, label=label, columns=columns, rows=rows, units=units, **entry)


def published(name: str) -> Published:
    """The paper's table for a study.

    >>> published("entropies").cell("SE-LA", "IN")
    71.0
    """
    tables = _tables()
    if name not in tables:
        raise unknown("published table", name, tables)
    return tables[name]


def list_published() -> list[str]:
    """The names of all tables, in the order of the paper."""
    return list(_tables())
