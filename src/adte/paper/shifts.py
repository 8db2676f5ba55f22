"""The paper's studies of shift: corruptions, mixed streams, other backbones, fifths of classes."""

from __future__ import annotations

import numpy as np

from adte.evaluate.features.stream import FeatureStream, narrowed
from adte.paper.bias import learned
from adte.paper.lab import ADTE, FAMILY, Lab, Rival, interleaved
from adte.paper.study import Finding, Row, study
from adte.paper.tables import table

__all__: list[str] = []

BLURS = ("defocus_blur", "glass_blur", "motion_blur")
TYPES = ("brightness", "elastic_transform", "gaussian_blur", "impulse_noise", "motion_blur",
         "shot_noise", "speckle_noise")  # fmt: skip
SYSTEMS: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), **ADTE}


@study("imagenet-c", "Three blurs, by severity")
def imagenet_c(lab: Lab) -> Finding:
    """CLIP, SE and ADTE under defocus, glass and motion blur of growing severity."""
    domains = lab.corrupted("imagenet-c")
    named = {f"{kind} {n}": f"{kind}/{n}" for kind in BLURS for n in range(1, 6)}
    columns = {column: domains[d] for column, d in named.items() if d in domains}
    note = (
        "In small: 120 photographs in 40 classes, severities 1, 3 and 5, made with our own "
        "corruptions."
    )
    return table(lab, SYSTEMS, columns, notes=(note,) if lab.small else ())


def _seven(lab: Lab, name: str, classes: range | None) -> Finding:
    domains = lab.corrupted(name)
    if classes is not None:
        domains = {d: narrowed(s, classes, "every fourth class") for d, s in domains.items()}
    columns = {kind: [s for d, s in domains.items() if d.startswith(f"{kind}/")] for kind in TYPES}
    note = (
        f"In small: {'30' if classes else '120'} photographs in {'10' if classes else '40'} "
        "classes of the bundle under the same corruptions at severity 3 (motion blur: 1, 3, 5)."
    )
    return table(
        lab, SYSTEMS, {kind: streams for kind, streams in columns.items() if streams},
        notes=(note if lab.small else "Means over the severities that were given.",),
    )  # fmt: skip


@study("cifar10-c", "Seven corruptions, few classes")
def cifar10_c(lab: Lab) -> Finding:
    """CLIP, SE and ADTE under seven corruptions in a label space of ten classes."""
    return _seven(lab, "cifar10-c", range(0, 40, 4) if lab.small else None)


@study("cifar100-c", "Seven corruptions, more classes")
def cifar100_c(lab: Lab) -> Finding:
    """CLIP, SE and ADTE under seven corruptions in a larger label space."""
    return _seven(lab, "cifar100-c", None)


@study("mixed-stream", "Data sets one by one, and shuffled into one stream")
def mixed_stream(lab: Lab) -> Finding:
    """SE and ADTE on every set by itself, and ADTE on all of them interleaved at random."""
    names = ("ImageNet-1k", "ImageNet-V", "ImageNet-K", "ImageNet-A", "ImageNet-R")
    if lab.small:
        shifts = lab.shifts()
        some = ("clean", "brightness/3", "motion_blur/3", "impulse_noise/3", "glass_blur/3")
        streams = {d.partition("/")[0]: shifts[d] for d in some}
        note = "The same 120 photographs, clean and under four corruptions."
    else:
        family = lab.family()
        one = next(iter(family.values()))
        streams = {c: s for c, s in family.items() if s.classes == one.classes}
        note = "Only sets that share one label space can be mixed."
    like = dict(zip(streams if lab.small else FAMILY.values(), names, strict=True))
    finding = table(lab, {"SE": ("se", {}), **ADTE}, streams, like=like, notes=(note,))
    mixed = interleaved(streams)
    for name, (method, _) in lab.wanted(ADTE).items():
        right = lab.run(mixed, method).record.metrics
        by_domain = right.get("by_domain") or dict.fromkeys(streams, right["accuracy"])
        cells = tuple(by_domain[c] for c in streams)
        finding.rows.append(Row(f"{name}, mixed", cells, f"{name}_random", method=method))
    return finding


SUCCESSORS = (("siglip2", "SigLIP2"), ("siglip", "SigLIP"), ("eva", "EVA-CLIP"),
              ("openai", "CLIP"), ("/laion", "OpenCLIP"))  # fmt: skip


@study("successors", "Other backbones")
def successors(lab: Lab) -> Finding:
    """Zero-shot and ADTE on the models at hand."""
    streams: dict[str, FeatureStream] = {lab.main().recipe.model: lab.main()}
    if lab.small:
        streams = {"tiny-longtail, seed 1": lab.shifts()["clean"],
                   "tiny-longtail, seed 2": lab.bundle("second")}  # fmt: skip
    systems = {"zero-shot": "zero-shot"}
    systems |= {f"+{name}": method for name, (method, _) in lab.wanted(ADTE).items()}
    rows = []
    for name, stream in streams.items():
        like = next((theirs for mark, theirs in SUCCESSORS if mark in name.lower()), name)
        cells = tuple(lab.accuracy(stream, method) for method in systems.values())
        rows.append(Row(name, cells, like=like))
    note = "In small: two training seeds of the embedded model, 120 photographs."
    return Finding(
        lab.setting(streams.values()),
        tuple(systems),
        rows,
        methods=systems,
        like={"zero-shot": "ImageNet-1k Acc"},
        fair=False,  # the paper does not say which sizes
        ranked=False,
        notes=(note if lab.small else "One model per run; run it again with another --model.",),
    )


@study("low-bias", "Fifths of the classes, from most to least biased")
def low_bias(lab: Lab) -> Finding:
    """CLIP, SE, TE and ADTE in five label spaces, by how far a class's bias is from the mean."""
    stream = lab.main()
    bias = -learned(lab, stream, estimator="marginal").log_prior.cpu().numpy()
    order = np.argsort(-np.abs(bias - bias.mean()), kind="stable")
    fifths = {
        f"s{i}": narrowed(stream, np.sort(c).tolist(), f"bias fifth {i}")
        for i, c in enumerate(np.array_split(order, 5), 1)
    }
    rivals: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), "TE": ("te", {})}
    note = (
        "Each fifth is scored within its own classes. The paper's text speaks of ImageNet-1k, "
        "its caption of ImageNet-A; what it means by magnitude it does not say, ours is the "
        "distance of −log p̃ from its mean."
    )
    return table(lab, {**rivals, **ADTE}, fifths, fair=lab.main_is_imagenet, notes=(note,))
