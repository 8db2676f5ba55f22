"""Corruptions: against the recorded reference, against formulas, and as a well-behaved function."""

from __future__ import annotations

import colorsys
import io
import json
import random

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from adte.core.errors import InputError
from adte.data.corruptions import (
    COMMON,
    CORRUPTIONS,
    EXTRA,
    SIDES,
    Corruption,
    canonical,
    corrupt,
    nearest_table,
    parameters,
    plain,
)
from adte.data.corruptions.planes import convolve, gaussian, sample, zoom
from data.corruption_reference import COUNT, FILE, Pixels, photo, statistics

REFERENCE = json.loads(FILE.read_text(encoding="utf-8"))

# Largest difference from the reference: of the mean (grey levels), of the variance and of the
# distance to the clean image (shares). Types that draw one thing for a whole image vary from draw
# to draw: they get more draws, and room of about 3.5 standard errors of these draws. Frost's
# textures are made up, not the published ones.
TIGHT = (0.3, 0.01, 0.02)
TOLERANCE = {
    "motion_blur": (0.5, 0.015, 0.035),
    "snow": (1.8, 0.03, 0.025),
    "frost": (15, 0.30, 0.25),
    "fog": (6, 0.12, 0.06),
    "elastic_transform": (2.5, 0.05, 0.10),
    "spatter": (0.5, 0.015, 0.20),
}
DRAWS = {
    "motion_blur": 3, "snow": 2, "frost": 4, "fog": 12, "elastic_transform": 6, "spatter": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def photos() -> list[Pixels]:
    return [photo(i) for i in range(COUNT)]


# ── against the recorded reference ────────────────────────────────────────────────────────────


def test_the_images_are_those_of_the_reference(photos: list[Pixels]) -> None:
    mean, variance, _ = statistics((p, p) for p in photos)
    assert mean == pytest.approx(REFERENCE["clean"]["mean"], abs=0.01)
    assert variance == pytest.approx(REFERENCE["clean"]["variance"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_mean_variance_and_distance_are_the_references(name: str, photos: list[Pixels]) -> None:
    level, *shares = TOLERANCE.get(name, TIGHT)
    for severity, row in enumerate(REFERENCE["rows"][name], 1):
        mean, variance, distance = statistics(
            (p, corrupt(p, name, severity, 100 * draw + i))
            for draw in range(DRAWS.get(name, 1))
            for i, p in enumerate(photos)
        )
        assert mean == pytest.approx(row["mean"], abs=level), severity
        assert variance == pytest.approx(row["variance"], rel=shares[0]), severity
        assert distance == pytest.approx(row["distance"], rel=shares[1]), severity


# ── against formulas, at every size ───────────────────────────────────────────────────────────


def grey(side: int, level: int = 128) -> Pixels:
    return np.full((side, side, 3), level, np.uint8)


def rows(name: str) -> list[tuple[int, int, tuple[float, ...]]]:
    return [
        (side, s, row) for side in SIDES for s, row in enumerate(parameters()[name][str(side)], 1)
    ]


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("gaussian_noise", lambda sigma: (255 * sigma) ** 2),
        ("speckle_noise", lambda sigma: (128 * sigma) ** 2),
        ("shot_noise", lambda photons: 128 * 255 / photons),
        ("impulse_noise", lambda share: share * (128**2 + 127**2) / 2),
    ],
)
def test_noise_on_grey_has_the_stated_variance(name: str, variance: object) -> None:
    for side, severity, row in rows(name):
        expected = variance(*row)  # type: ignore[operator]
        if name != "impulse_noise" and expected**0.5 > 45:
            continue  # clipped; the reference covers those
        noisy = corrupt(grey(256), name, severity, severity, table=side)
        assert noisy.var() == pytest.approx(expected, rel=0.03)
        assert noisy.mean() == pytest.approx(127.5, abs=0.75)


def impulse(side: int = 129) -> np.ndarray:
    x = np.zeros((3, side, side), np.float32)
    x[:, side // 2, side // 2] = 1
    return x


def moments(x: np.ndarray) -> tuple[float, np.ndarray, float]:
    """Mass, centre (from the middle) and mean squared distance from the middle of plane 0."""
    i = np.arange(x.shape[1]) - x.shape[1] // 2
    plane = x[0].astype(float)
    centre = np.array([(plane.sum(1) * i).sum(), (plane.sum(0) * i).sum()])
    return plane.sum(), centre, (plane * (i[:, None] ** 2 + i**2)).sum()


def test_an_impulse_under_gaussian_blur_has_width_sigma() -> None:
    for _, _, (sigma,) in rows("gaussian_blur"):
        mass, centre, spread = moments(plain.gaussian_blur(impulse(), rng(), sigma))
        assert mass == pytest.approx(1, abs=1e-5)
        assert np.abs(centre).max() < 1e-5
        i = np.arange(-40, 41)
        taps = np.exp(-0.5 * (i / sigma) ** 2)  # sampled at pixels: narrower than σ when σ < 1
        assert spread == pytest.approx(2 * (taps * i**2).sum() / taps.sum(), rel=0.02)
        assert sigma < 1 or spread == pytest.approx(2 * sigma**2, rel=0.02)


def test_an_impulse_under_defocus_is_a_disk() -> None:
    for _, _, (radius, rim) in rows("defocus_blur"):
        mass, centre, spread = moments(plain.defocus_blur(impulse(), rng(), radius, rim))
        i = np.arange(-11, 12)
        squares = i[:, None] ** 2 + i**2
        disk = squares[squares <= radius**2].mean()
        taps = np.exp(-0.5 * (i / rim) ** 2) * (np.abs(i) <= (1 if radius <= 8 else 2))
        softening = 2 * (taps * i**2).sum() / taps.sum()
        border = radius in (8, 10)  # the disk touches the kernel's border, which mirrors its rim
        assert mass == pytest.approx(1, abs=0.02 if border else 1e-5)
        assert np.abs(centre).max() < 1e-4
        assert spread == pytest.approx(disk + softening, rel=0.05 if border else 1e-4)


def test_an_impulse_under_motion_blur_is_half_a_gaussian_on_a_line() -> None:
    for _, seed, (radius, sigma) in rows("motion_blur"):
        mass, centre, spread = moments(plain.motion_blur(impulse(), rng(seed), radius, sigma))
        i = np.arange(2 * radius + 1)
        taps = np.exp(-0.5 * (i / sigma) ** 2)
        taps /= taps.sum()
        assert mass == pytest.approx(1, abs=1e-5)
        assert np.hypot(*centre) == pytest.approx((taps * i).sum(), abs=0.35)
        assert spread == pytest.approx((taps * i**2).sum(), rel=0.12, abs=0.5)
        assert abs(centre[1]) > abs(centre[0])  # within 45° of the horizontal


@pytest.mark.parametrize("table", SIDES)
def test_brightness_and_saturation_are_those_of_hsv(table: int) -> None:
    image = rng().integers(0, 256, (12, 12, 3), np.uint8)
    image[0, 0], image[0, 1], image[0, 2] = 0, 255, 90  # black, white, grey
    for severity in range(1, 6):
        (added,), (factor, offset) = (
            parameters()[name][str(table)][severity - 1] for name in ("brightness", "saturate")
        )
        lighter = np.empty(image.shape)
        richer = np.empty(image.shape)
        for place in np.ndindex(12, 12):
            h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255.0))
            lighter[place] = colorsys.hsv_to_rgb(h, s, min(v + added, 1))
            richer[place] = colorsys.hsv_to_rgb(h, min(factor * s + offset, 1), v)
        for name, wanted in (("brightness", lighter), ("saturate", richer)):
            found = corrupt(image, name, severity, 0, table=table)
            off = found - np.floor(255 * wanted + 1e-3)
            assert np.abs(off).max() <= 1, (name, severity)
            assert (off == 0).mean() > 0.99, (name, severity)


