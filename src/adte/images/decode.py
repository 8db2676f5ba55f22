"""Images: found on disk, and decoded into RGB bytes. Everyone reads them here.

Suffixes say what an image is, and hidden files and folders are none. What Pillow cannot read here,
such as a HEIC file without its plug-in, is found all the same, so that reading it can say why.

A large JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which leaves most of the work out: each
block of 8 × 8 pixels is made of its lowest frequencies alone.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from adte.core.errors import InputError, UnreadableFile

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ARCHIVES",
    "EMPTY",
    "LARGE",
    "PACKED",
    "SUFFIXES",
    "Picture",
    "Pixels",
    "decoding_bytes",
    "find_images",
    "holds_images",
    "is_image",
    "load_image",
    "no_image",
    "read_picture",
    "walk_images",
]

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)

LARGE = 1 << 22  # pixels; what has more is hashed in part, and decoded reduced where that will do
LEVELS = "give uint8 grey levels 0 to 255"
_SAMPLE = 1 << 17  # pixels of a large image that are hashed, about
_ORIENTATION = 0x0112  # tag in EXIF: 1 is upright, from 5 on rows are columns
_TURN = Image.Transpose
_TURNS = {2: _TURN.FLIP_LEFT_RIGHT, 3: _TURN.ROTATE_180, 4: _TURN.FLIP_TOP_BOTTOM,
          5: _TURN.TRANSPOSE, 6: _TURN.ROTATE_270, 7: _TURN.TRANSVERSE,
          8: _TURN.ROTATE_90}  # fmt: skip

# Formats that Pillow reads only with a plug-in, or only in newer versions: the plug-in, and
# what installs it. Such a file begins with a box "ftyp" and a brand.
_PLUGINS = {
    ".heic": ("pillow_heif", "pillow-heif"),
    ".heif": ("pillow_heif", "pillow-heif"),
    ".avif": ("pillow_avif", "pillow-avif-plugin"),
}
_BRANDS = {b"heic": ".heic", b"heix": ".heic", b"hevc": ".heic", b"mif1": ".heif",
           b"msf1": ".heif", b"avif": ".avif", b"avis": ".avif"}  # fmt: skip

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".mpo", ".png", ".webp", ".bmp", ".gif",
            ".tif", ".tiff", ".tga", ".pbm", ".pgm", ".pnm", ".ppm", *_PLUGINS}  # fmt: skip
# Photographs and drawings that Pillow does not read; without a suffix a file may be anything.
_OTHERS = {".3fr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2",
           ".srw", ".jxl", ".psd", ".svg", ""}  # fmt: skip

EMPTY = "is empty, as what was not copied or downloaded to its end; get it again"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
PACKED = (*ARCHIVES, ".parquet")

_BEGIN = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")


# --------------------------------------------------------------------------- finding


def is_image(name: str) -> bool:
    """By suffix; hidden files (.DS_Store, ._copy.jpg) are none."""
    return not name.startswith(".") and _suffix(name) in SUFFIXES


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """List the images below a folder, or the one image that `path` is.

    Paths come sorted by code point. Hidden files and folders are left out. A folder that cannot be
    listed is an error.
    """
    if not os.fspath(path):
        raise InputError("an empty path was given; name an image or a folder, '.' for this one")
    path = Path(path)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)
        if reason and not isinstance(error, FileNotFoundError):
            raise InputError(f"cannot open {str(path)!r} ({reason}); check the path") from error
        raise InputError(f"{str(path)!r} does not exist; check the path") from error
    if not path.is_dir():
        return [path]
    found = [path / name for name in walk_images(path)]
    if not found:
        raise no_image(path)
    return found


def no_image(folder: str | os.PathLike[str]) -> InputError:
    """The error for a folder without an image."""
    ends = ", ".join(sorted(SUFFIXES))
    return InputError(f"the folder {str(Path(folder))!r} holds no image; images end in {ends}")


def walk_images(
    folder: str | os.PathLike[str],
    failed: Callable[[str, InputError], None] | None = None,
    passed: Counter[str] | None = None,
) -> list[str]:
    """Every image below a folder, as sorted relative paths with forward slashes.

    A folder that cannot be listed is handed to `failed`; without it, the error is raised. `passed`
    counts, by suffix, photographs in formats that Pillow does not read, or without a suffix, and
    archives.
    """
    return sorted(_walk(os.fspath(folder), failed, Counter() if passed is None else passed))


def holds_images(folder: str | os.PathLike[str]) -> bool:
    """Whether there is an image below a folder; it is looked for up to the first."""
    return any(True for _ in _walk(os.fspath(folder), None, Counter()))


def _walk(
    top: str, failed: Callable[[str, InputError], None] | None, passed: Counter[str]
) -> Iterator[str]:
    todo: list[tuple[str, str, frozenset[tuple[int, int]]]] = [(top, "", frozenset())]
    while todo:  # no recursion: folders may be thousands deep
        place, prefix, above = todo.pop()
        try:
            here = os.stat(place)
            with os.scandir(place) as entries:
                inside = list(entries)
        except OSError as error:
            closed = InputError(
                f"cannot list the folder {place!r} ({error.strerror}); check its permissions"
            )
            if failed is None:
                raise closed from error
            failed(place, closed)
            continue
        if (here.st_dev, here.st_ino) in above:  # a link back to a folder that it lies in
            continue
        below = above | {(here.st_dev, here.st_ino)}
        for entry in inside:
            if entry.name.startswith("."):
                continue
            mode = _mode(entry)
            if stat.S_ISDIR(mode):
                todo.append((entry.path, f"{prefix}{entry.name}/", below))
            elif is_image(entry.name) and (not mode or stat.S_ISREG(mode)):  # a pipe never ends
                yield prefix + entry.name
            elif not stat.S_ISREG(mode):
                continue
            elif (suffix := _suffix(entry.name)) in _OTHERS and (suffix or _begins(entry.path)):
                passed[suffix] += 1
            elif packed := [end for end in PACKED if entry.name.lower().endswith(end)]:
                passed[packed[0]] += 1


def _mode(entry: os.DirEntry[str]) -> int:
    """The kind of what an entry leads to; 0 where that is nothing, or a circle."""
    try:
        return os.stat(entry.path).st_mode
    except OSError:  # of a folder in one that may not be searched, listing it tells
        return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else 0


def _begins(path: str) -> bool:
    """Whether a file without a suffix begins as a photograph does."""
    try:
        with open(path, "rb") as file:
            return file.read(4).startswith(_BEGIN)
    except OSError:
        return False


# --------------------------------------------------------------------------- decoding


class Picture(NamedTuple):
    """A decoded image, perhaps at a fraction of its size.

    Attributes:
        pixels: as decoded (h, w, 3); one of them stands for `step` × `step` of the image.
        height, width: of the image itself, in which boxes are drawn.
        stamp: a digest of the file, of a large JPEG; nothing where the pixels are their own name.
    """

    pixels: Pixels
    height: int
    width: int
    stamp: bytes = b""

    @property
    def step(self) -> int:
        """By how much it was reduced: 1, 2, 4 or 8. The last row and column may be filled up."""
        return -(-self.height // len(self.pixels))

    def reduced(self, step: int) -> Picture:
        """The same image with pixels for `step` × `step` of it, means of those that are here."""
        if step == self.step:
            return self
        image = Image.fromarray(self.pixels).reduce(step // self.step)
        return self._replace(pixels=np.array(image))

    def identity(self) -> tuple[bytes, bytes | memoryview]:
        """The bytes that the crops of an image without a key depend on, after their kind.

        All pixels; of one above `LARGE` a regular sample; of a JPEG above it the bytes of the file.
        So a large JPEG has the same crops by path, by bytes and as a Pillow image not yet loaded,
        whatever fraction it is decoded at. Its decoded pixels, given as an array or as a loaded
        image, have other crops: as good, and always the same ones.
        """
        if self.stamp:
            return b"file:", self.stamp
        shape, pixels = self.pixels.shape, self.pixels
        if shape[0] * shape[1] <= LARGE:
            return f"pixels:{shape}:".encode(), np.ascontiguousarray(pixels).data
        n = math.isqrt(shape[0] * shape[1] // _SAMPLE)
        return f"sample:{shape}:".encode(), np.ascontiguousarray(pixels[::n, ::n]).data


def load_image(source: Any) -> Pixels:
    """Load an image as a contiguous uint8 array (H, W, 3) in RGB.

    The EXIF orientation is applied, transparent parts become white, and 16-bit values become 8-bit.

    Args:
        source: a path, the bytes of an image file, a Pillow image, a uint8 array (H, W) or
            (H, W, C), a uint8 tensor (C, H, W) or (H, W, C), or a function that returns one of
            these.

    Raises:
        InputError: if it cannot be read as an image.

    >>> load_image(np.zeros((2, 3), np.uint8)).shape
    (2, 3, 3)
    """
    return _read(source, None).pixels


def read_picture(source: Any, fraction: Callable[[int, int], int]) -> Picture:
    """The same image, but a JPEG above `LARGE` at 1/n of its size, n = fraction(height, width).

    n is 1, 2, 4 or 8. Other formats are decoded whole, for they know no cheaper way.
    """
    return _read(source, fraction)


def _read(source: Any, fraction: Callable[[int, int], int] | None) -> Picture:
    try:
        while callable(source):  # it is read when it is asked for: a row of a table, a tar's member
            source = source()
    except OSError as error:
        raise InputError(f"cannot read the image ({error}); check the file") from error
    if isinstance(source, Picture):
        return source
    if isinstance(source, np.ndarray) or _is_tensor(source):
        pixels = _from_array(source)
        return Picture(pixels, *pixels.shape[:2])
    opened: Callable[[], AbstractContextManager[Image.Image]]
    kind = InputError
    if isinstance(source, bytes | bytearray | memoryview):
        name, opened = f"these {len(source)} bytes", lambda: Image.open(io.BytesIO(source))
    elif isinstance(source, str | os.PathLike):
        path = os.fspath(source)  # what Pillow 10 did not ask for
        name, opened, kind = repr(path), lambda: Image.open(path), UnreadableFile
    elif isinstance(source, Image.Image):
        name, opened = f"this {source.mode} image", lambda: _again(source, fraction)
    else:
        raise InputError(f"{type(source).__name__} is no image; {_mend(source)}")
    try:
        try:
            return _decode(opened, fraction)
        except UnidentifiedImageError:
            if not _add_plugin(source, name):
                raise
            return _decode(opened, fraction)
    except InputError:
        raise
    except Exception as error:  # by format: OSError, SyntaxError, ValueError, struct.error, …
        if known := _plain_reason(error, source):
            raise kind(f"{name} {known}") from error
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        reason = reason.partition(" <_io.")[0]  # where in memory it lay says nothing
        why = f"cannot read {name} as an image ({reason or type(error).__name__})"
        mend = "give a complete file that Pillow can read"
        if isinstance(error, PermissionError):
            mend = "check its permissions"
        raise kind(f"{why}; {mend}") from error


def _mend(source: object) -> str:
    """The mend for a source that is no image."""
    if isinstance(source, (list, tuple)):
        return "give each image by itself, without its label"
    if hasattr(source, "read"):
        return "give its bytes, as read() returns them"
    if isinstance(source, Iterable):
        return "use stream() for several images"
    return "give a path, bytes, a Pillow image or uint8 pixels"


def _plain_reason(error: Exception, source: Any) -> str:
    """The reason and the mend, where the file itself is whole or there is none."""
    if isinstance(error, _NoPixels):
        return str(error)
    if isinstance(error, FileNotFoundError):
        if "://" in str(source):
            return "is an address, and paths are read here; give its bytes, or it alone to stream()"
        return "is not there; check the path"
    if isinstance(source, str | os.PathLike):
        if os.path.isdir(source):
            return "is a folder; use stream() for its images"
        if isinstance(error, UnidentifiedImageError) and not os.path.getsize(source):
            return EMPTY
    if isinstance(error, Image.DecompressionBombError):
        found = re.search(r"(\d+) pixels", str(error))
        size = f"{math.ceil(int(found[1]) / 1e6):,}" if found else "too many"
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000  # Pillow's own limit is twice this
        return f"has {size} megapixels, more than the {most:,} that are read; scale it down"
    return ""


def _again(image: Image.Image, fraction: object) -> AbstractContextManager[Image.Image]:
    """The file of a large JPEG that is not loaded yet, opened anew: the user's own stays as is."""
    file = _large_jpeg(image) if fraction else b""
    anew = Image.open(io.BytesIO(file)) if file else image
    same = (anew.size, anew.mode) == (image.size, image.mode)  # else a draft was asked of it
    return anew if file and same else nullcontext(image)


