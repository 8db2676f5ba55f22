"""Methods side by side on one stream, as a table."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, unknown
from adte.core.machine import as_it_is
from adte.core.options import at_least
from adte.data import StreamOptions
from adte.data.streams import TOGETHER
from adte.evaluate.features.stream import FeatureStream, Tick, silent
from adte.evaluate.report.sections import data_names, unusual_stream
from adte.evaluate.report.tables import (
    Grid,
    domains_table,
    rows_table,
    save_table,
    terminal_table,
)
from adte.evaluate.running.protocol import BATCH, Protocol
from adte.evaluate.running.results import Record, Results
from adte.evaluate.running.rows import aggregate, with_options
from adte.evaluate.running.tasks import Outcome, Task, run_tasks, tasks_for
from adte.evaluate.source import Source, needs_of
from adte.files.order import Blocks
from adte.methods import Method
from adte.models.prompts import Prompts

__all__ = ["Comparison", "Listener", "compare", "compare_tasks", "tasks_for"]


class Comparison(list[dict[str, Any]]):
    """The result of `compare`: a list with one dict per row, which prints as a table.

    It is shown as a table in a notebook, too. A row is one method under one protocol, with means
    over shuffles of the stream.

    Attributes:
        title: what the methods ran on.
        records: figures and conditions of every single run.
        domains: number of images of each domain.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        title: str = "",
        records: Sequence[Record] = (),
        domains: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(rows)
        self.title, self.records, self.domains = title, list(records), dict(domains or {})

    @classmethod
    def of(
        cls, outcomes: Sequence[Outcome], stream: FeatureStream, baseline: str | None = None
    ) -> Comparison:
        """Make the table of finished tasks; options that differ from the usual are named in it."""
        records = [o.record for o in outcomes]
        seen = records[0].conditions.images if records else 0
        data = stream.recipe.data
        about = f"{seen} images, {len(stream.classes)} classes, model {stream.recipe.model}"
        about = ", ".join(filter(None, [data_names(data), about, *unusual_stream(data)]))
        domains = Counter(outcomes[0].run.domains) if outcomes else {}
        rows = aggregate(outcomes, baseline)
        return cls(rows, about, records, domains)

    @property
    def grid(self) -> Grid:
        """The table with all columns, and a caption that explains them."""
        return rows_table(self, self.title)

    @property
    def small(self) -> Grid:
        """The table with the columns that fit into a terminal."""
        return terminal_table(self, self.title)

    @property
    def parts(self) -> Grid | None:
        """A table of the accuracy on each domain; None for a single domain."""
        return domains_table(self, self.domains)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table to a file, as .csv, .md, .html or .tex."""
        return save_table(path, self.grid)

    def to_json(self) -> dict[str, Any]:
        """The JSON of `--json`: the rows, and the metrics and protocol of each run."""
        runs = [r.to_json() for r in self.records]
        one = {k: runs[0][k] for k in ("metrics", "protocol")} if len(runs) == 1 else {"runs": runs}
        return {"rows": list(self), **one}

    def __str__(self) -> str:
        return "\n\n".join(_plain(g) for g in (self.small, self.parts) if g is not None)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(g.to_html() for g in (self.grid, self.parts) if g is not None)


def _plain(grid: Grid) -> str:
    """A table as aligned text."""
    lines = [[c.heading for c in grid.shown]]
    lines += [[f"{text} {pair}".strip() for text, pair, _ in row] for row in grid.cells()]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(
            text.ljust(n) if column.is_text else text.rjust(n)
            for text, n, column in zip(line, wide, grid.shown, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join(filter(None, [grid.title, *aligned, grid.caption]))


@dataclass(frozen=True)
class Listener:
    """Functions that are called as a comparison goes on.

    Attributes:
        tick: called with the number of images that were just done.
        begin: called with each task before it runs.
        end: called with the record of each run.
    """

    tick: Tick = silent
    begin: Callable[[Task], None] = lambda task: None
    end: Callable[[Record], None] = lambda record: None


def compare_tasks(
    stream: FeatureStream,
    tasks: Sequence[Task],
    *,
    runs: str | os.PathLike[str] | None = None,
    again: bool = False,
    batch: int | None = None,
    listener: Listener | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Run tasks on a stream; see `run_tasks`. `runs` is a folder that keeps them. Gains are over
    the row `baseline`, SE by default.
    """
    heard = listener or Listener()
    if any(t.seed == 0 for t in tasks):
        _note_sorted(stream)
    titles = dict.fromkeys(with_options(t.name, t.create().params) for t in tasks)
    if baseline is not None and baseline not in titles:
        raise unknown("baseline", baseline, titles)
    outcomes = run_tasks(
        stream,
        tasks,
        None if runs is None else Results(runs),
        heard.tick,
        heard.begin,
        heard.end,
        again=again,
        memory=True,
        batch=batch or BATCH,
    )
    return Comparison.of(outcomes, stream, baseline)


