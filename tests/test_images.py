"""Images: one walker for all, every format as Pillow shows it, large JPEGs decoded in part."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from adte.core.errors import InputError
from adte.data import load_dataset
from adte.images import Preprocess, Views, base_view, load_picture
from adte.images.decode import (
    SUFFIXES,
    Picture,
    find_images,
    is_image,
    load_image,
    read_picture,
    walk_images,
)  # fmt: skip
from pictures import encoded, levels, noise, photo, pillow

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS).save(path, "PNG")
    return root


# --------------------------------------------------------------------------- finding


def test_both_walkers_see_the_same_images(tmp_path: Path) -> None:
    """Hidden folders were labelled by one walker and skipped by the other."""
    put(tmp_path, "b/2.jpg", "b/10.PNG", "a-b/1.jfif", "a/deep/1.webp", ".hidden/1.jpg",
        "a/.thumbs/1.jpg", "a/.1.jpg", "b/notes.txt")  # fmt: skip
    found = [p.relative_to(tmp_path).as_posix() for p in find_images(tmp_path)]
    assert found == ["a-b/1.jfif", "a/deep/1.webp", "b/10.PNG", "b/2.jpg"]  # by code point
    assert set(load_dataset(f"folder:{tmp_path}").ids) == set(found)
    assert walk_images(tmp_path) == found
    inside = put(tmp_path / ".cache" / "photos", "1.jpg")
    assert find_images(inside) == [inside / "1.jpg"]  # what is asked for by name is not hidden
    odd = tmp_path / "photo.unknown"
    (tmp_path / "b/2.jpg").rename(odd)
    assert find_images(str(odd)) == [odd]  # an image is itself
    assert find_images("/dev/null") == [Path("/dev/null")]  # no folder, though no file either


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.jpg")
    photos = put(tmp_path / "photos", "0.jpg")
    (photos / "linked").symlink_to(tmp_path / "elsewhere")
    (photos / "linked" / "back").symlink_to(photos)
    (photos / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    found = [p.relative_to(photos).as_posix() for p in find_images(photos)]
    assert found == ["0.jpg", "gone.jpg", "linked/1.jpg"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "an empty path was given; name an image or a folder"),
        ("no/such/place", "'no/such/place' does not exist"),
        ("x" * 5000, r"cannot open 'x+' \(File name too long\)"),
        ("a\0b", "does not exist"),
        ("bare", r"holds no image; images end in .avif, .bmp, .gif, .heic"),
    ],
)
def test_bad_paths(path: str, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(put(tmp_path, "bare/1.txt"))
    with pytest.raises(InputError, match=message) as error:
        find_images(path)
    assert "\n" not in str(error.value)


@contextmanager
def somebody() -> Iterator[None]:
    """Without the rights of the superuser, who may list anything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own is private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    (folder / "photos/locked").chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of Unix")
def test_a_folder_that_cannot_be_listed_is_named(public: Path) -> None:
    put(public / "photos", "1.jpg", "open/1.jpg", "locked/1.jpg")
    (public / "photos/locked").chmod(0)
    for use in (find_images, lambda path: load_dataset(f"folder:{path}")):
        with somebody(), pytest.raises(InputError, match=r"locked' \(Permission denied\); check"):
            use(public / "photos")


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "a.jfif", "a.heic", "a.avif", "a.b.Png"])
def test_what_is_an_image_by_name(name: str) -> None:
    assert is_image(name)
    assert not is_image(f".{name}")
    assert not is_image(f"{name}.txt")
    assert os.path.splitext(name)[1].lower() in SUFFIXES


# --------------------------------------------------------------------------- what is an image


def test_sources_agree(tmp_path: Path) -> None:
    class Somewhere:
        def __fspath__(self) -> str:
            return str(path)

    image, tensor, path = Image.fromarray(PIXELS), torch.from_numpy(PIXELS), tmp_path / "a.png"
    path.write_bytes(encoded(image))
    sources = [path, str(path), Somewhere(), path.read_bytes(), bytearray(path.read_bytes()), image,
               PIXELS, PIXELS[:, ::-1][:, ::-1], tensor, tensor.permute(2, 0, 1),
               lambda: path]  # fmt: skip
    for source in sources:
        loaded = load_image(source)
        assert np.array_equal(loaded, PIXELS)
        assert (loaded.dtype, loaded.flags.c_contiguous) == (np.uint8, True)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_file_is_an_error(kind: str, share: float) -> None:
    data = encoded(noise(64, 64), kind)
    with pytest.raises(InputError, match=r"bytes as an image .*; give a complete file"):
        load_image(data[: int(len(data) * share)])