@pytest.mark.parametrize("table", SIDES)
def test_contrast_jpeg_and_pixelate_are_their_formulas(table: int) -> None:
    image = photo(0, table)
    pillow = Image.fromarray(image)
    mean = image.mean((0, 1))
    for severity in range(1, 6):
        (factor,), (quality,), (share,) = (
            parameters()[name][str(table)][severity - 1]
            for name in ("contrast", "jpeg_compression", "pixelate")
        )
        flat = corrupt(image, "contrast", severity, 0)
        assert np.abs(flat - (mean + factor * (image - mean) - 0.5)).max() <= 0.51

        stream = io.BytesIO()
        pillow.save(stream, "JPEG", quality=quality)
        coded = np.asarray(Image.open(stream))
        assert (corrupt(image, "jpeg_compression", severity, 0) == coded).all()

        small = pillow.resize((int(table * share),) * 2, Image.Resampling.BOX)
        blocks = np.asarray(small.resize((table, table), Image.Resampling.BOX))
        assert (corrupt(image, "pixelate", severity, 0) == blocks).all()


def test_fog_is_light_in_a_known_range() -> None:
    for side, severity, (strength, _) in rows("fog"):
        foggy = corrupt(grey(64, 100), "fog", severity, 0, table=side)
        top = 100 / (100 + 255 * strength)
        low, high = 100 * top, (100 + 255 * strength) * top  # the relief is in [0, 1]
        assert foggy.min() == pytest.approx(low, abs=1)
        assert foggy.max() == pytest.approx(high, abs=1)


