"""The paper's comparisons: every system side by side, what each part gives, ADTE's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from adte.evaluate.features.stream import FeatureStream
from adte.methods import create_method
from adte.paper.lab import ADTE, CROSS, FAMILY, OURS, PAPER, RELEASED, Lab, Rival, require
from adte.paper.study import Finding, Row, study
from adte.paper.tables import STAND_INS, family_like, on_family, rows_of, table

__all__ = ["TUNERS", "prior_options"]

TUNERS = ("tpt", "dynaprompt")  # they go through the text tower for every image
SYSTEMS: dict[str, Rival] = {
    "CLIP": ("zero-shot", {}), "TPT": ("tpt", {}), "TDA": ("tda", {}), "Zero": ("zero", {}),
    "Dyna": ("dynaprompt", {}), "BCA": ("bca", {}), "SE": ("se", {}), **ADTE,
}  # fmt: skip
DESCRIBED: dict[str, Rival] = {
    "CuPL": ("zero-shot", {}), "Frolic": ("frolic", {}), "ADTE": (PAPER, {})
}  # fmt: skip
FEWER = (
    "Systems that tune prompts take seconds per image on a CPU, so they saw fewer images, as they "
    "say: compare them with the row of CLIP on the same images alone."
)
MAIN = ("IN", "photographs")  # not a variant of ImageNet


def compared(
    lab: Lab,
    streams: Mapping[str, FeatureStream],
    described: Mapping[str, FeatureStream],
    means: Mapping[str, list[str]],
    **facts: Any,
) -> Finding:
    """Both main tables: systems with templates, then with descriptions."""
    block, few = lab.settings.block or "ViT-B/16", lab.settings.tuned
    averages = list(means.values())
    rows: list[Row] = []
    for name, rival in lab.wanted(SYSTEMS).items():
        tuned = few is not None and rival[0] in TUNERS
        seen = {c: s.first(few) if tuned else s for c, s in streams.items()}
        (row,) = rows_of(lab, {name: rival}, seen, means=averages)
        shown = f"{name} (first {few} images)" if tuned else name
        rows.append(replace(row, name=shown, like=name, block=f"{block} templates", aside=tuned))
    if any(row.aside for row in rows):
        seen = {c: s.first(few) for c, s in streams.items()}
        rivals = {f"CLIP (first {few} images)": SYSTEMS["CLIP"]}
        (row,) = rows_of(lab, rivals, seen, means=averages)
        rows.append(replace(row, like=" ", aside=True))
    if described:
        columns = {c: [described[c]] if c in described else [] for c in streams}
        for row in rows_of(lab, DESCRIBED, columns, means=averages):
            shown = row.name if row.name == "CuPL" else f"{row.name} with descriptions"
            rows.append(replace(row, name=shown, like=row.name, block=f"{block} CuPL"))
    return Finding(lab.setting(streams.values()), (*streams, *means), rows, **facts)


@study("ood", "ImageNet and its variants: every system")
def ood(lab: Lab) -> Finding:
    """Accuracy of every system on ImageNet and four variants, with templates and descriptions."""
    streams = lab.family()
    these = "" if lab.small or len(streams) == len(FAMILY) else " of these"
    means = {f"Average{these}": [*streams],
             f"OOD Avg{these}": [c for c in streams if c not in MAIN]}  # fmt: skip
    notes = (STAND_INS, FEWER) if lab.small else ()
    return compared(
        lab,
        streams,
        replace(lab, described=True).family(),
        means,
        like=family_like(lab),
        notes=notes,
    )


@study("cross-domain", "Ten cross-domain data sets: every system")
def cross_domain(lab: Lab) -> Finding:
    """Accuracy of every system on ten data sets of other domains."""
    streams = require(lab.cross(), "a cross-domain data set")
    these = "" if lab.small or len(streams) == len(CROSS) else " of these"
    small = (
        "In small the ten sets are ten groups of twenty classes of the bundle, neighbours in "
        "WordNet, 120 photographs each, named after their first class. Only the published average "
        "stands beside.",
        FEWER,
    )
    means, notes = {f"Avg{these}": [*streams]}, small if lab.small else ()
    return compared(lab, streams, replace(lab, described=True).cross(), means, notes=notes)


def prior_options(adte: str) -> dict[str, Any]:
    """How a variant of ADTE estimates the prior and adjusts by it, for SE to do the same."""
    usual, parts = create_method("se").params, ("prior.", "adjust.")
    every = create_method(adte).params.items()
    return {k: v for k, v in every if k.startswith(parts) and v != usual[k]}


@study("ablation", "What the entropy and the logit adjustment each give")
def ablation(lab: Lab) -> Finding:
    """ADTE, without its entropy (SE instead), without logit adjustment, and without both."""
    family, cross = lab.family(), lab.cross()
    groups = {
        "IN-Variants": [s for c, s in family.items() if c not in MAIN],
        "IN": [s for c, s in family.items() if c in MAIN],
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
    complete = {"IN-Variants": len(FAMILY) - 1, "IN": 1, "10-datasets": len(CROSS)}
    whole = [n for n, some in groups.items() if lab.small or len(some) == complete[n]]
    model = lab.settings.block or "ViT-B/16"
    notes = (
        "Where ADTE's entropy is left out, SE gets the same prior and the same place of the "
        "adjustment.",
    )
    small = (
        "In small, IN-Variants is the mean over four corruptions of 120 photographs in 40 classes, "
        "IN the bundle of 1,200 photographs in 200 classes, and 10-datasets the mean over ten "
        "groups of twenty classes of it.",
    )
    like = {name: f"{model} {name}" for name in whole}
    return table(lab, rivals, groups, like=like, notes=notes + small if lab.small else notes)


@study("entropies", "Three entropies, all with logit adjustment")
def entropies(lab: Lab) -> Finding:
    """SE with the adjustment before and after selection, TE and ADTE, all with the prior of the
    paper's ADTE; and ADTE as released and our default, with their own.
    """
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
    return on_family(lab, rivals)


@study("confidence-intervals", "Accuracy over runs, with 95 % intervals")
def confidence_intervals(lab: Lab) -> Finding:
    """Mean and half-width at 95 % over the seeds."""
    rivals: dict[str, Rival] = {
        "CLIP": ("zero-shot", {}), "SE": ("se", {}), **ADTE, "ADTE 95% interval": (PAPER, {})
    }  # fmt: skip
    names = ("ImageNet-1k", "ImageNet-V", "ImageNet-K", "ImageNet-A", "ImageNet-R")
    note = (
        "The interval of a mean over seeds is Student's t. A method without state has none where "
        "seeds draw the order alone."
    )
    return on_family(lab, rivals, names, (note,))


@study("intervals", "The interval that q is scaled into")
def intervals(lab: Lab) -> Finding:
    """ADTE with the lower end of q's interval from 0.1 to 0.0001."""
    lower = ("0.1", "0.01", "0.001", "0.0001")
    rivals: dict[str, Rival] = {f"[{a}, 0.9]": (PAPER, {"alpha": float(a)}) for a in lower}
    columns = list(lab.family())
    whole = lab.small or len(columns) == len(FAMILY)
    return on_family(lab, rivals, means={"Avg" if whole else "Avg of these": columns})


