"""Which views an entropy keeps, by q and by number, and how reliable they are."""

from __future__ import annotations

import numpy as np
import torch

from adte.core import functional as F
from adte.evaluate.features.stream import Fewer
from adte.evaluate.running.figures import bootstrap_difference
from adte.paper.lab import ADTE, Lab, Rival
from adte.paper.study import Figure, Finding, Row, Series, study

__all__: list[str] = []

FEW_QS = (0.01, 0.1, 0.5, 0.9, 1.1, 1.5, 2.0)
ONE = "Of one set alone, the first of the ImageNet family that is there."
MANY_QS = (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0)


@study("te-q", "TE over q against SE", "figure")
def te_q(lab: Lab) -> Finding:
    """Accuracy of TE for q from 0.001 to 10 beside SE, and the gain with its interval."""
    streams = lab.require(lab.family(), "ImageNet or a variant of it")
    figures, rows = [], []
    for name, stream in streams.items():
        se = lab.run(stream, "se").run.correct
        gains = []
        for q in MANY_QS:
            right = lab.run(stream, "te", q=q).run.correct
            low, high = bootstrap_difference(right, se)
            gains.append((float(right.mean()), float(se.mean()) + low, float(se.mean()) + high))
        y, low_y, high_y = (tuple(g[i] for g in gains) for i in range(3))
        level = (float(se.mean()),) * len(MANY_QS)
        figures.append(Figure(
            f"TE over q, {name}", "q", "accuracy",
            (Series("TE", MANY_QS, y, low_y, high_y), Series("SE", MANY_QS, level, dashed=True)),
            log_x=True,
        ))  # fmt: skip
        rows.append(Row(name, (*y, level[0])))
    columns = {**{str(q): "te" for q in MANY_QS}, "SE": "se"}
    return Finding(
        lab.setting(streams),
        tuple(columns),
        rows,
        figures=tuple(figures),
        ranked=False,
        methods=columns,
        notes=(
            "Columns are q. Band: 95 % of the gain over SE, paired by image. q = 1 is SE itself.",
        ),
    )


@study("views", "Accuracy by the number of views", "figure")
def views(lab: Lab) -> Finding:
    """Accuracy of SE, Zero, the plain average and ADTE for 1 to 64 views of the same images."""
    stream = lab.main()
    most = stream.recipe.views.count
    counts = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most]
    rows = []
    systems: dict[str, Rival] = {"SE": ("se", {}), "Zero": ("zero", {}), "average": ("average", {})}
    for name, (method, _) in lab.wanted({**systems, **ADTE}).items():
        cells = [lab.accuracy(Fewer(stream, n), method) for n in counts]
        rows.append(Row(name, tuple(cells), method=method))
    x = tuple(float(n) for n in counts)
    series = tuple(Series(r.name, x, tuple(float(c) for c in r.cells)) for r in rows)  # type: ignore[arg-type]
    return Finding(
        lab.setting([stream]),
        tuple(map(str, counts)),
        rows,
        figures=(Figure("Accuracy by views", "views", "accuracy", series, log_x=True),),
        notes=("A tenth of the views is kept, at least one; our default weighs all.", ONE),
    )


@study("tcr", "Reliability of the kept views beside accuracy, by q")
def tcr(lab: Lab) -> Finding:
    """Mean of the top K logits of the views that TE keeps, and TE's accuracy, for seven q."""
    family = lab.require(lab.family(), "ImageNet-A")
    stream = family.get("IN-A") or lab.main()
    ks = (1, 3, 5, 10, 20)
    rows = []
    for name, outcome in [
        *((str(q), lab.run(stream, "te", q=q)) for q in FEW_QS),
        ("SE", lab.run(stream, "se")),
    ]:
        sums = outcome.run.tcr
        assert sums is not None
        cells = [float(sums[min(k, len(sums)) - 1] / min(k, len(sums))) for k in ks]
        accuracy, task = float(outcome.run.correct.mean()), outcome.task
        rows.append(Row(name, (*cells, accuracy), method=task.method, options=task.options))
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


@study("tcr-curves", "Reliability of the kept views over K", "figure")
def tcr_curves(lab: Lab) -> Finding:
    """Tcr_K of the views that TE keeps less that of SE's, for K from 1 to 20 and several q."""
    stream = lab.main()
    base = lab.run(stream, "se").run.tcr
    assert base is not None
    ks = np.arange(1, len(base) + 1)
    rows, series = [], []
    for q in (0.001, 0.01, 0.1, 0.5, 0.9, 1.5, 2.0, 10.0):
        sums = lab.run(stream, "te", q=q).run.tcr
        assert sums is not None
        gap = tuple(((sums - base) / ks).tolist())
        rows.append(Row(f"q = {q:g}", gap, method="te", options={"q": q}))
        series.append(Series(f"q = {q:g}", tuple(ks.astype(float).tolist()), gap))
    return Finding(
        lab.setting([stream]),
        tuple(f"K={k}" for k in ks),
        rows,
        ("plain",) * len(ks),
        figures=(Figure("Tcr_K of TE less that of SE", "K", "mean of the top K logits, less SE's",
                        tuple(series)),),
        ranked=False,
        notes=("Above zero: the views that TE keeps are more alike to their K best classes.", ONE),
    )  # fmt: skip


@study("two-classes", "SE and TE for two classes", "figure", draws=None)
def two_classes(lab: Lab) -> Finding:
    """Entropy of (p, 1 − p) by Shannon and by Tsallis for several q: pure maths, no model."""
    p = torch.linspace(0.001, 0.999, 101, dtype=torch.float64)
    log_p = torch.stack([p, 1 - p], -1).log()
    x = tuple(p.tolist())
    series = [Series("SE", x, tuple(F.shannon(log_p).tolist()), dashed=True)]
    for q in (0.1, 0.5, 0.9, 1.5, 2.0):
        series.append(Series(f"TE, q = {q:g}", x, tuple(F.tsallis(log_p, q).tolist())))
    at = (0.01, 0.1, 0.25, 0.5)
    rows = [Row(s.name, tuple(float(np.interp(v, x, s.y)) for v in at)) for s in series]
    return Finding(
        "two classes, no model",
        tuple(f"p = {v:g}" for v in at),
        rows,
        ("plain",) * len(at),
        figures=(Figure("Entropy of two classes", "p", "entropy", tuple(series)),),
        ranked=False,
        notes=("TE comes to SE as q comes to 1; small q lifts what is nearly certain.",),
    )
