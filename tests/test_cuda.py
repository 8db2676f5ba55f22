"""On a GPU: every method decides as on the CPU, and the evaluation runs there."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from adte import Classifier, Sample, Views, create_method, list_methods
from adte.batch import Batch
from adte.data import Dataset, make_stream
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.running.tasks import Task, perform
from adte.machine import PeakMemory
from adte.prompts import class_weights
from adte.testing.methods import samples
from adte.testing.small import SmallModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def on_gpu(sample: Sample, model: torch.nn.Module) -> Sample:
    moved = {
        name: getattr(sample, name).cuda()
        for name in ("logits", "features", "class_weights", "pixels")
    }
    return replace(sample, **moved, model=model)


@pytest.mark.parametrize("name", list_methods())
def test_methods_decide_as_on_the_cpu(name):
    here, there = create_method(name), create_method(name)
    cpu = samples(10)
    model = copy.deepcopy(cpu[0].model).cuda()
    for sample in cpu:
        a, b = here.step(sample), there.step(on_gpu(sample, model))
        torch.testing.assert_close(b.probs.cpu(), a.probs, rtol=2e-3, atol=2e-3)
    state = {k: v.cpu() for k, v in there.state_dict().items()}
    fresh = create_method(name)
    fresh.load_state_dict(state)  # learned on the GPU, used on the CPU
    last = cpu[-1]
    torch.testing.assert_close(
        fresh.predict(last).probs,
        there.predict(on_gpu(last, model)).probs.cpu(),
        rtol=2e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize("name", list_methods())
def test_batches_on_the_gpu_say_what_a_loop_says(name):
    """And the state lies there, counters apart."""
    one, many = create_method(name), create_method(name)
    cpu = samples(10)
    model = copy.deepcopy(cpu[0].model).cuda()
    weights = cpu[0].class_weights.cuda()  # one context for all, so that they go together
    stream = [replace(on_gpu(s, model), class_weights=weights) for s in cpu]
    looped = [one.step(s) for s in stream]
    batches = list(Batch.runs((s.batch for s in stream), 4))
    assert [len(b) for b in batches] == [4, 4, 2]
    batched = [p for b in batches for p in many.step(b)]
    for a, b in zip(looped, batched, strict=True):
        assert b.probs.is_cuda
        torch.testing.assert_close(b.probs, a.probs, rtol=1e-4, atol=1e-5)
    assert all(v.is_cuda for v in (many._state or {}).values() if v.ndim)


def test_extract_and_replay_on_the_gpu(tmp_path):
    rng, model, names = np.random.default_rng(0), SmallModel().cuda(), ("cat", "dog", "car")
    pictures = Dataset(
        name="pictures",
        classes=names,
        class_ids=names,
        sources=[rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for _ in range(12)],
        labels=np.arange(12) % 3,
        ids=[f"{i:03d}" for i in range(12)],
        split="made up",
    )
    stream = Live(
        model=model,
        class_weights=class_weights(model, names),
        stream=make_stream(pictures, order="file"),
        views=Views(count=5),
    )
    cache = extract(stream, tmp_path / "gpu", shard=5)
    there = perform(Cache(cache.folder, model=model), Task("adte"), memory=True)
    here = perform(Cache(cache.folder), Task("adte"))
    assert there.run.predicted.tolist() == here.run.predicted.tolist()
    assert there.run.peak_memory > 0


def test_classifier_on_the_gpu(tmp_path):
    from PIL import Image

    image = Image.new("RGB", (40, 30), (200, 80, 10))
    clf = Classifier(SmallModel().cuda(), ["cat", "dog", "car"], views=Views(count=8).count)
    a = clf.predict(image)
    clf.save(tmp_path / "x.adte")
    assert a.probs.sum().item() == pytest.approx(1, abs=1e-5)


def test_peak_memory_is_the_devices_own():
    with PeakMemory(torch.device("cuda")) as peak:
        x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        del x
    assert 60e6 < peak.bytes < 80e6
