"""Views: exact crops, Pillow's pixels, and inputs that must not pass."""

from __future__ import annotations

import io
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from adte.core.errors import InputError
from adte.images import Crop, Preprocess, Views, augmix, bands, base_view, load_image, resize

ROOT = Path(__file__).parents[1]
PHOTOS = ROOT.parent / "shared" / "data" / "photos"
SHAPES = [(1, 1), (3, 200), (200, 3), (37, 41), (260, 150), (375, 500), (1300, 900)]
KINDS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
TOLERANCE = 2.001  # two grey levels, and the rounding of normalised floats
CLIP = Preprocess()

sizes = st.integers(1, 300)
keys = st.one_of(st.integers(-(2**70), 2**70), st.text())


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Black and white noise: the hardest picture for a filter that overshoots."""
    return np.random.default_rng(seed).choice(np.array([0, 255], np.uint8), (height, width, 3))


def levels(view: torch.Tensor, preprocess: Preprocess) -> np.ndarray:
    """Normalised values (…, 3, S, S) back to grey levels, by the definition."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    return ((view * std + mean) * 255).numpy()


def pillow_crop(pixels: np.ndarray, crop: Crop, side: int, kind: str) -> np.ndarray:
    top, left, h, w, flip = crop
    view = Image.fromarray(pixels).crop((left, top, left + w, top + h))
    view = view.resize((side, side), KINDS[kind])
    view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view
    return np.asarray(view, np.float64).transpose(2, 0, 1)


def pillow_base(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """torchvision's Resize and CenterCrop."""
    image, side = Image.fromarray(pixels), preprocess.size
    full, short = int(side / preprocess.crop + 1e-6), min(image.size)
    squash = preprocess.resize == "squash"
    grid = [full if squash else int(full * n / short) for n in image.size]
    image = image.resize(grid, KINDS[preprocess.interpolation])
    left, top = (round((n - side) / 2.0) for n in grid)
    image = image.crop((left, top, left + side, top + side))
    return np.asarray(image, np.float64).transpose(2, 0, 1)


def worst(pixels: np.ndarray, views: Views, preprocess: Preprocess, **options: object) -> float:
    out = levels(views(pixels, preprocess, key=3, **options), preprocess)  # type: ignore[arg-type]
    crops = views.boxes(*pixels.shape[:2], preprocess, key=3)
    kind, side = views.interpolation, preprocess.size
    expected = [pillow_base(pixels, preprocess)]
    expected += [pillow_crop(pixels, crop, side, kind) for crop in crops]
    return float(np.abs(out - np.stack(expected)).max())


# Pillow's pixels


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_pillow_on_noise(shape: tuple[int, int], kind: str) -> None:
    for side in (224, 32, 97):  # 97 is prime: no block divides it
        views, preprocess = Views(count=6, interpolation=kind, enlarge=0), Preprocess(size=side)  # type: ignore[arg-type]
        assert worst(noise(*shape), views, preprocess) <= TOLERANCE


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("resize", ["shortest", "squash"])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_base_view_matches_pillow(shape: tuple[int, int], resize: str, kind: str) -> None:
    for side, crop in ((224, 1.0), (32, 1.0), (97, 1.0), (64, 64 / 72), (224, 0.875)):
        preprocess = Preprocess(size=side, interpolation=kind, resize=resize, crop=crop)  # type: ignore[arg-type]
        view = base_view(noise(*shape), preprocess)
        assert view.shape == (3, side, side)
        error = np.abs(levels(view, preprocess) - pillow_base(noise(*shape), preprocess))
        assert error.max() <= TOLERANCE


def test_base_view_of_a_thread_of_pixels_stays_small() -> None:
    assert base_view(noise(1, 60_000), Preprocess()).isfinite().all()


@pytest.mark.parametrize("backend", ["bands", "uint8", "float"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (375, 500), (700, 900)])
def test_every_way_of_resizing_matches_pillow(backend: str, shape: tuple[int, int]) -> None:
    pixels, preprocess = noise(*shape), Preprocess(size=64)
    crops = Views(count=12, enlarge=0).boxes(*shape, preprocess, key=0)
    out = torch.full((len(crops), 3, 64, 64), math.nan)
    ways = {"bands": bands.resize_bands, "uint8": resize.resize_uint8, "float": resize.resize_float}
    ways[backend](pixels, crops, preprocess, out)
    expected = np.stack([pillow_crop(pixels, crop, 64, "bilinear") for crop in crops])
    assert np.abs(levels(out, preprocess) - expected).max() <= TOLERANCE


def test_a_named_device_gives_the_same_views() -> None:
    pixels = noise(120, 90)
    assert worst(pixels, Views(count=6), Preprocess(size=48), device="cpu") <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 700), side=st.integers(1, 90), flip=st.booleans())
