"""Metrics against hand-made cases and SciPy."""

from __future__ import annotations

import importlib.util
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from adte.evaluate import Run
from adte.evaluate.report.tables import rows_table, terminal_table
from adte.evaluate.running import figures, metrics
from adte.evaluate.running.figures import aurc, risk_coverage
from adte.evaluate.running.results import summarise


def test_thirds():
    assert figures.thirds([5, 1, 9, 3, 7, 2]).tolist() == [1, 2, 0, 1, 0, 2]
    assert figures.thirds([1, 1, 1, 1]).tolist() == [0, 1, 1, 2]
    assert figures.thirds([1]).tolist() == [1]


def test_spearman_is_scipys():
    rng = np.random.default_rng(1)
    for a, b in ((rng.random(40), rng.random(40)), (rng.integers(0, 5, 40), rng.random(40))):
        assert figures.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert figures.spearman([1, 1, 1], [1, 2, 3]) == 0


def test_bootstrap_covers_the_difference():
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(100):
        a, b = rng.random(300) < 0.6, rng.random(300) < 0.5
        low, high = figures.bootstrap_difference(a, b, draws=400, seed=trial)
        assert low <= (a.mean() - b.mean()) <= high
        inside += low <= 0.1 <= high
    assert 85 <= inside <= 100  # nominal 95
    assert figures.bootstrap_difference(a, a) == (0, 0)


def test_mcnemar_is_the_binomial_test():
    from scipy.stats import binomtest

    rng = np.random.default_rng(3)
    a, b = rng.random(200) < 0.6, rng.random(200) < 0.5
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    want = binomtest(min(only_a, only_b), only_a + only_b, 0.5).pvalue
    assert figures.mcnemar(a, b) == pytest.approx(want)
    assert figures.mcnemar(a, a) == 1


def test_all_that_is_said_of_an_image_has_one_sign():
    rng = np.random.default_rng(4)
    a, b = rng.random(40) < 0.7, rng.random(40) < 0.5
    images = [f"{i}" for i in rng.integers(0, 12, 40)]
    gains = [sum(int(x) - int(y) for x, y, i in zip(a, b, images, strict=True) if i == name)
             for name in set(images)]  # fmt: skip
    sums = np.array(list(product((-1, 1), repeat=len(gains)))) @ gains  # every sign of each
    assert max(map(abs, gains)) > 1
    assert figures.mcnemar(a, b, images) == pytest.approx((abs(sums) >= abs(sum(gains))).mean())
    alone = [str(i) for i in range(40)]
    assert figures.mcnemar(a, b, alone) == figures.mcnemar(a, b)
    assert figures.mcnemar([*a, *a], [*b, *b], alone * 2) == pytest.approx(figures.mcnemar(a, b))


@pytest.fixture(scope="module")
def reference():
    """torchmetrics, where it is installed."""
    if importlib.util.find_spec("torchmetrics") is None:
        pytest.skip("torchmetrics is not installed")
    from adte.models._torchvision import import_late

    return import_late("torchmetrics.functional", "torchmetrics", "test", "this test")


def test_the_figures_are_those_of_torchmetrics(reference):
    """On a stream with every class and some rank ties left out: what it has, we agree with."""
    g = torch.Generator().manual_seed(0)
    probs = torch.softmax(2 * torch.randn(300, 7, generator=g), -1)
    labels = torch.randint(0, 7, (300,), generator=g)
    top = probs.argmax(-1)
    right = (top == labels).numpy()
    rank = (probs > probs.gather(1, labels[:, None])).sum(1).numpy()
    c = reference.classification
    many = {"preds": probs, "target": labels, "num_classes": 7}
    assert figures.accuracy(right) == pytest.approx(
        float(c.multiclass_accuracy(**many, average="micro"))
    )
    assert figures.accuracy(rank < 5) == pytest.approx(
        float(c.multiclass_accuracy(**many, average="micro", top_k=5))
    )
    assert figures.mean_per_class(right, labels) == pytest.approx(
        float(c.multiclass_accuracy(**many, average="macro"))
    )
    assert figures.ece(probs.max(-1).values, right) == pytest.approx(
        float(c.multiclass_calibration_error(**many, n_bins=15, norm="l1")), abs=1e-6
    )
    a, b = torch.randn(40, generator=g), torch.randn(40, generator=g)
    assert figures.spearman(a, b) == pytest.approx(float(reference.spearman_corrcoef(a, b)))


