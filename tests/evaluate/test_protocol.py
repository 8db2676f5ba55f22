"""What a run notes of every image."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from adte import InputError, Sample, create_method
from adte.evaluate import run
from clusters import live


def stream(images: int = 37, views: int = 6, classes: int = 30) -> list[tuple[Sample, int]]:
    g = torch.Generator().manual_seed(3)
    return [
        (Sample(3 * torch.randn(views, classes, generator=g)), i % classes) for i in range(images)
    ]


@pytest.mark.parametrize("protocol", ["online", "two-pass", "episodic", "frozen"])
@pytest.mark.parametrize("name", ["zero-shot", "se", "adte"])
def test_reliability_and_entropy_are_of_the_very_image(name, protocol):
    """Batches, and a pass that only learns, must not shift images against their predictions."""
    data = stream()
    done = run(create_method(name, **({"count": 2} if name != "zero-shot" else {})), data, protocol)
    method = create_method(name, **({"count": 2} if name != "zero-shot" else {}))
    if protocol == "two-pass":
        for sample, _ in data:
            method.learn(sample)
    tcr, entropy = [], []
    for sample, _ in data:
        if protocol == "episodic":
            method.reset()
        does = method.step if protocol in ("online", "episodic") else method.predict
        p = does(sample)
        kept = torch.tensor([0]) if p.kept is None else p.kept
        views = sample.logits[kept]
        best = views.sort(-1, descending=True).values.cumsum(-1)  # (V, L)
        tcr.append(best[:, :20].mean(0).tolist())
        entropy.append(-float((p.probs * p.probs.log()).sum()))
    np.testing.assert_allclose(done.tcr, np.mean(tcr, 0), rtol=1e-5)
    np.testing.assert_allclose(done.entropy, entropy, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("protocol", ["online", "two-pass"])
def test_seconds_are_of_the_method_and_not_of_its_images(protocol):
    """A table may hold a live run beside replayed ones."""
    slow, start = live(12, seconds=0.05, views=2), time.perf_counter()
    seconds = run(create_method("zero-shot"), slow, protocol).seconds
    assert seconds < 0.5 * (time.perf_counter() - start)  # most are those of the images

    class Slow(type(create_method("zero-shot"))):
        def learn(self, batch):
            time.sleep(0.05)
            return super().learn(batch)

        def step(self, batch):
            time.sleep(0.05)
            return super().step(batch)

    assert run(Slow(), live(2, views=2), protocol).seconds >= 0.05


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p[:, :2], r"an array \(3, 2\) for 3 images of 30 classes; `decide` returns"),
        (lambda p: p[:1], r"an array \(1, 30\) for 3 images"),
        (lambda p: p / 0 * 0, "some are no numbers"),
        (lambda p: p - 1, "some are negative, such as -.*softmax"),
        (lambda p: 1000 * p, "sum to 1e\\+03; make it 1"),
    ],
)
def test_answers_that_are_no_probabilities_say_what_is_wrong(make, said):
    """Unscaled ones had an ECE of thousands of percent, and were kept."""
    method = create_method("zero-shot")
    decide = method.decide
    method.decide = lambda *a: replace(decide(*a), probs=make(decide(*a).probs))
    with pytest.raises(InputError, match=said):
        run(method, stream(3))


def test_of_equals_the_first_is_ahead():
    """A class without votes is not the second best."""
    sample = Sample(torch.eye(4, 100)[[0, 0, 0, 0]] * 9)  # every view votes for class 0
    done = run(create_method("zero"), [(sample, 0), (sample, 1), (sample, 50)])
    assert done.rank.tolist() == [0, 1, 50]
    flat = run(create_method("zero-shot"), [(Sample(torch.zeros(1, 10)), 7)])
    assert flat.rank.tolist() == [7]


@pytest.mark.parametrize("label", [30, -1, 1.0, "cat", None])
def test_a_label_is_that_of_a_class(label):
    """Counted from one, the last class had no probability, and torch said so."""
    method = create_method("adte")
    with pytest.raises(InputError, match=r"is the label of no class; give .* from 0 to 29"):
        run(method, [(sample, label) for sample, _ in stream(3)])
    assert not method.state_dict()
    kinds = [(sample, torch.tensor(1)) for sample, _ in stream(2)]
    assert run(method, [*kinds, *((s, np.int32(1)) for s, _ in kinds)]).labels.tolist() == [1] * 4


def test_images_come_with_their_labels():
    with pytest.raises(InputError, match=r"give \(sample, label\) pairs"):
        run(create_method("se"), [sample for sample, _ in stream(3)])
