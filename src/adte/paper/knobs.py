"""The options of ADTE, turned one by one: q's interval and scaling, the bank, the adjustment."""

from __future__ import annotations

from typing import Any

from adte.evaluate.features.stream import Narrowed
from adte.evaluate.running.protocol import Protocol
from adte.paper.lab import FAMILY, PAPER, RELEASED, Lab, Rival
from adte.paper.rows import (
    FIXED_POINT,
    INTERVAL,
    STAND_INS,
    family_like,
    rows_of,
    with_interval,
)
from adte.paper.study import Cell, Finding, Row, study

__all__: list[str] = []

Ladder = tuple[tuple[str, str, dict[str, Any]], ...]
PASSES: tuple[Protocol, ...] = ("online", "two-pass")


# --------------------------------------------------------------------------- the paper's


@study("intervals", "The interval that q is scaled into")
def intervals(lab: Lab) -> Finding:
    """ADTE with the lower end of q's interval from 0.1 to 0.0001."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    rivals: dict[str, Rival] = {
        f"[{a}, 0.9]": (PAPER, {"alpha": float(a)}) for a in ("0.1", "0.01", "0.001", "0.0001")
    }
    return Finding(
        lab.setting(streams),
        (*streams, "Avg" if lab.small or len(streams) == len(FAMILY) else "Avg of these"),
        rows_of(lab, rivals, streams, list(streams)),
        like=family_like(lab),
        notes=(STAND_INS,) if lab.small else (),
    )


@study("bank-size", "Items per class in the memory bank")
def bank_size(lab: Lab) -> Finding:
    """ADTE, and ADTE as released, with 1 to 40 items per class in the bank; two-pass."""
    stream = lab.main()
    sizes = (1, 2, 5, 10, 20, 30, 40)
    rivals: dict[str, Rival] = {
        "ADTE": (PAPER, {}),
        "ADTE, released code": (RELEASED, {}),
        "ADTE, released code + LA": (RELEASED, {"adjust": "after"}),
    }
    rows = [
        Row(
            name,
            tuple(
                lab.accuracy(stream, method, protocol="two-pass", size=n, **options) for n in sizes
            ),
            method=method,
            options=options,
        )
        for name, (method, options) in lab.wanted(rivals).items()
    ]
    return Finding(
        lab.setting([stream]).replace(lab.protocol, "two-pass"),
        tuple(map(str, sizes)),
        rows,
        fair=lab.main_is_imagenet,
        notes=(
            "The columns are the option `size`. Our default has no bank, and so no row.",
            *(("The bundle has six photographs per class: banks beyond that never fill.",)
              if lab.small else ()),
        ),
    )  # fmt: skip


@study("normalisations", "How the bias is scaled to q")
def normalisations(lab: Lab) -> Finding:
    """ADTE with q by z-score, decimal scaling, sigmoid and min-max."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    rules = {"Z-Score": "zscore", "Decimal Scaling": "decimal", "Sigmoid": "sigmoid",
             "Min-Max": "minmax"}  # fmt: skip
    rivals: dict[str, Rival] = {name: (PAPER, {"rule": rule}) for name, rule in rules.items()}
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows_of(lab, rivals, streams),
        like=family_like(lab),
        notes=(
            "The released file ends z-score and decimal scaling in a min-max, which makes them "
            "identical to min-max; ours differ.",
            *((STAND_INS,) if lab.small else ()),
        ),
    )


# --------------------------------------------------------------------------- ours


