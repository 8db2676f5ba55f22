"""Which views an entropy keeps, by q and by number, and how reliable they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adte.core import functional as F
from adte.evaluate.features.stream import fewer_views
from adte.paper.lab import ADTE, Lab, Rival
from adte.paper.study import Finding, Plot, Row, study
from adte.paper.tables import gain, table

__all__: list[str] = []

QS = (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)
ONE = "Of one set alone, the first of the ImageNet family that is given."


@study("te-q", "TE over q against SE", "figure")
def te_q(lab: Lab) -> Finding:
    """Accuracy of TE for q from 0.001 to 10, and the gain over SE with its interval."""
    streams = lab.family()
    return Finding(
        lab.setting(streams.values()),
        tuple(f"q={q:g}" for q in QS),
        [Row(name, tuple(gain(lab, [s], "te", q=q) for q in QS), method="te")
         for name, s in streams.items()],
        plot=Plot("q", "accuracy", QS, log_x=True),
        ranked=False,
        notes=("In brackets: 95 % of the gain over SE, paired by image. q = 1 is SE itself.",),
    )  # fmt: skip


@study("views", "Accuracy by the number of views", "figure")
def views(lab: Lab) -> Finding:
    """Accuracy of SE, Zero, the plain average and ADTE for 1 to 64 views of the same images."""
    stream = lab.main()
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= stream.recipe.views.count]
    rivals: dict[str, Rival] = {"SE": ("se", {}), "Zero": ("zero", {}), "average": ("average", {})}
    return table(
        lab, {**rivals, **ADTE}, {str(n): fewer_views(stream, n) for n in counts},
        plot=Plot("views", "accuracy", tuple(map(float, counts)), log_x=True),
        notes=("A tenth of the views is kept, at least one; our default weighs all.", ONE),
    )  # fmt: skip


def reliability(lab: Lab, stream: Any, method: str, **options: Any) -> Any:
    """Sums of the top K logits of the kept views, by K (K,)."""
    return lab.run(stream, method, **options).run.tcr


@study("tcr", "Reliability of the kept views beside accuracy, by q")
def tcr(lab: Lab) -> Finding:
    """Mean of the top K logits of the views that TE keeps, and TE's accuracy, for seven q."""
    stream, ks = lab.imagenet_a(), (1, 3, 5, 10, 20)
    rivals: dict[str, Rival] = {
        str(q): ("te", {"q": q}) for q in (0.01, 0.1, 0.5, 0.9, 1.1, 1.5, 2.0)
    }
    rows = []
    for name, (method, options) in {**rivals, "SE": ("se", {})}.items():
        sums = reliability(lab, stream, method, **options)
        cells = [float(sums[min(k, len(sums)) - 1] / min(k, len(sums))) for k in ks]
        right = lab.accuracy(stream, method, **options)
        rows.append(Row(name, (*cells, right), method=method, options=options))
    return Finding(
        lab.setting([stream]),
        (*(f"Tcr_{k}" for k in ks), "Accuracy"),
        rows,
        (*("plain",) * len(ks), "percent"),
        ranked=False,
        fair="IN-A" in lab.family(),
        notes=(
            "The paper defines Tcr_K as a sum; its table falls with K, so it shows means. So do "
            "we. Logits are cosines times the model's scale (100 for CLIP, 20 for tiny).",
        ),
    )


@study("tcr-curves", "Reliability of the kept views over K", "figure")
def tcr_curves(lab: Lab) -> Finding:
    """Tcr_K of the views that TE keeps less that of SE's, for K from 1 to 20 and several q."""
    stream = lab.main()
    base = reliability(lab, stream, "se")
    ks, rows = np.arange(1, len(base) + 1), []
    for q in (0.001, 0.01, 0.1, 0.5, 0.9, 1.5, 2.0, 10.0):
        gap = tuple(((reliability(lab, stream, "te", q=q) - base) / ks).tolist())
        rows.append(Row(f"q = {q:g}", gap, method="te", options={"q": q}))
    return Finding(
        lab.setting([stream]),
        tuple(f"K={k}" for k in ks),
        rows,
        ("plain",) * len(ks),
        plot=Plot("K", "mean of the top K logits, less SE's", tuple(map(float, ks))),
        ranked=False,
        notes=("Above zero: the views that TE keeps are more alike to their K best classes.", ONE),
    )


@study("two-classes", "SE and TE for two classes", "figure", draws=None)
def two_classes(lab: Lab) -> Finding:
    """Entropy of (p, 1 − p) by Shannon and by Tsallis for several q: pure maths, no model."""
    at = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
    p = torch.tensor(at, dtype=torch.float64)
    log_p = torch.stack([p, 1 - p], -1).log()
    rows = [Row("SE", tuple(F.shannon(log_p).tolist()))]
    for q in (0.1, 0.5, 0.9, 1.5, 2.0):
        rows.append(Row(f"TE, q = {q:g}", tuple(F.tsallis(log_p, q).tolist())))
    return Finding(
        "two classes, no model",
        tuple(f"p={v:g}" for v in at),
        rows,
        ("plain",) * len(at),
        plot=Plot("p", "entropy", at),
        ranked=False,
        notes=("TE comes to SE as q comes to 1; small q lifts what is nearly certain.",),
    )
