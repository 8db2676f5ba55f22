"""On a GPU: every method decides as on the CPU, and the way of an image ends where it does there.

Views are made by the Triton kernel, and compared with Pillow on every pixel.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from adte import Classifier, Pipeline, Sample, Views, create_method, list_methods
from adte.bench.views import photo
from adte.core import machine
from adte.core.batch import Batch, Context
from adte.core.errors import InputError
from adte.core.machine import PeakMemory
from adte.data import Dataset, make_stream
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.running.tasks import Task, perform
from adte.images import Preprocess, base_view, load_picture, plain
from adte.images.boxes import of_base
from adte.images.render import _renderer, pack, render
from adte.images.table import show, where
from adte.methods import method_info
from adte.models.prompts import class_weights
from adte.testing.samples import samples
from adte.testing.small import SmallModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


INNER = {"image tower", "text tower", "embeddings"}  # what a method may compute in


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


@pytest.mark.parametrize("classes", [2, 300, 20_000])
def test_the_default_says_what_it_says_on_a_host_however_a_stream_is_cut(classes):
    g = torch.Generator().manual_seed(0)
    texts = torch.nn.functional.normalize(torch.randn(classes, 32, generator=g), dim=-1)
    own = texts[torch.randint(min(classes, 9), (64, 1), generator=g)]  # few are shown
    x = torch.nn.functional.normalize(own + 0.15 * torch.randn(64, 4, 32, generator=g), dim=-1)
    host, context = create_method("tilt"), Context(texts, 50.0)
    want = host.step(context.batch(x)).probs
    there = Context(texts.cuda(), 50.0)
    for size in (1, 16, 64):
        method = create_method("tilt")
        got = [method.step(there.batch(part.cuda())).probs for part in x.split(size)]
        torch.testing.assert_close(torch.cat(got).cpu(), want, rtol=1e-3, atol=1e-5)
        for name, value in host.state_dict().items():
            torch.testing.assert_close(method.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-6)


def test_another_stream_begins_as_on_the_cpu():
    g = torch.Generator().manual_seed(0)
    texts = torch.nn.functional.normalize(torch.randn(50, 64, generator=g), dim=-1)
    own = texts[torch.randint(50, (200, 1), generator=g)]
    x = torch.nn.functional.normalize(own + 0.15 * torch.randn(200, 8, 64, generator=g), dim=-1)
    said = {}
    for device in ("cpu", "cuda"):
        method, context = create_method("tilt"), Context(texts.to(device), 100.0)
        first = method.step(context.batch(x[:100].to(device)))
        method.begin()
        second = method.step(context.batch(x[100:].to(device)))
        said[device] = torch.cat([first.probs, second.probs]).cpu()
    torch.testing.assert_close(said["cuda"], said["cpu"], rtol=1e-3, atol=1e-4)


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
        stream=make_stream(pictures, order="listed"),
        views=Views(count=5),
    )
    cache = extract(stream, tmp_path / "gpu", shard=5)
    there = perform(Cache(cache.folder, model=model), Task("tilt"), memory=True)
    here = perform(Cache(cache.folder), Task("tilt"))
    assert there.run.predicted.tolist() == here.run.predicted.tolist()
    assert there.run.peak_memory > 0


def test_classifier_on_the_gpu(tmp_path):
    image = Image.new("RGB", (40, 30), (200, 80, 10))
    clf = Classifier(SmallModel().cuda(), ["cat", "dog", "car"], views=Views(count=8).count)
    a = clf.predict(image)
    clf.save(tmp_path / "x.adte")
    assert a.probs.sum().item() == pytest.approx(1, abs=1e-5)


def test_calibrated_on_the_gpu_as_on_the_cpu():
    images, truths = [photo(80 + i, 100, seed=i) for i in range(8)], [i % 3 for i in range(8)]
    here, there = (
        Classifier(SmallModel().to(device), ["cat", "dog", "car"], views=6)
        for device in ("cpu", "cuda")
    )
    a, b = here.calibrate(images, truths), there.calibrate(images, truths)
    assert b.temperature == pytest.approx(a.temperature, rel=0.05)
    got, want = there.predict(images), here.predict(images)
    for p, q in zip(got, want, strict=True):
        assert p.confidence == pytest.approx(q.confidence, abs=0.02)


@pytest.fixture
def narrow(monkeypatch):
    """CUDA as a device without float64 and without kernels of ours, as Apple's GPUs are."""
    monkeypatch.setattr(machine, "_WIDE", ("cpu",))
    monkeypatch.setenv("ADTE_VIEWS", "float")


