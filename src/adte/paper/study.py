"""A study: a table or figure that runs, the paper's or our own; its rows; and how it is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import active_children, get_context
from typing import Any, Literal

import numpy as np
import torch

from adte.core.errors import AdteError, InputError
from adte.core.registry import Registry
from adte.evaluate.running.figures import seed_interval
from adte.paper.lab import Lab, Settings
from adte.paper.published import Cell, Published, Row, list_published, published

__all__ = [
    "STUDIES", "Cell", "Finding", "Plot", "Row", "Study", "averaged", "chosen",
    "conduct", "find_study", "studies", "study",
]  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """How a finding is drawn: a line per row, over the values of its columns."""

    x: str
    y: str
    at: tuple[float, ...]
    log_x: bool = False


@dataclass
class Finding:
    """The result of a study, in the paper's shape.

    Attributes:
        setting: what it ran on, in a few words: model, images, views, protocol, seeds.
        columns, rows: ours; percentages are fractions here, as everywhere in `adte`.
        units: "percent" or "plain" for every column; percent by default.
        like: the published column beside each of ours, where its name is another.
        lower: whether less is better; ranked: whether rows compete at all.
        methods: the registered method behind a column, where columns are methods.
        fair: whether the data are the published table's, so that a difference means something.
        block: the model of the paper that ours is, if its published weights were loaded; else
            `unlike` says why not.
        seeds: how many runs the figures are means of.
        notes: what a reader should know before comparing.
        seconds: how long the study took.
    """

    setting: str
    columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    units: tuple[str, ...] = ()
    like: dict[str, str] = field(default_factory=dict)
    plot: Plot | None = None
    notes: tuple[str, ...] = ()
    lower: bool = False
    ranked: bool = True
    methods: dict[str, str] = field(default_factory=dict)
    fair: bool = True
    block: str | None = None
    unlike: str = ""
    seeds: int = 1
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        self.units = self.units or ("percent",) * len(self.columns)


@dataclass(frozen=True)
class Study:
    """A table or figure by name; `ours` if the paper has none like it.

    `draws` says what a seed draws, where it is not what the lab draws; a study that is `ours`, or
    that draws nothing (None), runs once.
    """

    name: str
    title: str
    kind: Literal["table", "figure"]
    run: Callable[[Lab], Finding] = field(repr=False)
    about: str = ""
    ours: bool = False
    draws: str | None = ""

    @property
    def cls(self) -> Callable[[Lab], Finding]:
        """The function that was registered, by which the registry tells its origin."""
        return self.run

    @property
    def published(self) -> Published | None:
        """The paper's own numbers; a figure has none in its source."""
        return published(self.name) if self.name in list_published() else None

    def conduct(self, settings: Settings, shared: dict[Any, Any] | None = None) -> Finding:
        """Run it once per seed, and note the means and how long that took.

        Studies that are given the same dictionary share what is loaded and run.
        """
        start, shared = time.perf_counter(), {} if shared is None else shared
        once = self.ours or self.draws is None
        labs = [Lab(settings, seed, shared=shared) for seed in range(1 if once else settings.seeds)]
        finding = averaged([self.run(lab) for lab in labs])
        if not finding.rows:
            raise InputError("all of its methods are skipped; leave out a --skip")
        finding.block, finding.unlike = settings.block, settings.unlike
        if not once:
            drawn = self.draws or settings.draws
            finding.setting += f", {finding.seeds} seed{'s' * (finding.seeds > 1)} of {drawn}"
        finding.seconds = time.perf_counter() - start
        return finding

    def facts(self, finding: Finding) -> dict[str, Any]:
        """As JSON: long rows with ours and published, both as fractions where percentages.

        A difference is given only if `unlike` has no reason against it.
        """
        rows = [
            {"row": row.name, "column": column, "unit": finding.units[i],
             "method": row.method or finding.methods.get(column, ""), "options": row.options,
             "ours": row.cells[i], "half_width": row.spread[i] if row.spread else None,
             "published": self.beside(finding, row, column),
             "difference": self.difference(finding, row, i)}
            for row in finding.rows for i, column in enumerate(finding.columns)
        ]  # fmt: skip
        return {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "setting": finding.setting,
            "seeds": finding.seeds,
            "same_model": not self.unlike(finding),
            "no_difference": self.unlike(finding),
            "rows": rows,
            "plot": finding.plot and asdict(finding.plot),
            "notes": list(finding.notes),
            "seconds": finding.seconds,
        }

    def unlike(self, finding: Finding) -> str:
        """Why ours less the published would mean nothing; empty where it means something."""
        table, block = self.published, finding.block
        if table is None:
            return "the paper prints no figures of it"
        if block is None:
            return finding.unlike or "the model is not the paper's"
        if block not in table.model:
            return f"the table is of {table.model}, ours of {block}"
        return "" if finding.fair else f"the table is of {table.data}, ours is not"

    def difference(self, finding: Finding, row: Row, place: int) -> Cell:
        """One cell of ours less the published one; of pairs each by itself."""
        ours, theirs = row.cells[place], self.beside(finding, row, finding.columns[place])
        if ours is None or theirs is None or self.unlike(finding):
            return None
        if isinstance(ours, tuple):
            if not isinstance(theirs, tuple):
                return None
            return tuple(a - b for a, b in zip(ours, theirs, strict=True))
        return ours - (theirs[0] if isinstance(theirs, tuple) else theirs)  # a mean ± its half

    def beside(self, finding: Finding, row: Row, column: str) -> Cell:
        """The published cell beside one of ours, in our units."""
        table, column = self.published, finding.like.get(column, column)
        if table is None:
            return None
        return table.fraction(table.cell(row.like or row.name, column, row.block), column)


