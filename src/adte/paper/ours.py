"""Our own studies: the default on streams of many kinds, and in small label spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.data.streams import StreamOptions, correlated, gradual
from adte.evaluate.features.stream import FeatureStream, Held, narrowed, part
from adte.evaluate.running.protocol import learned, run
from adte.paper.lab import OURS, PAPER, RELEASED, Lab, Rival, in_turn, interleaved
from adte.paper.study import Cell, Finding, Row, study
from adte.paper.tables import INTERVAL, gain, over_se, table

__all__ = ["streams_of", "verdict"]

Ints = NDArray[np.int64]

FEW: dict[str, Rival] = {
    "zero-shot": ("zero-shot", {}),
    "SE": ("se", {}),
    **{name: (name, {}) for name in (OURS, PAPER, RELEASED)},
}
RIVALS: dict[str, Rival] = {
    **FEW,
    "SE + LA": ("se", {"adjust": "before"}),
    "Zero": ("zero", {}),
    "TDA": ("tda", {}),
}
NEAR = 0.005  # half a point
WARM = f"{OURS}, warm"  # a rival of none
OTHERS = 500  # images that it has seen before
DRAWS = {2: 24, 3: 16, 5: 12, 10: 8, 20: 6}  # label spaces drawn, by their size


@study("few-names", "Label spaces of two to twenty classes", ours=True)
def few_names(lab: Lab) -> Finding:
    """A person with a handful of class names: random small label spaces, online."""
    stream, rng = lab.main(), np.random.default_rng(0)
    spaces: dict[str, list[FeatureStream]] = {}
    for size, count in DRAWS.items():
        picks = [sorted(rng.permutation(len(stream.classes))[:size].tolist()) for _ in range(count)]
        every = [Held.of(narrowed(stream, p, "drawn")) for p in picks]
        spaces[f"{size} classes"] = [s for s in every if len(s)]
    drawn = ", ".join(f"{n} draws of {size}" for size, n in DRAWS.items())
    notes = (f"{drawn}; each is a stream.", INTERVAL)
    return table(lab, FEW, spaces, value=gain, protocol="online", notes=notes)


@study("robust", "The default on streams of many kinds", ours=True)
def robust(lab: Lab) -> Finding:
    """Every rival on every kind of stream, online: where the default is best, where it loses."""
    streams = streams_of(lab)
    finding = table(lab, RIVALS, streams, value=gain, protocol="online")
    facts = verdict(finding)
    finding.rows.append(warm(lab, streams))
    finding.notes = (
        f"{OURS} is best or within half a point of the best on {facts['best_or_near']} of "
        f"{facts['streams']} streams, and below SE beyond its interval on {facts['losses']}; "
        f"mean gain over SE {100 * facts['gain_over_se']:+.1f} points.",
        INTERVAL,
        f"'{WARM}' starts with what it learned, without labels, of at most {OTHERS} images "
        "of the same source that are not in the stream; it is a rival of none.",
        "'few classes, repeated' shows a twentieth of the classes over and over, and the "
        "method does not know which: an estimate that takes frequencies for bias then holds "
        "against the classes that are shown.",
    )
    return finding


def verdict(finding: Finding) -> dict[str, Any]:
    """Where the default is best and where it loses, as figures."""
    values = {r.name: np.array(r.cells, dtype=float) for r in finding.rows if r.name != WARM}
    best = np.max([v[:, 0] for v in values.values()], axis=0)  # of (streams, 3) each
    mine, se = values[OURS], values["SE"]
    return {
        "streams": len(finding.columns),
        "best_or_near": int((mine[:, 0] >= best - NEAR).sum()),
        "losses": int((mine[:, 2] < 0).sum()),
        "gain_over_se": float((mine[:, 0] - se[:, 0]).mean()),
    }


def streams_of(lab: Lab) -> dict[str, FeatureStream]:
    """Streams of many kinds: in any order, short, skewed, with many and few classes, shifted."""
    stream = lab.main()
    out: dict[str, FeatureStream] = {"shuffled": stream}
    drawn = draws(stream)
    out |= {name: part(stream, rows, known_as) for name, (rows, known_as) in drawn.items()}
    few = sorted(set(stream.labels[drawn["few classes, repeated"][0]].tolist()))
    out["few classes, known"] = narrowed(stream, few, "few, known")
    if lab.small:
        shifts = lab.shifts()
        out |= {d: shifts[d] for d in ("clean", "motion_blur/3", "impulse_noise/3", "brightness/3")}
        out["corruptions mixed"] = interleaved({d: shifts[d] for d in list(shifts)[:6]})
        worse = gradual([d for d in shifts if d.startswith("motion_blur")])
        out["gradual"] = in_turn(shifts, worse, "gradual")
    else:
        main, *_ = family = lab.family()  # the main stream has its row already
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


def warm(lab: Lab, streams: Mapping[str, FeatureStream]) -> Row:
    """The default, started with what it learned of other images of the source, if it has any."""
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
        cells.append(over_se(lab, [stream], [run(method, stream, "online", lab.tick)]))
    return Row(WARM, tuple(cells), method=OURS)