@pytest.mark.parametrize(
    "name", [n for n in list_methods() if not method_info(n).cls.needs & INNER]
)
def test_methods_are_beside_a_tower_whose_device_knows_no_float64(name, narrow):
    model, names = SmallModel(), ["cat", "dog", "car"]
    sources = [photo(40 + i, 60, seed=i) for i in range(6)]
    want = [p.probs for p in Classifier(model, names, name, views=6).stream(sources, batch=4)]
    there = copy.deepcopy(model).cuda()
    clf = Classifier(there, names, name, views=6)
    got = [p.probs for p in clf.stream(sources, batch=4)]
    assert {v.device.type for v in clf.method.state_dict().values()} <= {"cpu"}
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=5e-3, atol=5e-3)


def test_a_method_within_a_tower_is_refused_where_there_is_no_float64(narrow):
    for name in ("tpt", "tent"):
        with pytest.raises(InputError, match="device='cpu'"):
            Classifier(SmallModel().cuda(), ["cat", "dog"], name)


def test_extract_and_auto_views_beside_such_a_tower(narrow, tmp_path):
    model, names = SmallModel().cuda(), ("cat", "dog", "car")
    pictures = Dataset(
        name="pictures", classes=names, class_ids=names,
        sources=[photo(30, 40, seed=i) for i in range(9)],
        labels=np.arange(9) % 3, ids=[f"{i:03d}" for i in range(9)], split="made up",
    )  # fmt: skip
    weights = class_weights(model, names)
    live = Live(model, weights, make_stream(pictures, order="listed"), Views(count=5), workers=2)
    cache = extract(live, tmp_path / "cache", shard=4)
    replayed = perform(Cache(cache.folder, model=model), Task("tilt"))
    clf = Classifier(model, names, views=Views(count=5))
    assert replayed.run.predicted.tolist() == [p.index for p in clf.stream(pictures.sources)]
    auto = Classifier(model, names, views="auto")
    assert all(p.probs.device.type == "cpu" for p in auto.stream(pictures.sources))


def test_peak_memory_is_the_devices_own():
    with PeakMemory(torch.device("cuda")) as peak:
        x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        del x
    assert 60e6 < peak.bytes < 80e6


# --------------------------------------------------------------------------- views

KINDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def levels(views: torch.Tensor, preprocess: Preprocess) -> np.ndarray:
    mean, std = (torch.tensor(x)[:, None, None] for x in (preprocess.mean, preprocess.std))
    return ((views.float().cpu() * std + mean) * 255).numpy()


