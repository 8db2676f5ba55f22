"""The paper's comparisons: every system side by side, what each part gives, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from adte.errors import InputError
from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.running import figures
from adte.evaluate.studies.lab import CROSS, FAMILY, Lab
from adte.evaluate.studies.rows import STAND_INS, family_like, mean, over
from adte.evaluate.studies.study import Finding, Row, study
from adte.methods import create_method

__all__: list[str] = []


def compared(
    lab: Lab,
    streams: Mapping[str, FeatureStream],
    described: Mapping[str, FeatureStream],
    *averages: list[str],
) -> list[Row]:
    """The rows of both main tables: systems with templates, then with descriptions."""
    block = lab.block or "ViT-B/16"
    rows = []
    for name, method in (
        ("CLIP", "zero-shot"), ("TPT", "tpt"), ("TDA", "tda"), ("Zero", "zero"),
        ("Dyna", "dynaprompt"), ("BCA", "bca"), ("SE", "se"), ("ADTE", lab.adte),
        ("ADTE, paper's text", "adte-paper"), ("ADTE, released code", "adte-released"),
    ):  # fmt: skip
        few = lab.preset.tuned if method in ("tpt", "dynaprompt") else None
        seen = {c: s.first(few) for c, s in streams.items()}
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
    "Systems that tune prompts take seconds per image on a CPU, so they saw fewer images, as they "
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
    parts = ("prior.", "adjust.")
    return {k: v for k, v in create_method(adte).params.items() if k.startswith(parts)}


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
    small = (
        "In small, IN-Variants is the mean over four corruptions of 120 photographs in 40 classes, "
        "IN the bundle of 1,200 photographs in 200 classes, and 10-datasets the mean over ten "
        "groups of twenty classes of it."
    )
    return Finding(
        lab.setting([s for streams in groups.values() for s in streams]),
        tuple(groups),
        rows,
        like={name: f"{model} {name}" for name in groups},
        fair=len(family) == len(FAMILY) and len(cross) == len(CROSS),
        notes=(
            "Where ADTE's entropy is left out, SE gets the same prior and the same place of the "
            "adjustment.",
            *((small,) if lab.small else ()),
        ),
    )


@study("entropies", "Three entropies, all with logit adjustment")
def entropies(lab: Lab) -> Finding:
    """SE with the adjustment before and after selection, TE and ADTE, with one prior; and the
    variants of the paper's text and of its code, with their own.
    """
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    prior = {k: v for k, v in prior_options(lab.adte).items() if k.startswith("prior.")}
    rows = []
    for name, method, options in (
        ("LA-SE", "se", {"adjust": "before", **prior}),
        ("SE-LA", "se", {"adjust": "after", **prior}),
        ("TE-LA (q=0.5)", "te", {"q": 0.5, "adjust": "after", **prior}),
        ("LA-TE (q=0.5)", "te", {"q": 0.5, "adjust": "before", **prior}),
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


@study("confidence-intervals", "Accuracy over runs, with 95 % intervals")
def confidence_intervals(lab: Lab) -> Finding:
    """Mean and half-width at 95 % over orders of the stream."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    names = ("ImageNet-1k", "ImageNet-V", "ImageNet-K", "ImageNet-A", "ImageNet-R")
    means, widths = [], []
    for stream in streams.values():
        values = lab.seeded(stream, lab.adte)
        low, high = figures.seed_interval(values) or [values[0], values[0]]
        means.append((low + high) / 2)
        widths.append(((low + high) / 2, (high - low) / 2))
    rows = [
        Row(name, tuple(lab.accuracy(s, method) for s in streams.values()))
        for name, method in (("CLIP", "zero-shot"), ("SE", "se"))
    ]
    return Finding(
        lab.setting(streams),
        tuple(streams),
        [*rows, Row("ADTE", tuple(means)), Row("ADTE 95% interval", tuple(widths))],
        like=family_like(lab, names),
        notes=(
            f"Over {lab.preset.seeds} orders of the stream (Student's t); the views stay the same. "
            "Without state an order changes nothing, so CLIP and SE have no interval of this kind.",
            *((STAND_INS,) if lab.small else ()),
        ),
    )


@study("cost", "Seconds and memory per image")
def cost(lab: Lab) -> Finding:
    """Time and peak memory of TPT, Zero and ADTE per image, all views encoded anew."""
    from adte.bench import cost as speed

    if not lab.small:
        raise InputError(
            "the cost study runs on the embedded model; for another one use "
            "`adte bench cost --model NAME`"
        )
    repeats = 5 if lab.preset.images is None else 1
    found = speed.run(repeats=repeats, chunks=False, adte=lab.adte)
    rows = {row["name"]: row for row in found["rows"]}
    names = {"TPT": "tpt", "Zero": "zero", "ADTE": lab.adte}
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