# ── the parts, against SciPy and plain loops ──────────────────────────────────────────────────


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("shape", [(1, 1), (5, 9), (40, 31), (300, 150)])
def test_filters_agree_with_scipy(shape: tuple[int, int]) -> None:
    x, wide = 255 * rng().random(shape, np.float32), rng().random((50, 70), np.float32)
    for sigma, border, mode in ((1.5, "edge", "nearest"), (30.0, "symmetric", "reflect")):
        wanted = ndimage.gaussian_filter(x, sigma, mode=mode, truncate=3)
        assert np.abs(gaussian(x, sigma, border, 3) - wanted).max() < 1e-3  # type: ignore[arg-type]
    for side in (3, 7):  # tap by tap and by Fourier transform
        kernel = rng().random((side, side), np.float32) / side**2
        wanted = ndimage.correlate(x, kernel, mode="mirror")
        assert np.abs(convolve(x, kernel) - wanted).max() < 1e-2
    places = np.stack(np.mgrid[: shape[0], : shape[1]]) + rng().uniform(-9, 9, (2, *shape))
    for border, mode in (("reflect", "mirror"), ("symmetric", "reflect")):
        wanted = ndimage.map_coordinates(x, places, order=1, mode=mode)
        found = sample(x[None], *places.astype(np.float32), border)[0]  # type: ignore[call-arg]
        assert np.abs(found - wanted).max() < 0.05
    large = ndimage.zoom(wide[5:45, 7:63], 1.25, order=1)  # 40 × 56 → 50 × 70
    assert np.abs(zoom(wide, 1.25) - large).max() < 1e-5


@pytest.mark.parametrize(("h", "w", "d"), [(12, 17, 1), (40, 30, 2), (25, 25, 4), (6, 40, 3)])
def test_a_glass_sweep_is_the_sequential_loop(h: int, w: int, d: int) -> None:
    held = plain._sweep(h, w, d, rng(3))
    shifts = rng(3).integers(-d, d, (2, max(0, h - 2 * d), max(0, w - 2 * d)))
    loop = np.arange(h * w).reshape(h, w)
    for i in range(h - d, d, -1):
        for j in range(w - d, d, -1):
            dy, dx = shifts[:, i - d - 1, j - d - 1]
            loop[i, j] = loop[i + dy, j + dx]
    assert (held.reshape(h, w) == loop).all()
    assert (held != np.arange(h * w)).any() == (min(h, w) > 2 * d)


# ── as a function ─────────────────────────────────────────────────────────────────────────────


def test_the_names_are_the_canonical_fifteen_and_four() -> None:
    assert (len(COMMON), len(EXTRA)) == (15, 4)
    assert set(parameters()) == set(CORRUPTIONS)
    assert all(len(parameters()[n][str(side)]) == 5 for n in CORRUPTIONS for side in SIDES)
    spellings = {"Glass Blur": "glass_blur", "elastic": "elastic_transform", "JPEG": COMMON[14]}
    assert {canonical(name): name for name in spellings} == {v: k for k, v in spellings.items()}
    for name, message in (("snoww", "did you mean 'snow'"), ("gaussian", "gaussian_noise")):
        with pytest.raises(InputError, match=message):
            canonical(name)


# Steps between severities that the published tables do not take upwards (a: from a to a + 1).
LEVEL = {
    ("glass_blur", 224): {3},  # three sweeps, then two
    ("glass_blur", 32): {4},
    ("motion_blur", 32): {3},  # the same σ
    ("snow", 224): {2},  # more flakes, less bright
    ("fog", 224): {3},  # the same strength, only rougher
    **{("elastic_transform", side): {2, 3} for side in SIDES},  # the affine part shrinks
    ("elastic_transform", 64): {1, 2, 3, 4},
    ("elastic_transform", 32): {1, 2, 3, 4},
    **{("saturate", side): {2} for side in SIDES},  # takes colour, then adds it
    **{("spatter", side): {3} for side in SIDES},  # water, then mud
}