NO_IMAGE = {
    r"these 0 bytes": b"",
    r"these \d+ bytes as an image": b"not an image",
    r"array of shape \(0, 4, 3\)": np.zeros((0, 4, 3), np.uint8),
    r"array of shape \(4, 4, 2\)": np.zeros((4, 4, 2), np.uint8),
    r"dtype float32 is not an image; give uint8": np.zeros((4, 4, 3), np.float32),
    r"array of shape \(4,\)": np.zeros(4, np.uint8),
    r"tensor of shape \(3, 0, 4\)": torch.zeros(3, 0, 4, dtype=torch.uint8),
    r"dtype torch.bfloat16 is not an image; give uint8": torch.zeros(3, 3, dtype=torch.bfloat16),
    r"read as an image; give a dense one": torch.eye(3, dtype=torch.uint8).to_sparse(),
    r"as an image; give a dense one": torch.zeros(3, 4, 4, dtype=torch.uint8, device="meta"),
    r"\(2, 5, 5, 3\) .* predict\(\) takes a batch": np.zeros((2, 5, 5, 3), np.uint8),
    r"NoneType is no image; give a path": None,
    r"list is no image; give each image by itself": [1, 2],
    r"generator is no image; use stream\(\)": (i for i in range(2)),
    r"'no/such/file.png' is not there; check the path": "no/such/file.png",
    r"png": "\0.png",
    r"'.' is a folder; use stream\(\) for its images": ".",
    r"a\.jpg' is an address, .*; give its bytes": "https://example.com/a.jpg",
    r"notes.txt' as an image": "notes.txt",
    r"empty.jpg' is empty, .*; get it again": "empty.jpg",
    r"float.tif' cannot be used as an image \(float pixels\); give uint8": "float.tif",
    r"deep.tif' cannot be used as an image \(32-bit pixels\)": "deep.tif",
    r"this I image cannot be used as an image \(32-bit": Image.new("I", (3, 3)),
    r"this RGB image has no pixels; give an image with": Image.new("RGB", (0, 3)),
    r"large.png' has 5 megapixels, more than the 2 that are read; scale it down$": "large.png",
}


