"""What kept runs say: read results folders, put together what can be compared, and test it.

Runs that share data, model, prompts and views make a section; in it, runs of one method under one
protocol with the same options, one per seed, make an entry; without a state, under any protocol.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, unknown
from adte.core.schema import written
from adte.data import StreamOptions
from adte.data.corruptions import CORRUPTIONS
from adte.data.streams import other_images
from adte.evaluate.report.tables import row_name
from adte.evaluate.running import figures
from adte.evaluate.running.aggregate import Row, aggregate, baseline_of, by_row, row_of
from adte.evaluate.running.paired import Drawn, Item, drawn, gain, right, right_over_seeds
from adte.evaluate.running.results import Conditions, Results
from adte.evaluate.running.tasks import Outcome, Task
from adte.images import Views
from adte.methods import create_method, list_methods

__all__ = [
    "Entry",
    "Section",
    "data_names",
    "read_sections",
    "told_apart",
    "unusual_stream",
    "with_options",
]

SAME = ("model", "fingerprint", "prompts", "preprocess", "order", "part", "images", "classes")
TITLED = ("count", "order", "seed")  # options of views and streams that titles have, or need not
SEEDED = ("seed", "digest", "changes")  # what a stream says of itself that follows from its seed

Seed = tuple[int, Drawn]


@dataclass(frozen=True)
class Entry:
    """A row of a section's table, and the runs behind it, one per seed."""

    row: dict[str, Any]
    outcomes: list[Outcome]

    @property
    def name(self) -> str:
        return row_name(self.row)

    @property
    def first(self) -> Outcome:
        """The run of the lowest seed."""
        return self.outcomes[0]

    @cached_property
    def right(self) -> dict[Item, float] | None:
        """How often each item was right, over its seeds; see `right_over_seeds`."""
        return right_over_seeds(self.outcomes)

    @property
    def ours(self) -> bool:
        """Whether it is ADTE, the default, or code from elsewhere; all others are baselines."""
        name = self.first.run.method
        return name.startswith(("adte", "tilt")) or bool(self.first.record.conditions.source)


@dataclass(frozen=True)
class Section:
    """What can be compared: entries on the same images under the same model, best first, and those
    that lack draws last.
    """

    conditions: Conditions  # of one of the runs; what a section is told by, all share
    entries: list[Entry]
    title: str = ""
    reference: Entry | None = None  # what gains are measured against

    @property
    def best_baseline(self) -> Entry | None:
        return next((e for e in self.entries if not e.ours), None)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """Images that could not be read, in any of the runs."""
        found: dict[str, dict[str, Any]] = {}
        for e in self.entries:
            for o in e.outcomes:
                found |= {str(s.get("id")): s for s in o.record.conditions.skipped}
        return list(found.values())


Group = dict[str, list[Outcome]]  # runs by key, several where they are of other images


def read_sections(
    folders: Sequence[str | os.PathLike[str]],
    only: Collection[str] | None = None,
    baseline: str | None = None,
) -> list[Section]:
    """The sections of all runs in the folders, or of the keys in `only`; a run that lies in several
    folders counts once; where one predicts otherwise, the runs of its folder are sections of their
    own. Gains are over the `baseline`, SE by default.
    """
    grouped: dict[str, list[Group]] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"the results folder {str(folder)!r} does not exist; check the path")
        results, mine = Results(folder), dict[str, list[Outcome]]()
        for record in results:
            if only is not None and record.key not in only:
                continue
            c = record.conditions
            task = Task(c.method, c.options, c.protocol, c.order_seed, record.title)  # type: ignore[arg-type]
            same = json.dumps(_same(c), sort_keys=True)
            mine.setdefault(same, []).append(Outcome(task, results.run(record), record))
        for same, outcomes in mine.items():
            _put(outcomes, grouped.setdefault(same, []))
    if not grouped:
        names = ", ".join(repr(str(f)) for f in folders)
        raise InputError(
            f"there are no results in {names}; make some with `adte compare --runs FOLDER`"
        )
    if any(len(groups) > 1 for groups in grouped.values()):
        warnings.warn(
            "folders hold runs of one name that predict otherwise, perhaps of other images; they "
            "are shown apart",
            stacklevel=2,
        )
    parts = [
        part
        for groups in grouped.values()
        for group in groups
        for same in _contents([o for runs in group.values() for o in runs])
        for part in _streams(same)
    ]
    sections = _titled([_section(outcomes, baseline) for outcomes in parts])
    rows = dict.fromkeys(e.row["method"] for s in sections for e in s.entries)
    if baseline is not None and baseline not in rows:
        raise unknown("baseline", baseline, rows)
    return sections


def _put(outcomes: list[Outcome], groups: list[Group]) -> None:
    """Runs of one folder to those of others, each once, where none of them predicts otherwise."""
    for group in [*groups, Group()]:
        there = [
            [x for x in group.get(o.record.key, ()) if not _other_images(x, o)] for o in outcomes
        ]
        if all(_alike(x, o) for o, copies in zip(outcomes, there, strict=True) for x in copies):
            break
    if not group:
        groups.append(group)
    for o, copies in zip(outcomes, there, strict=True):
        if not copies:
            group.setdefault(o.record.key, []).append(o)


