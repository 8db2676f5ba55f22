"""Read results folders, put together what can be compared, and test it.

Runs that share data, model, prompts and views make a section; in it, runs of one method under one
protocol with the same options, one per seed, make an entry; without a state, under any protocol.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, unknown
from adte.data import StreamOptions
from adte.data.corruptions import CORRUPTIONS
from adte.evaluate.features.recipe import flat
from adte.evaluate.running import figures
from adte.evaluate.running.results import Conditions, Results
from adte.evaluate.running.rows import Entry, differences, draw_of, entries, gain, right
from adte.evaluate.running.tasks import Outcome, Task

__all__ = ["Section", "data_names", "read_sections", "unusual_stream"]

SAME = ("model", "fingerprint", "prompts", "preprocess", "order", "part", "images", "classes",
        "content")  # fmt: skip
SEEDED = ("seed", "digest", "changes")  # facts of a stream that follow from its seed


@dataclass(frozen=True)
class Section:
    """Entries on the same images under the same model, best first; those that lack draws last."""

    conditions: Conditions  # of one of the runs; all share what distinguishes sections
    entries: list[Entry]
    reference: Entry | None  # what gains are measured against
    apart: str = ""  # the folder, where another one has other predictions under the same names
    title: str = ""

    @property
    def best_baseline(self) -> Entry | None:
        return next((e for e in self.entries if not e.ours), None)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Images that could not be read, in any of the runs."""
        every = [s for e in self.entries for o in e.outcomes for s in o.record.conditions.skipped]
        return list({str(s.get("id")): s for s in every}.values())


def read_sections(
    folders: Sequence[str | os.PathLike[str]],
    only: Collection[str] | None = None,
    baseline: str | None = None,
) -> list[Section]:
    """The sections of all runs in the folders, or of the keys in `only`; a run that lies in several
    folders counts once; where one predicts otherwise, the runs of its folder are sections of their
    own. Gains are over the `baseline`, SE by default.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    first: dict[str, Outcome] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"the results folder {str(folder)!r} does not exist; check the path")
        mine = [o for o in _outcomes(folder) if only is None or o.record.key in only]
        same = [_predictions(first[o.record.key]) == _predictions(o)
                for o in mine if o.record.key in first]  # fmt: skip
        apart = "" if all(same) else str(folder)
        for o in mine:
            if apart or o.record.key not in first:
                first.setdefault(o.record.key, o)
                text = json.dumps(_same(o.record.conditions), sort_keys=True)
                groups.setdefault((text, apart), []).append(o)
    if not groups:
        names = ", ".join(repr(str(f)) for f in folders)
        raise InputError(
            f"there are no results in {names}; make some with `adte compare --runs FOLDER`"
        )
    if any(apart for _, apart in groups):
        warnings.warn(
            "folders hold runs of one name that predict otherwise, perhaps of other images; they "
            "are shown apart",
            stacklevel=2,
        )
    parts = [(part, apart) for (_, apart), group in groups.items() for part in _streams(group)]
    sections = _titled([_section(part, apart, baseline) for part, apart in parts])
    rows = dict.fromkeys(e.row["method"] for s in sections for e in s.entries)
    if baseline is not None and baseline not in rows:
        raise unknown("baseline", baseline, rows)
    return sections


def _outcomes(folder: Path) -> list[Outcome]:
    results, out = Results(folder), []
    for record in results:
        c = record.conditions
        task = Task(c.method, c.options, c.protocol, c.order_seed, record.title)  # type: ignore[arg-type]
        out.append(Outcome(task, results.run(record), record))
    return out


def _predictions(o: Outcome) -> tuple[Any, ...]:
    return o.run.ids, o.run.labels.tolist(), o.run.predicted.tolist()


def _same(c: Conditions) -> dict[str, Any]:
    """Conditions that runs of one section have in common, without any seed."""
    return {
        **{k: getattr(c, k) for k in SAME},
        "views": {k: v for k, v in c.views.items() if k != "seed"},
        "data": {k: v for k, v in c.data.items() if k not in SEEDED},
    }


def _streams(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """Runs by stream, where one seed had several: other labels, other classes, another scale."""
    seeds: dict[Any, set[str]] = {}
    streams: dict[str, list[Outcome]] = {}
    for o in outcomes:
        c = o.record.conditions
        seeds.setdefault(c.data.get("seed"), set()).add(c.stream)
        streams.setdefault(c.stream, []).append(o)
    return list(streams.values()) if any(len(s) > 1 for s in seeds.values()) else [outcomes]


# --------------------------------------------------------------------------- titles


def _titled(sections: list[Section]) -> list[Section]:
    """Sections with titles: data, model, views, part, what is unusual in the stream; and what
    differs, where that is the same.
    """
    groups: dict[str, list[Section]] = {}
    for s in sections:
        c = s.conditions
        count = c.views.get("count")
        views = f"{count} view{'s' * (count > 1)}" if count else None
        names = data_names(c.data) or "unnamed data"
        words = [names, c.model, views, c.part, *unusual_stream(c.data)]
        groups.setdefault(", ".join(filter(None, words)), []).append(s)
    titles = {}
    for title, group in groups.items():
        every = differences([{**flat(_same(s.conditions)), "folder": s.apart} for s in group])
        if len({*every}) < len(group):
            every = [f"{words} stream={s.conditions.stream}".strip()
                     for s, words in zip(group, every, strict=True)]  # fmt: skip
        for s, text in zip(group, every, strict=True):
            titles[id(s)] = ", ".join(filter(None, [title, text]))
    return [replace(s, title=titles[id(s)]) for s in sections]


def data_names(data: Mapping[str, Any]) -> str:
    """The names of a stream's data sets."""
    return " + ".join(dict.fromkeys(d["name"] for d in data.get("datasets", [])))