@pytest.mark.parametrize("digits", [1, 9], ids=["ties", "no ties"])
def test_average_precision_is_that_of_torchmetrics(reference, digits):
    """Also of resampled images: a weight is so many copies."""
    rng = np.random.default_rng(0)
    scores, targets = rng.random((30, 5)).round(digits), rng.random((30, 5)) < 0.3
    targets[:, 4] = False

    def theirs(rows):
        c, some = reference.classification, targets[rows].any(0)
        return float(c.multilabel_average_precision(
            torch.as_tensor(scores[rows][:, some]), torch.as_tensor(targets[rows][:, some]).long(),
            num_labels=int(some.sum()),
        ))  # fmt: skip

    whole, drawn = np.ones(30), rng.integers(0, 3, 30)
    found = figures.average_precisions(scores, targets, np.stack([whole, drawn]))
    assert found[0] == figures.average_precision(scores, targets)
    for value, copies in zip(found, (whole, drawn), strict=True):
        rows = np.repeat(np.arange(30), copies.astype(int))
        assert value == pytest.approx(theirs(rows), abs=1e-6)


# --------------------------------------------------------------------------- one entry per metric


def a_run(**more) -> Run:
    """Six images of three classes, four of them right."""
    labels, predicted = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 0])
    given = {
        "method": "by hand",
        "protocol": "online",
        "options": {},
        "labels": labels,
        "predicted": predicted,
        "confidence": np.array([0.9, 0.6, 0.8, 0.7, 0.5, 0.4]),
        "truth": np.array([0.9, 0.3, 0.8, 0.7, 0.5, 0.2]),
        "rank": np.array([0, 1, 0, 0, 0, 1]),
        "entropy": np.arange(6) / 6,
        "seconds": 3.0,
        "classes": 3,
    }
    return Run(**{**given, **more})


def test_every_metric_of_a_run_by_hand():
    out = summarise(
        a_run(
            tcr=np.array([1.0, 2.0]),
            frequency=np.array([1.0, 5.0, 3.0]),  # head is class 1, tail class 0
            log_prior=np.log([0.5, 0.2, 0.3]),  # head is class 0
            domains=["fog", "clean"] * 3,
            groups=[0, 0, 1, 1, 2, 2],
            peak_memory=12,
        )
    )
    assert out["accuracy"] == pytest.approx(4 / 6)
    assert (out["head"], out["middle"], out["tail"]) == (1.0, 0.5, 0.5)
    assert (out["head_estimated"], out["tail_estimated"]) == (0.5, 1.0)
    assert out["head_confidence"] == pytest.approx(0.75)
    assert out["tail_entropy"] == pytest.approx(1 / 12)
    assert out["by_domain"] == {"clean": pytest.approx(1 / 3), "fog": 1.0}
    assert out["worst_domain"] == pytest.approx(1 / 3)
    assert out["by_group"] == {"0": 0.5, "1": 1.0, "2": 0.5}
    assert (out["worst_group"], out["first_tenth"], out["top5"]) == (0.5, 1.0, 1.0)
    assert (out["images"], out["seconds"], out["images_per_s"]) == (6, 0.5, 2.0)
    assert (out["tcr"], out["peak_memory"]) == ([1.0, 2.0], 12)
    assert out["spearman"] == pytest.approx(-1.0)
    assert out["bias_std"] ** 2 == pytest.approx(out["bias_variance"])
    assert out["nll"] == pytest.approx(figures.nll(a_run().truth))
    assert set(out) == set(metrics.METRICS)  # all apply, none is forgotten