def _alike(a: Outcome, b: Outcome) -> bool:
    """Whether two runs of one key predict the same."""
    mine, theirs = ([o.run.ids, o.run.labels.tolist(), o.run.predicted.tolist()] for o in (a, b))
    return mine == theirs


def _other_images(a: Outcome, b: Outcome) -> bool:
    mine, theirs = (o.record.conditions.content for o in (a, b))
    return other_images(mine, theirs)


def _contents(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """Runs by what their images contain; those that do not know it are with the first."""
    apart: list[list[Outcome]] = []
    for o in sorted(outcomes, key=lambda o: not o.record.conditions.content):
        if home := next((group for group in apart if not _other_images(group[0], o)), None):
            home.append(o)
        else:
            apart.append([o])
    return apart


def _streams(outcomes: list[Outcome]) -> list[list[Outcome]]:
    """Runs by stream, where one seed had several: other labels, other classes, another scale."""
    seen: dict[Any, set[str]] = {}
    apart: dict[str, list[Outcome]] = {}
    for o in outcomes:
        c = o.record.conditions
        seen.setdefault(c.data.get("seed"), set()).add(c.stream)
        apart.setdefault(c.stream, []).append(o)
    return list(apart.values()) if any(len(s - {""}) > 1 for s in seen.values()) else [outcomes]


def _same(c: Conditions) -> dict[str, Any]:
    """What runs of one section have in common: all that is compared on, without any seed."""
    return {
        **{k: getattr(c, k) for k in SAME},
        "views": {k: v for k, v in c.views.items() if k != "seed"},
        "data": {k: v for k, v in c.data.items() if k not in SEEDED},
    }


def _seed(outcome: Outcome) -> Seed:
    """What tells the runs of an entry apart: the shuffle, which a method without a state does not
    feel, and what the stream was drawn by.
    """
    c = outcome.record.conditions
    return c.order_seed if c.stateful else 0, drawn(outcome)


def _titled(sections: list[Section]) -> list[Section]:
    """Sections with titles: data, model, views, part, what is unusual in the stream; and what
    differs, where that is the same.
    """
    groups: dict[str, list[Section]] = {}
    for s in sections:
        c = s.conditions
        names = data_names(c.data) or "unnamed data"
        count = c.views.get("count")
        views = f"{count} view{'s' * (count > 1)}" if count else None
        title = ", ".join(filter(None, [names, c.model, views, c.part, *unusual_stream(c.data)]))
        groups.setdefault(title, []).append(s)
    titles: dict[int, str] = {}
    for title, group in groups.items():
        told = [_words(s.conditions) for s in group]
        apart = [k for k in told[0] if len({t[k] for t in told}) > 1]
        more = [", ".join([title, *filter(None, (words[k] for k in apart))]) for words in told]
        for i, (s, text) in enumerate(zip(group, more, strict=True), 1):
            titles[id(s)] = text if more.count(text) == 1 else f"{text}, no. {i}"
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
    given = {**usual, **data}
    names = list(data.get("domain_counts", {}))
    keys = ["order"] if given["order"] != "as given" else []
    keys += ["delta"] if given["order"] == "correlated" else []
    keys += ["domains"] if len(names) > 1 else []
    said = [f"{k}={given[k]}" for k in keys if given[k] != usual[k]]
    if given["imbalance"] != "none":
        said += [f"imbalance={given['imbalance']}", f"ratio={given['ratio']}"]
    corrupted = [n for n in names if n.rpartition("/")[0] in CORRUPTIONS]
    if corrupted:
        clean = ["clean"] if len(corrupted) < len(names) else []
        few = corrupted if len(corrupted) < 4 else [f"{len(corrupted)} corruptions"]
        said.append(" + ".join([*clean, *few]))
    return said


def _words(c: Conditions) -> dict[str, str]:
    """What may tell two sections apart, as a title says it."""
    name, templates = c.prompts.get("name", "not known"), c.prompts.get("templates") or []
    splits = dict.fromkeys(str(d.get("split", "")) for d in c.data.get("datasets", []))
    titled, stream = unusual_stream(c.data), _unusual(c.data, asdict(StreamOptions()))
    return {
        "images": f"{c.images:,} images",
        "classes": f"{c.classes} classes",
        "order": c.order,
        "prompts": f"prompts {name}",
        "template": repr(templates[0]) if len(templates) == 1 and templates != [name] else "",
        "stream": ", ".join(w for w in stream if w not in titled),
        "views": ", ".join(_unusual(c.views, written(Views()), "crop ")),
        "split": "; ".join(splits),
        "fingerprint": f"weights {c.fingerprint[:8]}",
        "content": f"content {'-'.join(d[:4] for d in c.content)}" if c.content else "",
    }


def _unusual(options: Mapping[str, Any], usual: Mapping[str, Any], kind: str = "") -> list[str]:
    """Options that are not the defaults, but for those that a title has already."""
    known = {k: v for k, v in json.loads(json.dumps(usual)).items() if k not in TITLED}
    return [f"{kind}{k}={options[k]}" for k, v in known.items() if options.get(k, v) != v]


def _section(outcomes: list[Outcome], baseline: str | None) -> Section:
    outcomes = told_apart(sorted(outcomes, key=lambda o: (o.task.seed, drawn(o))))
    rows = aggregate(outcomes, baseline)
    groups = by_row(outcomes)  # in the order of the rows
    entries = [Entry(row, group) for row, group in zip(rows, groups.values(), strict=True)]
    base = baseline_of(groups.keys(), baseline)
    reference = next((e for e, row in zip(entries, groups, strict=True) if row == base), None)
    entries.sort(key=lambda e: (e.row["aside"], -e.row["accuracy"], e.name))
    section = Section(outcomes[0].record.conditions, entries, reference=reference)
    for key, other in (("", section.reference), ("_best", section.best_baseline)):
        for e in entries:
            e.row.update(_against(e, other, key))
    return section


def told_apart(outcomes: list[Outcome]) -> list[Outcome]:
    """Runs with titles of their own: a method by its bare name is told by the options that are not
    its defaults, and what ran twice on one seed by how it ran.
    """
    named = [
        replace(
            o, task=replace(o.task, title=with_options(o.task.name, o.record.conditions.options))
        )
        for o in outcomes
    ]
    groups: dict[Row, list[Outcome]] = {}
    for o in named:
        groups.setdefault(row_of(o), []).append(o)
    out, seen = [], Counter[Any]()
    for group in groups.values():
        told: list[dict[str, str]] = [{}] * len(group)
        sources = {o.record.conditions.source for o in group}
        if len({_seed(o) for o in group}) < len(group) or len(sources) > 1:
            told = [_ran(o.record.conditions) for o in group]
        apart = [k for k in told[0] if len({t[k] for t in told}) > 1]
        for o, words in zip(group, told, strict=True):
            title = ", ".join([o.task.name, *(words[k] for k in apart)])
            ran = title, o.task.protocol, o.task.seed, drawn(o)
            seen[ran] += 1
            number = seen[ran]
            title += f", no. {number}" if number > 1 else ""  # no words tell it apart
            out.append(replace(o, task=replace(o.task, title=title)))
    return out


def _ran(c: Conditions) -> dict[str, str]:
    return {
        "dtype": c.dtype,
        "device": c.device,
        "kernel": f"{c.kernel} kernel",
        "runtime": f"runtime {c.runtime or 'not known'}",
        "options": _short(c.options),
        "source": f"source {c.source[:8]}",
        "adte": f"adte {c.versions.get('adte')}",
        "torch": f"torch {c.versions.get('torch')}",
    }


def with_options(title: str, options: Mapping[str, Any]) -> str:
    """A method's bare name with those of its options that are not the defaults."""
    if title not in list_methods():
        return title
    usual, own = (json.loads(json.dumps(x)) for x in (create_method(title).params, options))
    changed = {k: v for k, v in own.items() if k in usual and usual[k] != v}
    return " ".join(filter(None, [title, _short(changed)]))


def _short(options: dict[str, Any]) -> str:
    """As in "beta=0.5 prior.clip=2.0"; of "prior.clip" the last part, unless two share it."""
    last = [k.rpartition(".")[2] for k in options]
    return " ".join(
        f"{short if last.count(short) == 1 else k}={v}"
        for (k, v), short in zip(options.items(), last, strict=True)
    )


def _against(entry: Entry, other: Entry | None, key: str) -> dict[str, Any]:
    """Gain over another entry, its 95 % interval (bootstrap over images, each averaged over
    seeds), and McNemar's p, the largest of all seeds.
    """
    names = (f"gain{key}", f"gain{key}_ci95", f"p{key}")
    if other is None or other is entry:
        return dict.fromkeys(names)
    found = gain(entry.right, other.right)
    if found is None:
        return dict.fromkeys(names)  # not the same images, such as where some were skipped
    return dict(zip(names, (*found, _p(entry, other)), strict=True))


def _p(entry: Entry, other: Entry) -> float:
    """McNemar's p, the largest over the orders of either; what is said of an image that is shown
    more than once is one witness.
    """
    mine, theirs = ({_seed(o): right(o) or {} for o in e.outcomes} for e in (entry, other))
    # One that keeps no state has run in one order alone.
    usual, usual_there = ({by: x for (_, by), x in reversed(e.items())} for e in (mine, theirs))
    pairs = [
        (mine.get(seed, usual[seed[1]]), theirs.get(seed, usual_there[seed[1]]))
        for seed in mine | theirs
    ]
    return max(
        figures.mcnemar([*x.values()], [y[i] for i in x], [i.image for i in x]) for x, y in pairs
    )
