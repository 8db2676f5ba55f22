"""Views made where the model is: by matrix products and by the Triton kernel, as Pillow makes them.

Here on the CPU, where both run as well; tests/test_cuda.py has the kernel on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from adte import InputError, Pipeline, Views
from adte.images import Picture, Preprocess, base_view, load_picture
from adte.images.boxes import of_base
from adte.images.render import pack, render
from adte.images.table import show, where
from adte.pipeline import places
from adte.pipeline.ahead import overlapped
from adte.pipeline.places import OnDevice
from adte.testing import SmallModel
from pictures import KINDS, levels, photo, pillow

ODD = [(37, 50), (1, 1), (1, 40), (40, 1), (2, 100), (100, 2), (150, 97), (300, 40)]


def rendered(shown: list, preprocess: Preprocess) -> np.ndarray:
    out = torch.empty(sum(len(s.rows) for s in shown), 3, preprocess.size, preprocess.size)
    render(pack(shown), out, preprocess)
    found = where(shown)
    return levels(out if found is None else out[found.reshape(-1)], preprocess)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(size=24),
        Preprocess(size=33, crop=0.875, interpolation="bilinear"),
        Preprocess(size=224),
    ],
    ids=["small", "cut", "clip"],
)
def test_as_pillow_on_odd_sizes(kind, preprocess):
    """All of them in one group."""
    views, shown, wanted = Views(count=6, interpolation=kind, enlarge=0), [], []
    for i, (height, width) in enumerate(ODD):
        pixels = photo(height, width, i)
        picture = load_picture(pixels, preprocess, views)
        crops = views.placed(picture, preprocess)
        assert crops == views.plan(pixels, preprocess)
        shown.append(show(picture, crops, preprocess, kind))
        wanted.append(levels(base_view(pixels, preprocess), preprocess))
        wanted += [pillow(pixels, c, preprocess.size, kind, columns_first=True) for c in crops]
    found = rendered(shown, preprocess)
    assert np.abs(found - np.stack(wanted)).max() < 1.01


def test_base_views_squashed_and_of_pictures_decoded_at_half_size():
    for how, step in (
        (Preprocess(32, resize="squash", crop=0.9), 1),
        (Preprocess(24, crop=0.8), 2),
    ):
        for height, width in ((75, 100), (61, 83), (64, 64), (20, 20)):
            pixels = photo(-(-height // step), -(-width // step))
            picture = Picture(pixels, height, width)  # its last row may stand for less
            assert picture.step == step
            base = of_base(picture, how)
            assert (base.bottom <= height / step, base.right <= width / step) == (True, True)
            found = rendered([show(picture, [], how)], how)
            assert np.abs(found - levels(base_view(picture, how), how)).max() < 1.01


def test_boxes_may_have_fractions():
    """As Pillow's `resize(…, box)` of what the box touches."""
    pixels, preprocess = photo(60, 80), Preprocess(size=20)
    for top, left, h, w in (
        (3.25, 10.5, 40.5, 33.0),
        (0.0, 0.0, 59.5, 79.25),
        (20.7, 30.1, 5.2, 7),
    ):
        y, x = int(top), int(left)
        bottom, right = int(np.ceil(top + h)), int(np.ceil(left + w))
        cut = Image.fromarray(pixels[y:bottom, x:right])
        box = (left - x, top - y, left - x + w, top - y + h)
        wanted = np.asarray(cut.resize((20, 20), KINDS["bilinear"], box)).transpose(2, 0, 1)
        picture = Picture(pixels, 60, 80)
        found = rendered([show(picture, [(top, left, h, w, False)], preprocess)], preprocess)[1]
        assert np.abs(found - wanted).max() < 2.01


def test_an_image_does_not_depend_on_its_company():
    preprocess, views = Preprocess(size=16), Views(count=4, enlarge=0)
    shown = []
    for i, (height, width) in enumerate(ODD):
        picture = load_picture(photo(height, width, i), preprocess, views)
        shown.append(show(picture, views.placed(picture, preprocess), preprocess))
    together = rendered(shown, preprocess).reshape(len(shown), 4, 3, 16, 16)
    for one, in_company in zip(shown, together, strict=True):
        assert np.array_equal(rendered([one], preprocess), in_company)


