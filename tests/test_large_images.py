"""Photographs of a phone's size: decoded in part, hashed in part, and the same views for it."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adte.bench.rate import photo
from adte.core.errors import InputError
from adte.images import KERNELS, Crop, Preprocess, Views, base_view, load_picture
from adte.images.boxes import GAP, GRID, coarsest, unit
from adte.images.decode import LARGE, Picture, load_image, read_picture
from adte.images.drawing import MARGIN

PHOTOS = Path(__file__).parents[2] / "shared" / "data" / "photos"
TOLERANCE = 2.001  # grey levels
CLIP = Preprocess()
SIZE = 2400, 1808  # width, height: multiples of 8, as a camera's


@lru_cache(maxsize=4)
def large(size: tuple[int, int] = SIZE, seed: int = 0) -> Image.Image:
    """A picture with detail in every pixel."""
    coarse = Image.fromarray(photo(seed=seed)).resize(size, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(seed).integers(-9, 10, (size[1], size[0], 1))
    return Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, options.pop("format", "JPEG"), quality=92, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def file() -> bytes:
    return jpeg(large())


def levels(views: torch.Tensor, preprocess: Preprocess) -> np.ndarray:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    return ((views * std + mean) * 255).numpy()


def pillow(pixels: np.ndarray, crops: list[Crop], side: int, kind: str = "bilinear") -> np.ndarray:
    """Crop, then resize (V, 3, S, S)."""
    image, out = Image.fromarray(pixels), []
    for top, left, h, w, flip in crops:
        view = image.crop((left, top, left + w, top + h))
        view = view.resize((side, side), Image.Resampling[kind.upper()])
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view
        out.append(np.asarray(view, np.float64).transpose(2, 0, 1))
    return np.stack(out)


# Boxes


def test_images_of_up_to_four_megapixels_have_the_crops_they_always_had() -> None:
    pixels = np.arange(50 * 40 * 3, dtype=np.uint8).reshape(50, 40, 3)
    assert Views(count=3, enlarge=0).plan(pixels, CLIP) == [
        Crop(15, 1, 33, 37, False),
        Crop(18, 2, 27, 21, True),
    ]
    assert Views(count=3).boxes(2048, 2048, CLIP, "photo.jpg") == [
        Crop(692, 522, 1059, 1383, True),
        Crop(382, 174, 1341, 1508, True),
    ]
    assert unit(2048, 2048) == 1


@pytest.mark.parametrize("size", [(3000, 4000), (4001, 3003), (530, 20_000)])
def test_boxes_of_larger_ones_are_whole_at_every_scale(size: tuple[int, int]) -> None:
    assert unit(*size) == GRID
    views = Views(count=200)
    for c in views.boxes(*size, CLIP, key=1):
        assert not any(n % GRID for n in c[:4])
        assert min(c.height, c.width) > 0
        assert c.top + c.height <= size[0]
        assert c.left + c.width <= size[1]
    drawn = np.array([c[2] * c[3] for c in views.boxes(*size, CLIP, key=1)]) / (size[0] * size[1])
    if size[1] < 5000:  # in the third the central crop alone fits
        assert 0.07 < drawn.min() < 0.12
        assert drawn.max() > 0.85


def test_a_thread_of_pixels_is_not_rounded_to_nothing() -> None:
    assert unit(1, LARGE + 1) == 1
    assert Views(count=2).boxes(1, LARGE + 1, CLIP, key=0)[0].height == 1


@pytest.mark.parametrize("size", [(3000, 4000), (2050, 2051), (6000, 8000), (600, 9000)])
@pytest.mark.parametrize("views", [Views(), Views(scale=(0.5, 1.0)), Views(ratio=(0.2, 5.0))])
def test_no_crop_is_left_with_too_few_pixels(size: tuple[int, int], views: Views) -> None:
    for side in (32, 64, 224, 336):
        preprocess = Preprocess(size=side)
        n = views.fraction(*size, preprocess)
        shortest = min(min(c.height, c.width) for c in views.boxes(*size, CLIP, key=0))
        assert n == 1 or shortest / n >= MARGIN * side
        assert n == 1 or min(size) / n >= MARGIN * side
    assert Views(scale=(1e-4, 1.0)).fraction(*size, Preprocess()) == 1


def test_what_a_phone_takes_is_decoded_at_half_its_size_for_224_pixels() -> None:
    assert Views().fraction(3000, 4000, Preprocess()) == 2
    assert Views().fraction(3000, 4000, Preprocess(size=64)) == 8
    assert Views().fraction(2048, 2048, Preprocess(size=64)) == 1


# One photograph, however it comes


def test_the_same_views_by_path_by_bytes_and_not_yet_loaded(file: bytes, tmp_path: Path) -> None:
    path, preprocess, views = tmp_path / "a.jpg", Preprocess(size=64), Views(count=6)
    path.write_bytes(file)
    first = views(path, preprocess)
    with Image.open(path) as lazy:
        for source in (str(path), file, bytearray(file), memoryview(file), lazy, lazy):
            assert torch.equal(views(source, preprocess), first)
        assert lazy.size == SIZE  # it is the user's: nothing was asked of it
        assert np.array_equal(np.asarray(lazy), load_image(file))
    picture = load_picture(path, preprocess, views)
    assert torch.equal(views(picture, preprocess), first)
    assert load_picture(picture, Preprocess(), views) is picture


def test_crops_of_large_images_do_not_depend_on_the_model(file: bytes) -> None:
    views, steps = Views(count=9), []
    plan = views.plan(file, CLIP)
    for side in (32, 64, 128, 500):
        picture = load_picture(file, Preprocess(size=side), views)
        n = picture.step
        steps.append(n)
        assert (picture.height, picture.width) == SIZE[::-1]
        preprocess = Preprocess(size=side)
        here = views.placed(picture, preprocess)
        assert [tuple(n * x for x in c[:4]) for c in here] == [c[:4] for c in plan]
        assert views.plan(picture, preprocess) == plan
    assert steps == sorted(steps, reverse=True)
    assert (max(steps), min(steps)) == (8, 1)


def test_an_array_of_it_has_crops_of_its_own(file: bytes) -> None:
    pixels, views = load_image(file), Views(count=9)
    plan = views.plan(pixels, CLIP)
    assert plan != views.plan(file, CLIP)
    assert plan == views.plan(pixels.copy(), CLIP) == views.plan(Image.fromarray(pixels), CLIP)
    assert plan != views.plan(pixels[:-1], CLIP)
    changed = pixels.copy()
    changed[0, 0] ^= 1
    assert plan != views.plan(changed, CLIP)
    key = Picture(pixels, *pixels.shape[:2]).identity()
    assert key[1].nbytes < 2e6  # of 13 million


def test_the_file_counts_of_a_large_jpeg_only(file: bytes) -> None:
    small = jpeg(large((600, 400)))
    views = Views(count=9)
    assert views.plan(small, CLIP) == views.plan(load_image(small), CLIP)
    assert views.plan(file, CLIP) != views.plan(jpeg(large(seed=1)), CLIP)
    assert views.plan(file, CLIP) != Views(count=9, seed=1).plan(file, CLIP)


# Decoded in part


@pytest.mark.parametrize(
    ("size", "turned"), [*((SIZE, t) for t in range(2, 9)), ((2395, 1811), 1), ((2395, 1811), 6)]
)
def test_every_orientation_shows_the_same_place(size: tuple[int, int], turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    data, preprocess, views = jpeg(large(size), exif=exif), Preprocess(size=64), Views(count=5)
    picture, pixels = load_picture(data, preprocess, views), load_image(data)
    assert (picture.height, picture.width) == pixels.shape[:2]
    assert picture.step == (4 if turned == 1 or size == SIZE else 1)
    made = levels(views(data, preprocess), preprocess)
    whole = levels(base_view(pixels, preprocess), preprocess)
    assert np.abs(made[0] - whole).mean() < 0.5
    assert np.abs(made[1:] - pillow(pixels, views.plan(data, CLIP), 64)).mean() < 0.5


@pytest.mark.parametrize("kind", ["L", "CMYK", "progressive", "MPO"])
def test_every_kind_of_jpeg_is_reduced(kind: str) -> None:
    image, options = large(), {}
    if kind in ("L", "CMYK"):
        image = image.convert(kind)
    elif kind == "MPO":  # what many phones write: a small picture behind the large one
        options = {"format": "MPO", "save_all": True, "append_images": [large((80, 60))]}
    else:
        options = {"progressive": True}
    data, preprocess, views = jpeg(image, **options), Preprocess(size=64), Views(count=6)
    assert load_picture(data, preprocess, views).step == 4
    made = levels(views(data, preprocess), preprocess)[1:]
    assert np.abs(made - pillow(load_image(data), views.plan(data, CLIP), 64)).mean() < 0.5


def test_a_draft_that_was_asked_for_is_kept(file: bytes) -> None:
    image = Image.open(io.BytesIO(file))
    image.draft("RGB", (1200, 904))
    assert load_picture(image, Preprocess(size=64), Views()).pixels.shape == (904, 1200, 3)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_large_file_that_breaks_off_is_an_error(file: bytes, share: float) -> None:
    with pytest.raises(InputError, match="give a complete file"):
        load_picture(file[: int(share * len(file))], Preprocess(size=64), Views())


def test_other_formats_are_decoded_whole() -> None:
    pixels = np.asarray(large())
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    picture = read_picture(file.getvalue(), lambda height, width: 8)
    assert picture.step == 1
    assert np.array_equal(picture.pixels, pixels)
    assert Views(count=5).plan(pixels, CLIP) == Views(count=5).plan(file.getvalue(), CLIP)


# Pillow's pixels


def test_a_reduced_picture_holds_means() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8)
    coarse = Picture(pixels, 600, 800).reduced(2).reduced(4)
    means = pixels.reshape(150, 4, 200, 4, 3).mean((1, 3))
    assert coarse.step == 4
    assert np.abs(coarse.pixels - means).max() <= 1.01
    assert coarse.reduced(4) is coarse


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduced", [1, 2])
def test_every_kernel_matches_pillow(
    kernel: str, reduced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the pixels that were decoded, whole or in part, through the pyramid or not."""
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    pixels = np.asarray(large()) if reduced == 1 else np.asarray(large((1200, 904)))
    picture, views = Picture(pixels, *SIZE[::-1]), Views(count=8)
    for side in (16, 97):
        preprocess = Preprocess(size=side)
        made = levels(views(picture, preprocess, key=5), preprocess)
        expected = pillow(pixels, views.placed(picture, CLIP, key=5), side)
        assert np.abs(made[1:] - expected).max() <= TOLERANCE
        alone = base_view(pixels, preprocess)  # a small image is not taken from the pyramid
        if reduced == 2:
            assert np.abs(made[0] - levels(alone, preprocess)).max() <= TOLERANCE
    steps = {coarsest(min(c[2:4]), 16, picture) for c in views.boxes(*SIZE[::-1], CLIP, key=5)}
    assert max(steps) > reduced
    assert coarsest(2 * GAP * 16 * reduced - 1, 16, picture) == reduced


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_twelve_megapixels_match_pillow(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    pixels, views = np.asarray(large((4000, 3000))), Views(count=9)
    for side in (64, 224):
        preprocess = Preprocess(size=side)
        made = levels(views(pixels, preprocess), preprocess)
        assert np.abs(made[1:] - pillow(pixels, views.plan(pixels, CLIP), side)).max() <= TOLERANCE
        base = Image.fromarray(pixels).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        left = round((base.width - side) / 2)
        base = base.crop((left, 0, left + side, side))
        assert np.abs(made[0] - np.asarray(base).transpose(2, 0, 1)).max() <= TOLERANCE


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (20, 1000), (1000, 20)])
def test_odd_sizes_match_pillow(
    kernel: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    views, preprocess = Views(count=8, enlarge=0), Preprocess(size=64)
    made = levels(views(pixels, preprocess), preprocess)
    assert np.abs(made[1:] - pillow(pixels, views.plan(pixels, CLIP), 64)).max() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_crops_of_photographs_match_pillow(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand by the kernel that most machines have, a third of that by the others."""
    photos = sorted(PHOTOS.glob("*.jpg"))[: 125 if kernel == "uint8" else 42]
    if not photos:
        pytest.skip(f"no photos in {PHOTOS}")
    monkeypatch.setenv("ADTE_VIEWS", kernel)
    views, preprocess, worst, seen = Views(count=9, enlarge=0), Preprocess(), 0.0, 0
    for path in photos:
        pixels = load_image(path)
        made = levels(views(path, preprocess)[1:], preprocess)
        worst = max(worst, np.abs(made - pillow(pixels, views.plan(pixels, CLIP), 224)).max())
        seen += len(made)
    assert worst <= TOLERANCE
    assert seen == 8 * len(photos)
