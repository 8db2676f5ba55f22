"""The paper's main tables: benchmarks, ablation, and the knobs of ADTE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from adte.errors import InputError
from adte.evaluate.features import FeatureStream
from adte.evaluate.studies.lab import CROSS, FAMILY, Lab, first
from adte.evaluate.studies.study import Finding, Row, study
from adte.evaluate.tasks import SAME_PRIOR
from adte.methods import create_method
from adte.prior import PriorOptions

__all__ = ["family_like"]

STAND_INS = (
    "In small the first column is the bundle of 1,200 photographs in 200 classes; the others are "
    "120 photographs in 40 classes under one corruption each, where the paper has variants of "
    "ImageNet. Published columns stand beside them by position, for orientation."
)


def family_like(lab: Lab, names: tuple[str, ...] = tuple(FAMILY.values())) -> dict[str, str]:
    """Which published column each column of the family stands for; `names` as a table has them."""
    if lab.small:
        return dict(zip(lab.family(), names, strict=True))
    return dict(zip(FAMILY.values(), names, strict=True))


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def over(
    streams: Mapping[str, FeatureStream],
    value: Callable[[FeatureStream], float],
    *averages: list[str],
) -> tuple[float | None, ...]:
    """A row: a value for every stream, then the mean over each list of them."""
    cells = {name: value(s) for name, s in streams.items()}
    means = [mean([cells[n] for n in names]) if names else None for names in averages]
    return (*cells.values(), *means)


def compared(
    lab: Lab,
    streams: Mapping[str, FeatureStream],
    described: Mapping[str, FeatureStream],
    *averages: list[str],
) -> list[Row]:
    """The rows of both benchmarks: systems with templates, then with descriptions."""
    block = lab.block or "ViT-B/16"
    rows = []
    for name, method in (
        ("CLIP", "zero-shot"), ("TPT", "tpt"), ("TDA", "tda"), ("Zero", "zero"),
        ("Dyna", "dynaprompt"), ("BCA", "bca"), ("SE", "se"), ("ADTE", lab.adte),
        ("ADTE, paper's text", "adte-paper"), ("ADTE, released code", "adte-released"),
    ):  # fmt: skip
        few = lab.preset.tuned if method in ("tpt", "dynaprompt") else None
        seen = {c: first(s, few) for c, s in streams.items()}
        title = name if few is None else f"{name} (first {few} images)"
        cells = over(seen, partial(lab.accuracy, method=method), *averages)
        rows.append(Row(title, cells, name, f"{block} templates", aside=few is not None))
        if method == "dynaprompt" and few is not None:
            cells = over(seen, partial(lab.accuracy, method="zero-shot"), *averages)
            rows.append(Row(f"CLIP (first {few} images)", cells, " ", aside=True))
    for name, method in (("CuPL", "zero-shot"), ("Frolic", "frolic"), ("ADTE", lab.adte)):
        if described:
            cells = over(described, partial(lab.accuracy, method=method), *averages)
            title = name if name == "CuPL" else f"{name} with descriptions"
            rows.append(Row(title, cells, like=name, block=f"{block} CuPL"))
    return rows


FEWER = (
    "Systems that tune prompts take seconds an image on a CPU, so they saw fewer images, as they "
    "say: compare them with the row of CLIP on the same images alone."
)


@study("ood", "ImageNet and its variants: every system")
def ood(lab: Lab) -> Finding:
    """Accuracy of every system on ImageNet and four variants, with templates and descriptions."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    every, others = list(streams), [c for c in streams if c not in ("IN", "photographs")]
    rows = compared(lab, streams, lab.family(described=True), every, others)
    whole = lab.small or len(streams) == len(FAMILY)
    names = ("Average", "OOD Avg") if whole else ("Average of these", "OOD Avg of these")
    return Finding(
        lab.setting(streams),
        (*streams, *names),
        rows,
        like=family_like(lab),
        notes=(STAND_INS, FEWER) if lab.small else (),
    )


@study("cross-domain", "Ten cross-domain data sets: every system")
def cross_domain(lab: Lab) -> Finding:
    """Accuracy of every system on ten data sets of other domains."""
    streams = lab.require(lab.cross(), "a cross-domain data set")
    rows = compared(lab, streams, lab.cross(described=True), list(streams))
    average = "Avg" if lab.small or len(streams) == len(CROSS) else "Avg of these"
    small = (
        "In small the ten sets are ten groups of twenty classes of the bundle, neighbours in "
        "WordNet, 120 photographs each, named after their first class. Only the published average "
        "stands beside.",
        FEWER,
    )
    return Finding(
        lab.setting(streams), (*streams, average), rows, notes=small if lab.small else ()
    )


def prior_options(adte: str) -> dict[str, Any]:
    """How a variant of ADTE estimates the prior and adjusts by it, for SE to do the same."""
    wanted = {f.name for f in fields(PriorOptions)} | {"adjust", "tau", "item", "warmup"}
    return {k: v for k, v in create_method(adte).params.items() if k in wanted}