@study("q-direction", "Which classes get the large q", ours=True)
def q_direction(lab: Lab) -> Finding:
    """SE, TE and ADTE in both directions of q and both forms, with three placements of LA."""
    stream = lab.main()
    base = lab.run(stream, "se").run.correct
    prior: dict[str, Any] = {**FIXED_POINT, "bank": "gap-larger", "size": 10}
    ladder: Ladder = (
        ("SE", "se", {}),
        ("TE q=0.01", "te", {"q": 0.01}),
        ("TE q=0.5", "te", {"q": 0.5}),
        ("TE q=1.5", "te", {"q": 1.5}),
        ("ADTE, released direction", PAPER, {"direction": "released"}),
        ("ADTE, paper's direction", PAPER, {}),
        ("ADTE, released, vanishing", PAPER, {"direction": "released", "form": "vanishing"}),
        ("ADTE, paper's, vanishing", PAPER, {"form": "vanishing"}),
    )
    rows = []
    for name, method, options in ladder:
        runs = [
            lab.run(stream, method, "two-pass", adjust=place, **prior, **options).run
            for place in ("none", "after", "before")
        ]
        cells = tuple(with_interval(r, base) for r in runs)
        rows.append(Row(name, cells, method=method, options=options))
    return Finding(
        lab.setting([stream]).replace(lab.protocol, "two-pass"),
        ("no LA", "LA after", "LA before"),
        rows,
        notes=("Prior: fixed point of the ten surest items per class.", INTERVAL),
    )


# What the estimate of the prior is made of.
POLICIES: dict[str, dict[str, Any]] = {
    **{p: {**FIXED_POINT, "bank": p, "size": 10}
       for p in ("all", "gap", "gap-larger", "fifo", "reservoir")},
    "all, damped": {**FIXED_POINT, "bank": "all", "size": 10, "damping": 0.1},
    "marginal": {"estimator": "marginal", "clip": 0.0},
    "marginal, clipped": {"estimator": "marginal", "clip": 2.0},
}  # fmt: skip


@study("bank-policy", "Which items the bank keeps", ours=True)
def bank_policy(lab: Lab) -> Finding:
    """ADTE with every bank policy and the plain mean: accuracy, spread of the bias, ranking."""
    streams = {"200 classes" if lab.small else "all classes": lab.main()}
    if lab.small:
        streams["10 classes"] = Narrowed(lab.main(), range(0, 200, 20), "every twentieth class")
    units = {
        f"{name}, {what}": "percent" if "LA" in what else "plain"
        for name in streams
        for what in ("no LA", "LA before", "variance", "Spearman")
    }
    rows = []
    for policy, options in POLICIES.items():
        cells: list[Cell] = []
        for stream in streams.values():
            base = lab.run(stream, "se").run.correct
            done = [
                lab.run(stream, PAPER, protocol="two-pass", adjust=place, **options)
                for place in ("none", "before")
            ]
            figures = done[-1].record.metrics
            cells += [with_interval(d.run, base) for d in done]
            cells += [figures["bias_variance"], figures.get("spearman")]
        rows.append(Row(policy, tuple(cells), method=PAPER, options=options))
    return Finding(
        lab.setting(streams).replace(lab.protocol, "two-pass"),
        tuple(units),
        rows,
        tuple(units.values()),
        notes=(INTERVAL, "Spearman: estimated prior against the model's true class frequencies."),
    )


@study("la-order", "Adjust before or after the views are selected", ours=True)
def la_order(lab: Lab) -> Finding:
    """Every placement of the adjustment for SE, TE and ADTE, online and two-pass."""
    stream = lab.main()
    base = lab.run(stream, "se").run.correct
    places = ("none", "before", "per-view", "after")
    ladder: Ladder = (
        ("SE", "se", {}),
        ("TE q=0.1", "te", {"q": 0.1}),
        ("ADTE", PAPER, {}),
        ("ADTE, vanishing form", PAPER, {"form": "vanishing"}),
    )
    rows = []
    for protocol in PASSES:
        for name, method, options in ladder:
            runs = [
                lab.run(stream, method, protocol, adjust=place, **options).run for place in places
            ]
            cells = tuple(with_interval(r, base) for r in runs)
            rows.append(Row(f"{name}, {protocol}", cells, method=method, options=options))
    return Finding(lab.setting([stream]), places, rows, notes=(INTERVAL,))