def test_bands_hold_pillows_weights(size: int, side: int, flip: bool) -> None:
    """Row by row: the weights sum to one, stay inside the axis and centre on the output pixel."""
    made = bands.bands_of(size, side, flip)
    *radices, block, length = made.weights.shape
    digits = np.indices(radices).reshape(len(radices), -1)
    starts = made.start + np.array(made.steps) @ digits
    rows = np.zeros((side, size + 2 * made.margin))
    for i, start in enumerate(starts):
        at = made.margin + start
        assert at >= 0
        assert at + length <= rows.shape[1]
        rows[i * block : (i + 1) * block, at : at + length] = made.weights.reshape(
            -1, block, length
        )[i]
    inside = rows[:, made.margin : made.margin + size]
    assert np.allclose(inside.sum(1), 1, atol=1e-5)
    assert rows.sum() == pytest.approx(inside.sum())
    pixel = Image.fromarray(np.eye(size, dtype=np.float32))  # each column is one input pixel
    expected = np.asarray(pixel.resize((side, size), KINDS["bilinear"])).T
    assert np.allclose(inside[::-1] if flip else inside, expected, atol=1e-5)


def test_matches_pillow_on_photos() -> None:
    photos = sorted(PHOTOS.glob("*.jpg"))[:4]
    if not photos:
        pytest.skip(f"no photos in {PHOTOS}")
    for photo in photos:
        for kind in ("bilinear", "bicubic"):
            views = Views(count=6, interpolation=kind)  # type: ignore[arg-type]
            assert worst(load_image(photo), views, Preprocess()) <= TOLERANCE


# Crops


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, keys, st.integers(1, 20), st.integers(0, 20))
def test_first_views_do_not_depend_on_the_count(
    height: int, width: int, key: int | str, few: int, more: int
) -> None:
    short, long = (Views(n).boxes(height, width, CLIP, key) for n in (few, few + more))
    assert short == long[: few - 1]


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, keys, st.floats(0.01, 1), st.floats(0.1, 8), st.floats(1, 4))
def test_every_box_is_inside_the_image(
    height: int, width: int, key: int | str, low: float, ratio: float, spread: float
) -> None:
    views = Views(count=30, scale=(low, 1.0), ratio=(ratio, ratio * spread))
    for top, left, h, w, _ in views.boxes(height, width, CLIP, key):
        assert top >= 0
        assert left >= 0
        assert h >= 1
        assert w >= 1
        assert top + h <= height
        assert left + w <= width


@settings(max_examples=10, deadline=None)
@given(keys, keys)
def test_views_depend_on_the_key_alone(key: int | str, other: int | str) -> None:
    pixels, views, preprocess = noise(40, 50), Views(count=5), Preprocess(size=16)
    first = views(pixels, preprocess, key)
    views(noise(9, 9), preprocess, other)  # what happened in between does not matter
    assert torch.equal(first, views(pixels.copy(), preprocess, key))
    assert torch.equal(first[:3], Views(count=3)(pixels, preprocess, key))
    if key != other:
        assert not torch.equal(first, views(pixels, preprocess, other))


def test_seed_key_type_and_pixels_all_count() -> None:
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


def test_crops_follow_the_rule_of_random_resized_crop() -> None:
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
def test_no_crop_of_a_small_image_is_enlarged_more_than_it_may(
    height: int, width: int, key: int | str, enlarge: float, side: int
) -> None:
    views, preprocess = Views(count=30, enlarge=enlarge), Preprocess(size=side)
    boxes = views.boxes(height, width, preprocess, key)
    if min(height, width) >= side:  # what is large enough is cropped as it always was
        assert boxes == replace(views, enlarge=0).boxes(height, width, preprocess, key)
    else:
        largest = views._central(height, width)[2:]
        for _, _, h, w, _ in boxes:
            rounded = (h + 0.5) * (w + 0.5)
            least = min((side / enlarge) ** 2, height * width)
            assert rounded >= least or (h, w) == largest


def test_the_whole_range_that_is_left_is_used() -> None:
    areas = [c.height * c.width for c in Views(count=999).boxes(160, 160, CLIP, 5)]
    assert 112**2 * 0.97 < min(areas) < 112**2 * 1.1
    assert max(areas) > 0.9 * 160**2


def test_small_images_are_resized_by_the_sharper_filter() -> None:
    pixels, preprocess = noise(40, 50), Preprocess(size=64)
    small = Views(count=6)
    kept = small(pixels, preprocess, key=3)
    crops = small.boxes(40, 50, preprocess, key=3)
    sharp = np.stack([pillow_crop(pixels, crop, 64, "bicubic") for crop in crops])
    assert np.abs(levels(kept[1:], preprocess) - sharp).max() <= TOLERANCE
    free = Views(count=6, enlarge=0)
    assert worst(pixels, free, preprocess) <= TOLERANCE  # bilinear, down to 0.08


