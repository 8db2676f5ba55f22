"""Images on disk: one walker for all, nothing skipped in silence, formats that need a plug-in."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from adte.core.errors import InputError
from adte.data import load_dataset
from adte.images.decode import SUFFIXES, find_images, is_image, load_image, walk_images

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


def test_an_image_is_itself(tmp_path: Path) -> None:
    put(tmp_path, "1.png")
    odd = tmp_path / "photo.unknown"
    (tmp_path / "1.png").rename(odd)
    assert find_images(odd) == [odd]
    assert find_images(str(odd)) == [odd]
    assert find_images("/dev/null") == [Path("/dev/null")]  # no folder, though no file either


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.jpg")
    photos = put(tmp_path / "photos", "0.jpg")
    (photos / "linked").symlink_to(tmp_path / "elsewhere")
    (photos / "linked" / "back").symlink_to(photos)
    (photos / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    found = [p.relative_to(photos).as_posix() for p in find_images(photos)]
    assert found == ["0.jpg", "gone.jpg", "linked/1.jpg"]
    with pytest.raises(InputError, match=r"gone.jpg' is not there; check the path"):
        load_image(photos / "gone.jpg")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "an empty path was given; name an image or a folder"),
        ("no/such/place", "'no/such/place' does not exist"),
        ("x" * 5000, r"cannot open 'x+' \(File name too long\)"),
        ("a\0b", "does not exist"),
    ],
)
def test_bad_paths(path: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        find_images(path)
    assert "\n" not in str(error.value)


def test_a_folder_without_images_says_what_they_end_in(tmp_path: Path) -> None:
    put(tmp_path, "1.txt")
    with pytest.raises(InputError, match=r"holds no image; images end in .avif, .bmp, .gif, .heic"):
        find_images(tmp_path)


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


# --------------------------------------------------------------------------- decoding


def test_jfif_is_a_jpeg(tmp_path: Path) -> None:
    grey = np.full((6, 8, 3), 90, np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.jfif", "JPEG", quality=100)
    (path,) = find_images(tmp_path)
    assert np.abs(load_image(path).astype(int) - 90).max() <= 2


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_read_where_pillow_reads_it(tmp_path: Path) -> None:
    grey = np.full((16, 24, 3), 90, np.uint8)
    Image.fromarray(grey).save(tmp_path / "a.avif", quality=95)
    (path,) = find_images(tmp_path)
    assert np.abs(load_image(path).astype(int) - 90).max() <= 2
    torn = path.read_bytes()[:40]
    with pytest.raises(InputError, match="give a complete file"):  # no plug-in would help
        load_image(torn)


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
def test_heic_without_its_plug_in_is_found_and_says_what_to_install(tmp_path: Path) -> None:
    """Such files were skipped in silence."""
    put(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "cat/2.HEIC").write_bytes(HEIC)
    assert [p.name for p in find_images(tmp_path)] == ["1.png", "2.HEIC", "1.png"]
    message = r"as an image, for Pillow does not read HEIC by itself.*pip install pillow-heif"
    for source in (tmp_path / "cat/2.HEIC", str(tmp_path / "cat/2.HEIC"), HEIC):
        with pytest.raises(InputError, match=message) as error:
            load_image(source)
        assert "\n" not in str(error.value)
    assert load_dataset(f"folder:{tmp_path}").ids == ["cat/1.png", "cat/2.HEIC", "dog/1.png"]
    (tmp_path / "bad.heif").write_bytes(b"whatever this is")
    with pytest.raises(InputError, match=r"bad.heif' .*pip install pillow-heif"):
        load_image(tmp_path / "bad.heif")


@pytest.mark.usefixtures("without_heif")
def test_an_installed_plug_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pillow_heif.py").write_text(HEIF_PLUGIN)
    monkeypatch.delitem(sys.modules, "pillow_heif")
    monkeypatch.syspath_prepend(tmp_path)
    assert (load_image(HEIC) == [1, 2, 3]).all()
    assert (load_image(HEIC) == [1, 2, 3]).all()  # registered by now
    monkeypatch.delitem(sys.modules, "pillow_heif")


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "a.jfif", "a.heic", "a.avif", "a.b.Png"])
def test_what_is_an_image_by_name(name: str) -> None:
    assert is_image(name)
    assert not is_image(f".{name}")
    assert not is_image(f"{name}.txt")
    assert os.path.splitext(name)[1].lower() in SUFFIXES


def test_a_path_like_object_is_a_path(tmp_path: Path) -> None:
    class Somewhere:
        def __fspath__(self) -> str:
            return str(tmp_path / "1.png")

    put(tmp_path, "1.png")
    assert np.array_equal(load_image(Somewhere()), PIXELS)


def test_an_image_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(path)

    def refuse(*args, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(InputError, match=r"Permission denied\); check its permissions"):
        load_image(path)


def test_a_folder_is_no_image_and_says_what_takes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"' is a folder; use stream\(\) for its images"):
        load_image(tmp_path)
    with pytest.raises(InputError, match=r"a\.jpg' is an address, .*; give its bytes"):
        load_image("https://example.com/a.jpg")
    with pytest.raises(InputError, match=r"'nope.jpg' is not there; check the path"):
        load_image("nope.jpg")
    with pytest.raises(InputError, match=r"^an array of shape"):
        load_image(np.zeros(3))


def test_an_empty_file_is_told_from_one_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    with pytest.raises(InputError, match=r"a.jpg' is empty, .*; get it again"):
        load_image(tmp_path / "a.jpg")


def test_too_many_pixels_are_told_from_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("1", (3000, 1500)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_100_000)
    message = r"large.png' has 5 megapixels, more than the 2 that are read; scale it down$"
    with pytest.raises(InputError, match=message):
        load_image(tmp_path / "large.png")


ODD_TAGS = {  # what a camera or an editor may leave behind: a tag of a turned photograph is odd
    "a text for a number": b"\x01\0\0\x02\0\0\0\x04abc\0",
    "a negative number": b"\x01\x01\0\x09\0\0\0\x01\xff\xff\xff\xfb",
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("odd", ODD_TAGS.values(), ids=ODD_TAGS)
def test_a_turned_photograph_with_odd_tags_is_read(odd: bytes, kind: str) -> None:
    """They could not be written anew, which was asked for to turn it."""
    turn = b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + turn + odd + bytes(4)
    upright, turned = coded(PIXELS, kind), coded(PIXELS, kind, exif=exif)
    assert np.array_equal(load_image(turned), np.rot90(load_image(upright), -1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_tags_cost_no_image(kind: str) -> None:
    damaged = coded(PIXELS, kind, exif=b"Exif\0\0no tags at all, but whole pixels")
    assert np.array_equal(load_image(damaged), load_image(coded(PIXELS, kind)))


# --------------------------------------------------------------------------- levels


def coded(array: np.ndarray, kind: str, **more: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **more)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_bits_become_8(kind: str) -> None:
    grey = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    pixels = load_image(coded(grey, kind))
    assert np.abs(pixels[..., 0] - grey / 257).max() <= 0.5


def test_pixels_without_known_levels_are_refused(tmp_path: Path) -> None:
    """They became black or white in silence."""
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    said = r"cannot be used as an image \({} pixels\); give uint8 grey levels 0 to 255"
    with pytest.raises(InputError, match=r"^these \d+ bytes " + said.format("float")):
        load_image(coded(ramp, "TIFF"))
    path = tmp_path / "x.tif"
    path.write_bytes(coded((255 * ramp).astype(np.int32), "TIFF"))
    with pytest.raises(InputError, match="x.tif' " + said.format("32-bit")):
        load_image(path)
    with pytest.raises(InputError, match="this I image " + said.format("32-bit")):
        load_image(Image.new("I", (3, 3)))
    with pytest.raises(InputError, match="this RGB image has no pixels; give an image with"):
        load_image(Image.new("RGB", (0, 3)))
    with pytest.raises(InputError, match=r"dtype torch.bfloat16 is not an image; give uint8"):
        load_image(torch.zeros(3, 3, dtype=torch.bfloat16))


def test_tensors_and_arrays_without_plain_pixels() -> None:
    for odd in (
        torch.eye(3, dtype=torch.uint8).to_sparse(),
        torch.zeros(3, 4, 4, dtype=torch.uint8, device="meta"),
    ):
        with pytest.raises(InputError, match="cannot be read as an image; give a dense one"):
            load_image(odd)
    with pytest.raises(InputError, match=r"\(2, 5, 5, 3\) .* predict\(\) takes a batch"):
        load_image(np.zeros((2, 5, 5, 3), np.uint8))


def _seen_through(kind: str) -> Image.Image:
    """Black all over, and a ring that is seen through."""
    alpha = Image.new("L", (8, 8), 255)
    alpha.paste(0, (2, 2, 6, 6))
    image = Image.new("RGBA", (8, 8))
    image.putalpha(alpha)
    if kind == "P":
        paletted = Image.new("P", (8, 8))
        paletted.putpalette([0, 0, 0, 1, 1, 1])
        paletted.paste(1, (2, 2, 6, 6))
        paletted.info["transparency"] = 1
        return paletted
    return image.convert(kind)


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_laid_on_white(kind: str) -> None:
    """Files have any colour there, mostly black: pictures in alpha alone all looked the same."""
    file = io.BytesIO()
    _seen_through(kind).save(file, "png")
    pixels = load_image(file.getvalue())
    assert (pixels[2:6, 2:6] == 255).all()
    pixels[2:6, 2:6] = 0
    assert not pixels.any()


def test_arrays_are_laid_on_white_too_and_what_is_opaque_stays() -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(rgba).save(file, "png")
    found = load_image(rgba)
    assert np.array_equal(found, load_image(file.getvalue()))
    white = Image.new("RGBA", (7, 5), "white")
    white.alpha_composite(Image.fromarray(rgba))
    assert np.abs(found.astype(int) - np.asarray(white)[:, :, :3]).max() <= 1  # Pillow rounds else
    rgba[:, :, 3] = 255
    assert np.array_equal(load_image(rgba), rgba[:, :, :3])
    assert load_image(torch.from_numpy(rgba).permute(2, 0, 1)).shape == (5, 7, 3)
