"""What kept runs say: read results folders, put together what can be compared, and test it.

Runs that share data, model, prompts and views make a section; in it, runs of one method under one
protocol with the same options, one a seed, make an entry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adte.errors import InputError
from adte.evaluate import metrics
from adte.evaluate.results import Results
from adte.evaluate.tasks import Outcome, Task, aggregate, right_by_image
from adte.methods import create_method, list_methods

__all__ = ["Entry", "Section", "read_sections"]

SAME = ("model", "fingerprint", "prompts", "preprocess", "data", "part", "images", "classes")
BASELINE = "se"


@dataclass(frozen=True)
class Entry:
    """A row of a section's table, and the runs behind it, one a seed."""

    row: dict[str, Any]
    outcomes: list[Outcome]
    files: list[Path]

    @property
    def name(self) -> str:
        protocol = self.row["protocol"]
        method: str = self.row["method"]
        return method if protocol == "stateless" else f"{method}, {protocol}"

    @property
    def first(self) -> Outcome:
        """The run of the lowest seed."""
        return min(self.outcomes, key=lambda o: o.task.seed)

    @property
    def ours(self) -> bool:
        """Whether it is of ADTE's family; what is not is a baseline."""
        return self.first.run.method.startswith("adte")


@dataclass(frozen=True)
class Section:
    """What can be compared: entries, best first, on the same images under the same model."""

    facts: dict[str, Any]  # the protocol that all runs share
    entries: list[Entry]

    @property
    def title(self) -> str:
        sets = self.facts.get("data", {}).get("datasets", [])
        names = " + ".join(dict.fromkeys(s["name"] for s in sets)) or "unnamed data"
        count = self.facts.get("views", {}).get("count")
        return f"{names}, {self.facts['model']}" + (f", {count} views" if count else "")

    @property
    def reference(self) -> Entry | None:
        """SE, which gains are measured against."""
        return next((e for e in self.entries if e.row["method"] == BASELINE), None)

    @property
    def best_baseline(self) -> Entry | None:
        return next((e for e in self.entries if not e.ours), None)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Images that could not be read, in any of the runs."""
        found: dict[str, dict[str, Any]] = {}
        for e in self.entries:
            for o in e.outcomes:
                found |= {s["id"]: s for s in o.record["protocol"].get("skipped", [])}
        return list(found.values())

    def parts(self, metric: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Accuracies by domain or group (`by_domain`, `by_group`): the parts, and rows over seeds
        with the worst part.
        """
        names: dict[str, None] = {}
        rows = []
        for e in self.entries:
            known = [m[metric] for o in e.outcomes if metric in (m := o.record["metrics"])]
            if known:
                names |= dict.fromkeys(known[0])
                mean = {k: float(np.mean([m[k] for m in known if k in m])) for k in known[0]}
                rows.append({"method": e.name, **mean, "worst": min(mean.values())})
        return list(names), rows


def read_sections(folders: Sequence[str | os.PathLike[str]]) -> list[Section]:
    """The sections of all runs in the folders; a run that lies in several counts once."""
    grouped: dict[str, list[tuple[Outcome, Path]]] = {}
    seen: set[str] = set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"the results folder {str(folder)!r} does not exist; check the path")
        results = Results(folder)
        for record in results:
            if record["key"] in seen:
                continue
            seen.add(record["key"])
            p = record["protocol"]
            task = Task(p["method"], p["options"], p["protocol"], p["seed"], record["title"])
            same = {k: p.get(k) for k in SAME}
            # Another seed of a live stream makes other views, of the same kind.
            same["views"] = {k: v for k, v in p.get("views", {}).items() if k != "seed"}
            made = Outcome(task, results.run(record), record)
            key = json.dumps(same, sort_keys=True)
            grouped.setdefault(key, []).append((made, folder / f"{record['key']}.json"))
    if not grouped:
        names = ", ".join(repr(str(f)) for f in folders)
        raise InputError(
            f"there are no results in {names}; make some with `adte compare --runs FOLDER`"
        )
    return [_section(runs) for runs in grouped.values()]


def _section(runs: list[tuple[Outcome, Path]]) -> Section:
    runs = [(replace(o, task=replace(o.task, title=_told_apart(o))), path) for o, path in runs]
    outcomes = [o for o, _ in runs]
    rows = aggregate(outcomes, BASELINE)
    groups: dict[tuple[str, str], list[tuple[Outcome, Path]]] = {}
    for o, path in runs:
        groups.setdefault((o.task.name, o.task.protocol), []).append((o, path))
    entries = [
        Entry(row, [o for o, _ in group], [path for _, path in group])
        for row, group in zip(rows, groups.values(), strict=True)  # both in order of appearance
    ]
    entries.sort(key=lambda e: -e.row["accuracy"])
    section = Section(outcomes[0].record["protocol"], entries)
    for key, other in (("", section.reference), ("_best", section.best_baseline)):
        for e in entries:
            e.row.update(_against(e, other, key))
    return section


def _told_apart(outcome: Outcome) -> str:
    """A run's title; for a method by its bare name, with the options that are not its defaults."""
    title = outcome.task.name
    if title not in list_methods():
        return title
    usual = json.loads(json.dumps(create_method(title).params))
    changed = {k: v for k, v in outcome.task.options.items() if k in usual and usual[k] != v}
    return " ".join([title, *(f"{k}={v}" for k, v in changed.items())])


def _against(entry: Entry, other: Entry | None, key: str) -> dict[str, Any]:
    """Gain over another entry, its 95 % interval (bootstrap over images, each averaged over
    seeds), and McNemar's p, the largest of all seeds.
    """
    names = (f"gain{key}", f"gain{key}_ci95", f"p{key}")
    if other is None or other is entry:
        return dict.fromkeys(names)
    mine, theirs = (
        {o.task.seed: x for o in e.outcomes if (x := right_by_image([o])) is not None}
        for e in (entry, other)
    )
    whole = len(mine) == len(entry.outcomes) and len(theirs) == len(other.outcomes)
    if not whole or len({len(x) for x in (*mine.values(), *theirs.values())}) > 1:
        return dict.fromkeys(names)  # some images were skipped
    a, b = (np.mean(list(x.values()), axis=0) for x in (mine, theirs))
    usual = theirs[other.first.task.seed]  # one that keeps no state has run on one seed alone
    p = max(metrics.mcnemar(x, theirs.get(seed, usual)) for seed, x in mine.items())
    interval = list(metrics.bootstrap_difference(a, b))
    return dict(zip(names, (float(a.mean() - b.mean()), interval, p), strict=True))