def test_the_buffer_of_views_must_be_whole():
    picture = Picture(photo(8, 8), 8, 8)
    buffer = pack([show(picture, [], Preprocess(size=4))])
    with pytest.raises(ValueError, match="one piece"):
        render(buffer, torch.empty(1, 3, 4, 8)[..., :4], Preprocess(size=4))


KERNEL = """
import numpy as np, torch
from adte.images import fused
from adte.images.render import pack, products
from adte.images.table import show
from adte.images import Picture, Preprocess
rng = np.random.default_rng(0)
for dtype, side, kind, images in (
    (torch.float32, 34, "bilinear", [((9, 13), (1, 2, 6, 8, True))]),
    (torch.float16, 9, "bicubic", [((20, 7), (2.5, 1.25, 9.5, 5, 0)), ((1, 1), (0, 0, 1, 1, 0))]),
):
    shown = []
    for (h, w), crop in images:
        picture = Picture(rng.integers(0, 256, (h, w, 3), dtype=np.uint8), h, w)
        shown.append(show(picture, [crop], Preprocess(size=side), kind))
    a, b = (torch.full((2 * len(images), 3, side, side), -7.0, dtype=dtype) for _ in range(2))
    scale = [1.0, 0.5, 2.0]
    for out, way in ((a, fused.render), (b, products)):
        way(pack(shown), out, scale, [0.0, 1.0, -1.0])
    off = (a.float() - b.float()).abs().amax((0, 2, 3)) / torch.tensor(scale)
    assert off.max() <= 1, off
    assert (a != b).float().mean() < 0.01  # one level, where it lies halfway
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernel_says_what_matrix_products_say():
    """Interpreted, on the CPU; the view is a little larger than a tile."""
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", KERNEL],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --------------------------------------------------------------------------- the pipeline


@pytest.fixture
def on_device(monkeypatch):
    """The way that a model on CUDA takes, here: views by matrix products, streams that are none."""
    monkeypatch.setattr(Pipeline, "place", property(there))


def there(self: Pipeline) -> OnDevice:
    return OnDevice(self.model, self.views, self.preprocess, self.workers > 0, self.keep_pixels)


@pytest.fixture
def watched(monkeypatch):
    """A model, and the shapes of pixels that its tower sees."""
    seen: list[tuple[int, ...]] = []
    encode = SmallModel.encode_image
    monkeypatch.setattr(
        SmallModel, "encode_image", lambda s, x: (seen.append(tuple(x.shape)), encode(s, x))[1]
    )
    return SmallModel(), seen


def features(pipeline: Pipeline, sources: list, **more) -> torch.Tensor:
    return torch.stack([e.features for e in pipeline(enumerate(sources), **more)])


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_features_are_those_of_the_cpu(kind, workers, monkeypatch):
    sources = [photo(*ODD[i % len(ODD)], i) for i in range(7)]
    pipeline = Pipeline(SmallModel(), Views(count=5, interpolation=kind), workers=workers)
    plain = features(pipeline, sources)
    monkeypatch.setattr(Pipeline, "place", property(there))
    for size in (1, 3, 16):
        mine = features(pipeline, sources, at_once=size)
        torch.testing.assert_close(mine, plain, rtol=0, atol=2e-2)
    monkeypatch.setattr(places, "UPLOAD", 1)  # every image by itself
    assert torch.equal(features(pipeline, sources, at_once=16), mine)


def test_pixels_are_handed_on_and_groups_filled_up(on_device, watched):
    model, seen = watched
    pipeline = Pipeline(model, Views(count=4), keep_pixels=True, workers=2)
    sources = [photo(30, 40), photo(25, 60), photo(11, 11), photo(20, 20), photo(18, 30)]
    found = list(pipeline(enumerate(sources), at_once=3))
    assert seen == [(12, 3, 24, 24)] * 2
    assert [e.key for e in found] == list(range(5))
    for e, source in zip(found, sources, strict=True):
        wanted = levels(pipeline.render(source), pipeline.preprocess)
        assert np.abs(levels(e.pixels, pipeline.preprocess) - wanted).max() < 2.01


def test_small_images_take_the_places_of_the_views_they_have(on_device, watched):
    """The whole of one, and mirrored: eight of them and a large one in a pass for three."""
    model, seen = watched
    sources = [photo(9, 9, i) for i in range(8)] + [b"", photo(30, 40)] + [photo(9, 9, 9)] * 3
    pipeline, told = Pipeline(model, Views(count=12), workers=2), []
    found = list(pipeline(enumerate(sources), lambda key, error: told.append(key), at_once=3))
    assert seen == [(36, 3, 24, 24)] * 2  # 8 · 2 + 12, then 3 · 2
    assert told == [8]
    assert [e.key for e in found] == [i for i in range(13) if i != 8]
    alone = Pipeline(SmallModel(), Views(count=12), workers=2)
    for e in found:
        assert len(e.features.unique(dim=0)) == (12 if e.key == 9 else 2)
        (one,) = alone([(0, sources[e.key])])
        torch.testing.assert_close(e.features, one.features, rtol=0, atol=2e-2)
    kept = list(Pipeline(model, Views(count=12), keep_pixels=True, workers=2)(
        [(e.key, sources[e.key]) for e in found], at_once=3))  # fmt: skip
    assert [tuple(e.pixels.shape) for e in kept] == [(12, 3, 24, 24)] * 12
    assert all(torch.equal(a.features, b.features) for a, b in zip(found, kept, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_told_in_their_place(on_device, workers):
    """Those before them are handed on first."""
    pipeline = Pipeline(SmallModel(), Views(count=3), workers=workers)
    sources = [b"bad", photo(9, 9), photo(8, 9), b"worse", photo(9, 8), photo(7, 7), b"", b"no"]
    said: list[object] = []
    for e in pipeline(enumerate(sources), lambda key, error: said.append(f"bad {key}"), 2):
        said.append(e.key)
    assert said == ["bad 0", 1, 2, "bad 3", 4, 5, "bad 6", "bad 7"]
    rest = pipeline(enumerate(sources[1:]), at_once=2)
    assert [next(rest).key, next(rest).key] == [0, 1]
    with pytest.raises(InputError, match="cannot read"):
        next(rest)


def test_one_at_a_time_takes_no_more_than_it_was_asked_for(on_device):
    """A camera's next picture is not waited for."""
    taken = []

    def camera():
        for i in range(3):
            taken.append(i)
            yield i, photo(10, 12, i)

    for e in Pipeline(SmallModel(), Views(count=2))(camera(), at_once=1):
        assert taken == list(range(e.key + 1))


