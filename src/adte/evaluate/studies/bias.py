"""The model's bias: which classes it favours, how the estimate behaves, and what that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.evaluate import demo
from adte.evaluate.features.stream import FeatureStream, Narrowed
from adte.evaluate.running import figures
from adte.evaluate.running.protocol import BATCH, run
from adte.evaluate.studies.lab import Lab
from adte.evaluate.studies.rows import FIXED_POINT, STAND_INS, family_like
from adte.evaluate.studies.study import Cell, Finding, Row, study
from adte.methods import PriorMethod, create_method
from adte.prior import ClassPrior
from adte.state import prefixed

__all__ = ["learned"]


def learned(lab: Lab, stream: FeatureStream, **options: Any) -> ClassPrior:
    """The class prior after one pass: the published estimator, the fixed point over every item,
    unless options say otherwise.
    """
    options = {"adjust": "after", **FIXED_POINT, **options}
    return demo.learned(stream, "zero-shot", lab.tick, **options)[1]


def favoured(lab: Lab, stream: FeatureStream) -> NDArray[np.int64]:
    """Classes that have images, from the most to the least favoured by the model's estimate."""
    prior = learned(lab, stream, estimator="marginal").log_prior.cpu().numpy()
    order = np.argsort(-prior, kind="stable")
    return order[np.isin(order, stream.labels)]


@study("tail-classes", "The ten classes that the model neglects most")
def tail_classes(lab: Lab) -> Finding:
    """Accuracy and confidence of CLIP and ADTE on the ten classes of smallest estimated prior."""
    stream = lab.main()
    runs = [lab.run(stream, "zero-shot").run, lab.run(stream, lab.adte).run]
    rows = []
    for c in favoured(lab, stream)[-10:]:
        mine = runs[0].labels == c
        cells = [x for r in runs for x in (float(r.correct[mine].mean()),
                                           float(r.truth[mine].mean()))]  # fmt: skip
        rows.append(Row(stream.classes[int(c)], tuple(cells)))
    return Finding(
        lab.setting([stream]),
        ("Accuracy (CLIP)", "Confidence (CLIP)", "Accuracy (ADTE)", "Confidence (ADTE)"),
        rows,
        ("percent", "plain", "percent", "plain"),
        ranked=False,
        fair=lab.main_is_imagenet,
        notes=(
            "Confidence is the mean probability of the true class; the paper does not define its "
            "own. Ours names classes, the paper gives indices of ImageNet.",
        ),
    )


