"""The paper's analyses: who is favoured, by how much, and what that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte import functional as F
from adte.evaluate import metrics
from adte.evaluate.features import FeatureStream
from adte.evaluate.runner import run
from adte.evaluate.studies.benchmarks import STAND_INS, family_like
from adte.evaluate.studies.lab import Lab, Narrowed
from adte.evaluate.studies.study import Cell, Finding, Row, study
from adte.methods import PriorMethod, create_method
from adte.prior import ClassPrior

__all__ = ["learned"]


def learned(lab: Lab, stream: FeatureStream, **options: Any) -> ClassPrior:
    """The class prior after one pass, by default the fixed point over every item."""
    method = create_method("zero-shot", adjust="after", **options)
    assert isinstance(method, PriorMethod)
    for sample, _ in stream:
        method.learn(sample)
        lab.tick()
    assert method.prior is not None
    return method.prior


def favoured(lab: Lab, stream: FeatureStream) -> NDArray[np.int64]:
    """Classes that have images, from the most to the least favoured by the model's estimate."""
    prior = learned(lab, stream, estimator="marginal").log_prior.numpy()
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
        fair=lab.main_is("IN"),
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
        fair=lab.main_is("IN"),
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
        spread = metrics.bias_statistics(learned(lab, stream).log_prior.numpy())
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
            "some fall is there by construction; few images a class make it steeper.",
        ),
    )


QS = (0.01, 0.1, 0.5, 0.9, 1.1, 1.5, 2.0)


@study("tcr", "Reliability of the kept views beside accuracy, by q")
def tcr(lab: Lab) -> Finding:
    """Mean of the top K logits of the views that TE keeps, and TE's accuracy, for seven q."""
    family = lab.require(lab.family(), "ImageNet-A")
    stream = family.get("IN-A") or lab.main()
    ks = (1, 3, 5, 10, 20)
    rows = []
    for name, outcome in [
        *((str(q), lab.run(stream, "te", q=q)) for q in QS),
        ("SE", lab.run(stream, "se")),
    ]:
        sums = outcome.run.tcr
        assert sums is not None
        cells = [float(sums[min(k, len(sums)) - 1] / min(k, len(sums))) for k in ks]
        rows.append(Row(name, (*cells, float(outcome.run.correct.mean()))))
    return Finding(
        lab.setting([stream]),
        (*(f"Tcr_{k}" for k in ks), "Accuracy"),
        rows,
        (*("plain",) * len(ks), "percent"),
        ranked=False,
        fair="IN-A" in family,
        notes=(
            "The paper defines Tcr_K as a sum; its table falls with K, so it shows means. So do "
            "we. Logits are cosines times the model's scale (100 for CLIP, 20 for tiny).",
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
        fair=lab.main_is("IN"),
        notes=(
            "The published means near −3.9 for 1,000 classes are impossible for a prior that sums "
            "to one (at most −6.9), so this is +log p̃ of unit length in L2, as the released code "
            "computes it.",
        ),
    )


@study("label-noise", "The bank filled by wrong labels")
def label_noise(lab: Lab) -> Finding:
    """ADTE whose bank is filled by true labels, by pseudo-labels, and by labels partly random."""
    family = lab.require(lab.family(), "ImageNet-A")
    stream = family.get("IN-A") or lab.main()
    adte: list[float | None] = [None]
    for noise in (0.0, None, 0.2, 0.4, 0.6, 0.8, 1.0):
        rng = np.random.default_rng(0)
        method = create_method("adte-released")
        assert isinstance(method, PriorMethod)
        method.learn(next(iter(stream))[0])  # makes the prior for these classes
        prior = method.prior
        assert prior is not None
        prior.reset()  # and we fill it
        for sample, truth in stream:
            classes = sample.logits.shape[-1]
            wrong = (truth + 1 + int(rng.integers(classes - 1))) % classes
            label = None if noise is None else wrong if rng.random() < noise else truth
            prior.observe(F.log_probs(sample.logits.float().mean(0)), label)
            lab.tick()
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
    """CLIP, SE and ADTE in five label spaces, by how far a class's bias is from the mean."""
    stream = lab.main()
    bias = learned(lab, stream, estimator="marginal").bias.numpy()
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
        fair=lab.main_is("IN"),
        notes=(
            "Each fifth is scored within its own classes. The paper's text speaks of ImageNet-1k, "
            "its caption of ImageNet-A; what it means by magnitude it does not say, ours is the "
            "distance of −log p̃ from its mean.",
        ),
    )


@study("confidence-intervals", "Accuracy over runs, with 95 % intervals")
def confidence_intervals(lab: Lab) -> Finding:
    """Mean and half-width at 95 % over orders of the stream."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    names = ("ImageNet-1k", "ImageNet-V", "ImageNet-K", "ImageNet-A", "ImageNet-R")
    means, widths = [], []
    for stream in streams.values():
        values = lab.seeded(stream, lab.adte)
        low, high = metrics.seed_interval(values) or [values[0], values[0]]
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