@pytest.mark.parametrize("message", NO_IMAGE)
def test_what_is_not_an_image_is_named(message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("hello")
    Path("empty.jpg").touch()
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    Path("float.tif").write_bytes(encoded(ramp, "TIFF"))
    Path("deep.tif").write_bytes(encoded((255 * ramp).astype(np.int32), "TIFF"))
    Image.new("1", (3000, 1500)).save("large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_100_000)
    with pytest.raises(InputError, match=message) as caught:
        load_image(NO_IMAGE[message])
    assert re.search("give|check|use|get|scale", str(caught.value))
    assert "\n" not in str(caught.value)


def test_an_image_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    def refuse(*args, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(InputError, match=r"Permission denied\); check its permissions"):
        load_image(tmp_path / "a.png")


# --------------------------------------------------------------------------- formats


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (4, 3), (255, 255, 255)).convert("RGBA" if mode == "PA" else "RGB")
    loaded = load_image(image.convert("P").convert(mode) if mode == "PA" else image.convert(mode))
    assert loaded.shape == (3, 4, 3)
    assert loaded.min() >= 254


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", None])
def test_16_bits_become_8(kind: str | None) -> None:
    deep = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    pixels = load_image(encoded(deep, kind) if kind else Image.fromarray(deep))
    assert np.abs(pixels[..., 0] - deep / 257).max() <= 0.5


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_laid_on_white(kind: str) -> None:
    """Files have any colour there, mostly black: pictures in alpha alone all looked the same."""
    alpha = Image.new("L", (8, 8), 255)
    alpha.paste(0, (2, 2, 6, 6))
    image = Image.new("RGBA", (8, 8))
    image.putalpha(alpha)
    if kind == "P":
        image = Image.new("P", (8, 8))
        image.putpalette([0, 0, 0, 1, 1, 1])
        image.paste(1, (2, 2, 6, 6))
        image.info["transparency"] = 1
    pixels = load_image(encoded(image.convert(kind)))
    assert (pixels[2:6, 2:6] == 255).all()
    pixels[2:6, 2:6] = 0
    assert not pixels.any()


def test_half_transparent_pixels_and_arrays_with_alpha() -> None:
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([9, 9, 9, 200, 100, 50])
    assert (load_image(encoded(palette, transparency=b"\x00\x80")) == [227, 177, 152]).all()
    rgba = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    found = load_image(rgba)
    assert np.array_equal(found, load_image(encoded(rgba)))
    white = Image.new("RGBA", (7, 5), "white")
    white.alpha_composite(Image.fromarray(rgba))
    assert np.abs(found.astype(int) - np.asarray(white)[:, :, :3]).max() <= 1  # Pillow rounds else
    rgba[:, :, 3] = 255
    assert np.array_equal(load_image(rgba), rgba[:, :, :3])
    assert load_image(torch.from_numpy(rgba).permute(2, 0, 1)).shape == (5, 7, 3)


TURN = b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
TAGS = {  # what a camera or an editor may leave behind: a tag of a turned photograph is odd
    "a text for a number": b"\x01\0\0\x02\0\0\0\x04abc\0",
    "a negative number": b"\x01\x01\0\x09\0\0\0\x01\xff\xff\xff\xfb",
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_turned_photographs_are_upright_even_with_odd_tags(kind: str) -> None:
    upright = load_image(encoded(PIXELS, kind))
    for odd in TAGS.values():  # they could not be written anew, which was asked for to turn it
        exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + TURN + odd + bytes(4)
        assert np.array_equal(load_image(encoded(PIXELS, kind, exif=exif)), np.rot90(upright, -1))
    damaged = encoded(PIXELS, kind, exif=b"Exif\0\0no tags at all, but whole pixels")
    assert np.array_equal(load_image(damaged), upright)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_read_where_pillow_reads_it(tmp_path: Path) -> None:
    grey = np.full((16, 24, 3), 90, np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.avif", quality=95)
    (path,) = find_images(tmp_path)
    assert np.abs(load_image(path).astype(int) - 90).max() <= 2
    with pytest.raises(InputError, match="give a complete file"):  # no plug-in would help
        load_image(path.read_bytes()[:40])


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
HEIF_PLUGIN = """
from PIL import Image, ImageFile

class Fake(ImageFile.ImageFile):
    format = "FAKEHEIF"

    def _open(self):
        self._size, self._mode, self.tile = (4, 3), "RGB", []

    def load(self):
        self.im = Image.new("RGB", self.size, (1, 2, 3)).im
        return Image.Image.load(self)

def register_heif_opener():
    Image.register_open("FAKEHEIF", Fake, lambda head: head[4:12] == b"ftypheic")
    Image.register_extension("FAKEHEIF", ".heic")
"""


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no plug-in is installed; what a test registers with Pillow is taken back."""
    Image.init()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(Image, "ID", [i for i in Image.ID if "HEIF" not in i])
    known = {k: v for k, v in Image.EXTENSION.items() if k not in (".heic", ".heif")}
    monkeypatch.setattr(Image, "EXTENSION", known)
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))


@pytest.mark.usefixtures("without_heif")
def test_heic_needs_its_plug_in_and_says_so(tmp_path: Path, monkeypatch) -> None:
    """Such files were skipped in silence."""
    put(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "cat/2.HEIC").write_bytes(HEIC)
    assert [p.name for p in find_images(tmp_path)] == ["1.png", "2.HEIC", "1.png"]
    message = r"as an image, for Pillow does not read HEI[CF] by itself.*pip install pillow-heif"
    (tmp_path / "bad.heif").write_bytes(b"whatever this is")
    for source in (tmp_path / "cat/2.HEIC", tmp_path / "bad.heif", HEIC):
        with pytest.raises(InputError, match=message) as error:
            load_image(source)
        assert "\n" not in str(error.value)
    (tmp_path / "pillow_heif.py").write_text(HEIF_PLUGIN)
    monkeypatch.delitem(sys.modules, "pillow_heif")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # the second time it is registered
        assert (load_image(HEIC) == [1, 2, 3]).all()
    monkeypatch.delitem(sys.modules, "pillow_heif")


# --------------------------------------------------------------------------- large JPEGs

SIZE = 2400, 1808  # width, height: multiples of 8, as a camera's
SMALL = Preprocess(size=64)
CLIP = Preprocess()


@lru_cache(maxsize=4)
def large(size: tuple[int, int] = SIZE, seed: int = 0) -> Image.Image:
    return Image.fromarray(photo(size[1], size[0], seed))


@cache
def file() -> bytes:
    return encoded(large(), "JPEG", quality=92)


def test_the_same_views_by_path_by_bytes_and_not_yet_loaded(tmp_path: Path) -> None:
    path, views = tmp_path / "a.jpg", Views(count=6)
    path.write_bytes(file())
    first = views(path, SMALL)
    with Image.open(path) as lazy:
        for source in (str(path), file(), bytearray(file()), memoryview(file()), lazy, lazy):
            assert torch.equal(views(source, SMALL), first)
        assert lazy.size == SIZE  # it is the user's: nothing was asked of it
        assert np.array_equal(np.asarray(lazy), load_image(file()))
    picture = load_picture(path, SMALL, views)
    assert torch.equal(views(picture, SMALL), first)
    assert load_picture(picture, CLIP, views) is picture
    draft = Image.open(io.BytesIO(file()))
    draft.draft("RGB", (1200, 904))  # what was asked for is kept
    assert load_picture(draft, SMALL, Views()).pixels.shape == (904, 1200, 3)


def test_crops_of_large_images_do_not_depend_on_the_model() -> None:
    views, steps = Views(count=9), []
    plan = views.plan(file(), CLIP)
    for side in (32, 64, 128, 500):
        picture = load_picture(file(), Preprocess(size=side), views)
        n = picture.step
        steps.append(n)
        assert (picture.height, picture.width) == SIZE[::-1]
        here = views.placed(picture, Preprocess(size=side))
        assert [tuple(n * x for x in c[:4]) for c in here] == [c[:4] for c in plan]
        assert views.plan(picture, CLIP) == plan
    assert steps == sorted(steps, reverse=True)
    assert (max(steps), min(steps)) == (8, 1)


def test_crops_are_those_of_the_file_or_of_the_pixels() -> None:
    """Of a large JPEG the file counts; of an array its pixels do, of which a sample is hashed."""
    pixels, views = load_image(file()), Views(count=9)
    plan = views.plan(pixels, CLIP)
    assert plan == views.plan(pixels.copy(), CLIP) == views.plan(Image.fromarray(pixels), CLIP)
    changed = pixels.copy()
    changed[0, 0] ^= 1
    others = [file(), pixels[:-1], changed, encoded(large(seed=1), "JPEG")]
    plans = [plan, *(views.plan(x, CLIP) for x in others), Views(9, seed=1).plan(file(), CLIP)]
    assert len({tuple(p) for p in plans}) == len(plans)
    assert Picture(pixels, *pixels.shape[:2]).identity()[1].nbytes < 2e6  # of 13 million
    small = encoded(large((600, 400)), "JPEG")
    assert views.plan(small, CLIP) == views.plan(load_image(small), CLIP)


def near(data: bytes, views: Views) -> None:
    """Views of a file that is decoded in part are near those of all of its pixels."""
    pixels, made = load_image(data), levels(views(data, SMALL), SMALL)
    crops = [pillow(pixels, c, 64) for c in views.plan(data, CLIP)]
    assert np.abs(made[0] - levels(base_view(pixels, SMALL), SMALL)).mean() < 1
    assert np.abs(made[1:] - crops).mean() < 1


@pytest.mark.parametrize(
    ("size", "turned"), [*((SIZE, t) for t in range(2, 9)), ((2395, 1811), 1), ((2395, 1811), 6)]
)
def test_every_orientation_shows_the_same_place(size: tuple[int, int], turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    data, views = encoded(large(size), "JPEG", quality=92, exif=exif), Views(count=5)
    picture = load_picture(data, SMALL, views)
    assert (picture.height, picture.width) == load_image(data).shape[:2]
    assert picture.step == (4 if turned == 1 or size == SIZE else 1)
    near(data, views)


@pytest.mark.parametrize("kind", ["L", "CMYK", "progressive", "MPO"])
def test_every_kind_of_jpeg_is_reduced(kind: str) -> None:
    image = large().convert(kind) if kind in ("L", "CMYK") else large()
    options: dict[str, object] = {"progressive": True} if kind == "progressive" else {}
    if kind == "MPO":  # what many phones write: a small picture behind the large one
        options = {"save_all": True, "append_images": [large((80, 60))]}
    data = encoded(image, "MPO" if kind == "MPO" else "JPEG", quality=92, **options)
    assert load_picture(data, SMALL, Views(count=6)).step == 4
    near(data, Views(count=6))
    if kind == "progressive":
        with pytest.raises(InputError, match="give a complete file"):
            load_picture(data[: len(data) // 2], SMALL, Views())


def test_other_formats_are_decoded_whole() -> None:
    pixels = np.asarray(large())
    picture = read_picture(encoded(pixels, "BMP"), lambda height, width: 8)
    assert picture.step == 1
    assert np.array_equal(picture.pixels, pixels)
