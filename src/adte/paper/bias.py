"""The model's bias: which classes it favours, how the estimate behaves, and what that does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.core.state import State, fresh, prefixed, saved
from adte.evaluate import demo
from adte.evaluate.features.stream import FeatureStream, Narrowed
from adte.evaluate.running import figures
from adte.evaluate.running.protocol import BATCH, run
from adte.methods import PriorMethod, create_method
from adte.methods.prior import Belief, rule_of
from adte.paper.lab import ADTE, PAPER, RELEASED, Lab, Rival
from adte.paper.rows import FIXED_POINT, STAND_INS, family_like, rows_of
from adte.paper.study import Cell, Figure, Finding, Row, Series, study

__all__ = ["learned"]


def learned(lab: Lab, stream: FeatureStream, **options: Any) -> Belief:
    """The class prior after one pass: the published estimator, the fixed point over every item,
    unless options say otherwise.
    """
    options = {"adjust": "after", **FIXED_POINT, **options}
    return demo.learned(stream.shuffled(lab.seed), "zero-shot", lab.tick, **options)[1]


def favoured(lab: Lab, stream: FeatureStream) -> NDArray[np.int64]:
    """Classes that have images, from the most to the least favoured by the model's estimate."""
    prior = learned(lab, stream, estimator="marginal").log_prior.cpu().numpy()
    order = np.argsort(-prior, kind="stable")
    return order[np.isin(order, stream.labels)]


@study("vlm-bias", "Confidence and accuracy from head to tail classes", "figure")
def vlm_bias(lab: Lab) -> Finding:
    """Figure 1(a): accuracy and confidence of zero-shot predictions, for tenths of the classes from
    the most to the least favoured by the model.
    """
    stream = lab.main()
    done = lab.run(stream, "zero-shot").run
    tenths = [np.isin(done.labels, c) for c in np.array_split(favoured(lab, stream), 10)]
    tenths = [t for t in tenths if t.any()]
    x = tuple(float(10 * i + 10) for i in range(len(tenths)))
    lines = {
        "accuracy": tuple(float(done.correct[t].mean()) for t in tenths),
        "confidence": tuple(float(done.truth[t].mean()) for t in tenths),
    }
    return Finding(
        lab.setting([stream]),
        tuple(f"to {v:.0f} %" for v in x),
        [Row(name, y, method="zero-shot") for name, y in lines.items()],
        figures=(Figure("From head to tail classes", "classes, % from the most favoured",
                        "share", tuple(Series(name, x, y) for name, y in lines.items())),),
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
    rows = []
    for c in favoured(lab, stream)[-10:]:
        mine = runs[0].labels == c
        cells = [x for r in runs for x in (float(r.correct[mine].mean()),
                                           float(r.truth[mine].mean()))]  # fmt: skip
        rows.append(Row(f"{c} {stream.classes[int(c)]}", tuple(cells)))
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
    systems: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), **ADTE}
    for name, (method, _) in lab.wanted(systems).items():
        done, cells = lab.run(stream, method).run, list[float]()
        for part in (order[:count], order[-count:]):
            mine = np.isin(done.labels, part)
            cells += [float(done.truth[mine].mean()), float(done.entropy[mine].mean())]
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
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    like = family_like(lab, ("IN-I", "IN-V", "IN-K", "IN-A", "IN-R"))
    columns = {"Variance": "", "Std_Dev": "", "Acc (CLIP)": "zero-shot", "Acc (ADTE)": PAPER,
               "Gain": PAPER}  # fmt: skip
    for name, (method, _) in lab.wanted(ADTE).items():
        columns |= {f"Acc ({name})": method}
    rows = []
    for name, stream in streams.items():
        spread = figures.bias_statistics(learned(lab, stream).log_prior.cpu().numpy())
        right = {c: lab.accuracy(stream, method) for c, method in columns.items()
                 if method and c != "Gain"}  # fmt: skip
        right["Gain"] = right["Acc (ADTE)"] - right["Acc (CLIP)"]
        cells = (spread["bias_variance"], spread["bias_std"], *(right[c] for c in [*columns][2:]))
        rows.append(Row(name, cells, like=like.get(name, name)))
    return Finding(
        lab.setting(streams),
        tuple(columns),
        rows,
        ("plain", "plain", *("percent",) * (len(columns) - 2)),
        ranked=False,
        methods={c: method for c, method in columns.items() if method},
        notes=("Bias: the fixed point over every item.", *((STAND_INS,) if lab.small else ())),
    )


