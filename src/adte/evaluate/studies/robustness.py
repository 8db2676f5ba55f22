"""Robustness, our own studies: the default on streams of many kinds and in small label spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adte.evaluate.features.stream import FeatureStream, Held, Narrowed, part
from adte.evaluate.running import metrics
from adte.evaluate.studies.lab import Lab
from adte.evaluate.studies.rows import INTERVAL, Rival, over_streams
from adte.evaluate.studies.study import Cell, Finding, Row, study

__all__ = ["robust_facts", "streams_of"]


def streams_of(lab: Lab) -> dict[str, FeatureStream]:
    """Streams of many kinds: in any order, with many and few classes, imbalanced, shifted."""
    stream = lab.main()
    labels, classes = stream.labels, len(stream.classes)
    rng = np.random.default_rng(1)
    rank, thin = rng.permutation(classes), []
    for label in range(classes):
        own = np.flatnonzero(labels == label)
        keep = max(1, round(len(own) * 10 ** (-rank[label] / max(classes - 1, 1))))
        thin += own[:keep].tolist()
    few = np.flatnonzero(np.isin(labels, rng.permutation(classes)[: max(2, classes // 20)]))
    passes = np.concatenate([rng.permutation(few) for _ in range(5)])
    out: dict[str, FeatureStream] = {
        "shuffled": stream,
        "sorted by class": part(stream, np.argsort(labels, kind="stable"), "sorted"),
        "imbalanced 10 : 1": part(stream, rng.permutation(np.array(thin)), "thinned"),
        "short, 100 images": part(stream, np.arange(min(100, len(stream))), "short"),
        "few classes, repeated": part(stream, passes, "few classes"),
        "few classes, known": Narrowed(stream, sorted(set(labels[few].tolist())), "few, known"),
    }
    if lab.small:
        shifts = lab.by_domain("shifts")
        out |= {d: shifts[d] for d in ("clean", "motion_blur/3", "impulse_noise/3", "brightness/3")}
    else:
        out |= {n: s for n, s in {**lab.family(), **lab.cross()}.items() if s is not stream}
    return out


RIVALS: dict[str, Rival] = {
    "zero-shot": ("zero-shot", {}),
    "SE": ("se", {}),
    "SE + LA": ("se", {"adjust": "before"}),
    "Zero": ("zero", {}),
    "TDA": ("tda", {}),
    "ADTE, no LA": ("adte", {"adjust": "none"}),
    "ADTE": ("adte", {}),
    "ADTE, prior not clipped": ("adte", {"clip": 0.0}),
    "adte-paper": ("adte-paper", {}),
    "adte-released": ("adte-released", {}),
}
NEAR = 0.005  # half a point


KNOBS: dict[str, Rival] = {
    "SE": ("se", {}),
    "adte": ("adte", {}),
    "no adjustment": ("adte", {"adjust": "none"}),
    "adjustment after": ("adte", {"adjust": "after"}),
    "paper's form": ("adte", {"form": "paper"}),
    "paper's direction": ("adte", {"direction": "paper"}),
    "prior not clipped": ("adte", {"clip": 0.0}),
    "prior not smoothed": ("adte", {"smoothing": 0.0, "smoothing_total": 0.0}),
    "q as for many classes": ("adte", {"few": 0}),
    "fixed point": ("adte", {"estimator": "fixed-point"}),
}


@study("defaults", "Every knob of the default, turned alone", ours=True)
def defaults(lab: Lab) -> Finding:
    """`adte` and its neighbours, one option changed at a time, on streams of many kinds."""
    streams = streams_of(lab)
    rows = over_streams(lab, streams, KNOBS, lab.protocol)
    note = "Labels decide between these rows, so a row picked here is no independent result."
    return Finding(lab.setting(streams), tuple(streams), rows, notes=(INTERVAL, note))


DRAWS = {2: 24, 3: 16, 5: 12, 10: 8, 20: 6}  # label spaces drawn, by their size
FEW: dict[str, Rival] = {
    "zero-shot": ("zero-shot", {}),
    "SE": ("se", {}),
    "adte": ("adte", {}),
    "q as for many classes": ("adte", {"few": 0}),
    "prior at once": ("adte", {"smoothing_total": 0.0}),
    "both": ("adte", {"few": 0, "smoothing_total": 0.0}),
    "adte-paper": ("adte-paper", {}),
    "adte-released": ("adte-released", {}),
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
    for name, (method, options) in FEW.items():
        cells: list[Cell] = []
        for streams in spaces.values():
            mine, base = right(streams, method, options), right(streams, "se", {})
            low, high = metrics.bootstrap_difference(mine, base)
            cells.append((float(mine.mean()), low, high))
        rows.append(Row(name, tuple(cells)))
    return Finding(
        lab.setting([s for streams in spaces.values() for s in streams]),
        tuple(spaces),
        rows,
        notes=(
            f"{', '.join(f'{n} draws of {size}' for size, n in DRAWS.items())}; each is a stream.",
            INTERVAL,
        ),
    )


@study("robust", "The default on streams of many kinds", ours=True)
def robust(lab: Lab) -> Finding:
    """Every rival on every kind of stream, online: where the default is best, where it loses."""
    streams = streams_of(lab)
    rows = over_streams(lab, streams, RIVALS, "online")
    said = robust_facts(rows, tuple(streams))
    return Finding(
        lab.setting(streams).replace(lab.protocol, "online"),
        tuple(streams),
        rows,
        notes=(
            f"ADTE is best or within half a point of the best on {said['best_or_near']} of "
            f"{said['streams']} streams, and below SE beyond its interval on {said['losses']}; "
            f"mean gain over SE {100 * said['gain_over_se']:+.1f} points.",
            INTERVAL,
            "'few classes, repeated' shows a twentieth of the classes over and over, and the "
            "method is not told which: an estimate of the prior then takes what is rare in the "
            "stream for what the model neglects. Clipping it is what helps.",
        ),
    )


def robust_facts(rows: list[Row], columns: tuple[str, ...]) -> dict[str, Any]:
    """What `robust` says in figures."""

    def table(row: Row) -> NDArray[np.float64]:
        return np.array(list(row.cells), dtype=float)

    values = {r.name: table(r) for r in rows}  # (streams, 3)
    best = np.max([v[:, 0] for v in values.values()], axis=0)
    mine, se = values["ADTE"], values["SE"]
    return {
        "streams": len(columns),
        "best_or_near": int((mine[:, 0] >= best - NEAR).sum()),
        "losses": int((mine[:, 2] < 0).sum()),
        "gain_over_se": float((mine[:, 0] - se[:, 0]).mean()),
    }
