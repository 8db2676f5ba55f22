"""The paper's comparisons: every system side by side, what each part gives, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from adte.core.errors import InputError
from adte.evaluate.features.stream import FeatureStream
from adte.methods import create_method
from adte.paper.lab import ADTE, CROSS, FAMILY, OURS, PAPER, RELEASED, Lab, Rival
from adte.paper.rows import STAND_INS, family_like, mean, rows_of
from adte.paper.study import Finding, Row, study

__all__ = ["TUNERS"]

TUNERS = ("tpt", "dynaprompt")  # they go through the text tower for every image
SYSTEMS: dict[str, Rival] = {
    "CLIP": ("zero-shot", {}), "TPT": ("tpt", {}), "TDA": ("tda", {}), "Zero": ("zero", {}),
    "Dyna": ("dynaprompt", {}), "BCA": ("bca", {}), "SE": ("se", {}), **ADTE,
}  # fmt: skip
DESCRIBED: dict[str, Rival] = {
    "CuPL": ("zero-shot", {}), "Frolic": ("frolic", {}), "ADTE": (PAPER, {})
}  # fmt: skip


def compared(
    lab: Lab,
    streams: Mapping[str, FeatureStream],
    described: Mapping[str, FeatureStream],
    *averages: list[str],
) -> list[Row]:
    """The rows of both main tables: systems with templates, then with descriptions."""
    block = lab.block or "ViT-B/16"
    rows = []
    for name, rival in lab.wanted(SYSTEMS).items():
        few = lab.preset.tuned if rival[0] in TUNERS else None
        seen = {c: s.first(few) for c, s in streams.items()}
        (row,) = rows_of(lab, {name: rival}, seen, *averages)
        rows.append(replace(row, like=name, block=f"{block} templates"))
        if few is not None:
            rows[-1] = replace(rows[-1], name=f"{name} (first {few} images)", aside=True)
    if any(row.aside for row in rows):
        few = lab.preset.tuned
        seen = {c: s.first(few) for c, s in streams.items()}
        rivals = {f"CLIP (first {few} images)": SYSTEMS["CLIP"]}
        rows += [
            replace(row, like=" ", aside=True) for row in rows_of(lab, rivals, seen, *averages)
        ]
    if described:
        told = {c: described.get(c) for c in streams}  # not every set need have descriptions
        rows += [
            replace(row, name=row.name if row.name == "CuPL" else f"{row.name} with descriptions",
                    like=row.name, block=f"{block} CuPL")
            for row in rows_of(lab, DESCRIBED, told, *averages)
        ]  # fmt: skip
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
    usual, parts = create_method("se").params, ("prior.", "adjust.")
    every = create_method(adte).params.items()
    return {k: v for k, v in every if k.startswith(parts) and v != usual[k]}


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
    rivals: dict[str, Rival] = {
        "ADTE": (PAPER, {}),
        "w/o ADTE": ("se", prior_options(PAPER)),
        "w/o LA": (PAPER, {"adjust": "none"}),
        "w/o ADTE and LA": ("se", {}),
        **{name: rival for name, rival in ADTE.items() if name != "ADTE"},
    }
    rows = [
        Row(name, tuple(mean([lab.accuracy(s, method, **options) for s in streams])
                        for streams in groups.values()), method=method, options=options)
        for name, (method, options) in lab.wanted(rivals).items()
    ]  # fmt: skip
    whole = {
        "IN-Variants": lab.small or len({*family} - {*main}) == len(FAMILY) - 1,
        "IN": True,
        "10-datasets": lab.small or len(cross) == len(CROSS),
    }
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
        like={name: f"{model} {name}" for name in groups if whole[name]},
        notes=(
            "Where ADTE's entropy is left out, SE gets the same prior and the same place of the "
            "adjustment.",
            *((small,) if lab.small else ()),
        ),
    )


@study("entropies", "Three entropies, all with logit adjustment")
def entropies(lab: Lab) -> Finding:
    """SE with the adjustment before and after selection, TE and ADTE, all with the prior of the
    paper's ADTE; and ADTE as released and our default, with their own.
    """
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    prior = {k: v for k, v in prior_options(PAPER).items() if k.startswith("prior.")}
    rivals: dict[str, Rival] = {
        "LA-SE": ("se", {"adjust": "before", **prior}),
        "SE-LA": ("se", {"adjust": "after", **prior}),
        "TE-LA (q=0.5)": ("te", {"q": 0.5, "adjust": "after", **prior}),
        "LA-TE (q=0.5)": ("te", {"q": 0.5, "adjust": "before", **prior}),
        **ADTE,
        "ADTE, LA before": (PAPER, {"adjust": "before"}),
        "ADTE, released code + LA": (RELEASED, {"adjust": "after"}),
    }
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows_of(lab, rivals, streams),
        like=family_like(lab),
        notes=(STAND_INS,) if lab.small else (),
    )


@study("confidence-intervals", "Accuracy over runs, with 95 % intervals")
def confidence_intervals(lab: Lab) -> Finding:
    """Mean and half-width at 95 % over the seeds."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    names = ("ImageNet-1k", "ImageNet-V", "ImageNet-K", "ImageNet-A", "ImageNet-R")
    systems: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {})}
    rivals = {**systems, **ADTE, "ADTE 95% interval": (PAPER, {})}
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows_of(lab, rivals, streams),
        like=family_like(lab, names),
        notes=(
            "The interval of a mean over seeds is Student's t. A method without state has none "
            "where seeds draw the order alone.",
            *((STAND_INS,) if lab.small else ()),
        ),
    )


@study("cost", "Seconds and memory per image", draws=None)
def cost(lab: Lab) -> Finding:
    """Time and peak memory of TPT, Zero and ADTE per image, all views encoded anew."""
    from adte.bench import cost as speed

    if not lab.small:
        raise InputError(
            "the cost study runs on the embedded model; for another one use "
            "`adte bench cost --model NAME`"
        )
    repeats = 5 if lab.preset.images is None else 1
    names = {"TPT": "tpt", "Zero": "zero", **{name: method for name, (method, _) in ADTE.items()}}
    found = speed.run(repeats=repeats, chunks=False, adte=(PAPER, RELEASED, OURS))
    rows = {row["name"]: row for row in found["rows"]}
    return Finding(
        "tiny, 200 classes, one image with its 64 views encoded, this machine, one run",
        tuple(names),
        [
            Row("Time [s]", tuple(rows[m]["seconds"] for m in names.values())),
            Row("Mem [GB]", tuple(rows[m]["peak_memory"] / 1e9 for m in names.values())),
        ],
        ("plain",) * len(names),
        notes=("Published: one A100. Ours: this machine; only ratios may be compared.",),
        lower=True,
        methods=names,
    )
