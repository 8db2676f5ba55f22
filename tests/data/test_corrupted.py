"""Sets corrupted on the fly, and images turned as their cameras say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adte.core.errors import InputError
from adte.data import corrupted, load_dataset, make_stream
from adte.images.decode import load_image


@pytest.fixture
def folder(tmp_path: Path, plant: Callable) -> Path:
    plant(tmp_path, [f"{c}/{k}.jpg" for c in ("cat", "dog") for k in range(3)])
    (tmp_path / "cat/1.jpg").unlink()
    (tmp_path / "cat/1.jpg").write_bytes(b"\xff\xd8 torn")
    return tmp_path


def test_exif_orientation_is_honoured_everywhere(tmp_path: Path) -> None:
    """Once `predict` turned an image and `eval` did not."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise when shown
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat/1.png", exif=exif)
    data = load_dataset(f"folder:{tmp_path}")
    assert np.array_equal(load_image(data[0].source), np.rot90(pixels, -1))
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
    places = [i for i in range(len(stream)) if stream.identify(i)[0] == "cat/1.jpg"]
    assert {stream.identify(i)[1] for i in places} == {data.name, "gaussian_noise/3"}
    for i in places:  # torn, and read when it is asked for
        with pytest.raises(InputError, match="cannot read"):
            load_image(stream[i].source)