def farthest(
    images: list[np.ndarray], views: Views, preprocess: Preprocess, room=None
) -> tuple[float, float]:
    """Grey levels between the views of a group and Pillow's: of crops, of base views."""
    shown, wanted, kind = [], [], KINDS[views.interpolation]
    for pixels in images:
        picture = load_picture(pixels, preprocess, views)
        crops = views.placed(picture, preprocess)
        shown.append(show(picture, crops, preprocess, views.interpolation))
        wanted.append(levels(base_view(pixels, preprocess), preprocess))
        for top, left, h, w, flip in crops:
            cut = Image.fromarray(pixels[top : top + h, left : left + w])
            if views.interpolation == "bicubic":  # newer versions of Pillow may begin with rows
                cut = cut.resize((preprocess.size, h), kind)
            cut = cut.resize((preprocess.size, preprocess.size), kind)
            wanted.append(np.asarray(ImageOps.mirror(cut) if flip else cut).transpose(2, 0, 1))
    rows = sum(len(s.rows) for s in shown)
    out = torch.empty(rows, 3, preprocess.size, preprocess.size, device="cuda")
    buffer = pack(shown, pinned=True).to("cuda", non_blocking=True)
    if room is None:
        render(buffer, out, preprocess)
    else:
        std = np.array(preprocess.std)
        room.render(buffer, out, (1 / (255 * std)).tolist(), (preprocess.mean / std).tolist())
    found = where(shown)
    found = np.arange(rows) if found is None else found.reshape(-1)
    off = np.abs(levels(out, preprocess)[found] - np.stack(wanted)).max((1, 2, 3))
    off = off.reshape(len(images), views.count)
    return float(off[:, 1:].max(initial=0)), float(off[:, 0].max())


def test_the_kernel_is_in_use():
    pytest.importorskip("triton", reason="Triton is not installed")
    assert _renderer(torch.device("cuda", torch.cuda.current_device())) is not plain.render


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_a_thousand_crops_of_photographs_are_pillows(kind):
    sizes = [(375, 500), (500, 375), (333, 500), (240, 320), (768, 1024)]
    images = [photo(*sizes[i % len(sizes)], seed=i) for i in range(16)]
    crops, base = farthest(images, Views(count=64, interpolation=kind), Preprocess())
    assert crops < 2.01
    assert base < 2.01


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("room", [None, plain], ids=["kernel", "products"])
def test_odd_sizes_are_pillows_too(kind, room):
    sizes = [(1, 1), (1, 40), (40, 1), (2, 100), (100, 2), (20, 1000), (1000, 20), (7, 13)]
    images = [photo(h, w, seed=h + w) for h, w in sizes]
    for preprocess in (Preprocess(), Preprocess(size=30, crop=0.875, interpolation="bilinear")):
        views = Views(count=9, interpolation=kind, enlarge=0)
        assert max(farthest(images, views, preprocess, room)) < 2.01


def test_twelve_megapixels_are_pillows_too():
    """From all of the pixels; the CPU's own way makes fewer of them first."""
    pixels, preprocess, views = photo(3000, 4000), Preprocess(), Views(count=9)
    assert farthest([pixels], views, preprocess)[0] < 2.01
    picture = load_picture(pixels, preprocess, views)
    base = of_base(picture, preprocess)
    image, side = Image.fromarray(pixels), preprocess.size
    image = image.resize((side, 3000), KINDS["bicubic"], (base.left, 0, base.right, 3000))
    image = image.resize((side, side), KINDS["bicubic"], (0, base.top, side, base.bottom))
    out = torch.empty(1, 3, side, side, device="cuda")
    render(pack([show(picture, [], preprocess)]).to("cuda"), out, preprocess)
    off = levels(out, preprocess)[0] - np.asarray(image).transpose(2, 0, 1)
    assert np.abs(off).max() < 2.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_the_precision_of_the_model(dtype):
    preprocess, views = Preprocess(size=64), Views(count=8)
    picture = load_picture(photo(), preprocess, views)
    buffer = pack([show(picture, views.placed(picture, preprocess), preprocess)]).cuda()
    whole = torch.empty(8, 3, 64, 64, device="cuda")
    half = whole.to(dtype)
    render(buffer, whole, preprocess)
    render(buffer, half, preprocess)
    torch.testing.assert_close(half, whole.to(dtype), rtol=0, atol=1e-2)


def test_boxes_and_pixels_are_those_of_the_cpu():
    sizes = [(60, 80), (25, 90), (20, 20), (11, 11), (18, 30)]  # of which three are small
    model, sources = SmallModel(), [photo(*size) for size in sizes]
    here = Pipeline(model, Views(count=6), keep_pixels=True)
    there = Pipeline(copy.deepcopy(model).cuda(), Views(count=6), keep_pixels=True, workers=2)
    assert there.fused
    assert not here.fused
    pairs = zip(here(enumerate(sources)), there(enumerate(sources), at_once=2), strict=True)
    for a, b in pairs:
        assert a.key == b.key
        assert b.pixels.is_cuda
        off = levels(a.pixels, model.preprocess) - levels(b.pixels, model.preprocess)
        assert np.abs(off).max() <= 2.01