def test_where_views_are_made(monkeypatch):
    monkeypatch.delenv("ADTE_VIEWS", raising=False)
    monkeypatch.setattr(SmallModel, "device", torch.device("cuda"))
    assert Pipeline(SmallModel(), Views(count=3)).kernel == "fused"
    assert Pipeline(SmallModel(), Views(count=3, augmix=True)).kernel != "fused"
    monkeypatch.setenv("ADTE_VIEWS", "bands")
    assert Pipeline(SmallModel(), Views(count=3)).kernel == "bands"


def test_groups_land_in_order_one_behind():
    """The tower has the next group before the caller has this one."""
    log: list[str] = []

    def load(n: int) -> torch.Tensor | None:
        log.append(f"load {n}")
        return torch.full((1,), float(n)) if n else None

    def encode(x: torch.Tensor) -> torch.Tensor:
        log.append(f"encode {int(x)}")
        return x * 10

    for group, made in overlapped([1, 0, 2, 3], load, encode, torch.device("cpu")):
        log.append(f"land {group}")
        assert made is None if group == 0 else made is not None and int(made[1]) == 10 * group
    assert log == ["load 1", "encode 1", "load 0", "land 1", "load 2", "encode 2", "land 0",
                   "load 3", "encode 3", "land 2", "land 3"]  # fmt: skip
