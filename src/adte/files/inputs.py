"""What a person names, as images in a fixed order, and lists of class names.

Nothing is left out in silence: what cannot be read comes as an `InputError` in its place.
"""

from __future__ import annotations

import os
import stat
import sys
import tarfile
import warnings
import zipfile
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from adte.errors import InputError
from adte.files.devices import StrPath
from adte.files.tars import Header, members
from adte.images import ARCHIVES, PACKED, find_images, is_image, walk_images

__all__ = ["Item", "expand", "is_archive", "is_pipe", "read_classes", "read_list", "read_templates"]

Source: TypeAlias = Path | bytes | InputError
Item: TypeAlias = tuple[str, Source]

LIMIT = 1 << 30  # bytes of one image in an archive or from a pipe
STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".xlsx")


def expand(inputs: Iterable[StrPath], limit: int = LIMIT) -> Iterator[Item]:
    """Images with their names, in the order of the inputs.

    A file is itself, whatever its suffix. A folder is every image below it, in code-point order of
    the paths. A .zip or .tar archive is every image in it, in the order of the archive, read as
    bytes; nothing is unpacked to disk, and ../x.jpg in it has the name of x.jpg. "-" is one image
    from standard input, and so is a named pipe.

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
    return (item for name in names for item in _expand(name, limit))


def _expand(name: str, limit: int) -> Iterator[Item]:
    if name in STDIN:
        yield name, _standard_input(limit)
        return
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield name, InputError(f"cannot open {name!r} ({reason}); check the path")
        return
    if stat.S_ISDIR(mode):
        yield from _folder(name)
    elif stat.S_ISFIFO(mode):
        yield name, _pipe(name, limit)
    elif not stat.S_ISREG(mode):
        yield name, InputError(f"{name!r} is a device, not an image; give a file or a folder")
    elif is_archive(name):
        yield from _archive(name, limit)
    else:
        yield name, Path(name)


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
            f"files in {name!r} are passed over that are no image which can be read, by their "
            f"suffix ({_kinds(passed)}); save photographs as JPEG or PNG",
            stacklevel=2,
        )
    found: list[Item] = [(str(p), p) for p in (Path(name, image) for image in images)]
    if found:
        packed.pop(".parquet", None)  # beside images it is a table, such as our own rows
    if packed:
        most = max(packed, key=lambda kind: packed[kind])
        mend = f"name them, as in {Path(name, '*')}{most}"
        if found:
            warnings.warn(
                f"archives in {name!r} are passed over ({_kinds(packed)}); {mend}", stacklevel=2
            )
        elif not closed:
            no_image = f"the folder {name!r} holds archives and no image ({_kinds(packed)}); {mend}"
            closed = [(name, InputError(no_image))]
    if not found and not closed:
        try:
            find_images(name)
        except InputError as nothing:
            closed = [(name, nothing)]
    yield from sorted([*found, *closed], key=lambda item: item[0]) if closed else found


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


def _read(file: IO[bytes], said: str, limit: int) -> Source:
    try:
        data = file.read(limit + 1)
    except OSError as error:
        return InputError(f"cannot read {said} ({_reason(error)}); send an image to it")
    if len(data) > limit:
        return InputError(f"{said} holds more than {_size(limit)}; give smaller images")
    return data or InputError(f"{said} is empty; send an image to it")


def _size(limit: int) -> str:
    return f"{limit / (1 << 30):.3g} GiB" if limit >= 1 << 30 else f"{limit:,} bytes"


# --------------------------------------------------------------------------- archives


def is_archive(name: StrPath) -> bool:
    """By suffix.

    >>> is_archive("photos.tar.gz")
    True
    """
    return os.fspath(name).lower().endswith(ARCHIVES)


def _archive(name: str, limit: int) -> Iterator[Item]:
    reader = _zip if name.lower().endswith(".zip") else _tar
    count = 0
    try:
        for member, source in reader(name, limit):
            count += 1
            yield f"{name}/{_below(member)}", source
    except (
        Exception
    ) as error:  # by format and damage: BadZipFile, ReadError, zlib.error, EOFError, …
        after = f" after {count} images" if count else ""
        yield (
            name,
            InputError(
                f"the archive {name!r} cannot be read{after} ({_reason(error)}); make it again"
            ),
        )
        return
    if not count:
        yield name, InputError(f"the archive {name!r} holds no image; check what was packed")


def _reason(error: Exception) -> str:
    said = getattr(error, "strerror", None) or " ".join(str(error).split())
    return said or type(error).__name__


def _below(member: str) -> str:
    """A name that does not lead out of its archive, where it would be that of another image.

    >>> _below("../photos/a.jpg")
    'photos/a.jpg'
    """
    return "/".join(part for part in member.split("/") if part != "..")


def _wanted(member: str) -> bool:
    """An image, and neither it nor a folder that it is in is hidden."""
    parts = PurePosixPath(member).parts
    hidden = any(p.startswith(".") and p not in (".", "..") for p in parts)
    return bool(parts) and not hidden and parts[0] != "__MACOSX" and is_image(parts[-1])


def _zip(name: str, limit: int) -> Iterator[Item]:
    with zipfile.ZipFile(name) as archive:
        for info in archive.infolist():
            if info.is_dir() or not _wanted(info.filename):
                continue
            said = f"{info.filename!r} in {name!r}"
            if info.flag_bits & 1:
                locked = f"{said} is encrypted; unpack it with its password and give the images"
                yield info.filename, InputError(locked)
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                yield info.filename, InputError(f"{said} is a link; pack the image itself")
                continue
            if info.file_size > limit:
                yield info.filename, _too_large(said, info.file_size, limit)
                continue
            source: Source
            try:
                with archive.open(info) as file:
                    source = _member(file, said, limit)
            except Exception as error:  # an unknown compression, a wrong checksum, …
                source = _broken(said, error)
            yield info.filename, source


def _tar(name: str, limit: int) -> Iterator[Item]:
    # "r|*" takes hours over an entry of absurd size
    with tarfile.open(name, "r:*", tarinfo=Header) as archive:
        for info in members(archive, name):
            if info.isdir() or not _wanted(info.name):
                continue
            said = f"{info.name!r} in {name!r}"
            source: Source
            if not info.isfile():
                source = InputError(f"{said} is a link or a device; pack the image itself")
            elif info.size > limit:
                source = _too_large(said, info.size, limit)
            else:
                file = archive.extractfile(info)
                assert file is not None
                source = _member(file, said, limit)
            yield info.name, source


def _member(file: IO[bytes], said: str, limit: int) -> Source:
    data = file.read(limit + 1)
    if len(data) > limit:  # more than its entry says
        return _too_large(said, len(data), limit)
    return data or InputError(f"{said} is empty; pack it again")


def _too_large(said: str, size: int, limit: int) -> InputError:
    return InputError(f"{said} has {size:,} bytes, {_size(limit)} are the limit; make it smaller")


def _broken(said: str, error: Exception) -> InputError:
    return InputError(f"{said} cannot be read ({_reason(error)}); pack it again")


# --------------------------------------------------------------------------- lists


def read_list(path: StrPath) -> list[str]:
    """Names of files from a file, "-" for standard input: one per line, or with zero bytes between.

    Blank lines are passed over. Nothing else is: a name may begin with # or with a blank.
    """
    name = os.fspath(path)
    try:
        if name in STDIN:
            if sys.stdin is None:
                raise ValueError("standard input is closed")
            data = sys.stdin.buffer.read()
        else:
            with open(name, "rb") as file:
                data = file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the list of files {name!r} ({reason}); check it") from error
    data = _utf8(data, f"the list of files {name!r}")
    if b"\0" in data:
        lines = data.split(b"\0")
        broken = b"\n\0" in data or b"\0\n" in data
        if broken and max(map(len, lines)) < 3:  # UTF-16 that does not say so
            raise InputError(f"the list of files {name!r} is not UTF-8 text; save it as UTF-8")
    else:
        lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    names = [os.fsdecode(line) for line in lines if line.strip()]
    if not names:
        raise InputError(f"the list of files {name!r} is empty; write one name per line")
    return names


def _utf8(data: bytes, said: str) -> bytes:
    """Text without its mark; UTF-16, as PowerShell and Excel write it, as UTF-8."""
    if not data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-16").encode()
    except UnicodeError as error:
        raise InputError(f"{said} is broken UTF-16 text; save it as UTF-8") from error


# What no name of a class has in every line of a file: it is a table by another suffix.
_TABLE: dict[str, Callable[[str], bool]] = {
    "a tab": lambda name: "\t" in name,
    "a semicolon": lambda name: ";" in name,
    "a comma at its end": lambda name: name.endswith(","),
    "quotes around it": lambda name: len(name) > 1 and name[0] == name[-1] == '"',
}


def read_classes(text: str) -> list[str]:
    """Class names: "cat, dog, car", or @FILE with one per line, # before comments.

    One class alone is noted, since every image gets it: it may be several names, or a file's.

    >>> read_classes("cat, polar bear")
    ['cat', 'polar bear']
    """
    text = text.removeprefix("\ufeff").strip()
    if text.startswith("@"):
        names, mend = _names_in(text[1:]), "write one per line"
    else:
        names, mend = _names_of(text), "write commas between them, as in 'cat, dog'"
    if len(names) == 1:
        _note_alone(names[0], mend)
    return names


def _note_alone(name: str, mend: str) -> None:
    hint = ""
    if name.lower().endswith((".txt", *TABLES)):
        hint = f"; if it is a file of names, write @{name}"
    elif len(name.replace(",", " ").replace(";", " ").split()) > 1:
        hint = f"; if these are several names, {mend}"
    warnings.warn(f"{name!r} is the only class, so every image gets it{hint}", stacklevel=3)


def _names_of(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not any(names):
        raise InputError(
            f"{text!r} names no class; write names with commas between them, as in 'cat, dog'"
        )
    if len(names) == 1 and os.path.isfile(text):
        raise InputError(f"--classes {text!r} is a file; did you mean @{text}?")
    return [name for name in names if name]


def read_templates(texts: Iterable[str]) -> list[str]:
    """Templates as they are given, and those of @FILE, one per line, # before comments.

    >>> read_templates(["a photo of a {}."])
    ['a photo of a {}.']
    """
    out: list[str] = []
    for text in texts:
        if text.startswith("@"):
            out += _lines_in(text[1:], f"the file of templates {text[1:]!r}", "template")
        else:
            out.append(text)
    return out


def _names_in(path: str) -> list[str]:
    mend = "give one name per line in a text file"
    said = f"the file of class names {path!r}"
    if path.lower().endswith(TABLES):
        raise InputError(f"{said} is a table by its suffix; {mend}, such as names.txt")
    names = _lines_in(path, said, "name")
    for what, holds in _TABLE.items():
        if len(names) > 1 and all(map(holds, names)):
            warnings.warn(
                f"every line of {path!r} has {what}, which is taken for part of the name, as in "
                f"{names[0]!r}; if it is a table, {mend}",
                stacklevel=3,
            )
            break
    return names


def _lines_in(path: str, said: str, what: str) -> list[str]:
    """The lines of a text file that are neither empty nor comments; `said` is how it is called."""
    mend = f"give one {what} per line in a text file"
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "does not exist" if missing else f"cannot be read ({_reason(error)})"
        raise InputError(f"{said} {reason}; {mend}") from error
    try:
        text = _utf8(data, said).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # or UTF-16 that does not say so
        raise InputError(f"{said} is not UTF-8 text; save it as UTF-8, one {what} per line")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    written = [text for line in lines if (text := line.strip())]
    kept = [text for text in written if not text.startswith("#")]
    if not kept:
        raise InputError(f"{said} holds no {what}; {mend}")
    if passed := len(written) - len(kept):
        said = f"lines of {path!r} that begin with # are comments and passed over: {passed}"
        warnings.warn(said, stacklevel=4)
    return kept