# --------------------------------------------------------------------------- streams


def test_a_stream_says_what_one_at_a_time_says():
    """To the last bit with the same images a pass, whatever comes before and how it is decoded."""
    model, names = SmallModel().cuda(), ["cat", "dog", "car"]
    sources = [photo(40 + i, 60, seed=i) for i in range(21)]
    alone = [Classifier(model, names, views=8).freeze().predict(s) for s in sources]
    clf = Classifier(model, names, views=8).freeze()
    said = {w: list(clf.stream(sources, batch=8, workers=w)) for w in (0, 1, 4)}
    for a, b, c, d in zip(alone, *said.values(), strict=True):
        torch.testing.assert_close(a.probs, b.probs, rtol=1e-3, atol=1e-3)
        assert torch.equal(b.probs, c.probs)
        assert torch.equal(c.probs, d.probs)
    learned = [list(Classifier(model, names, views=8).stream(sources, batch=8, workers=w))
               for w in (0, 4)]  # fmt: skip
    assert all(torch.equal(a.probs, b.probs) for a, b in zip(*learned, strict=True))


def test_small_images_go_together_and_say_the_same():
    model = SmallModel().cuda()
    sources = [photo(*((9, 9) if i % 9 else (30, 40)), seed=i) for i in range(150)]
    said = [
        [e.features for e in Pipeline(model, Views(count=64), workers=w)(enumerate(sources))]
        for w in (0, 4)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*said, strict=True))


def test_many_groups_do_not_run_into_each_other():
    """Memory of a group is not given away before its work is done."""
    model = SmallModel().cuda()
    sources = [photo(30, 40, seed=i % 7) for i in range(150)]
    pipeline = Pipeline(model, Views(count=16), keep_pixels=True, workers=4)
    first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for e in pipeline(enumerate(sources), at_once=4):
        junk = torch.full((4, 16, 3, 24, 24), torch.nan, device="cuda")  # wants what was freed
        features, pixels = first.setdefault(e.key % 7, (e.features.clone(), e.pixels.clone()))
        assert torch.equal(pixels, e.pixels)
        torch.testing.assert_close(features, e.features, rtol=0, atol=1e-3)
        del junk


def test_extract_on_the_gpu_is_what_a_stream_predicts(tmp_path):
    model, names = SmallModel().cuda(), ("cat", "dog", "car")
    pictures = Dataset(
        name="pictures", classes=names, class_ids=names,
        sources=[photo(30, 40, seed=i) for i in range(20)],
        labels=np.arange(20) % 3, ids=[f"{i:03d}" for i in range(20)], split="made up",
    )  # fmt: skip
    weights = class_weights(model, names)
    live = Live(model, weights, make_stream(pictures, order="listed"), Views(count=5), workers=2)
    cache = extract(live, tmp_path / "cache", shard=7)
    clf = Classifier(model, list(names), views=Views(count=5))
    said = list(clf.stream(pictures.sources, batch=16, workers=2))
    replayed = perform(Cache(cache.folder, model=model), Task("tilt"))
    assert replayed.run.predicted.tolist() == [p.index for p in said]


def test_memory_of_one_image_at_a_time():
    """The views of one image and no more, however large the photograph."""
    model = SmallModel().cuda()
    pipeline = Pipeline(model, Views(count=64), keep_pixels=True)
    image = photo(750, 1000)
    with PeakMemory(torch.device("cuda")) as peak:
        (found,) = pipeline([("one", image)], at_once=1)
    views = found.pixels.nbytes
    assert views <= peak.bytes <= image.nbytes + 12 * views + (32 << 20)