def _large_jpeg(image: Image.Image) -> bytes:
    """The whole file, of a JPEG above `LARGE` that is not loaded yet."""
    if not isinstance(image, JpegImageFile) or not image.tile or image.fp is None:
        return b""
    if image.width * image.height <= LARGE:
        return b""
    image.fp.seek(0)
    return image.fp.read()


def _decode(
    opened: Callable[[], AbstractContextManager[Image.Image]],
    fraction: Callable[[int, int], int] | None,
) -> Picture:
    with opened() as image:
        file = _large_jpeg(image) if fraction else b""
        if not fraction or not file:
            pixels = _rgb(image)
            return Picture(pixels, *pixels.shape[:2])
        height, width, n = _reduced(image, fraction)
        image.draft(None, (image.width // n, image.height // n))
        stamp = blake2b(file, digest_size=16).digest()
        return Picture(_rgb(image), height, width, stamp)


def _reduced(image: Image.Image, fraction: Callable[[int, int], int]) -> tuple[int, int, int]:
    """Height and width of a large JPEG, upright, and n where it is decoded at 1/n of them."""
    turned = _orientation(image)
    width, height = image.size[::-1] if turned in range(5, 9) else image.size
    n = fraction(height, width)
    while turned != 1 and (height % n or width % n):  # else a turn moves the filled-up edge
        n //= 2
    return height, width, n


def decoding_bytes(image: Image.Image, fraction: Callable[[int, int], int]) -> int:
    """Memory that decoding an image takes at most, as measured of each format that Pillow reads.

    The most is that of a WEBP with transparency that is turned. A progressive JPEG holds all of
    its blocks, and then the pixels that are left of it.
    """
    pixels = image.width * image.height
    if not isinstance(image, JpegImageFile):
        return 32 * pixels
    n = _reduced(image, fraction)[2] if pixels > LARGE else 1
    return 8 * pixels + 16 * pixels // n**2


def _add_plugin(source: Any, name: str) -> bool:
    """Tell Pillow of the plug-in that reads a file's format; False where none would help."""
    refused = InputError
    if isinstance(source, str | os.PathLike):
        refused = UnreadableFile
        kind = os.path.splitext(os.fspath(source))[1].lower()
        with open(source, "rb") as file:
            head = file.read(12)
    else:
        kind, head = "", bytes(source[:12])
    if head[4:8] == b"ftyp":
        kind = _BRANDS.get(head[8:12], kind)
    if kind not in _PLUGINS or kind in Image.registered_extensions():
        return False
    module, package = _PLUGINS[kind]
    try:
        plugin = importlib.import_module(module)
    except ImportError as error:
        raise refused(
            f"cannot read {name} as an image, for Pillow does not read {kind[1:].upper()} by "
            f"itself; install its plug-in: pip install {package}"
        ) from error
    if hasattr(plugin, "register_heif_opener"):  # the other registers itself
        plugin.register_heif_opener()
    return True


class _NoPixels(ValueError):
    """No pixels, or such whose range from black to white is not known."""


def _orientation(image: Image.Image) -> Any:
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged tags, by format: SyntaxError, struct.error, …; the pixels are whole
        return 1


def _rgb(image: Image.Image) -> Pixels:
    image.load()  # a truncated file raises here
    if 0 in image.size:
        raise _NoPixels("has no pixels; give an image with at least one")
    known = image.format in ("PNG", "PPM")  # 16 bits, which Pillow may open as 32
    if image.mode.startswith("F") or (image.mode == "I" and not known):
        kind = "float" if image.mode.startswith("F") else "32-bit"
        raise _NoPixels(f"cannot be used as an image ({kind} pixels); {LEVELS}")
    turned = _orientation(image)
    if turned in _TURNS:  # Pillow's own turn writes all tags anew, and fails where one is odd
        image = image.transpose(_TURNS[turned])
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would clip them at 255
        grey = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
        image = Image.fromarray(grey.round().astype(np.uint8))
    elif image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        return _on_white(image.convert("RGBA"))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _on_white(rgba: Image.Image) -> Pixels:
    """The picture as a viewer shows it: colours that are seen through have white behind them.

    Under full transparency files have any colour, mostly black, and pictures of nothing else would
    all look the same.
    """
    white = Image.new("RGB", rgba.size, "white")
    white.paste(rgba, mask=rgba.getchannel("A"))  # what is opaque stays as it is
    return np.array(white)


def _is_tensor(source: object) -> TypeGuard[Tensor]:
    """Without importing torch, which takes seconds: who has a tensor has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _from_array(source: np.ndarray[Any, Any] | Tensor) -> Pixels:
    kind = "tensor" if _is_tensor(source) else "array"
    article = "a" if kind == "tensor" else "an"
    name = f"{article} {kind} of shape {tuple(source.shape)} and dtype {source.dtype}"
    if str(source.dtype).removeprefix("torch.") != "uint8":
        raise InputError(f"{name} is not an image; {LEVELS}")
    try:
        array = source.detach().cpu().numpy() if _is_tensor(source) else np.asarray(source)
    except (TypeError, RuntimeError) as error:  # sparse, or on a device that holds no values
        raise InputError(f"{name} cannot be read as an image; give a dense one") from error
    if array.ndim == 3 and kind == "tensor" and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    elif array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.size == 0 or array.shape[2] not in (1, 3, 4):
        order = "(3, H, W)" if kind == "tensor" else "(H, W, 3)"
        several = "; predict() takes a batch by itself" if array.ndim == 4 else ""
        raise InputError(
            f"{name} is not an image; give shape {order} with at least one pixel{several}"
        )
    if array.shape[2] == 4:
        return _on_white(Image.fromarray(np.ascontiguousarray(array)))
    return np.ascontiguousarray(np.repeat(array, 3, 2) if array.shape[2] == 1 else array)