@study("head-tail", "Confidence and entropy of favoured and neglected classes")
def head_tail(lab: Lab) -> Finding:
    """Mean probability of the true class and mean entropy, for the top and last 5 % of classes."""
    stream = lab.main()
    order = favoured(lab, stream)
    count = max(1, len(order) // 20)
    rows = []
    for name, done in (
        ("CLIP", lab.run(stream, "zero-shot").run),
        ("SE", lab.run(stream, "se").run),
        ("ADTE", lab.run(stream, lab.adte).run),
    ):
        cells: list[float] = []
        for part in (order[:count], order[-count:]):
            mine = np.isin(done.labels, part)
            cells += [float(done.truth[mine].mean()), float(done.entropy[mine].mean())]
        rows.append(Row(name, tuple(cells)))
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
    rows = []
    for name, stream in streams.items():
        spread = figures.bias_statistics(learned(lab, stream).log_prior.cpu().numpy())
        before, after = lab.accuracy(stream, "zero-shot"), lab.accuracy(stream, lab.adte)
        cells = (spread["bias_variance"], spread["bias_std"], before, after, after - before)
        rows.append(Row(name, cells, like=like.get(name, name)))
    return Finding(
        lab.setting(streams),
        ("Variance", "Std_Dev", "Acc (CLIP)", "Acc (ADTE)", "Gain"),
        rows,
        ("plain", "plain", "percent", "percent", "percent"),
        ranked=False,
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
        [Row(name, tuple(s[i] for s in stats)) for i, name in enumerate(("Mean", "Variance"))],
        ("plain",) * len(sizes),
        ranked=False,
        fair=lab.main_is_imagenet,
        notes=(
            "The published means near −3.9 for 1,000 classes are impossible for a prior that sums "
            "to one (at most −6.9), so this is +log p̃ of unit length in L2, as the released code "
            "computes it.",
        ),
    )


def filled(lab: Lab, stream: FeatureStream, method: PriorMethod, noise: float | None) -> ClassPrior:
    """A method's prior after one pass whose bank is filled by true labels, a share of them wrong;
    for None by the pseudo-labels that it would use by itself.
    """
    rng = np.random.default_rng(0)
    classes = len(stream.classes)
    prior = ClassPrior(classes, method.prior)
    for batch, images in stream.batches(BATCH):
        for item, image in zip(method.prior.evidence(batch.logits), images, strict=True):
            wrong = (image.label + 1 + int(rng.integers(classes - 1))) % classes
            label = None if noise is None else wrong if rng.random() < noise else image.label
            prior.observe(item, label)
            lab.tick(1)
    return prior


@study("label-noise", "The bank filled by wrong labels")
def label_noise(lab: Lab) -> Finding:
    """ADTE whose bank is filled by true labels, by pseudo-labels, and by labels partly random."""
    family = lab.require(lab.family(), "ImageNet-A")
    stream = family.get("IN-A") or lab.main()
    adte: list[float | None] = [None]
    for noise in (0.0, None, 0.2, 0.4, 0.6, 0.8, 1.0):
        method = create_method("adte-released")
        assert isinstance(method, PriorMethod)
        prior = filled(lab, stream, method, noise)
        method.load_state_dict(prefixed(prior.state_dict()))
        adte.append(float(run(method, stream, "frozen", lab.tick).correct.mean()))
    blank = (None,) * 7
    return Finding(
        lab.setting([stream]).replace(lab.protocol, "two-pass"),
        ("Zero-shot", "True Label", "Pseudo Label", "20% Noise", "40% Noise", "60% Noise",
         "80% Noise", "100% Noise"),
        [
            Row("CLIP", (lab.accuracy(stream, "zero-shot"), *blank)),
            Row("SE", (lab.accuracy(stream, "se"), *blank)),
            Row("ADTE", tuple(adte)),
        ],
        fair="IN-A" in family,
        notes=(
            "ADTE as released, two-pass, since our default estimator reads no labels at all and "
            "cannot be misled by them. 100 % noise: every label is wrong.",
        ),
    )  # fmt: skip


@study("low-bias", "Fifths of the classes, from most to least biased")
def low_bias(lab: Lab) -> Finding:
    """CLIP, SE, TE and ADTE in five label spaces, by how far a class's bias is from the mean."""
    stream = lab.main()
    bias = learned(lab, stream, estimator="marginal").bias.cpu().numpy()
    order = np.argsort(-np.abs(bias - bias.mean()), kind="stable")
    fifths = {
        f"s{i + 1}": Narrowed(stream, np.sort(c).tolist(), f"bias fifth {i + 1}")
        for i, c in enumerate(np.array_split(order, 5))
    }
    rows = [
        Row(name, tuple(lab.accuracy(s, method) if len(s) else None for s in fifths.values()))
        for name, method in (("CLIP", "zero-shot"), ("SE", "se"), ("TE", "te"), ("ADTE", lab.adte))
    ]
    return Finding(
        lab.setting(list(fifths.values())),
        tuple(fifths),
        rows,
        fair=lab.main_is_imagenet,
        notes=(
            "Each fifth is scored within its own classes. The paper's text speaks of ImageNet-1k, "
            "its caption of ImageNet-A; what it means by magnitude it does not say, ours is the "
            "distance of −log p̃ from its mean.",
        ),
    )
