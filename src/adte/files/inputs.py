"""What a person names, as images in a fixed order.

Nothing is left out in silence: what cannot be read comes as an `InputError` in its place.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.tars import Header, members
from adte.images.decode import ARCHIVES, EMPTY, PACKED, is_image, no_image, walk_images

__all__ = [
    "STDIN", "Item", "Packed", "check_there", "entries", "expand", "is_archive", "is_newer",
    "is_pipe", "why",
]  # fmt: skip

Source: TypeAlias = Path | bytes | InputError
Item: TypeAlias = tuple[str, Source]

LIMIT = 1 << 30  # bytes of one image in an archive or from a pipe
OTHERS = (  # archives, which are told apart from images
    ".7z", ".rar", ".tar.zst", ".tzst", ".tar.lz4", ".tar.lz",
)  # fmt: skip
STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def expand(inputs: Iterable[StrPath], limit: int = LIMIT) -> Iterator[Item]:
    """Images with their names, in the order of the inputs.

    A file is itself, whatever its suffix, but for archives of a kind that is not read. A folder is
    every image below it, in code-point order of the paths. A .zip or .tar archive is every image in
    it, in the order of the archive, read as bytes; nothing is unpacked to disk, and ../x.jpg or
    ..\\x.jpg in it has the name of x.jpg. "-" is one image from standard input, and so is a named
    pipe.

    Args:
        inputs: paths, or "-".
        limit: bytes that one image in an archive or a pipe may have.

    Returns:
        Pairs of a name and a path, bytes or an `InputError`; made as they are asked for.
    """
    names = [os.fspath(p) for p in inputs]
    if not names:
        raise InputError("no image was given; name images, folders or archives")
    if "" in names:
        raise InputError("an empty path was given; name an image or a folder, '.' for this one")
    if sum(n in STDIN for n in names) > 1:
        raise InputError("standard input was named twice; it can be read once")
    return (
        (item, source.read() if isinstance(source, Packed) else source)
        for name in names
        for item, source in entries(name, limit)
    )


def entries(name: str, limit: int = LIMIT) -> Iterator[tuple[str, Source | Packed]]:
    """The same for one input, but nothing in a .zip archive is read yet."""
    if name in STDIN:
        yield name, _standard_input(limit)
        return
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as error:
        yield name, InputError(f"cannot open {name!r} ({why(error)}); check the path")
        return
    if stat.S_ISDIR(mode):
        yield from _folder(name)
    elif stat.S_ISFIFO(mode):
        yield name, _pipe(name, limit)
    elif not stat.S_ISREG(mode):
        yield name, InputError(f"{name!r} is a device, not an image; give a file or a folder")
    elif is_archive(name):
        yield from _archive(name, limit)
    elif name.lower().endswith(OTHERS):
        yield name, InputError(f"{name!r} is an archive of a kind that is not read; make it a .zip")
    else:
        yield name, Path(name)


def check_there(inputs: Sequence[str], classes: str = "") -> None:
    """Refuse a lone input that is not there, and class names without quotes, taken for images."""
    gone = [n for n in inputs if n and n not in STDIN and not ("://" in n or os.path.lexists(n))]
    words = [n for n in gone if n.replace(",", "").replace(" ", "").isalnum()]
    first = classes.strip(", ")
    if first and words and not (first.startswith("@") or "," in first):
        names = ", ".join([first, *(word.strip(", ") for word in words)])
        raise InputError(
            f"{words[0]!r} is no image that is there; if it is a class, put all names in quotes: "
            f"--classes {names!r}"
        )
    if len(inputs) == 1 and gone and not any(c in gone[0] for c in "*?["):
        for _, source in expand(gone):
            assert isinstance(source, InputError)
            raise source


def is_newer(path: Path, moment: int) -> bool:
    """Whether a file was written after a moment, in ns since the epoch, and may be another by now.

    One that cannot be looked at is not.
    """
    try:
        return path.stat().st_mtime_ns > moment
    except OSError:
        return False


# --------------------------------------------------------------------------- folders


def _folder(name: str) -> Iterator[Item]:
    closed: list[Item] = []
    passed = Counter[str]()
    images = walk_images(
        name, lambda place, error: closed.append((str(Path(place)), error)), passed
    )
    packed = {kind: passed.pop(kind) for kind in PACKED if kind in passed}
    if passed:
        warnings.warn(
            f"files in {name!r} are skipped whose suffix is not that of an image that can be read "
            f"({_kinds(passed)}); save photographs as JPEG or PNG",
            stacklevel=2,
        )
    items: list[Item] = [(str(p), p) for p in (Path(name, image) for image in images)]
    if items:
        packed.pop(".parquet", None)  # beside images it is a table, such as our own rows
    if packed:
        most = max(packed, key=lambda kind: packed[kind])
        mend = f"name them, as in {Path(name, '*')}{most}"
        if items:
            warnings.warn(
                f"archives in {name!r} are skipped ({_kinds(packed)}); {mend}", stacklevel=2
            )
        elif not closed:
            called = f"the folder {name!r} holds archives and no image ({_kinds(packed)}); {mend}"
            closed = [(name, InputError(called))]
    if not items and not closed:
        closed = [(name, no_image(name))]
    yield from sorted([*items, *closed], key=lambda item: item[0]) if closed else items


def _kinds(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:5]
    kinds = ", ".join(f"{kind or 'no suffix'} {n}" for kind, n in most)
    return kinds + ", …" * (len(counts) > 5)


# --------------------------------------------------------------------------- pipes


def is_pipe(name: str) -> bool:
    """Whether what is read there is another image each time: standard input, a named pipe."""
    with suppress(OSError, ValueError):
        return name in STDIN or stat.S_ISFIFO(os.stat(name).st_mode)
    return False


def _standard_input(limit: int) -> Source:
    if sys.stdin is None:
        return InputError("standard input is closed; send an image to it, as in < photo.jpg")
    if sys.stdin.isatty():
        return InputError("standard input is a terminal; send an image to it, as in < photo.jpg")
    return _read(sys.stdin.buffer, "standard input", limit)


def _pipe(name: str, limit: int) -> Source:
    try:
        with open(name, "rb") as file:
            return _read(file, repr(name), limit)
    except OSError as error:
        return InputError(f"cannot read {name!r} ({error.strerror}); check its permissions")


def _read(file: IO[bytes], called: str, limit: int) -> Source:
    try:
        data = file.read(limit + 1)
    except OSError as error:
        return InputError(f"cannot read {called} ({why(error)}); send an image to it")
    if len(data) > limit:
        return InputError(f"{called} holds more than {_size(limit)}; give smaller images")
    return data or InputError(f"{called} is empty; send an image to it")


def _size(limit: int) -> str:
    return f"{limit / (1 << 30):.3g} GiB" if limit >= 1 << 30 else f"{limit:,} bytes"


# --------------------------------------------------------------------------- archives


def is_archive(name: StrPath) -> bool:
    """By suffix.

    >>> is_archive("photos.tar.gz")
    True
    """
    return os.fspath(name).lower().endswith(ARCHIVES)


def _archive(name: str, limit: int) -> Iterator[tuple[str, Source | Packed]]:
    reader: Callable[[str, int], Iterator[tuple[str, Source | Packed]]]
    reader = _zip if name.lower().endswith(".zip") else _tar
    count = 0
    try:
        for member, source in reader(name, limit):
            count += 1
            yield f"{name}/{_below(member)}", source
    except Exception as error:  # by format and damage: BadZipFile, zlib.error, EOFError, …
        after = f" after {count} images" if count else ""
        lacks = f"cannot be read{after} ({why(error)}); make it again"
        if os.path.isfile(name) and not os.path.getsize(name):
            lacks = EMPTY
        called = f"the archive {name!r} {lacks}"
        yield name, InputError(called)
        return
    if not count:
        yield name, InputError(f"the archive {name!r} holds no image; check what was packed")


def why(error: Exception) -> str:
    """Why something could not be read, in a few words."""
    words = getattr(error, "strerror", None) or " ".join(str(error).split())
    return words or type(error).__name__


def _below(member: str) -> str:
    """A name that does not lead out of its archive, where it would be that of another image.

    >>> _below("../photos/a.jpg")
    'photos/a.jpg'
    """
    return "/".join(part for part in _slashed(member).split("/") if part != "..")


def _slashed(member: str) -> str:
    """With the slashes that archives have; some programs on Windows write backslashes."""
    return member.replace("\\", "/")


def _wanted(member: str) -> bool:
    """An image, and neither it nor a folder that it is in is hidden."""
    parts = PurePosixPath(_slashed(member)).parts
    hidden = any(p.startswith(".") and p not in (".", "..") for p in parts)
    return bool(parts) and not hidden and parts[0] != "__MACOSX" and is_image(parts[-1])


@dataclass(frozen=True)
class Packed:
    """An image in a .zip archive, read when its turn comes.

    Attributes:
        archive: its path; time, size: of the file, as another one may take its place.
        number: of the entry; limit: bytes that it may have.
    """

    archive: str
    time: int
    size: int
    number: int
    limit: int

    def read(self) -> Source:
        called = f"an image in {self.archive!r}"
        try:
            archive = _opened(self.archive, self.time, self.size)
            info = archive.infolist()[self.number]
            called = f"{info.filename!r} in {self.archive!r}"
            with archive.open(info) as file:
                return _member(file, called, self.limit)
        except Exception as error:  # an unknown compression, a wrong checksum, …
            return InputError(f"{called} cannot be read ({why(error)}); pack it again")


@lru_cache(maxsize=16)
def _opened(archive: str, time: int, size: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(archive)


def _zip(name: str, limit: int) -> Iterator[tuple[str, Source | Packed]]:
    stamp = os.stat(name)
    archive = _opened(name, stamp.st_mtime_ns, stamp.st_size)
    for number, info in enumerate(archive.infolist()):
        is_folder = _slashed(info.filename).endswith("/") and not info.file_size
        if is_folder or not _wanted(info.filename):
            continue
        called = f"{info.filename!r} in {name!r}"
        if info.flag_bits & 1:
            locked = f"{called} is encrypted; unpack it with its password and give the images"
            yield info.filename, InputError(locked)
        elif stat.S_ISLNK(info.external_attr >> 16):
            yield info.filename, InputError(f"{called} is a link; pack the image itself")
        elif info.file_size > limit:
            yield info.filename, _too_large(called, info.file_size, limit)
        else:
            yield (
                info.filename,
                Packed(name, stamp.st_mtime_ns, stamp.st_size, number, limit),
            )


def _tar(name: str, limit: int) -> Iterator[Item]:
    # "r|*" takes hours over an entry of absurd size
    with tarfile.open(name, "r:*", tarinfo=Header) as archive:
        for info in members(archive, name):
            if info.isdir() or not _wanted(info.name):
                continue
            called = f"{info.name!r} in {name!r}"
            source: Source
            if info.islnk():
                mend = "pack the image itself, as tar --hard-dereference does"
                source = InputError(f"{called} is a hard link to {info.linkname!r}; {mend}")
            elif not info.isfile():
                source = InputError(f"{called} is a link or a device; pack the image itself")
            elif info.size > limit:
                source = _too_large(called, info.size, limit)
            else:
                file = archive.extractfile(info)
                assert file is not None
                source = _member(file, called, limit)
            yield info.name, source


def _member(file: IO[bytes], called: str, limit: int) -> Source:
    data = file.read(limit + 1)
    if len(data) > limit:  # more than its entry says
        return _too_large(called, len(data), limit)
    return data or InputError(f"{called} is empty; pack it again")


def _too_large(called: str, size: int, limit: int) -> InputError:
    return InputError(f"{called} has {size:,} bytes, {_size(limit)} are the limit; make it smaller")