@study("normalisations", "How the bias is scaled to q")
def normalisations(lab: Lab) -> Finding:
    """ADTE with q by z-score, decimal scaling, sigmoid and min-max."""
    rules = {"Z-Score": "zscore", "Decimal Scaling": "decimal", "Sigmoid": "sigmoid",
             "Min-Max": "minmax"}  # fmt: skip
    note = (
        "The released file ends z-score and decimal scaling in a min-max, which makes them "
        "identical to min-max; ours differ."
    )
    rivals: dict[str, Rival] = {name: (PAPER, {"rule": rule}) for name, rule in rules.items()}
    return on_family(lab, rivals, notes=(note,))


@study("bank-size", "Items per class in the memory bank")
def bank_size(lab: Lab) -> Finding:
    """ADTE, and ADTE as released, with 1 to 40 items per class in the bank; two-pass."""
    sizes, stream = (1, 2, 5, 10, 20, 30, 40), lab.main()
    rivals = {name: rival for name, rival in ADTE.items() if rival[0] != OURS}
    rivals["ADTE, released code + LA"] = (RELEASED, {"adjust": "after"})
    notes = ("The columns are the option `size`. Our default has no bank, and so no row.",)
    small = ("The bundle has six photographs per class: banks beyond that never fill.",)
    return table(
        lab, rivals, dict.fromkeys(map(str, sizes), stream), protocol="two-pass",
        added={str(n): {"size": n} for n in sizes}, fair=lab.main_is_imagenet,
        notes=notes + small if lab.small else notes,
    )  # fmt: skip
