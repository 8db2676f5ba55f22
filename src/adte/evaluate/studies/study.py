"""What a study is: a table or figure that runs, the paper's or our own, and what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from adte.evaluate.published import Cell, Published, list_published, published
from adte.registry import Registry

if TYPE_CHECKING:
    from adte.evaluate.studies.lab import Lab

__all__ = [
    "STUDIES",
    "Cell",
    "Figure",
    "Finding",
    "Row",
    "Series",
    "Study",
    "find_study",
    "studies",
    "study",
]


@dataclass(frozen=True)
class Row:
    """One row of ours; `like` names the published row and block that it stands beside.

    A row that is `aside` saw other images than the rest and is not ranked with them.
    """

    name: str
    cells: tuple[Cell, ...]
    like: str = ""
    block: str | None = None
    aside: bool = False


@dataclass(frozen=True)
class Series:
    """A line of a figure; `low` and `high` are its band."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """A plot as data, so that it can be kept, sent and drawn elsewhere."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False


@dataclass
class Finding:
    """What a study found, in the paper's shape.

    Attributes:
        setting: what it ran on, in a few words.
        columns, rows: ours; percentages are fractions here, as everywhere in `adte`.
        units: "percent" or "plain" for every column.
        like: which published column each of ours stands for; by the same name unless said.
        lower: whether less is better; ranked: whether rows compete at all.
        fair: whether the data are the published table's, so that a difference means something.
        notes: what a reader should know before comparing.
        seconds: how long the study took.
    """

    setting: str
    columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    units: tuple[str, ...] = ()
    like: dict[str, str] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    lower: bool = False
    ranked: bool = True
    fair: bool = True
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        self.units = self.units or ("percent",) * len(self.columns)


@dataclass(frozen=True)
class Study:
    """A table or figure by name; `ours` if the paper has none like it."""

    name: str
    title: str
    kind: Literal["table", "figure"]
    run: Callable[[Lab], Finding] = field(repr=False)
    about: str = ""
    ours: bool = False

    @property
    def cls(self) -> Callable[[Lab], Finding]:
        """What was registered, by which the registry tells its origin."""
        return self.run

    @property
    def published(self) -> Published | None:
        """The paper's own numbers; a figure has none in its source."""
        return published(self.name) if self.name in list_published() else None

    def conduct(self, lab: Lab) -> Finding:
        """Run it, and note how long that took."""
        start = time.perf_counter()
        finding = self.run(lab)
        finding.seconds = time.perf_counter() - start
        return finding

    def facts(self, finding: Finding, same_model: str | None = None) -> dict[str, Any]:
        """As JSON: long rows with ours and published, both as fractions where percentages.

        `same_model` names the published block that our model is. A difference is given only if the
        table is of that model, and its data are ours.
        """
        same_model = self.comparable(finding, same_model)
        rows = []
        for row in finding.rows:
            for column, unit, ours in zip(finding.columns, finding.units, row.cells, strict=True):
                theirs = self.beside(finding, row, column)
                known = same_model is not None and isinstance(ours, float)
                gap = ours - theirs if known and isinstance(theirs, float) else None  # type: ignore[operator]
                rows.append({"row": row.name, "column": column, "unit": unit, "ours": ours,
                             "published": theirs, "difference": gap})  # fmt: skip
        return {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "setting": finding.setting,
            "same_model": same_model is not None,
            "rows": rows,
            "figures": [asdict(f) for f in finding.figures],
            "notes": list(finding.notes),
            "seconds": finding.seconds,
        }

    def comparable(self, finding: Finding, block: str | None) -> str | None:
        """The block, if the published table is of that model and the finding of its data."""
        table = self.published
        known = block is not None and table is not None and block in table.model
        return block if known and finding.fair else None

    def beside(self, finding: Finding, row: Row, column: str) -> Cell:
        """The published cell beside one of ours, in our units."""
        table, column = self.published, finding.like.get(column, column)
        if table is None:
            return None
        return table.fraction(table.cell(row.like or row.name, column, row.block), column)


STUDIES: Registry[Study] = Registry("study")


def study(
    name: str, title: str, kind: Literal["table", "figure"] = "table", ours: bool = False
) -> Callable[[Callable[[Lab], Finding]], Callable[[Lab], Finding]]:
    """Decorator: make a function of a lab known as the study of that name.

    Its docstring says what it shows. A study of the paper has the paper's name and stands under
    `adte paper`; one that is `ours`, or a plug-in's own, under `adte study`.

        @study("mine", "What I wanted to know", ours=True)
        def mine(lab):
            "Accuracy of ADTE on the photographs."
            stream = lab.main()
            rows = [Row("ADTE", (lab.accuracy(stream, "adte"),))]
            return Finding(lab.setting([stream]), ("accuracy",), rows)
    """

    def add(run: Callable[[Lab], Finding]) -> Callable[[Lab], Finding]:
        about = " ".join((run.__doc__ or "").split())
        STUDIES.add(name, Study(name, title, kind, run, about, ours))
        return run

    return add


def studies(ours: bool | None = None) -> list[Study]:
    """All studies, or the paper's, or our own; the paper's in its order, tables first."""
    rank = {name: i for i, name in enumerate(list_published())}
    found = [s for s in map(find_study, STUDIES) if ours in (None, s.ours)]
    return sorted(found, key=lambda s: (s.ours, rank.get(s.name, len(rank))))


def find_study(name: str) -> Study:
    """The study of that name; an unknown one is an error that lists what exists."""
    return STUDIES[name]
