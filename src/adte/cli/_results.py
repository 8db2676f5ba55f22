"""Where the results of runs go: a table, a file, a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from adte.cli._group import JSON
from adte.cli._options import Section
from adte.cli._outputs import table_file
from adte.core.errors import InputError
from adte.files import console

if TYPE_CHECKING:
    from adte.evaluate.features.stream import FeatureStream
    from adte.evaluate.running.tasks import Task
    from adte.evaluate.source import Source

KEYS = ("runs", "skip", "table_to", "json_to")


RUN_OPTIONS = (
    click.option("--runs", metavar="FOLDER",
                 help="Save each run there as a JSON file, for `adte report`, and to resume."),
    click.option("--skip-existing/--again", "skip", default=True, show_default=True,
                 help="Reuse the runs that --runs already holds, or do them again."),
    click.option("--table", "table_to", metavar="FILE", callback=table_file,
                 help="Also write the table to FILE: .csv, .md, .html, or .tex for a paper."),
    JSON,
)  # fmt: skip


run_options = Section("Results", *RUN_OPTIONS)


def run_and_show(source: Source, tasks: Sequence[Task], to: dict[str, Any]) -> None:
    """Run tasks with progress on what the source holds, the embedded bundle if it names no data;
    print the table, write what was asked for. `to` are the values of `run_options`, and `baseline`.
    """
    from adte.evaluate.compare import Listener, compare_tasks
    from adte.evaluate.running.tasks import ticks
    from adte.evaluate.source import needs_of
    from adte.label.report import counted

    table_to, json_to = to["table_to"], to["json_to"]
    needs = needs_of([t.create() for t in tasks])  # a bad option ends here, before any work
    with console.notes():
        stream = source.or_bundle(needs)
    if note := unseen(stream):
        console.say(f"note: {note}")
    with console.notes(), console.progress("encoding", ticks(stream, tasks)) as bar:
        done = compare_tasks(
            stream,
            tasks,
            runs=to["runs"],
            again=not to["skip"],
            batch=source.batch,
            baseline=to["baseline"],
            listener=Listener(bar.advance, lambda task: bar.update(task.name)),
        )
    if table_to:
        done.save(table_to)
    if console.told(done.to_json(), json_to):
        console.grid(done.small)
        if done.parts is not None:
            console.grid(done.parts)
        if skipped := done.records[0].conditions.skipped:
            console.out.print(f"skipped {counted(len(skipped), 'image')} that could not be read, "
                              f"the first: {skipped[0]['reason']}", markup=False)  # fmt: skip


def unseen(stream: FeatureStream) -> str:
    """Which classes the data have a name for, but no image."""
    from adte.evaluate.features.live import Live

    if not isinstance(stream, Live):
        return ""
    said = []
    for data in stream.stream.datasets:
        if gaps := data.gaps:
            more = ", …" if len(gaps) > 3 else ""
            said.append(f"{data.name!r} has no image of {len(gaps)} of its {len(data.classes)} "
                        f"classes: {', '.join(gaps[:3])}{more}")  # fmt: skip
    return "; ".join(dict.fromkeys(said))


def taken(values: dict[str, Any]) -> dict[str, Any]:
    """The values of `run_options`, taken out of those of a verb."""
    to = {key: values.pop(key) for key in KEYS}
    if not to["skip"] and to["runs"] is None:
        raise InputError("--again needs --runs, the folder whose runs are to be redone")
    return to
