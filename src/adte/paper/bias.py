"""The model's bias: which classes it favours, how the estimate behaves, and what that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.core.state import State, fresh, prefixed, saved
from adte.evaluate.features.stream import FeatureStream
from adte.evaluate.running import figures, protocol
from adte.evaluate.running.protocol import BATCH, Run, run
from adte.methods import PriorMethod, create_method
from adte.methods.prior import Belief, rule_of
from adte.paper.lab import ADTE, OURS, PAPER, Lab, Rival, require
from adte.paper.study import Cell, Finding, Plot, Row, study
from adte.paper.tables import FIXED_POINT, STAND_INS, family_like, rows_of

__all__ = ["learned"]


def learned(lab: Lab, stream: FeatureStream, **options: Any) -> Belief:
    """The class prior after one pass: the published estimator, the fixed point over every item,
    unless options say otherwise.
    """
    options = {"adjust": "after", **FIXED_POINT, **options}
    return protocol.learned(stream.shuffled(lab.seed), "zero-shot", lab.tick, **options)[1]


def favoured(lab: Lab, stream: FeatureStream) -> NDArray[np.int64]:
    """Classes that have images, from the most to the least favoured by the model's estimate."""
    prior = learned(lab, stream, estimator="marginal").log_prior.cpu().numpy()
    order = np.argsort(-prior, kind="stable")
    return order[np.isin(order, stream.labels)]


def of_classes(run: Run, classes: Any, *what: str) -> list[float]:
    """Means over the images of some classes: of `correct`, `truth` or `entropy`."""
    mine = np.isin(run.labels, classes)
    return [float(getattr(run, name)[mine].mean()) for name in what]


@study("vlm-bias", "Confidence and accuracy from head to tail classes", "figure")
def vlm_bias(lab: Lab) -> Finding:
    """Figure 1(a): accuracy and confidence of zero-shot predictions, for tenths of the classes from
    the most to the least favoured by the model.
    """
    stream = lab.main()
    done = lab.run(stream, "zero-shot").run
    tenths = [c for c in np.array_split(favoured(lab, stream), 10) if len(c)]
    pairs = [of_classes(done, c, "correct", "truth") for c in tenths]
    at = tuple(float(10 * i + 10) for i in range(len(tenths)))
    lines = zip(("accuracy", "confidence"), zip(*pairs, strict=True), strict=True)
    return Finding(
        lab.setting([stream]),
        tuple(f"to {v:.0f} %" for v in at),
        [Row(name, y, method="zero-shot") for name, y in lines],
        plot=Plot("classes, % from the most favoured", "share", at),
        ranked=False,
        notes=(
            "Classes by their prior as the same predictions estimate it, without labels. "
            "Confidence is the mean probability of the true class. The paper prints no figures.",
        ),
    )  # fmt: skip


@study("tail-classes", "The ten classes that the model neglects most")
def tail_classes(lab: Lab) -> Finding:
    """Accuracy and confidence of CLIP and ADTE on the ten classes of smallest estimated prior."""
    stream = lab.main()
    systems = lab.wanted({"CLIP": ("zero-shot", {}), **ADTE})
    runs = [lab.run(stream, method).run for method, _ in systems.values()]
    rows = [
        Row(f"{c} {stream.classes[int(c)]}",
            tuple(x for r in runs for x in of_classes(r, c, "correct", "truth")))
        for c in favoured(lab, stream)[-10:]
    ]  # fmt: skip
    columns = {f"{what} ({name})": method for name, (method, _) in systems.items()
               for what in ("Accuracy", "Confidence")}  # fmt: skip
    return Finding(
        lab.setting([stream]),
        tuple(columns),
        rows,
        ("percent", "plain") * len(systems),
        ranked=False,
        methods=columns,
        fair=lab.main_is_imagenet,
        notes=(
            "Confidence is the mean probability of the true class; the paper does not define its "
            "own. The paper gives indices of ImageNet, ours are of the classes at hand.",
        ),
    )


@study("head-tail", "Confidence and entropy of favoured and neglected classes")
def head_tail(lab: Lab) -> Finding:
    """Mean probability of the true class and mean entropy, for the top and last 5 % of classes."""
    stream = lab.main()
    order = favoured(lab, stream)
    count = max(1, len(order) // 20)
    rows = []
    rivals: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), **ADTE}
    for name, (method, _) in lab.wanted(rivals).items():
        done = lab.run(stream, method).run
        cells = [x for part in (order[:count], order[-count:])
                 for x in of_classes(done, part, "truth", "entropy")]  # fmt: skip
        rows.append(Row(name, tuple(cells), method=method))
    return Finding(
        lab.setting([stream]),
        ("Head (avg_pred)", "Head (avg_entropy)", "Tail (avg_pred)", "Tail (avg_entropy)"),
        rows,
        ("plain",) * 4,
        fair=lab.main_is_imagenet,
        notes=(
            "Shannon entropy in nats of the predicted distribution. The published entropies are "
            "higher than any distribution of the published confidence can have, so another "
            "entropy must be meant there.",
        ),
    )


@study("bias-statistics", "Spread of the estimated bias, and the gain")
def bias_statistics(lab: Lab) -> Finding:
    """Variance and deviation of the bias of every set beside the accuracy of CLIP and ADTE."""
    streams = lab.family()
    like = family_like(lab, ("IN-I", "IN-V", "IN-K", "IN-A", "IN-R"))
    systems = {"CLIP": "zero-shot", "ADTE": PAPER}
    systems |= {name: method for name, (method, _) in lab.wanted(ADTE).items()}
    rows = []
    for name, stream in streams.items():
        spread = figures.bias_statistics(learned(lab, stream).log_prior.cpu().numpy())
        clip, adte, *others = (lab.accuracy(stream, method) for method in systems.values())
        cells = (spread["bias_variance"], spread["bias_std"], clip, adte, adte - clip, *others)
        rows.append(Row(name, cells, like=like.get(name, name)))
    methods = {f"Acc ({name})": method for name, method in systems.items()}
    first, second, *rest = methods
    return Finding(
        lab.setting(streams.values()),
        ("Variance", "Std_Dev", first, second, "Gain", *rest),
        rows,
        ("plain", "plain", *("percent",) * (len(methods) + 1)),
        ranked=False,
        methods={**methods, "Gain": PAPER},
        notes=("Bias: the fixed point over every item.", *((STAND_INS,) if lab.small else ())),
    )