# --------------------------------------------------------------------------- means over seeds


def averaged(findings: Sequence[Finding]) -> Finding:
    """The findings of one study over seeds as one: means, with half of their 95 % intervals."""
    one = replace(findings[0], seeds=len(findings))
    if one.seeds == 1:
        return one
    rows = []
    for row in one.rows:
        same = (row.name, row.block)
        every = [r.cells for f in findings for r in f.rows if (r.name, r.block) == same]
        columns = [[c for c in column if c is not None] for column in zip(*every, strict=True)]
        cells, spread = tuple(map(_mean, columns)), tuple(map(_half, columns))
        rows.append(replace(row, cells=cells, spread=spread))
    return replace(one, rows=rows)


def _mean(values: Sequence[Any]) -> Any:
    if not values:
        return None
    means = np.mean(np.asarray(values, dtype=float), axis=0).tolist()
    return tuple(means) if isinstance(means, list) else means


def _half(values: Sequence[Any]) -> float | None:
    """Half of the 95 % interval of a mean over seeds (Student's t)."""
    if not values or isinstance(values[0], tuple) or (ends := seed_interval(values)) is None:
        return None
    return round((ends[1] - ends[0]) / 2, 12)  # nothing where all are equal


# --------------------------------------------------------------------------- by name


STUDIES: Registry[Study] = Registry("study")


def study(
    name: str,
    title: str,
    kind: Literal["table", "figure"] = "table",
    ours: bool = False,
    draws: str | None = "",
) -> Callable[[Callable[[Lab], Finding]], Callable[[Lab], Finding]]:
    """Decorator: register a function of a lab as the study of that name.

    Its docstring says what it shows. A study of the paper has the paper's name and stands under
    `adte paper`; one that is `ours`, or a plug-in's own, under `adte study`. For `draws` see
    `Study`.

        @study("mine", "What I wanted to know", ours=True)
        def mine(lab):
            "Accuracy of SE on the photographs."
            return table(lab, {"SE": ("se", {})}, {"accuracy": lab.main()})
    """

    def add(run: Callable[[Lab], Finding]) -> Callable[[Lab], Finding]:
        about = " ".join((run.__doc__ or "").split())
        STUDIES.add(name, Study(name, title, kind, run, about, ours, draws))
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


def chosen(names: Sequence[str], ours: bool) -> list[Study]:
    """Studies by name; "all" for all of the paper's, or of ours."""
    if list(names) == ["all"]:
        return studies(ours)
    found = [find_study(n) for n in dict.fromkeys(names)]
    for s in found:
        if s.ours != ours:
            verb = "study" if s.ours else "paper"
            raise InputError(f"{s.name!r} is run with `adte {verb} {s.name}`")
    return found


# --------------------------------------------------------------------------- side by side

# The longest go first, so that workers end together.
SLOW = ("ood", "cross-domain", "robust")


def conduct(
    wanted: Sequence[Study], settings: Settings, jobs: int = 1
) -> Iterator[tuple[Study, Finding | AdteError]]:
    """Each study with its finding, or why it could not be run, as they end."""
    if jobs == 1 or len(wanted) == 1:
        shared: dict[Any, Any] = {}
        for s in wanted:
            try:
                yield s, s.conduct(settings, shared)
            except AdteError as error:
                yield s, error
        return
    order = sorted(wanted, key=lambda s: SLOW.index(s.name) if s.name in SLOW else len(SLOW))
    with ProcessPoolExecutor(min(jobs, len(order)), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_work, s.name, settings): s for s in order}
        try:
            for done in as_completed(waiting):
                try:
                    yield waiting[done], done.result()
                except AdteError as error:
                    yield waiting[done], error
        except KeyboardInterrupt:  # what is under way is not waited for; its runs so far are kept
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def _work(name: str, settings: Settings) -> Finding:
    torch.set_num_threads(1)
    return find_study(name).conduct(settings)