def test_a_small_image_is_shown_whole() -> None:
    boxes = Views(count=40).boxes(32, 32, Preprocess(size=64), 5)
    assert set(boxes) == {Crop(0, 0, 32, 32, flip) for flip in (False, True)}
    assert {c[:4] for c in Views(count=9).boxes(30, 40, CLIP, 5)} == {(0, 0, 30, 40)}


@pytest.mark.parametrize("shape", [(90, 300), (300, 90), (50, 100), (60, 600)])
def test_of_a_long_small_image_all_is_seen(shape: tuple[int, int]) -> None:
    """Its crops are the largest that the ratio allows, all along it."""
    seen = np.zeros(shape, bool)
    for top, left, h, w, _ in Views().boxes(*shape, CLIP, 5):
        assert (h, w) == Views()._central(*shape)[2:]
        seen[top : top + h, left : left + w] = True
    assert seen.mean() > 0.9


@pytest.mark.parametrize("enlarge", [1e-200, 1e15])
def test_any_limit_is_some_limit(enlarge: float) -> None:
    low, _ = Views(enlarge=enlarge).fitted(9, 9, CLIP).scale
    assert low == (1.0 if enlarge < 1 else 0.08)


def test_a_crop_that_cannot_fit_is_the_central_one() -> None:
    views = Views(count=3, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    assert set(views.boxes(10, 30, Preprocess(size=8), key=0)) == {Crop(0, 10, 10, 10)}
    assert set(views.boxes(30, 10, Preprocess(size=8), key=0)) == {Crop(10, 0, 10, 10)}


def test_flip_mirrors_the_same_crop() -> None:
    pixels, preprocess = noise(90, 70), Preprocess(size=32)
    plain, mirrored = (Views(count=8, flip=flip) for flip in (0.0, 1.0))
    never, always = (v.boxes(90, 70, preprocess, 5) for v in (plain, mirrored))
    assert [c[:4] for c in never] == [c[:4] for c in always]
    assert not any(c.flip for c in never)
    assert all(c.flip for c in always)
    a, b = plain(pixels, preprocess, 5), mirrored(pixels, preprocess, 5)
    assert torch.equal(a[0], b[0])
    assert torch.allclose(a[1:], b[1:].flip(-1), atol=1e-4)


def test_shape_dtype_and_one_view() -> None:
    out = Views(count=1)(noise(5, 9), Preprocess(size=16))
    assert out.shape == (1, 3, 16, 16)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    assert torch.equal(out[0], base_view(noise(5, 9), Preprocess(size=16)))


def test_a_read_only_image_is_fine() -> None:
    pixels = noise(20, 20)
    pixels.flags.writeable = False
    for device in (None, "cpu"):
        assert Views(count=3)(pixels, Preprocess(size=8), device=device).isfinite().all()


# AugMix


def test_augmix_changes_the_crops_only() -> None:
    smooth = np.linspace(0, 255, 80 * 60 * 3).reshape(80, 60, 3).astype(np.uint8)
    preprocess = Preprocess(size=64)
    plain, mixed = (Views(count=9, augmix=a)(smooth, preprocess, 1) for a in (False, True))
    assert torch.equal(plain[0], mixed[0])
    assert ((plain[1:] - mixed[1:]).abs().amax((1, 2, 3)) > 0).sum() >= 6
    grey = levels(mixed, preprocess)
    assert grey.min() > -0.01
    assert grey.max() < 255.01
    assert torch.equal(mixed, Views(count=9, augmix=True)(smooth, preprocess, 1))
    assert torch.equal(mixed[:4], Views(count=4, augmix=True)(smooth, preprocess, 1))


def test_augmix_blends_the_crop_with_its_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, preprocess, views = noise(60, 60), Preprocess(size=32), Views(count=6, augmix=True)
    plain = levels(Views(count=6)(pixels, preprocess, 0), preprocess)
    monkeypatch.setattr(augmix, "DISTORTIONS", (lambda image, u: image,))
    same = levels(views(pixels, preprocess, 0), preprocess)
    assert np.abs(same - plain).max() <= 0.51  # the chains start from whole grey levels
    monkeypatch.setattr(augmix, "DISTORTIONS", (lambda image, u: image.point(lambda _: 255),))
    white = levels(views(pixels, preprocess, 0), preprocess)
    for before, after in zip(plain[1:], white[1:], strict=True):
        blend = (after - before)[before < 200] / (255 - before)[before < 200]  # 1 − m
        assert blend.min() >= 0
        assert blend.max() <= 1
        assert np.ptp(blend) < 1e-3


def test_distortions_are_a_tenth_of_their_maximum() -> None:
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


# Reading


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_sources_agree(tmp_path: Path) -> None:
    pixels = noise(7, 5)
    image = Image.fromarray(pixels)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(image))
    tensor = torch.from_numpy(pixels)
    sources = [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), image, pixels]
    sources += [pixels[:, ::-1][:, ::-1], tensor, tensor.permute(2, 0, 1)]
    for source in sources:
        loaded = load_image(source)
        assert np.array_equal(loaded, pixels)
        assert loaded.dtype == np.uint8
        assert loaded.flags.c_contiguous


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (4, 3), (255, 255, 255)).convert("RGBA" if mode == "PA" else "RGB")
    loaded = load_image(image.convert("P").convert(mode) if mode == "PA" else image.convert(mode))
    assert loaded.shape == (3, 4, 3)
    assert loaded.min() >= 254