@study("percentiles", "Accuracy and confidence by tenths of the classes")
def percentiles(lab: Lab) -> Finding:
    """(Accuracy, confidence) of zero-shot predictions for tenths of the classes, best first."""
    streams = require(lab.cross(), "a cross-domain data set")
    columns: dict[str, list[Cell]] = {}
    for name, stream in streams.items():
        done = lab.run(stream, "zero-shot").run
        classes = np.unique(done.labels)
        pairs = np.array([of_classes(done, c, "correct", "truth") for c in classes])  # (L, 2)
        tenths = np.array_split(pairs[np.argsort(-pairs[:, 0], kind="stable")], 10)
        columns[name] = [tuple(t.mean(0).tolist()) if len(t) else None for t in tenths]
    named = {"Flow": "Flower102", "Calt": "Caltech101", "Food": "Food101", "SUN": "SUN397",
             "Airc": "Aircraft", "Euro": "Eurosat", "UCF": "UCF101"}  # fmt: skip
    return Finding(
        lab.setting(streams.values()),
        tuple(streams),
        [
            Row(f"{10 * i}%-{10 * i + 10}%", tuple(c[i] for c in columns.values()))
            for i in range(10)
        ],
        ("plain",) * len(streams),
        methods=dict.fromkeys(streams, "zero-shot"),
        like=named,
        ranked=False,
        notes=(
            "Classes are sorted by their own accuracy, as the published columns seem to be, so "
            "some fall is expected by construction; few images per class make it steeper.",
        ),
    )


@study("bias-stability", "The bias as the bank grows")
def bias_stability(lab: Lab) -> Finding:
    """Mean and variance of log p̃ for banks of 1 to 40 items, as released (L2-normalised)."""
    stream, sizes, stats = lab.main(), (1, 2, 5, 10, 20, 30, 40), []
    for n in sizes:
        log_p = learned(lab, stream, bank="gap", size=n, threshold=1.0, norm="l2",
                        empty="zero", item="mean-logits").log_prior  # fmt: skip
        unit = log_p - torch.logsumexp(2 * log_p, 0) / 2  # of length one in L2
        stats.append((float(unit.mean()), float(unit.var(unbiased=False))))
    named = zip(("Mean", "Variance"), zip(*stats, strict=True), strict=True)
    return Finding(
        lab.setting([stream]),
        tuple(map(str, sizes)),
        [Row(name, cells, method="zero-shot") for name, cells in named],
        ("plain",) * len(sizes),
        ranked=False,
        fair=lab.main_is_imagenet,
        notes=(
            "The published means near −3.9 for 1,000 classes are impossible for a prior that sums "
            "to one (at most −6.9), so this is +log p̃ of unit length in L2, as the released code "
            "computes it, from zero-shot predictions.",
        ),
    )


def filled(lab: Lab, stream: FeatureStream, method: PriorMethod, noise: float | None) -> State:
    """The state of a method's prior after one pass whose bank is filled by true labels, a share of
    them wrong; for None by the pseudo-labels that it would use by itself.
    """
    rng = np.random.default_rng(lab.seed)
    classes = len(stream.classes)
    rule = rule_of(method.prior)
    state = fresh("the class prior", rule.entries(), {"L": classes})
    for batch, images in stream.shuffled(lab.seed).batches(BATCH):
        for item, image in zip(method.prior.evidence(batch.logits), images, strict=True):
            wrong = (image.label + 1 + int(rng.integers(classes - 1))) % classes
            label = None if noise is None else wrong if rng.random() < noise else image.label
            rule.observe(state, item.cpu(), label)
            lab.tick(1)
    return saved(rule.entries(), state)


@study("label-noise", "The bank filled by wrong labels")
def label_noise(lab: Lab) -> Finding:
    """ADTE whose bank is filled by true labels, by pseudo-labels, and by labels partly random."""
    stream = lab.imagenet_a()
    rows = rows_of(lab, {"CLIP": ("zero-shot", {}), "SE": ("se", {})}, {"": stream})
    rows = [replace(row, cells=(*row.cells, *(None,) * 7)) for row in rows]
    banks = {name: rival for name, rival in ADTE.items() if rival[0] != OURS}
    for name, (method, _) in lab.wanted(banks).items():
        cells: list[float | None] = [None]
        for noise in (0.0, None, 0.2, 0.4, 0.6, 0.8, 1.0):
            made = create_method(method)
            assert isinstance(made, PriorMethod)
            made.load_state_dict(prefixed(filled(lab, stream, made, noise)))
            cells.append(float(run(made, stream, "frozen", lab.tick).correct.mean()))
        rows.append(Row(name, tuple(cells), method=method))
    return Finding(
        lab.setting([stream], "two-pass"),
        ("Zero-shot", "True Label", "Pseudo Label",
         *(f"{n}% Noise" for n in (20, 40, 60, 80, 100))),
        rows,
        fair="IN-A" in lab.family(),
        notes=(
            "Two passes. Our default has no bank and reads no labels, and so no row. 100 % noise: "
            "every label is wrong.",
        ),
    )  # fmt: skip
