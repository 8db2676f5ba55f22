"""Views: exact crops, Pillow's pixels whatever makes them, and options that must not pass."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from adte.core.errors import InputError
from adte.images import KERNELS, Crop, Preprocess, Views, augmix, bands, base_view
from adte.images.boxes import GAP, GRID, coarsest, unit
from adte.images.decode import LARGE, Picture, load_image
from adte.images.drawing import MARGIN
from pictures import KINDS, TOLERANCE, base, levels, noise, photo, pillow

PHOTOS = Path(__file__).parents[2] / "shared" / "data" / "photos"
SHAPES = [(1, 1), (3, 200), (200, 3), (37, 41), (260, 150), (375, 500), (1300, 900)]
WAYS = [("uint8", "bilinear"), ("bands", "bilinear"), ("pillow", "bilinear"), ("pillow", "bicubic")]
CLIP = Preprocess()

sizes = st.integers(1, 300)
keys = st.one_of(st.integers(-(2**70), 2**70), st.text())


# --------------------------------------------------------------------------- Pillow's pixels


@pytest.mark.parametrize(("kernel", "kind"), WAYS)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 1000), (1000, 20)])
def test_every_kernel_matches_pillow_on_noise(shape, kernel, kind, monkeypatch):
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    pixels, views = noise(*shape), Views(count=6, interpolation=kind, enlarge=0)
    for side in (224, 32, 97):  # 97 is prime: no block divides it
        preprocess = Preprocess(size=side)
        out = levels(views(pixels, preprocess, key=3), preprocess)
        crops = views.boxes(*shape, preprocess, key=3)
        expected = [base(pixels, preprocess), *(pillow(pixels, c, side, kind) for c in crops)]
        assert np.abs(out - np.stack(expected)).max() <= TOLERANCE


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("resize", ["shortest", "squash"])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_base_view_matches_pillow(shape, resize, kind):
    for side, crop in ((224, 1.0), (32, 1.0), (97, 1.0), (64, 64 / 72), (224, 0.875)):
        preprocess = Preprocess(size=side, interpolation=kind, resize=resize, crop=crop)
        view = base_view(noise(*shape), preprocess)
        assert view.shape == (3, side, side)
        error = np.abs(levels(view, preprocess) - base(noise(*shape), preprocess))
        assert error.max() <= TOLERANCE
    assert base_view(noise(1, 60_000), Preprocess()).isfinite().all()  # a thread of pixels


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 700), side=st.integers(1, 90), flip=st.booleans())
def test_bands_hold_pillows_weights(size, side, flip):
    """Row by row: the weights sum to one, stay inside the axis and centre on the output pixel."""
    made = bands.bands_of(size, side, flip)
    *radices, block, length = made.weights.shape
    digits = np.indices(radices).reshape(len(radices), -1)
    rows = np.zeros((side, size + 2 * made.margin))
    weights = made.weights.reshape(-1, block, length)
    for i, start in enumerate(made.start + np.array(made.steps) @ digits):
        at = made.margin + start
        assert 0 <= at <= rows.shape[1] - length
        rows[i * block : (i + 1) * block, at : at + length] = weights[i]
    inside = rows[:, made.margin : made.margin + size]
    assert np.allclose(inside.sum(1), 1, atol=1e-5)
    assert rows.sum() == pytest.approx(inside.sum())
    pixel = Image.fromarray(np.eye(size, dtype=np.float32))  # each column is one input pixel
    expected = np.asarray(pixel.resize((side, size), KINDS["bilinear"])).T
    assert np.allclose(inside[::-1] if flip else inside, expected, atol=1e-5)


@lru_cache(maxsize=2)
def large(height: int, width: int) -> np.ndarray:
    return photo(height, width)


def test_a_reduced_picture_holds_means():
    pixels = noise(600, 800)
    coarse = Picture(pixels, 600, 800).reduced(2).reduced(4)
    means = pixels.reshape(150, 4, 200, 4, 3).mean((1, 3))
    assert coarse.step == 4
    assert np.abs(coarse.pixels - means).max() <= 1.01
    assert coarse.reduced(4) is coarse


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduced", [1, 2])
def test_every_kernel_matches_pillow_on_what_was_decoded_in_part(kernel, reduced, monkeypatch):
    """From the pixels that were decoded, whole or in part, through the pyramid or not."""
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    size = 1808, 2400
    pixels = large(*(n // reduced for n in size))
    picture, views = Picture(pixels, *size), Views(count=8)
    for side in (16, 97):
        preprocess = Preprocess(size=side)
        made = levels(views(picture, preprocess, key=5), preprocess)
        crops = views.placed(picture, CLIP, key=5)
        assert np.abs(made[1:] - [pillow(pixels, c, side) for c in crops]).max() <= TOLERANCE
        if reduced == 2:  # a small image is not taken from the pyramid
            alone = levels(base_view(pixels, preprocess), preprocess)
            assert np.abs(made[0] - alone).max() <= TOLERANCE
    steps = {coarsest(min(c[2:4]), 16, picture) for c in views.boxes(*size, CLIP, key=5)}
    assert max(steps) > reduced
    assert coarsest(2 * GAP * 16 * reduced - 1, 16, picture) == reduced


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_twelve_megapixels_match_pillow(kernel, monkeypatch):
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    pixels, views = large(3000, 4000), Views(count=9)
    for side in (64, 224):
        preprocess = Preprocess(size=side)
        made = levels(views(pixels, preprocess), preprocess)
        crops = [pillow(pixels, c, side) for c in views.plan(pixels, CLIP)]
        assert np.abs(made[1:] - crops).max() <= TOLERANCE
        assert np.abs(made[0] - base(pixels, preprocess)).max() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_crops_of_photographs_match_pillow(kernel, monkeypatch):
    """A thousand by the kernel that most machines have, a third of that by the others."""
    photos = sorted(PHOTOS.glob("*.jpg"))[: 125 if kernel == "uint8" else 42]
    if not photos:
        pytest.skip(f"no photos in {PHOTOS}")
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    views, worst = Views(count=9, enlarge=0), 0.0
    for path in photos:
        pixels = load_image(path)
        crops = np.stack([pillow(pixels, c, 224) for c in views.plan(pixels, CLIP)])
        worst = max(worst, np.abs(levels(views(path, CLIP)[1:], CLIP) - crops).max())
    assert worst <= TOLERANCE


# --------------------------------------------------------------------------- crops


def test_crops_are_those_they_always_were():
    pixels = np.arange(50 * 40 * 3, dtype=np.uint8).reshape(50, 40, 3)
    assert Views(count=3, enlarge=0).plan(pixels, CLIP) == [
        Crop(15, 1, 33, 37, False),
        Crop(18, 2, 27, 21, True),
    ]
    assert Views(count=3).boxes(2048, 2048, CLIP, "photo.jpg") == [
        Crop(692, 522, 1059, 1383, True),
        Crop(382, 174, 1341, 1508, True),
    ]


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, keys, st.floats(0.01, 1), st.floats(0.1, 8), st.floats(1, 4))
def test_every_box_is_inside_and_the_first_do_not_depend_on_the_count(h, w, key, low, ratio, more):
    views = Views(count=30, scale=(low, 1.0), ratio=(ratio, ratio * more))
    boxes = views.boxes(h, w, CLIP, key)
    assert replace(views, count=9).boxes(h, w, CLIP, key) == boxes[:8]
    for c in boxes:
        assert min(c.top, c.left) >= 0 < min(c.height, c.width)
        assert (c.top + c.height <= h, c.left + c.width <= w) == (True, True)


@settings(max_examples=10, deadline=None)
@given(keys, keys)
def test_views_depend_on_the_key_alone(key, other):
    pixels, views, preprocess = noise(40, 50), Views(count=5), Preprocess(size=16)
    first = views(pixels, preprocess, key)
    views(noise(9, 9), preprocess, other)  # what happened in between does not matter
    assert torch.equal(first, views(pixels.copy(), preprocess, key))
    assert torch.equal(first[:3], Views(count=3)(pixels, preprocess, key))
    if key != other:
        assert not torch.equal(first, views(pixels, preprocess, other))


def test_seed_key_type_and_pixels_all_count():
    boxes = [
        Views(seed=seed).boxes(300, 400, CLIP, key)
        for seed in (0, 1)
        for key in (1, "1", 2, "", -1)
    ]
    assert len({tuple(b) for b in boxes}) == len(boxes)
    views, preprocess = Views(count=4), Preprocess(size=16)
    pixels, changed = noise(50, 60), noise(50, 60)
    changed[0, 0] ^= 1
    assert torch.equal(views(pixels, preprocess), views(pixels.copy(), preprocess))
    assert (views(pixels, preprocess)[1:] - views(changed, preprocess)[1:]).abs().max() > 0.5


def test_crops_follow_the_rule_of_random_resized_crop():
    rng, expected = random.Random(0), []
    while len(expected) < 4000:  # the rule, one draw at a time
        area = 500 * 400 * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= 500 and h <= 400:
            expected.append((rng.randint(0, 400 - h), rng.randint(0, 500 - w), h, w))
    drawn = np.array(Views(count=4001).boxes(400, 500, CLIP, "rule"))
    for q in (5, 25, 50, 75, 95):
        ours, theirs = (np.percentile(np.array(v)[:, :4], q, 0) for v in (drawn, expected))
        assert np.abs(ours - theirs).max() < 12
    assert drawn[:, 4].mean() == pytest.approx(0.5, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, keys, st.floats(0.5, 4), st.sampled_from([32, 64, 224]))
def test_no_crop_of_a_small_image_is_enlarged_more_than_it_may(height, width, key, enlarge, side):
    views, preprocess = Views(count=30, enlarge=enlarge), Preprocess(size=side)
    boxes = views.boxes(height, width, preprocess, key)
    if min(height, width) >= side:  # what is large enough is cropped as it always was
        assert boxes == replace(views, enlarge=0).boxes(height, width, preprocess, key)
        return
    largest, least = views._central(height, width)[2:], min((side / enlarge) ** 2, height * width)
    assert all((h + 0.5) * (w + 0.5) >= least or (h, w) == largest for _, _, h, w, _ in boxes)


def test_small_images_are_shown_whole_or_all_along_and_sharper():
    boxes = Views(count=40).boxes(32, 32, Preprocess(size=64), 5)
    assert set(boxes) == {Crop(0, 0, 32, 32, flip) for flip in (False, True)}
    areas = [c.height * c.width for c in Views(count=999).boxes(160, 160, CLIP, 5)]
    assert 112**2 * 0.97 < min(areas) < 112**2 * 1.1  # the whole range that is left is used
    assert max(areas) > 0.9 * 160**2
    for shape in ((90, 300), (300, 90), (60, 600)):  # the largest that the ratio allows
        seen = np.zeros(shape, bool)
        for top, left, h, w, _ in Views().boxes(*shape, CLIP, 5):
            assert (h, w) == Views()._central(*shape)[2:]
            seen[top : top + h, left : left + w] = True
        assert seen.mean() > 0.9
    for enlarge, low in ((1e-200, 1.0), (1e15, 0.08)):  # any limit is some limit
        assert Views(enlarge=enlarge).fitted(9, 9, CLIP).scale[0] == low
    pixels, preprocess, small = noise(40, 50), Preprocess(size=64), Views(count=6)
    crops = small.boxes(40, 50, preprocess, key=3)
    sharp = np.stack([pillow(pixels, c, 64, "bicubic") for c in crops])
    made = levels(small(pixels, preprocess, key=3)[1:], preprocess)
    assert np.abs(made - sharp).max() <= TOLERANCE


def test_a_crop_that_cannot_fit_is_the_central_one():
    views = Views(count=3, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    assert set(views.boxes(10, 30, Preprocess(size=8), key=0)) == {Crop(0, 10, 10, 10)}
    assert set(views.boxes(30, 10, Preprocess(size=8), key=0)) == {Crop(10, 0, 10, 10)}


def test_flip_mirrors_the_same_crop():
    pixels, preprocess = noise(90, 70), Preprocess(size=32)
    pixels.flags.writeable = False
    plain, mirrored = (Views(count=8, flip=flip) for flip in (0.0, 1.0))
    never, always = (v.boxes(90, 70, preprocess, 5) for v in (plain, mirrored))
    assert [(*c[:4], True) for c in never] == always
    a, b = plain(pixels, preprocess, 5), mirrored(pixels, preprocess, 5)
    assert torch.equal(a[0], b[0])
    assert torch.allclose(a[1:], b[1:].flip(-1), atol=1e-4)
    assert (a.shape, a.dtype, a.is_contiguous()) == ((8, 3, 32, 32), torch.float32, True)
    assert torch.equal(Views(count=1)(pixels, preprocess)[0], base_view(pixels, preprocess))


# --------------------------------------------------------------------------- large images


@pytest.mark.parametrize("size", [(3000, 4000), (4001, 3003), (530, 20_000)])
def test_boxes_of_large_images_are_whole_at_every_scale(size):
    assert (unit(*size), unit(2048, 2048), unit(1, LARGE + 1)) == (GRID, 1, 1)
    boxes = Views(count=200).boxes(*size, CLIP, key=1)
    for c in boxes:
        assert not any(n % GRID for n in c[:4])
        assert min(c.height, c.width) > 0
        assert (c.top + c.height <= size[0], c.left + c.width <= size[1]) == (True, True)
    drawn = np.array([c[2] * c[3] for c in boxes]) / (size[0] * size[1])
    if size[1] < 5000:  # in the third the central crop alone fits
        assert 0.07 < drawn.min() < 0.12
        assert drawn.max() > 0.85


@pytest.mark.parametrize("size", [(3000, 4000), (2050, 2051), (6000, 8000), (600, 9000)])
@pytest.mark.parametrize("views", [Views(), Views(scale=(0.5, 1.0)), Views(ratio=(0.2, 5.0))])
def test_no_crop_is_left_with_too_few_pixels(size, views):
    for side in (32, 64, 224, 336):
        n = views.fraction(*size, Preprocess(size=side))
        shortest = min(min(c.height, c.width) for c in views.boxes(*size, CLIP, key=0))
        assert n == 1 or min(shortest, *size) / n >= MARGIN * side
    assert Views(scale=(1e-4, 1.0)).fraction(*size, Preprocess()) == 1
    phone = [Views().fraction(3000, 4000, Preprocess(size=s)) for s in (224, 64)]
    assert phone == [2, 8]


# --------------------------------------------------------------------------- AugMix


def test_augmix_changes_the_crops_only():
    smooth = np.linspace(0, 255, 80 * 60 * 3).reshape(80, 60, 3).astype(np.uint8)
    preprocess = Preprocess(size=64)
    plain, mixed = (Views(count=9, augmix=a)(smooth, preprocess, 1) for a in (False, True))
    assert torch.equal(plain[0], mixed[0])
    assert ((plain[1:] - mixed[1:]).abs().amax((1, 2, 3)) > 0).sum() >= 6
    grey = levels(mixed, preprocess)
    assert -0.01 < grey.min() < grey.max() < 255.01
    assert torch.equal(mixed[:4], Views(count=4, augmix=True)(smooth, preprocess, 1))


def test_augmix_blends_the_crop_with_its_chains(monkeypatch):
    pixels, preprocess, views = noise(60, 60), Preprocess(size=32), Views(count=6, augmix=True)
    plain = levels(Views(count=6)(pixels, preprocess, 0), preprocess)
    monkeypatch.setattr(augmix, "DISTORTIONS", (lambda image, u: image,))
    same = levels(views(pixels, preprocess, 0), preprocess)
    assert np.abs(same - plain).max() <= 0.51  # the chains start from whole grey levels
    monkeypatch.setattr(augmix, "DISTORTIONS", (lambda image, u: image.point(lambda _: 255),))
    white = levels(views(pixels, preprocess, 0), preprocess)
    for before, after in zip(plain[1:], white[1:], strict=True):
        blend = (after - before)[before < 200] / (255 - before)[before < 200]  # 1 − m
        assert 0 <= blend.min() <= blend.max() <= 1
        assert np.ptp(blend) < 1e-3


def test_distortions_are_a_tenth_of_their_maximum():
    ramp = np.arange(224, dtype=np.uint8)[None, :, None].repeat(224, 0).repeat(3, 2)
    image = Image.fromarray(ramp)
    changed = [np.asarray(f(image, 1.0)).astype(int) for f in augmix.DISTORTIONS]
    assert np.array_equal(changed[2], ramp & 0xF0)  # posterise to 4 bits
    assert np.array_equal(changed[4], ramp)  # solarise above 231: a ramp to 223 stays
    assert np.array_equal(changed[7][:, :217], ramp[:, 7:])  # 7 of 224 pixels
    assert np.array_equal(np.asarray(augmix.DISTORTIONS[7](image, -1.0))[:, 7:], ramp[:, :217])
    assert np.array_equal(changed[8][:217], ramp[7:])
    tilt = changed[5][200, 20:200] - changed[5][0, 20:200]
    assert np.abs(tilt - 6).max() <= 1  # 0.03 · 200 rows
    assert len(changed) == 9


# --------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (Views, {"count": 0}, "count=0 of the views must be at least 1"),
        (Views, {"count": 2.5}, "is not a whole number"),
        (Views, {"scale": 0.5}, "scale=0.5 of the views is not 2 numbers"),
        (Views, {"scale": (0.5, "1")}, "is not a number"),
        (Views, {"scale": (0.0, 1.0)}, "scale="),
        (Views, {"scale": (0.9, 0.1)}, "scale="),
        (Views, {"ratio": (1.0, math.inf)}, "ratio="),
        (Views, {"flip": math.nan}, "flip=nan"),
        (Views, {"interpolation": "nearest"}, "unknown interpolation of the views 'nearest'"),
        (Preprocess, {"size": 0}, "size"),
        (Preprocess, {"mean": (0.5,)}, "mean"),
        (Preprocess, {"std": (1, 0, 1)}, "std"),
        (Preprocess, {"resize": "x"}, "resize"),
        (Preprocess, {"crop": 0.0}, "crop"),
    ],
)
def test_bad_options_are_named(kind, options, name):
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        kind(**options)


@pytest.mark.parametrize("key", [1.5, (1,), b"x"])
def test_bad_keys_are_named(key):
    for call in (lambda: Views()(noise(3, 3), Preprocess(size=8), key),
                 lambda: Views().boxes(3, 3, CLIP, None)):  # fmt: skip
        with pytest.raises(InputError, match="key="):
            call()


def test_several_numbers_may_come_as_a_list():
    """They are kept as a tuple: views are compared, and looked up."""
    listed = Views(scale=[np.float32(0.5), 1], ratio=[1, 1])
    assert listed == Views(scale=(0.5, 1.0), ratio=(1.0, 1.0))
    assert listed.fitted(9, 9, Preprocess(size=24)).interpolation == "bicubic"
