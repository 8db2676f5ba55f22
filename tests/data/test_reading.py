"""Decoding a stream: unreadable images are skipped and listed, or stop the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adte.data import corrupted, iterate, load_dataset, make_stream
from adte.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, plant: Callable) -> Path:
    plant(tmp_path, [f"{c}/{k}.jpg" for c in ("cat", "dog") for k in range(3)])
    (tmp_path / "cat/1.jpg").unlink()
    (tmp_path / "cat/1.jpg").write_bytes(b"\xff\xd8 torn")
    return tmp_path


def test_unreadable_images_are_skipped_and_listed(folder: Path) -> None:
    data = load_dataset(f"folder:{folder}")
    images = iterate(make_stream(data, order="file"))
    for _ in range(2):  # at every pass anew
        seen = [(e.id, image.shape) for e, image in images]
        assert [i for i, _ in seen] == [
            "cat/0.jpg",
            "cat/2.jpg",
            "dog/0.jpg",
            "dog/1.jpg",
            "dog/2.jpg",
        ]
        assert {shape for _, shape in seen} == {(6, 8, 3)}
        report = images.report()
        assert report["skipped"] == 1
        assert report["images"][0]["id"] == "cat/1.jpg"
        assert report["images"][0]["position"] == 1
        assert "cannot read" in report["images"][0]["reason"]
    with pytest.raises(InputError, match=r"image 'cat/1.jpg' \(number 1 of 6\) cannot be read"):
        list(iterate(data, strict=True))
    assert len(list(iterate(list(data)))) == 5  # any list of examples will do


def test_a_run_with_no_readable_image_is_an_error(folder: Path) -> None:
    for path in folder.rglob("*.jpg"):
        path.unlink()
        path.write_bytes(b"torn")
    with pytest.raises(InputError, match="none of the 6 images could be read"):
        list(iterate(load_dataset(f"folder:{folder}")))


def test_exif_orientation_is_honoured_everywhere(tmp_path: Path) -> None:
    """Once `predict` turned an image and `eval` did not."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise when shown
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat/1.png", exif=exif)
    data = load_dataset(f"folder:{tmp_path}")
    ((_, image),) = iterate(data)
    assert np.array_equal(image, np.rot90(pixels, -1))
    assert corrupted(data, "brightness", 1)[0].source.shape == (24, 16, 3)


def test_corrupted_on_the_fly(folder: Path) -> None:
    data = load_dataset(f"folder:{folder}")
    foggy = corrupted(data, "gaussian-noise", 3, seed=5)
    assert foggy.classes == data.classes
    assert foggy[0].domain == "gaussian_noise/3"
    assert "generated with seed 5" in foggy.split
    assert foggy[0].source.shape == (6, 8, 3)
    np.testing.assert_array_equal(
        foggy[0].source, corrupted(data, "gaussian_noise", 3, 5)[0].source
    )
    assert (foggy[0].source != corrupted(data, "gaussian_noise", 3, 6)[0].source).any()
    stream = make_stream([data, foggy], domains="mixed")
    images = iterate(stream)
    assert len(list(images)) == 10
    assert sorted(s.domain for s in images.skipped) == sorted([data.name, "gaussian_noise/3"])
