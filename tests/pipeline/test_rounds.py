"""views="auto": views come in rounds, and stop when the answer cannot change much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adte import Classifier, InputError, Views
from adte.images import Preprocess
from adte.pipeline import Pipeline
from adte.pipeline.rounds import FIRST, NEXT, enough
from adte.testing.small import SmallModel

CLASSES = ["cat", "dog", "car"]


def picture(seed: int, side: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side + 9, 3), dtype=np.uint8)


def test_views_stop_where_the_lead_is_beyond_its_error():
    lead = torch.tensor([[3.0, 0.0, 0.0]]).repeat(8, 1)
    torn = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]]).repeat(4, 1)
    assert [enough(lead, 64), enough(torn, 64), enough(torn, 8)] == [True, False, True]
    g = torch.Generator().manual_seed(0)
    z = torch.tensor([2.0, 0.0, 0.0]) + torch.randn(8, 3, generator=g)
    learned = torch.tensor([2.0, 0.0, 0.0])  # it can make it a tie
    assert [enough(z, 64), enough(z, 64, adjustment=learned)] == [True, False]
    g = torch.Generator().manual_seed(1)
    z = torch.tensor([0.35, 0.0]) + torch.randn(16, 2, generator=g)
    assert [enough(z, most) for most in (10_000, 17)] == [False, True]  # what is left shrinks


@pytest.mark.parametrize("kernel", ["uint8", "bands", "pillow"])
@pytest.mark.parametrize("augmix", [False, True])
def test_some_views_are_those_of_all(monkeypatch, kernel, augmix):
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    views, how = Views(count=20, augmix=augmix), Preprocess(size=16)
    parts = [views(picture(0), how, some=range(a, min(a + 8, 20))) for a in (0, 8, 16)]
    assert torch.equal(torch.cat(parts), views(picture(0), how))


def test_a_classifier_draws_no_more_than_it_needs():
    auto = Classifier(SmallModel(), CLASSES, views="auto")
    full = Classifier(SmallModel(), CLASSES)
    used = []
    for seed in range(12):
        p, whole = auto.predict(picture(seed)), full.predict(picture(seed))
        used.append(len(p.entropy))
        assert len(whole.entropy) == 64
        # the first views are the same ones
        torch.testing.assert_close(
            auto.sample(picture(seed)).features[:FIRST],
            full.sample(picture(seed)).features[:FIRST],
            rtol=1e-3,
            atol=1e-3,
        )
    assert all((n - FIRST) % NEXT == 0 for n in used)
    assert len(set(used)) > 1, used  # some images take more than others
    assert np.mean(used) < 64


def test_streams_threads_and_lists_agree(tmp_path):
    images = [picture(seed) for seed in range(10)]
    loop = Classifier(SmallModel(), CLASSES, views="auto")
    one_by_one = [loop.predict(i) for i in images]
    ways = [{"batch": 1}, {"batch": 16}, {"batch": 4, "workers": 2}, {}]
    for way in ways:
        clf = Classifier(SmallModel(), CLASSES, views="auto")
        found = list(clf.stream(images, **way)) if way else clf.predict(images)
        assert [len(p.entropy) for p in found] == [len(p.entropy) for p in one_by_one]
        assert all(torch.equal(a.probs, b.probs) for a, b in zip(found, one_by_one, strict=True))


def test_a_state_remembers_it(tmp_path):
    clf = Classifier(SmallModel(), CLASSES, views="auto")
    clf.predict(picture(0))
    clf.save(tmp_path / "s.adte")
    again = Classifier.load(tmp_path / "s.adte", SmallModel())
    assert again.auto
    assert torch.equal(again.predict(picture(1)).probs, clf.predict(picture(1)).probs)


@pytest.mark.parametrize(
    ("method", "options", "taken_off"),
    [
        ("tilt", {"likeness": 0}, True),
        ("adte", {}, True),
        ("adte", {"tau": 0.0}, False),
        ("adte", {"warmup": 9}, False),
        ("adte", {"adjust": "none"}, False),
    ],
)
def test_views_stop_by_what_the_method_takes_off_the_logits(method, options, taken_off):
    clf = Classifier(SmallModel(), CLASSES, method, views="auto", **options)
    logits = torch.tensor([[3.0, 1.0, 0.0], [2.0, 2.5, 0.0]])
    assert clf.method.adjustment(logits) is None
    clf.predict([picture(i) for i in range(4)])
    found = clf.method.adjustment(logits)
    assert (found is not None and bool(found.any())) == taken_off
    if options == {"tau": 0.0}:
        half = Classifier(SmallModel(), CLASSES, "adte", views="auto", tau=0.5)
        half.predict([picture(i) for i in range(4)])
        whole = half.method.class_prior.log_prior
        torch.testing.assert_close(2 * half.method.adjustment(logits), whole)


def test_pixels_are_of_the_views_drawn_and_unreadable_images_left_out():
    assert Classifier(SmallModel(), CLASSES, "memo", views="auto").predict(picture(0)).label
    clf = Classifier(SmallModel(), CLASSES, views="auto")
    found = list(clf.stream([picture(0), b"no image", picture(1)], errors="skip"))
    assert len(found) == 2
    assert len(clf.unread) == 1
    with pytest.raises(InputError, match="8 bytes"):
        list(clf.stream([b"no image"]))


def test_what_it_cannot_be_used_for_says_so():
    with pytest.raises(InputError, match="give a number of views"):
        list(Pipeline(SmallModel(), auto=True)([("a", picture(0))]))
    with pytest.raises(InputError, match="'many' is no number of views"):
        Classifier(SmallModel(), CLASSES, views="many")