@study("ablation", "What the entropy and the logit adjustment each give")
def ablation(lab: Lab) -> Finding:
    """ADTE, without its entropy (SE instead), without logit adjustment, and without both."""
    family, cross = lab.require(lab.family(), "ImageNet or a variant of it"), lab.cross()
    main = ("IN", "photographs")
    groups = {
        "IN-Variants": [s for c, s in family.items() if c not in main],
        "IN": [s for c, s in family.items() if c in main],
        "10-datasets": list(cross.values()),
    }
    groups = {name: streams for name, streams in groups.items() if streams}
    rows = []
    for name, method, options in (
        ("ADTE", lab.adte, {}),
        ("w/o ADTE", "se", prior_options(lab.adte)),
        ("w/o LA", lab.adte, {"adjust": "none"}),
        ("w/o ADTE and LA", "se", {}),
    ):
        cells = [
            mean([lab.accuracy(s, method, **options) for s in streams])
            for streams in groups.values()
        ]
        rows.append(Row(name, tuple(cells)))
    model = lab.block or "ViT-B/16"
    return Finding(
        lab.setting([s for streams in groups.values() for s in streams]),
        tuple(groups),
        rows,
        like={name: f"{model} {name}" for name in groups},
        fair=len(family) == len(FAMILY) and len(cross) == len(CROSS),
        notes=(
            "Where ADTE's entropy is left out, SE gets the same prior and the same place of the "
            "adjustment.",
            *((STAND_INS,) if lab.small else ()),
        ),
    )


@study("entropies", "Three entropies, all with logit adjustment")
def entropies(lab: Lab) -> Finding:
    """SE with the adjustment before and after selection, TE and ADTE, with one prior; and the
    variants of the paper's text and of its code, with their own.
    """
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    rows = []
    for name, method, options in (
        ("LA-SE", "se", {"adjust": "before", **SAME_PRIOR}),
        ("SE-LA", "se", {"adjust": "after", **SAME_PRIOR}),
        ("TE-LA (q=0.5)", "te", {"q": 0.5, "adjust": "after", **SAME_PRIOR}),
        ("LA-TE (q=0.5)", "te", {"q": 0.5, "adjust": "before", **SAME_PRIOR}),
        ("ADTE", lab.adte, {}),
        ("ADTE, LA after", lab.adte, {"adjust": "after"}),
        ("ADTE, paper's text", "adte-paper", {}),
        ("ADTE, released code + LA", "adte-released", {"adjust": "after"}),
    ):
        cells = over(streams, partial(lab.accuracy, method=method, **options))
        rows.append(Row(name, cells))
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows,
        like=family_like(lab),
        notes=(STAND_INS,) if lab.small else (),
    )


@study("intervals", "The interval that q is scaled into")
def intervals(lab: Lab) -> Finding:
    """ADTE with the lower end of q's interval from 0.1 to 0.0001."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    rows = [
        Row(f"[{a}, 0.9]", over(streams, partial(lab.accuracy, method=lab.adte, alpha=float(a)),
                                list(streams)))
        for a in ("0.1", "0.01", "0.001", "0.0001")
    ]  # fmt: skip
    return Finding(
        lab.setting(streams),
        (*streams, "Avg" if lab.small or len(streams) == len(FAMILY) else "Avg of these"),
        rows,
        like=family_like(lab),
        notes=(STAND_INS,) if lab.small else (),
    )


@study("cost", "Seconds and memory an image")
def cost(lab: Lab) -> Finding:
    """Time and peak memory of TPT, Zero and ADTE an image, all views encoded anew."""
    from adte.bench import cost as benchmark

    if not lab.small:
        raise InputError(
            "the cost study runs on the embedded model; for another one use "
            "`adte bench cost --model NAME`"
        )
    found = benchmark.run(repeats=5 if lab.preset.images is None else 1, chunks=False)
    rows = {row["name"]: row for row in found["rows"]}
    names = {"TPT": "tpt", "Zero": "zero", "ADTE": "adte"}
    return Finding(
        "tiny, 200 classes, one image with its 64 views encoded, this machine",
        tuple(names),
        [
            Row("Time [s]", tuple(rows[m]["seconds"] for m in names.values())),
            Row("Mem [GB]", tuple(rows[m]["peak_memory"] / 1e9 for m in names.values())),
        ],
        ("plain",) * 3,
        notes=("Published: one A100. Ours: this machine; only ratios may be compared.",),
        lower=True,
    )


@study("bank-size", "Items a class in the memory bank")
def bank_size(lab: Lab) -> Finding:
    """ADTE as released, with 1 to 40 items a class in the bank; two-pass, as released."""
    stream = lab.main()
    sizes = (1, 2, 5, 10, 20, 30, 40)
    rows = []
    for name, method, extra in (
        ("ADTE", "adte-released", {}),
        ("ADTE + LA", "adte-released", {"adjust": "after"}),
        ("ADTE, last items, paper's text", "adte-paper", {}),
    ):
        cells = [lab.accuracy(stream, method, protocol="two-pass", size=n, **extra) for n in sizes]
        rows.append(Row(name, tuple(cells)))
    return Finding(
        lab.setting([stream]).replace(lab.protocol, "two-pass"),
        tuple(map(str, sizes)),
        rows,
        fair=lab.main_is("IN"),
        notes=(
            "Our default has no bank (it takes the mean of all predictions), so the variants that "
            "have one are shown.",
            *(("The bundle has six photographs a class: banks beyond that never fill.",)
              if lab.small else ()),
        ),
    )  # fmt: skip


@study("normalisations", "How the bias is scaled to q")
def normalisations(lab: Lab) -> Finding:
    """ADTE with q by z-score, decimal scaling, sigmoid and min-max."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    rules = {"Z-Score": "zscore", "Decimal Scaling": "decimal", "Sigmoid": "sigmoid",
             "Min-Max": "minmax"}  # fmt: skip
    rows = [
        Row(name, over(streams, partial(lab.accuracy, method=lab.adte, rule=rule)))
        for name, rule in rules.items()
    ]
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows,
        like=family_like(lab),
        notes=(
            "The released file ends z-score and decimal scaling in a min-max, which makes them "
            "identical to min-max; ours differ.",
            *((STAND_INS,) if lab.small else ()),
        ),
    )
