"""Robustness, our own studies: the default on streams of many kinds and in small label spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.data.streams import StreamOptions, correlated, gradual
from adte.evaluate.features.stream import FeatureStream, Held, Narrowed, part
from adte.evaluate.running import figures
from adte.evaluate.running.protocol import learned, run
from adte.paper.lab import OURS, PAPER, RELEASED, Lab, in_turn, interleaved
from adte.paper.rows import INTERVAL, Rival, over_streams, with_interval
from adte.paper.study import Cell, Finding, Row, study

__all__ = ["robust_facts", "streams_of"]

Ints = NDArray[np.int64]


def streams_of(lab: Lab) -> dict[str, FeatureStream]:
    """Streams of many kinds: in any order, short, skewed, with many and few classes, shifted."""
    stream = lab.main()
    out: dict[str, FeatureStream] = {"shuffled": stream}
    drawn = draws(stream)
    out |= {name: part(stream, rows, known_as) for name, (rows, known_as) in drawn.items()}
    few = sorted(set(stream.labels[drawn["few classes, repeated"][0]].tolist()))
    out["few classes, known"] = Narrowed(stream, few, "few, known")
    if lab.small:
        shifts = lab.shifts()
        out |= {d: shifts[d] for d in ("clean", "motion_blur/3", "impulse_noise/3", "brightness/3")}
        out["corruptions mixed"] = interleaved({d: shifts[d] for d in list(shifts)[:6]})
        worse = gradual([d for d in shifts if d.startswith("motion_blur")])
        out["gradual"] = in_turn(shifts, worse, "gradual")
    else:
        main, *_ = family = lab.family()  # the main stream is there already
        out |= {n: s for n, s in {**family, **lab.cross()}.items() if n != main}
    return out


def draws(stream: FeatureStream) -> dict[str, tuple[Ints, str]]:
    """Images of a stream for others, by name, and what their recipes call them."""
    labels, classes = stream.labels, len(stream.classes)
    rng = np.random.default_rng(1)
    few = np.flatnonzero(np.isin(labels, rng.permutation(classes)[: max(2, classes // 20)]))
    quarter = np.flatnonzero(np.isin(labels, rng.permutation(classes)[: max(2, classes // 4)]))
    passes = np.concatenate([rng.permutation(few) for _ in range(5)])
    out = {
        "sorted by class": (np.argsort(labels, kind="stable"), "sorted"),
        "imbalanced 10 : 1": (skewed(labels, rng.permutation(classes), rng), "thinned"),
        "first 50": (np.arange(min(50, len(stream))), "first 50"),
        "first 200": (np.arange(min(200, len(stream))), "first 200"),
        "a quarter shown": (rng.permutation(quarter), "a quarter shown"),
        "few classes, repeated": (passes, "few classes"),
    }
    if stream.frequency is not None:  # whom the model favours is known
        rank = np.argsort(np.argsort(-stream.frequency, kind="stable"))
        for name, order in (("with", rank), ("against", classes - 1 - rank)):
            out[f"skewed {name} the bias"] = (skewed(labels, order, rng), name)
    order = correlated(labels, StreamOptions().delta, np.random.default_rng(2))
    return out | {"correlated": (order, "correlated")}


def skewed(labels: Ints, rank: Ints, rng: np.random.Generator) -> Ints:
    """Images whose class frequencies fall by ten from the first rank to the last."""
    kept = []
    for label, place in enumerate(rank):
        own = np.flatnonzero(labels == label)
        share = 10 ** (-place / max(len(rank) - 1, 1))
        kept.append(rng.permutation(own)[: max(1, round(len(own) * share))])
    return rng.permutation(np.concatenate(kept))


RIVALS: dict[str, Rival] = {
    "zero-shot": ("zero-shot", {}),
    "SE": ("se", {}),
    "SE + LA": ("se", {"adjust": "before"}),
    "Zero": ("zero", {}),
    "TDA": ("tda", {}),
    **{name: (name, {}) for name in (OURS, PAPER, RELEASED)},
}
NEAR = 0.005  # half a point
WARM = f"{OURS}, warm"  # a rival of none
OTHERS = 500  # images that it has seen before


KNOBS: dict[str, Rival] = {
    "SE": ("se", {}),
    OURS: (OURS, {}),
    "frequencies equal": (OURS, {"frequencies": "equal"}),
    "frequencies as they come": (OURS, {"frequencies": "as-they-come"}),
    "no likeness": (OURS, {"likeness": 0.0}),
    "likeness 1": (OURS, {"likeness": 1.0}),
    "smoothing 20": (OURS, {"smoothing": 20.0}),
    "smoothing 100": (OURS, {"smoothing": 100.0}),
}


@study("defaults", "Every knob of the default, turned alone", ours=True)
def defaults(lab: Lab) -> Finding:
    """The default and its neighbours, one option changed at a time, on streams of many kinds."""
    streams = streams_of(lab)
    rows = over_streams(lab, streams, KNOBS, lab.protocol)
    note = "Labels decide between these rows, so a row picked here is no independent result."
    return Finding(lab.setting(streams), tuple(streams), rows, notes=(INTERVAL, note))


DRAWS = {2: 24, 3: 16, 5: 12, 10: 8, 20: 6}  # label spaces drawn, by their size
FEW: dict[str, Rival] = {
    "zero-shot": ("zero-shot", {}),
    "SE": ("se", {}),
    OURS: (OURS, {}),
    PAPER: (PAPER, {}),
    RELEASED: (RELEASED, {}),
}


@study("few-names", "Label spaces of two to twenty classes", ours=True)
def few_names(lab: Lab) -> Finding:
    """What a person with a handful of class names gets: random small label spaces, online."""
    stream = lab.main()
    rng = np.random.default_rng(0)
    spaces: dict[str, list[FeatureStream]] = {}
    for size, draws in DRAWS.items():
        picks = [sorted(rng.permutation(len(stream.classes))[:size].tolist()) for _ in range(draws)]
        every = [Held.of(Narrowed(stream, p, "drawn")) for p in picks]
        spaces[f"{size} classes"] = [s for s in every if len(s)]

    def right(streams: list[FeatureStream], method: str, options: dict[str, Any]) -> Any:
        return np.concatenate(
            [lab.run(s, method, "online", **options).run.correct for s in streams]
        )

    rows = []
    for name, (method, options) in lab.wanted(FEW).items():
        cells: list[Cell] = []
        for streams in spaces.values():
            mine, base = right(streams, method, options), right(streams, "se", {})
            low, high = figures.bootstrap_difference(mine, base)
            cells.append((float(mine.mean()), low, high))
        rows.append(Row(name, tuple(cells), method=method, options=options))
    return Finding(
        lab.setting([s for streams in spaces.values() for s in streams]),
        tuple(spaces),
        rows,
        notes=(
            f"{', '.join(f'{n} draws of {size}' for size, n in DRAWS.items())}; each is a stream.",
            INTERVAL,
        ),
    )


def warm(lab: Lab, streams: Mapping[str, FeatureStream]) -> Row:
    """The default begun with what it learned of other images of the source, where there are any."""
    main, rng, cells = lab.main(), np.random.default_rng(3), list[Cell]()
    drawn = draws(main)
    for name, stream in streams.items():
        rows = drawn[name][0] if name in drawn else np.arange(len(main))
        others = rng.permutation(np.setdiff1d(np.arange(len(main)), rows))[:OTHERS]
        if not len(others):
            cells.append(None)
            continue
        method, _ = learned(part(main, others, "others"), OURS, lab.tick)
        method.begin()
        done = run(method, stream, "online", lab.tick)
        cells.append(with_interval(done, lab.run(stream, "se", "online").run.correct))
    return Row(WARM, tuple(cells), method=OURS)


@study("robust", "The default on streams of many kinds", ours=True)
def robust(lab: Lab) -> Finding:
    """Every rival on every kind of stream, online: where the default is best, where it loses."""
    streams = streams_of(lab)
    rows = over_streams(lab, streams, RIVALS, "online")
    said = robust_facts(rows, tuple(streams))
    return Finding(
        lab.setting(streams).replace(lab.protocol, "online"),
        tuple(streams),
        [*rows, warm(lab, streams)],
        notes=(
            f"{OURS} is best or within half a point of the best on {said['best_or_near']} of "
            f"{said['streams']} streams, and below SE beyond its interval on {said['losses']}; "
            f"mean gain over SE {100 * said['gain_over_se']:+.1f} points.",
            INTERVAL,
            f"'{WARM}' begins with what it learned, without labels, of at most {OTHERS} images "
            "of the same source that are not in the stream; it is a rival of none.",
            "'few classes, repeated' shows a twentieth of the classes over and over, and the "
            "method is not told which: an estimate that takes frequencies for bias then holds "
            "against the classes that are there.",
        ),
    )


def robust_facts(rows: list[Row], columns: tuple[str, ...]) -> dict[str, Any]:
    """What `robust` says in figures."""

    def table(row: Row) -> NDArray[np.float64]:
        return np.array(list(row.cells), dtype=float)

    values = {r.name: table(r) for r in rows if r.name != WARM}  # (streams, 3)
    best = np.max([v[:, 0] for v in values.values()], axis=0)
    mine, se = values[OURS], values["SE"]
    return {
        "streams": len(columns),
        "best_or_near": int((mine[:, 0] >= best - NEAR).sum()),
        "losses": int((mine[:, 2] < 0).sum()),
        "gain_over_se": float((mine[:, 0] - se[:, 0]).mean()),
    }
