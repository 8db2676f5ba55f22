"""The images and the reference behind tests/data/corruption_reference.json.

Run as a program it records the reference with `imagecorruptions` 1.1.2, in an environment of its
own, since that package needs old versions of others:

    pip install "numpy==1.26.4" "setuptools<81" "scikit-image==0.20.0" "scipy<1.13" \
        "opencv-python-headless==4.9.0.80" pillow
    pip install --no-deps imagecorruptions==1.1.2
    python tests/data/corruption_reference.py

Two things are not the package's own. scikit-image renamed an argument that it still passes, which
is translated. Its elastic transform has no affine part, so the published one is written out here
with OpenCV, scikit-image and SciPy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_suffix(".json")
Pixels = npt.NDArray[np.uint8]
COUNT, SIDE = 6, 224
# Draws of all images; types that draw one thing for a whole image need more.
DRAWS = {"glass_blur": 3, "frost": 80, "fog": 80, "motion_blur": 40, "snow": 40, "spatter": 40,
         "elastic_transform": 60}  # fmt: skip


def photo(index: int, side: int = SIDE) -> Pixels:
    """Something like a photograph: a colour gradient, texture of many scales, shapes."""
    rng = np.random.default_rng(1000 + index)
    place = (np.arange(side) + 0.5) / side
    y, x = place[:, None, None], place[None, :, None]
    corners = rng.random((4, 3)) * 200 + 20
    image = (1 - y) * ((1 - x) * corners[0] + x * corners[1])
    image = image + y * ((1 - x) * corners[2] + x * corners[3])  # (side, side, 3)
    for octave in range(2, 8):
        cells = 2**octave
        grid = rng.random((cells + 1, cells + 1)) - 0.5
        lerp = np.maximum(0, 1 - np.abs(place[:, None] * cells - np.arange(cells + 1)))
        wave = (lerp[:, :, None] * grid).sum(1)  # (side, cells + 1)
        image = image + (120 / octave) * (wave[:, None, :] * lerp).sum(2)[..., None]
    for _ in range(9):
        row, col, tall, wide = rng.random(4) * (1, 1, 0.2, 0.2) + (0, 0, 0.03, 0.03)
        colour, veil = rng.random(3) * 255, 0.4 + 0.6 * rng.random()
        power = 2 if rng.random() < 0.5 else 20  # an ellipse or nearly a rectangle
        inside = np.abs((y - row) / tall) ** power + np.abs((x - col) / wide) ** power <= 1
        image = np.where(inside, (1 - veil) * image + veil * colour, image)
    return np.clip(image, 0, 255).astype(np.uint8)


def statistics(pairs: Iterable[tuple[Pixels, Pixels]]) -> npt.NDArray[np.float64]:
    """Mean, variance and mean distance to the clean image, averaged over (clean, corrupted)."""
    rows = [
        (new.mean(), new.var(), np.abs(new.astype(float) - clean).mean()) for clean, new in pairs
    ]
    return np.mean(rows, 0)


def _published_elastic(image: Pixels, severity: int) -> Pixels:
    import cv2
    from scipy.ndimage import map_coordinates
    from skimage.filters import gaussian

    height, sigma, jitter = 244 * np.array(
        [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)]
    )[severity - 1]  # fmt: skip
    side = image.shape[0]
    corners = side // 2 + side // 3 * np.array([[1, 1], [1, -1], [-1, -1]], np.float32)
    moved = corners + np.random.uniform(-jitter, jitter, corners.shape).astype(np.float32)
    turned = cv2.warpAffine(
        image.astype(np.float32), cv2.getAffineTransform(corners, moved), (side, side),
        borderMode=cv2.BORDER_REFLECT_101,
    )  # fmt: skip
    shifts = [
        height * gaussian(np.random.uniform(-1, 1, (side, side)), sigma, mode="reflect", truncate=3)
        for _ in range(2)
    ]
    where = np.mgrid[:side, :side] + np.array(shifts)
    planes = [map_coordinates(turned[..., c], where, order=1, mode="reflect") for c in range(3)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def _package() -> Callable[[Pixels, str, int], Pixels]:
    import imagecorruptions
    from imagecorruptions import corruptions

    blur = corruptions.gaussian

    def renamed(image, *args, multichannel=False, **options):  # type: ignore[no-untyped-def]
        return blur(image, *args, channel_axis=-1 if multichannel else None, **options)

    corruptions.gaussian = renamed

    def apply(image: Pixels, name: str, severity: int) -> Pixels:
        if name == "elastic_transform":
            return _published_elastic(image, severity)
        return imagecorruptions.corrupt(image, corruption_name=name, severity=severity)

    return apply


def record() -> None:
    import cv2
    import PIL
    import scipy
    import skimage
    from imagecorruptions import get_corruption_names

    apply = _package()
    photos = [photo(i) for i in range(COUNT)]
    rows: dict[str, list[dict[str, object]]] = {}
    for name in get_corruption_names("all"):
        rows[name] = []
        for severity in range(1, 6):
            draws = []
            for seed in range(DRAWS.get(name, 5)):
                np.random.seed(seed)
                draws.append(statistics((p, apply(p, name, severity)) for p in photos))
            mean = np.mean(draws, 0)
            error = np.std(draws, 0, ddof=1) / len(draws) ** 0.5
            row = dict(zip(("mean", "variance", "distance"), mean.round(3).tolist(), strict=True))
            rows[name].append(row | {"error": error.round(3).tolist()})
            print(name, severity, row, error.round(3), file=sys.stderr)
    clean = statistics((p, p) for p in photos)
    versions = {m.__name__: m.__version__ for m in (np, skimage, scipy, cv2, PIL)}
    found = {
        "what": "per severity 1…5 at 224 px: mean, variance and distance to the clean image, grey "
        "levels, averaged over tests/data/corruption_reference.py's images and draws; error: the "
        "standard errors of the three",
        "versions": {"imagecorruptions": "1.1.2", **versions},
        "elastic_transform": "the published formula, not the package's",
        "clean": dict(zip(("mean", "variance"), clean.round(3).tolist(), strict=False)),
        "rows": rows,
    }
    text = json.dumps(found, ensure_ascii=False)
    text = text.replace("}, ", "},\n ").replace("], ", "],\n ")  # a line a severity
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