def test_alpha_is_laid_on_white_and_palettes_with_alpha_are_quiet() -> None:
    rgba = np.dstack([noise(4, 4), np.zeros((4, 4), np.uint8)])
    assert (load_image(rgba) == 255).all()
    assert (load_image(Image.fromarray(rgba)) == 255).all()
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([9, 9, 9, 200, 100, 50])
    loaded = load_image(encoded(palette, transparency=b"\x00\x80"))
    assert (loaded == [227, 177, 152]).all()


def test_sixteen_bits_keep_their_range() -> None:
    deep = np.array([[0, 257, 32896, 65535]], np.uint16)
    loaded = load_image(encoded(Image.fromarray(deep)))
    assert loaded[0, :, 0].tolist() == [0, 1, 128, 255]
    assert load_image(Image.fromarray(deep))[0, :, 0].tolist() == [0, 1, 128, 255]
    with pytest.raises(InputError, match="32-bit pixels"):  # whose range nobody knows
        load_image(Image.fromarray(deep.astype(np.int32)))


def test_exif_orientation() -> None:
    pixels = noise(6, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise when shown
    data = encoded(Image.fromarray(pixels), exif=exif)
    assert np.array_equal(load_image(data), np.rot90(pixels, -1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_file_is_an_error(kind: str, share: float) -> None:
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    with pytest.raises(InputError, match=r"bytes as an image .*; give a complete file"):
        load_image(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"not an image",
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros(4, np.uint8),
        torch.zeros(3, 4, 4),
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
        None,
        7,
        [1, 2],
        "no/such/file.png",
        "\0.png",
        ".",
    ],
)
def test_what_is_not_an_image_is_named(source: object) -> None:
    with pytest.raises(InputError) as caught:
        load_image(source)
    message = str(caught.value)
    assert re.search("give|check|use", message)
    assert "\n" not in message
    assert not message.endswith(".")


def test_messages_name_the_file(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for path in (text, tmp_path, tmp_path / "missing.jpg"):
        with pytest.raises(InputError, match=path.name):
            load_image(path)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"count": 0}, "count=0 of the views must be at least 1"),
        ({"count": 2.5}, "is not a whole number"),
        ({"scale": 0.5}, "scale=0.5 of the views is not 2 numbers"),
        ({"scale": (0.5, "1")}, "is not a number"),
        ({"scale": (0.0, 1.0)}, "scale="),
        ({"scale": (0.9, 0.1)}, "scale="),
        ({"scale": (0.5, 1.5)}, "scale="),
        ({"ratio": (0.0, 1.0)}, "ratio="),
        ({"ratio": (2.0, 1.0)}, "ratio="),
        ({"ratio": (1.0, math.inf)}, "ratio="),
        ({"flip": 1.1}, "flip=1.1"),
        ({"flip": math.nan}, "flip=nan"),
        ({"interpolation": "nearest"}, "unknown interpolation of the views 'nearest'"),
    ],
)
def test_bad_views_are_named(options: dict[str, object], name: str) -> None:
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        Views(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"mean": (0.5,)},
        {"std": (1, 0, 1)},
        {"interpolation": "box"},
        {"resize": "x"},
        {"crop": 0.0},
    ],
)
def test_bad_preprocess_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Preprocess(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [1.5, (1,), b"x"])
def test_bad_keys_are_named(key: object) -> None:
    with pytest.raises(InputError, match="key="):
        Views()(noise(3, 3), Preprocess(size=8), key)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="key="):
        Views().boxes(3, 3, CLIP, None)  # type: ignore[arg-type]


def test_several_numbers_may_come_as_a_list():
    """They are kept as a tuple: views are compared, and looked up."""
    listed = Views(scale=[np.float32(0.5), 1], ratio=[1, 1])  # type: ignore[arg-type]
    assert listed == Views(scale=(0.5, 1.0), ratio=(1.0, 1.0))
    assert listed.fitted(9, 9, Preprocess(size=24)).interpolation == "bicubic"
