"""The studies that must see pixels: DeYO's entropy replaced, and image-only networks.

In small both run on the handwritten digits of `adte.paper.digits`. What they find there
is about small networks on small digits: how the methods relate, not what the paper's numbers are.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adte.core.batch import Context, Sample
from adte.core.errors import InputError
from adte.core.state import saved
from adte.evaluate.features.stream import Tick, silent
from adte.methods import create_method
from adte.methods.norm_tuning import NormTuner
from adte.paper.digits import Coloured, coloured, corrupted
from adte.paper.lab import ADTE, PAPER, Lab, Rival
from adte.paper.rows import FIXED_POINT, rows_of
from adte.paper.study import Finding, Row, study
from adte.pipeline import Pipeline

__all__ = ["deyo", "deyo_on", "unimodal"]

BATCH = 64
NOT_MNIST = "The digits are scikit-learn's (1,797 of 8×8 pixels, UCI), not MNIST."


def _only_small(lab: Lab, what: str, command: str) -> None:
    if not lab.small:
        raise InputError(
            f"the study of {what} needs pixels, which caches of features do not hold; run it in "
            f"small by leaving --data out, or by hand with: {command}"
        )


# --------------------------------------------------------------------------- DeYO

# DeYO's own settings for ColoredMNIST, and the entropy and the prior as they were published.
SETTINGS: dict[str, Any] = {"tau_ent": 1.0, "ent0": 1.0, "tau_plpd": 0.5, "lr": 1.25e-3}
ADAPTIVE: dict[str, Any] = {**SETTINGS, "entropy": "adaptive", "few": 0, **FIXED_POINT}
DEYO: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("no adaptation", "zero-shot", {}),
    ("batch statistics alone", "tent", {"lr": 0.0}),
    ("DEYO", "deyo", SETTINGS),
    ("DEYO + ADTE", "deyo", ADAPTIVE),
    ("DEYO + ADTE in the loss alone", "deyo", ADAPTIVE | {"adaptive_where": "loss"}),
    ("DEYO + ADTE, this package's prior", "deyo", SETTINGS | {"entropy": "adaptive"}),
)


class _Shares(NamedTuple):
    average: float  # of the groups' accuracies
    worst: float
    seconds: float  # per image


def _by_batches(method: str, options: dict[str, Any], world: Coloured) -> _Shares:
    """DeYO's loop: a batch of 64 is predicted with its own statistics, then learned from.

    It stands as the views of one sample, of which the first joins the class prior; the others are
    made to join it here.
    """
    pipeline = Pipeline(world.net)
    context = Context(world.net.class_weights(), model=world.net, classes=world.net.classes,
                      unit=False)  # fmt: skip
    start, predicted = time.perf_counter(), []
    tuner = None if method == "zero-shot" else create_method(method, bn_prior=0.0, **options)
    for pixels in torch.split(world.pixels, BATCH):
        sample = Sample.of(context.batch(pipeline.encode(pixels[None]), pixels[None]))
        if isinstance(tuner, NormTuner):
            predicted.append(tuner.logits(sample).argmax(-1))
            tuner.learn(sample)
            _join(tuner, sample.logits[1:])
        else:
            predicted.append(sample.logits.argmax(-1))
    seconds = (time.perf_counter() - start) / len(world.labels)
    right = torch.cat(predicted).numpy() == world.labels
    shares = [float(right[world.groups == g].mean()) for g in range(4) if g in world.groups]
    return _Shares(float(np.mean(shares)), min(shares), seconds)


def _join(tuner: NormTuner, logits: Tensor) -> None:
    """Take further images (N, L) into the class prior of a method."""
    state = tuner.state_dict()
    if state and tuner.tracks:
        tuner.refresh(state)
        tuner.track(state, logits[:, None])
        tuner.load_state_dict(saved(tuner.entries(), state))


DRAWS = "digits, networks and order"


@study("deyo", "The entropy of DeYO replaced", draws=DRAWS)
def deyo(lab: Lab) -> Finding:
    """DeYO with Shannon's and with the adaptive entropy on a stream where colour, which training
    taught to trust, tells the opposite."""
    _only_small(lab, "DeYO", "adte.paper.pixels.deyo_on(coloured(0, given=…))")
    few = lab.preset.images
    steps = 300 if few is None else 40
    finding = deyo_on(coloured(lab.seed, few and 8 * few, steps), lab.tick)
    finding.notes = (NOT_MNIST, *finding.notes)
    return finding


def deyo_on(world: Coloured, tick: Tick = silent) -> Finding:
    """The study on a world of your own, such as `coloured(seed, given=…)` on MNIST."""
    rows, found = list[Row](), dict[str, _Shares]()
    for name, method, options in DEYO:
        found[name] = _by_batches(method, options, world)
        rows.append(Row(name, tuple(found[name]), method=method, options=options))
        tick(1)
    gain = np.subtract(found["DEYO + ADTE"], found["DEYO"]).tolist()
    return Finding(
        setting=f"coloured digits, {len(world.labels)} images, batches of {BATCH}",
        columns=("Avg Acc", "Worst-Group Acc", "Time (s)"),
        units=("percent", "percent", "plain"),
        rows=[*rows, Row("ADTE over DEYO", tuple(gain), aside=True)],
        notes=(
            "A batch is predicted with its own batch-norm statistics and then learned from, as in "
            "DeYO's program; its settings are those for ColoredMNIST. Time is seconds per image.",
            "So few digits teach little shape: all rows go mostly by colour and are far below the "
            "paper's; what tells the entropies apart there may not show here.",
        ),
    )


# --------------------------------------------------------------------------- image-only networks

UNIMODAL: dict[str, Rival] = {
    "baseline": ("zero-shot", {}),
    "TTA": ("average", {}),
    "Single-point BN": ("bn", {}),
    "MEMO": ("memo", {}),
    "MEMO, SGD 0.005": ("memo", {"optimiser": "sgd", "lr": 5e-3}),
    "SE": ("se", {}),
    "ADTE, no logit adjustment": (PAPER, {"adjust": "none"}),
    **ADTE,
}
NETWORKS = {"narrow network": (8, "ResNext-101"), "wide network": (12, "WSL")}


@study("unimodal", "Error of two image-only networks", draws=DRAWS)
def unimodal(lab: Lab) -> Finding:
    """Methods on networks without a text tower, which learned from a long-tailed set."""
    _only_small(
        lab,
        "image-only networks",
        "adte eval --model timm:resnext101_32x8d --method memo --data imagenet-a:PATH",
    )
    images, steps, views = (12, 40, 8) if lab.preset.images is not None else (80, 250, 64)
    streams = {
        name: corrupted(lab.seed, width, images, steps, views)
        for name, (width, _) in NETWORKS.items()
    }
    rows = [
        replace(row, cells=tuple(1 - c for c in row.cells))  # type: ignore[operator]
        for row in rows_of(lab, UNIMODAL, streams)
    ]
    return Finding(
        setting=f"two networks on corrupted digits, {images} images, {views} views, {lab.protocol}",
        columns=tuple(NETWORKS),
        rows=rows,
        like={name: column for name, (_, column) in NETWORKS.items()},
        lower=True,
        notes=(
            NOT_MNIST,
            "Networks of width 8 and 12, trained here on 60 images of the most frequent digit down "
            "to 6 of the rarest; noise and blur of severity 5; crops of 40 to 100 % of the area, "
            "not mirrored.",
            "MEMO is at its default rate, made for large networks, and at a larger one.",
        ),
    )