def test_a_metric_that_does_not_apply_is_left_out():
    out = summarise(a_run(domains=["one"] * 6, groups=[-1] * 6))
    absent = {"head", "tail_entropy", "by_domain", "worst_group", "tcr", "spearman", "peak_memory"}
    assert not absent & out.keys()
    # Without a prior, by what it predicted: class 1 thrice, class 0 twice, class 2 once.
    assert (out["head_estimated"], out["tail_estimated"]) == (1.0, 0.5)


@pytest.fixture
def mine():
    """A stranger's metric, taken out again afterwards."""
    added = []

    def add(name, function, **about):
        metrics.metric(name, **about)(function)
        added.append(name)

    yield add
    for name in added:
        metrics.METRICS._things.pop(name, None)


def test_a_metric_of_ones_own_is_one_entry(mine):
    mine("sure", lambda run: (run.confidence > 0.65).mean(), column="sure", direction="up",
         kind="percent", caption="sure: confidence above 65 %")  # fmt: skip
    out = summarise(a_run())
    assert type(out["sure"]) is float  # not NumPy's
    rows = [{"method": n, "protocol": "online", "seeds": 1, **metrics.averages([f])}
            for n, f in (("a", out), ("b", {**out, "sure": 0.25}))]  # fmt: skip
    for table in (rows_table(rows), terminal_table(rows, "")):
        assert table.shown[-1].title == "sure"
        assert [row[-1] for row in table.cells()] == [("50.0", "", "best"), ("25.0", "", "second")]
        assert "sure: confidence above 65 %" in table.caption
    assert ",sure," in rows_table(rows).to_csv().splitlines()[0]


def test_a_metric_that_fails_costs_no_run(mine):
    mine("broken", lambda run: run.nothing)
    with pytest.warns(UserWarning, match="'broken' cannot be computed for 'by hand' and is left"):
        out = summarise(a_run())
    assert "broken" not in out
    assert out["accuracy"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("number", "good"), ("number", [1.0, 2.0]), ("percent", float("nan")), ("interval", 0.5),
     ("interval", (0.1, 0.2, 0.3)), ("parts", [0.1]), ("parts", {"a": None}), ("curve", 1.0)],
)  # fmt: skip
def test_a_value_of_another_kind_costs_no_run(mine, kind, value):
    mine("odd", lambda run: value, column="odd", kind=kind)
    with pytest.warns(
        UserWarning, match=f"'odd' cannot be computed.*no value of the kind '{kind}'"
    ):
        out = summarise(a_run())
    assert "odd" not in out


def test_averages_over_seeds():
    found = metrics.averages([
        {"accuracy": 0.25, "head": 0.5, "by_domain": {"fog": 0.5, "snow": 0.0}},
        {"accuracy": 0.75, "by_domain": {"fog": 1.0}},
    ])  # fmt: skip
    assert (found["accuracy"], found["head"], found["tail"]) == (0.5, 0.5, None)
    assert (found["by_domain"], found["by_group"]) == ({"fog": 0.75}, None)
    assert "tcr" not in found


def test_risk_over_coverage_by_hand():
    curve = risk_coverage([0.9, 0.5, 0.9, 0.7, 0.2], [1, 0, 0, 1, 0])
    assert curve.threshold.tolist() == [0.9, 0.7, 0.5, 0.2]
    assert curve.coverage.tolist() == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert curve.risk.tolist() == pytest.approx([1 / 2, 1 / 3, 2 / 4, 3 / 5])
    area = (2 * 1 / 2 + 1 / 3 + 1 / 2 + 3 / 5) / 5  # what each image's own threshold would cost
    assert aurc([0.9, 0.5, 0.9, 0.7, 0.2], [1, 0, 0, 1, 0]) == pytest.approx(area)