def unusual_stream(data: Mapping[str, Any]) -> list[str]:
    """How a stream differs from the usual one: its order, domains, imbalance and corruptions.

    >>> unusual_stream({"order": "shuffled", "domain_counts": {"photo": 5, "fog/3": 5}})
    ['clean + fog/3']
    """
    usual = asdict(StreamOptions())
    own = {**usual, **data}
    names = list(data.get("domain_counts", {}))
    keys = ["order"] if own["order"] != "as given" else []
    keys += ["delta"] if own["order"] == "correlated" else []
    keys += ["domains"] if len(names) > 1 else []
    words = [f"{k}={own[k]}" for k in keys if own[k] != usual[k]]
    if own["imbalance"] != "none":
        words += [f"imbalance={own['imbalance']}", f"ratio={own['ratio']}"]
    corrupted = [n for n in names if n.rpartition("/")[0] in CORRUPTIONS]
    if corrupted:
        clean = ["clean"] if len(corrupted) < len(names) else []
        few = corrupted if len(corrupted) < 4 else [f"{len(corrupted)} corruptions"]
        words.append(" + ".join([*clean, *few]))
    return words


# --------------------------------------------------------------------------- tests


def _section(outcomes: list[Outcome], apart: str, baseline: str | None) -> Section:
    rows, reference = entries(sorted(outcomes, key=lambda o: (o.task.seed, draw_of(o))), baseline)
    rows.sort(key=lambda e: (e.row["aside"], -e.row["accuracy"], e.name))
    section = Section(outcomes[0].record.conditions, rows, reference, apart)
    for key, other in (("", section.reference), ("_best", section.best_baseline)):
        for e in rows:
            e.row.update(_against(e, other, key))
    return section


def _against(entry: Entry, other: Entry | None, key: str) -> dict[str, Any]:
    """Gain over another entry, its 95 % interval (bootstrap over images, each averaged over
    seeds), and McNemar's p, the largest of all seeds.
    """
    names = (f"gain{key}", f"gain{key}_ci95", f"p{key}")
    more = gain(entry.right, other.right) if other is not None and other is not entry else None
    if more is None or other is None:
        return dict.fromkeys(names)  # not the same images, such as where some were skipped
    return dict(zip(names, (*more, _p(entry, other)), strict=True))


def _p(entry: Entry, other: Entry) -> float:
    """McNemar's p, the largest over the orders of either; all that is known of an image that is
    shown more than once is one witness.
    """
    # The order does not matter to a method that keeps no state.
    mine, theirs = (
        {(o.record.conditions.stateful and o.task.seed, draw_of(o)): right(o) for o in e.outcomes}
        for e in (entry, other)
    )
    # One that keeps no state has run in one order alone.
    usual, other_usual = ({by: x for (_, by), x in reversed(e.items())} for e in (mine, theirs))
    pairs = [
        (mine.get(seed, usual[seed[1]]), theirs.get(seed, other_usual[seed[1]]))
        for seed in mine | theirs
    ]
    return max(
        figures.mcnemar([*x.values()], [y[i] for i in x], [i.image for i in x]) for x, y in pairs
    )
