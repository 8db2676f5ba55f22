"""Rows of tables: the mean figures of a method over its runs, and its gain, paired by image."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adte.evaluate.features.recipe import flat
from adte.evaluate.report.tables import row_name
from adte.evaluate.running import metrics
from adte.evaluate.running.figures import bootstrap_difference, seed_interval
from adte.evaluate.running.protocol import PROTOCOLS
from adte.evaluate.running.results import Conditions
from adte.evaluate.running.tasks import Outcome
from adte.methods import create_method, list_methods

__all__ = [
    "Draw", "Entry", "Item", "aggregate", "differences", "draw_of", "entries", "gain", "interval",
    "right", "with_options",
]  # fmt: skip

BASELINES = ("se", "zero-shot")  # that gains are over, unless another is asked for


class Draw(NamedTuple):
    """Seeds that a stream was drawn by, of its images and of their views; none of its order."""

    images: int = 0
    views: int = 0


class Item(NamedTuple):
    """An image as a stream shows it; `place`, in its source, where names do not tell."""

    id: str
    domain: str = ""
    place: int = 0
    draw: Draw = Draw()

    @property
    def image(self) -> str:
        """Its name, whatever it is shown as."""
        return self.id or f"{self.place} of {self.draw.images}"


@dataclass(frozen=True)
class Entry:
    """A row of a table, and the runs behind it, one per seed."""

    row: dict[str, Any]
    outcomes: list[Outcome]

    @property
    def name(self) -> str:
        """The method, with its protocol if it learns."""
        return row_name(self.row)

    @property
    def first(self) -> Outcome:
        """The run of the lowest seed."""
        return self.outcomes[0]

    @cached_property
    def right(self) -> dict[Item, float] | None:
        """How often each item was right, over its seeds."""
        return _right_over_seeds(self.outcomes)

    @property
    def ours(self) -> bool:
        """Whether it is ADTE, the default, or code from elsewhere; all others are baselines."""
        name = self.first.run.method
        return name.startswith(("adte", "tilt")) or bool(self.first.record.conditions.source)


def aggregate(outcomes: Sequence[Outcome], baseline: str | None = None) -> list[dict[str, Any]]:
    """The rows of `entries`."""
    return [e.row for e in entries(outcomes, baseline)[0]]


def entries(
    outcomes: Sequence[Outcome], baseline: str | None = None
) -> tuple[list[Entry], Entry | None]:
    """Rows over seeds, in order of appearance, and the one that gains are over.

    A row is a method with its options under a protocol. A method that keeps no state has one row,
    and counts once for each draw: its other orders and protocols say the same. Figures are means
    over draws, each the mean over its orders; so is the gain. `ci95` is the 95 % interval of the
    accuracy (Student's t, cut off at 0 and 1) over draws, over orders for a single draw, and
    None for one of those. `gain_ci95` is that of the gain over the baseline, paired by image
    (bootstrap). `over` is the title of the baseline, with its protocol where it ran under several.
    A row that lacks some of the draws is `aside`.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for title, o in zip(_titles(outcomes), outcomes, strict=True):
        group = groups.setdefault((title, _protocol(o)), [])
        if o.record.conditions.stateful or draw_of(o) not in map(draw_of, group):
            group.append(o)
    base = _baseline(groups, baseline)
    over = base and (base[0] if [t for t, _ in groups].count(base[0]) == 1 else ", ".join(base))
    reference = None if base is None else _right_over_seeds(groups[base])
    every = set(map(draw_of, outcomes))
    out: dict[tuple[str, str], Entry] = {}
    for (title, protocol), group in groups.items():
        orders: dict[Draw, list[dict[str, Any]]] = defaultdict(list)
        for o in group:
            orders[draw_of(o)].append(o.record.metrics)
        draws = [metrics.averages(figures) for figures in orders.values()]
        seeds = draws if len(draws) > 1 else [o.record.metrics for o in group]
        ci95, means = seed_interval([f["accuracy"] for f in seeds]), metrics.averages(draws)
        more = gain(_right_over_seeds(group), reference) or (None, None)
        about = group[0].record.conditions
        row: dict[str, Any] = {
            "method": title,
            "protocol": protocol,
            "accuracy": means["accuracy"],
            "ci95": None if ci95 is None else np.clip(ci95, 0.0, 1.0).tolist(),
            "gain": more[0],
            "gain_ci95": more[1],
            "over": over,
            "seeds": len(group),
            "draws": len(draws),
            "aside": len(draws) < len(every),
            **means,
            "options": about.options,
            "own_prompt": about.own_prompt,
        }
        out[title, protocol] = Entry(row, group)
    return list(out.values()), None if base is None else out[base]


def _protocol(outcome: Outcome) -> str:
    return outcome.task.protocol if outcome.record.conditions.stateful else "stateless"


def _baseline(rows: Collection[tuple[str, str]], asked: str | None) -> tuple[str, str] | None:
    """The row that gains are over: what was asked for, else SE, else zero-shot, and online if it
    ran so; None if no row is, or no other.
    """
    wanted = BASELINES if asked is None else (asked,)
    ordered = sorted(rows, key=lambda row: ["stateless", *PROTOCOLS].index(row[1]))
    return next((row for n in wanted for row in ordered if row[0] == n and len(rows) > 1), None)


# --------------------------------------------------------------------------- names of rows


def _titles(outcomes: Sequence[Outcome]) -> list[str]:
    """Names of rows: a method by its bare name has the options that are not its defaults, and what
    ran twice on one seed has how it ran.
    """
    titles = [with_options(o.task.name, o.record.conditions.options) for o in outcomes]
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, o in enumerate(outcomes):
        groups[titles[i], _protocol(o)].append(i)
    for group in groups.values():
        group_of = [outcomes[i] for i in group]
        seeds = {(o.task.seed, o.task.protocol, draw_of(o)) for o in group_of}
        if len(seeds) < len(group) or len({o.record.conditions.source for o in group_of}) > 1:
            words = differences([_how(o.record.conditions) for o in group_of])
            for i, text in zip(group, words, strict=True):
                titles[i] = ", ".join(filter(None, [titles[i], text]))
    return titles


def _how(c: Conditions) -> dict[str, Any]:
    """How a method ran, and whose code it was."""
    names = ("dtype", "device", "kernel", "runtime", "source", "versions", "options")
    return flat({name: getattr(c, name) for name in names})


def differences(many: Sequence[Mapping[str, Any]]) -> list[str]:
    """Words that distinguish several sets of facts, as in "views.flip=0.5, images=40".

    >>> differences([{"images": 40, "order": "listed"}, {"images": 60, "order": "listed"}])
    ['images=40', 'images=60']
    """
    every = dict.fromkeys(name for facts in many for name in facts)
    columns: dict[tuple[str, ...], str] = {}  # some facts stand twice, as does "images"
    for n in every:
        columns.setdefault(tuple(json.dumps(f.get(n), default=str) for f in many), n)
    apart = [n for values, n in columns.items() if len({*values}) > 1]
    return [
        ", ".join(f"{n}={_short(facts[n])}" for n in apart if facts.get(n) not in ("", None))
        for facts in many
    ]


def _short(value: Any) -> str:
    """As text; a digest by its beginning."""
    text = str(value)
    return text[:8] if len(text) >= 16 and set(text) <= set("0123456789abcdef") else text


def with_options(title: str, options: Mapping[str, Any]) -> str:
    """A method's bare name with those of its options that are not the defaults."""
    if title not in list_methods():
        return title
    usual, own = (json.loads(json.dumps(x)) for x in (create_method(title).params, options))
    changed = {k: v for k, v in own.items() if k in usual and usual[k] != v}
    last = [k.rpartition(".")[2] for k in changed]
    words = [
        f"{short if last.count(short) == 1 else k}={v}"
        for (k, v), short in zip(changed.items(), last, strict=True)
    ]
    return " ".join([title, *words])


# --------------------------------------------------------------------------- paired by image


def draw_of(outcome: Outcome) -> Draw:
    c = outcome.record.conditions
    return Draw(int(c.data.get("seed") or 0), c.view_seed)


def right(outcome: Outcome) -> dict[Item, bool]:
    """Whether each item of the stream was right."""
    run, draw = outcome.run, draw_of(outcome)
    places = run.places or [0] * len(run.ids)
    about = zip(run.ids, run.domains, places, strict=True)
    items = (Item(*facts, draw) for facts in about)
    return dict(zip(items, run.correct.tolist(), strict=True))


def _right_over_seeds(outcomes: Iterable[Outcome]) -> dict[Item, float] | None:
    """How often each item was right, over the orders of its stream; None where these did not show
    the same ones.
    """
    orders: dict[Draw, list[dict[Item, bool]]] = defaultdict(list)
    for o in outcomes:
        orders[draw_of(o)].append(right(o))
    if any(f.keys() != known[0].keys() for known in orders.values() for f in known):
        return None
    return {
        item: sum(f[item] for f in known) / len(known)
        for known in orders.values()
        for item in known[0]
    }


def gain(
    mine: Mapping[Item, float] | None, theirs: Mapping[Item, float] | None
) -> tuple[float, list[float] | None] | None:
    """How much more often mine was right, with the 95 % interval; None for other items."""
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return None
    more, images = [value - theirs[i] for i, value in mine.items()], [i.image for i in mine]
    several = len(set(images)) > 1
    return float(np.mean(more)), interval(np.array(more), images) if several else None


def interval(gain: NDArray[np.float64], ids: Sequence[str]) -> list[float]:
    """The 95 % interval of a mean gain, by the bootstrap over images.

    Where a stream shows an image more than once, as under several corruptions, or several streams
    do, its items are one draw, not several.
    """
    images = ids if all(ids) else None
    return list(bootstrap_difference(gain, np.zeros(len(gain)), images=images))
