"""The paper's studies of shift: corruptions, mixed streams, other backbones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adte.evaluate.features.stream import FeatureStream, Narrowed
from adte.paper.lab import ADTE, FAMILY, Lab, Rival, interleaved
from adte.paper.rows import rows_of
from adte.paper.study import Finding, Row, study

__all__: list[str] = []

BLURS = ("defocus_blur", "glass_blur", "motion_blur")
TYPES = ("brightness", "elastic_transform", "gaussian_blur", "impulse_noise", "motion_blur",
         "shot_noise", "speckle_noise")  # fmt: skip
SYSTEMS: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), **ADTE}


def corrupted(lab: Lab, name: str) -> dict[str, FeatureStream]:
    """The domains "type/severity" of a corrupted set; in small, of the bundle of shifts."""
    if lab.small:
        return lab.shifts()
    return lab.require(lab.split(name), f"the set {name!r}")


def systems(lab: Lab, columns: Mapping[str, list[FeatureStream]]) -> list[Row]:
    """CLIP, SE and ADTE; a column is the mean over its streams."""
    return [
        Row(name, tuple(
            float(np.mean([lab.accuracy(s, method) for s in streams]))
            for streams in columns.values()
        ), method=method)
        for name, (method, _) in lab.wanted(SYSTEMS).items()
    ]  # fmt: skip


@study("imagenet-c", "Three blurs, by severity")
def imagenet_c(lab: Lab) -> Finding:
    """CLIP, SE and ADTE under defocus, glass and motion blur of growing severity."""
    domains = corrupted(lab, "imagenet-c")
    columns = {
        f"{kind} {level}": [domains[f"{kind}/{level}"]]
        for kind in BLURS
        for level in range(1, 6)
        if f"{kind}/{level}" in domains
    }
    return Finding(
        lab.setting([s for streams in columns.values() for s in streams]),
        tuple(columns),
        systems(lab, columns),
        notes=("In small: 120 photographs in 40 classes, severities 1, 3 and 5, made with our own "
               "corruptions.",) if lab.small else (),
    )  # fmt: skip


def _seven(lab: Lab, name: str, classes: range | None) -> Finding:
    domains = corrupted(lab, name)
    if classes is not None:
        domains = {d: Narrowed(s, classes, "every fourth class") for d, s in domains.items()}
    columns = {kind: [s for d, s in domains.items() if d.startswith(f"{kind}/")] for kind in TYPES}
    columns = {kind: streams for kind, streams in columns.items() if streams}
    note = (
        f"In small: {'30' if classes else '120'} photographs in {'10' if classes else '40'} "
        "classes of the bundle under the same corruptions at severity 3 (motion blur: 1, 3, 5)."
    )
    return Finding(
        lab.setting([s for streams in columns.values() for s in streams]),
        tuple(columns),
        systems(lab, columns),
        notes=(note,) if lab.small else ("Means over the severities that were given.",),
    )


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
        wanted = ("clean", "brightness/3", "motion_blur/3", "impulse_noise/3", "glass_blur/3")
        streams = {d.partition("/")[0]: shifts[d] for d in wanted}
    else:
        family = lab.require(lab.family(), "ImageNet and variants of it")
        one = next(iter(family.values()))
        streams = {c: s for c, s in family.items() if s.classes == one.classes}
    rows = rows_of(lab, {"SE": ("se", {}), **ADTE}, streams)
    mixed = interleaved(streams)
    for name, (method, _) in lab.wanted(ADTE).items():
        found = lab.run(mixed, method).record.metrics
        by_domain = found.get("by_domain") or dict.fromkeys(streams, found["accuracy"])
        cells = tuple(by_domain[c] for c in streams)
        rows.append(Row(f"{name}, mixed", cells, f"{name}_random", method=method))
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows,
        like=dict(zip(streams if lab.small else FAMILY.values(), names, strict=True)),
        notes=("The same 120 photographs, clean and under four corruptions.",)
        if lab.small
        else ("Only sets that share one label space can be mixed.",),
    )


SUCCESSORS = (("siglip2", "SigLIP2"), ("siglip", "SigLIP"), ("eva", "EVA-CLIP"),
              ("openai", "CLIP"), ("/laion", "OpenCLIP"))  # fmt: skip


@study("successors", "Other backbones")
def successors(lab: Lab) -> Finding:
    """Zero-shot and ADTE on the models at hand."""
    if lab.small:
        streams = {"tiny-longtail, seed 1": lab.shifts()["clean"],
                   "tiny-longtail, seed 2": lab.bundle("second")}  # fmt: skip
    else:
        stream = lab.main()
        streams = {stream.recipe.model: stream}
    columns = {"zero-shot": "zero-shot"}
    columns |= {f"+{name}": method for name, (method, _) in lab.wanted(ADTE).items()}
    rows = []
    for name, stream in streams.items():
        like = next((theirs for mark, theirs in SUCCESSORS if mark in name.lower()), name)
        cells = tuple(lab.accuracy(stream, method) for method in columns.values())
        rows.append(Row(name, cells, like=like))
    return Finding(
        lab.setting(streams),
        tuple(columns),
        rows,
        methods=columns,
        like={"zero-shot": "ImageNet-1k Acc"},
        fair=False,  # the paper does not say which sizes
        ranked=False,
        notes=("In small: two training seeds of the embedded model, 120 photographs.",)
        if lab.small
        else ("One model per run; run it again with another --model.",),
    )