def away(name: str, clean: Pixels, new: Pixels) -> float:
    """Mean distance; under frost and fog, which also lighten, what correlation is lost."""
    if name in {"frost", "fog"}:
        return 1 - float(np.corrcoef(clean.ravel(), new.ravel())[0, 1])
    return float(statistics([(clean, new)])[2])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_distance_to_the_clean_image_grows_with_severity(name: str, side: int) -> None:
    images = [photo(i, side) for i in range(2 if side == 224 else 6)]
    found = [
        np.mean([away(name, p, Corruption(name, s)(p, key=i)) for i, p in enumerate(images)])
        for s in range(1, 6)
    ]
    steps = {1, 2, 3, 4} - LEVEL.get((name, side), set())
    assert all(found[a - 1] < found[a] for a in steps), np.round(found, 3)
    assert min(found) > 0.01


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_seed_gives_the_same_image_and_nothing_global_is_touched(name: str) -> None:
    image = photo(1, 64)
    kept = image.copy()
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state(), random.getstate()
    first = corrupt(image, name, 3, 5)
    assert (first == corrupt(image, name, 3, rng(5))).all()
    after = np.random.get_state()[1].tobytes(), torch.get_rng_state(), random.getstate()
    assert before[0] == after[0]
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]
    assert (image == kept).all()


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (33, 20), (375, 500)])
def test_any_size_works(name: str, shape: tuple[int, int]) -> None:
    image = rng().integers(0, 256, (*shape, 3), np.uint8)
    for severity in (1, 5):
        out = corrupt(image, name, severity, 0)
        assert out.shape == image.shape
        assert out.dtype == np.uint8
        assert out.flags.c_contiguous


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_black_and_white_images_stay_in_range(name: str, level: int) -> None:
    for table in SIDES:
        out = corrupt(grey(32, level), name, 5, 0, table=table)
        if name in {"defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur",
                    "contrast", "elastic_transform", "pixelate"}:  # fmt: skip
            assert np.abs(out.astype(int) - level).max() <= 3  # flat stays flat; nothing wraps


def test_a_corruption_depends_on_its_seed_and_the_key_alone() -> None:
    image, other = photo(0, 32), photo(1, 32)
    noise = Corruption("gaussian_noise", 2, seed=3)
    assert noise == Corruption("Gaussian Noise", 2, seed=3)
    assert (noise(image, key="a") == noise(image, key="a")).all()
    assert (noise(image) == noise(image)).all()
    for changed in (
        noise(image, key="b"), noise(image, key=1), noise(image),
        Corruption("gaussian_noise", 2, seed=4)(image, key="a"),
    ):  # fmt: skip
        assert (changed != noise(image, key="a")).any()
    assert (noise(image, key=1) != noise(image, key="1")).any()
    # the same draw on another image under the same key, and twice as strong at the next severity
    plain = grey(32)
    mild, strong = (
        Corruption("gaussian_noise", s, table=64)(plain, key=0).astype(int) - 128 for s in (1, 2)
    )
    assert np.corrcoef(mild.ravel(), strong.ravel())[0, 1] > 0.99
    assert (noise(image, key=0) != noise(other, key=0)).any()


def test_the_table_goes_by_the_short_side() -> None:
    assert [nearest_table(n, 2 * n) for n in (1, 32, 45, 46, 64, 119, 120, 224, 4000)] == [
        32, 32, 32, 64, 64, 64, 224, 224, 224,
    ]  # fmt: skip
    image = photo(0, 64)
    assert (corrupt(image, "contrast", 1, 0) == corrupt(image, "contrast", 1, 0, table=64)).all()
    assert (corrupt(image, "contrast", 1, 0) != corrupt(image, "contrast", 1, 0, table=32)).any()


def test_bad_input_is_refused() -> None:
    for severity in (0, 6, 2.5, "3"):
        with pytest.raises(InputError, match="from 1 to 5"):
            corrupt(grey(8), "fog", severity, 0)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="from 1 to 5"):
            Corruption("fog", severity)  # type: ignore[arg-type]
    for image in (grey(8) / 255, grey(8)[..., 0], np.zeros((0, 4, 3), np.uint8), "photo.jpg"):
        with pytest.raises(InputError, match=r"uint8 array \(H, W, 3\)"):
            corrupt(image, "fog", 1, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="32, 64 or 224"):
        corrupt(grey(8), "fog", 1, 0, table=128)
    with pytest.raises(InputError, match="unknown corruption"):
        Corruption("rain")