@study("percentiles", "Accuracy and confidence by tenths of the classes")
def percentiles(lab: Lab) -> Finding:
    """(Accuracy, confidence) of zero-shot predictions for tenths of the classes, best first."""
    streams = lab.require(lab.cross(), "a cross-domain data set")
    columns: dict[str, list[Cell]] = {}
    for name, stream in streams.items():
        done = lab.run(stream, "zero-shot").run
        classes = np.unique(done.labels)
        right = np.array([done.correct[done.labels == c].mean() for c in classes])
        sure = np.array([done.truth[done.labels == c].mean() for c in classes])
        tenths = np.array_split(np.argsort(-right, kind="stable"), 10)
        columns[name] = [
            (float(right[t].mean()), float(sure[t].mean())) if len(t) else None for t in tenths
        ]
    rows = [
        Row(f"{10 * i}%-{10 * i + 10}%", tuple(columns[n][i] for n in columns)) for i in range(10)
    ]
    named = {"Flow": "Flower102", "Calt": "Caltech101", "Food": "Food101", "SUN": "SUN397",
             "Airc": "Aircraft", "Euro": "Eurosat", "UCF": "UCF101"}  # fmt: skip
    return Finding(
        lab.setting(streams),
        tuple(streams),
        rows,
        ("plain",) * len(streams),
        methods=dict.fromkeys(streams, "zero-shot"),
        like=named,
        ranked=False,
        notes=(
            "Classes are sorted by their own accuracy, as the published columns seem to be, so "
            "some fall is there by construction; few images per class make it steeper.",
        ),
    )


@study("bias-stability", "The bias as the bank grows")
def bias_stability(lab: Lab) -> Finding:
    """Mean and variance of log p̃ for banks of 1 to 40 items, as released (L2-normalised)."""
    stream = lab.main()
    sizes = (1, 2, 5, 10, 20, 30, 40)
    stats = []
    for n in sizes:
        log_p = learned(lab, stream, bank="gap", size=n, threshold=1.0, norm="l2",
                        empty="zero", item="mean-logits").log_prior  # fmt: skip
        unit = log_p - torch.logsumexp(2 * log_p, 0) / 2  # of length one in L2
        stats.append((float(unit.mean()), float(unit.var(unbiased=False))))
    return Finding(
        lab.setting([stream]),
        tuple(map(str, sizes)),
        [Row(name, tuple(s[i] for s in stats), method="zero-shot")
         for i, name in enumerate(("Mean", "Variance"))],
        ("plain",) * len(sizes),
        ranked=False,
        fair=lab.main_is_imagenet,
        notes=(
            "The published means near −3.9 for 1,000 classes are impossible for a prior that sums "
            "to one (at most −6.9), so this is +log p̃ of unit length in L2, as the released code "
            "computes it, from zero-shot predictions.",
        ),
    )  # fmt: skip


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
    family = lab.require(lab.family(), "ImageNet-A")
    stream = family.get("IN-A") or lab.main()
    rows = rows_of(lab, {"CLIP": ("zero-shot", {}), "SE": ("se", {})}, {"": stream})
    rows = [replace(row, cells=(*row.cells, *(None,) * 7)) for row in rows]
    banks = {name: rival for name, rival in ADTE.items() if rival[0] in (PAPER, RELEASED)}
    for name, (method, _) in lab.wanted(banks).items():
        cells: list[float | None] = [None]
        for noise in (0.0, None, 0.2, 0.4, 0.6, 0.8, 1.0):
            made = create_method(method)
            assert isinstance(made, PriorMethod)
            made.load_state_dict(prefixed(filled(lab, stream, made, noise)))
            cells.append(float(run(made, stream, "frozen", lab.tick).correct.mean()))
        rows.append(Row(name, tuple(cells), method=method))
    return Finding(
        lab.setting([stream]).replace(lab.protocol, "two-pass"),
        ("Zero-shot", "True Label", "Pseudo Label", "20% Noise", "40% Noise", "60% Noise",
         "80% Noise", "100% Noise"),
        rows,
        fair="IN-A" in family,
        notes=(
            "Two passes. Our default has no bank and reads no labels, and so no row. 100 % noise: "
            "every label is wrong.",
        ),
    )  # fmt: skip


@study("low-bias", "Fifths of the classes, from most to least biased")
def low_bias(lab: Lab) -> Finding:
    """CLIP, SE, TE and ADTE in five label spaces, by how far a class's bias is from the mean."""
    stream = lab.main()
    bias = -learned(lab, stream, estimator="marginal").log_prior.cpu().numpy()
    order = np.argsort(-np.abs(bias - bias.mean()), kind="stable")
    fifths = {
        f"s{i + 1}": Narrowed(stream, np.sort(c).tolist(), f"bias fifth {i + 1}")
        for i, c in enumerate(np.array_split(order, 5))
    }
    systems: dict[str, Rival] = {"CLIP": ("zero-shot", {}), "SE": ("se", {}), "TE": ("te", {})}
    return Finding(
        lab.setting(list(fifths.values())),
        tuple(fifths),
        rows_of(lab, {**systems, **ADTE}, fifths),
        fair=lab.main_is_imagenet,
        notes=(
            "Each fifth is scored within its own classes. The paper's text speaks of ImageNet-1k, "
            "its caption of ImageNet-A; what it means by magnitude it does not say, ours is the "
            "distance of −log p̃ from its mean.",
        ),
    )