def _note_sorted(stream: FeatureStream) -> None:
    """Say so where the classes of a stream come one after the other, and nobody asked for it."""
    blocks = Blocks()
    if stream.recipe.data.get("order") not in TOGETHER:
        for label in stream.labels.tolist():
            blocks.add(label)
    if blocks.is_sorted:
        warnings.warn(
            "the images come class after class, which costs methods that learn accuracy; unless "
            "images will come like that, shuffle them: --shuffle 1, in Python shuffle=1",
            stacklevel=3,
        )


@as_it_is()
def compare(
    data: str | Sequence[str] | FeatureStream | None = None,
    methods: str | Task | Method | Sequence[str | Task | Method] | None = None,
    *,
    protocols: Protocol | Sequence[Protocol] | None = None,
    seeds: int = 1,
    shuffle: int = 0,
    runs: str | os.PathLike[str] | None = None,
    again: bool = False,
    listener: Listener | None = None,
    baseline: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare methods on one stream of labelled images, or of features.

    Args:
        data: "folder:photos", "cache:FOLDER", "npz:FILE" or the like, a list of several data sets,
            or a stream of your own features (see `adte.evaluate.from_arrays`). None takes the
            features of photographs that come with the package.
        methods: names of methods, methods with options as `create_method` makes them (copies run,
            which have learned nothing), or `adte.evaluate.Task`s. None takes all that do not run
            the image tower again.
        protocols: how methods that learn see the stream: one or several of `PROTOCOLS`; None gives
            each that under which it was published, online for nearly all.
        seeds: number of orders of the stream that methods that learn are run on: its own, and
            `seeds` − 1 others of its kind: shuffles, which keep domains and classes together
            where the stream does.
        shuffle: number of the first of these orders; 0 is the stream's own.
        runs: folder to save the runs in, for `adte report`. Runs that it holds already are not done
            again, so that an interrupted comparison can continue.
        again: do the runs again that `runs` holds already.
        listener: functions that are called on progress.
        baseline: the row that gains are measured against, named as in the table; by default "se",
            or "zero-shot" if that is not run.
        options: `model`, `device`, `batch` and the like, as `adte compare` takes them; `views`, a
            number or `Views`; `templates`, as in `Classifier`, by default the data set's own;
            `limit`, `order` and the other fields of `StreamOptions`.

    Returns:
        A `Comparison`: a list of rows that prints as a table.

    Raises:
        InputError: if data, a method or an option is unknown or cannot be used.

    >>> table = compare(methods=["zero-shot", "tilt"], limit=8)
    >>> [row["method"] for row in table]
    ['zero-shot', 'tilt']
    """
    seeds, shuffle = at_least("seeds", seeds, 1), at_least("shuffle", shuffle, 0)
    orders = range(shuffle, shuffle + seeds)
    if again and runs is None:
        raise InputError("again=True redoes the runs of a folder; name it as runs=FOLDER")
    if isinstance(data, FeatureStream):
        batch = options.pop("batch", None)
        batch = batch if batch is None else at_least("batch", batch, 1)
        if options:
            name = next(iter(options))
            mend = "give stream.first(N)" if name == "limit" else "make it with that option"
            raise InputError(f"{name} cannot be set for a stream that is made already; {mend}")
        lacking = frozenset({"text tower"} if data.model is None else ())
        tasks, stream = tasks_for(methods, protocols, orders, lacking), data
    else:
        source = _source(data, options)
        batch, lacking = source.batch, source.lacking
        tasks = tasks_for(methods, protocols, orders, lacking)
        needs = needs_of([t.create() for t in tasks])
        stream = source.or_bundle(needs)
    return compare_tasks(
        stream, tasks, runs=runs, again=again, batch=batch, listener=listener, baseline=baseline
    )


def _source(data: str | Sequence[str] | None, options: Mapping[str, Any]) -> Source:
    """The source of options that are named as in Python."""
    own = {f.name for f in fields(Source)} - {"data", "stream", "prompts"} | {"templates"}
    stream = {f.name for f in fields(StreamOptions)} - {"seed"}
    for name in options:
        if name not in own | stream:
            raise unknown("option of a comparison", name, own | stream)
    values = {k: v for k, v in options.items() if k in own}
    views, templates = values.get("views"), values.pop("templates", None)
    if isinstance(views, int):
        values["views"] = {"count": views}
    if templates is not None:
        values["prompts"] = Prompts.of(templates)
    specs = [] if data is None else [data] if isinstance(data, str) else data
    if not isinstance(specs, Sequence) or not all(isinstance(s, str) for s in specs):
        raise InputError(
            f"data of type {type(data).__name__} cannot be compared on; name it as in folder:PATH, "
            "or make a stream of your features with adte.evaluate.from_arrays"
        )
    asked = {k: v for k, v in options.items() if k in stream and v is not None}
    return Source(data=specs, stream=asked, **values)
