"""Images beyond folders: Parquet files and object stores, through the file systems of Arrow.

A place is a path or an address such as s3://bucket/folder, gs://…, abfs://…, hdfs://…: whatever
`pyarrow.fs` reads, and where it does not know the scheme, `fsspec`. Nothing is copied to disk: an
image is read where it is decoded, which may be a worker elsewhere.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from adte.core.errors import InputError, MissingExtra
from adte.data.tars import Sample, samples
from adte.files.inputs import Packed, entries, is_archive, is_pipe
from adte.files.inputs import expand as expand_local
from adte.files.order import shuffled
from adte.images.decode import is_image

__all__ = [
    "LABEL", "File", "Listing", "Place", "Row", "expand", "files", "is_elsewhere", "is_place",
    "listing", "local_path", "members", "row_group", "rows", "table",
]  # fmt: skip

IMAGE = ("image", "jpg", "jpeg", "png", "bytes", "content")
LABEL = ("label", "cls", "class", "fine_label")


def is_place(name: str) -> bool:
    """Whether a name is an address rather than a path."""
    return re.match(r"^[a-z][a-z0-9+.-]+://", name) is not None


def is_elsewhere(name: str) -> bool:
    """An address or a Parquet file; many of these in a folder may end in a slash."""
    return is_place(name) or name.rstrip("/").endswith(".parquet")


def local_path(name: str) -> str:
    """The path that an address of this machine stands for; other names as they are."""
    return url2pathname(urlsplit(name).path) if name.startswith("file://") else name


@lru_cache(maxsize=64)
def _file_system(root: str) -> tuple[Any, str]:
    """The file system of a place, and the path in it."""
    try:
        from pyarrow import ArrowInvalid, fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra(
            "pyarrow", "parquet", "reading Parquet files and object stores"
        ) from error
    try:
        if not is_place(root):
            return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(root))
        try:
            system, path = fs.FileSystem.from_uri(root)
            return system, str(path)
        except ArrowInvalid:  # a scheme that Arrow does not know
            import fsspec  # type: ignore[import-untyped]

            other, path = fsspec.core.url_to_fs(root)
            return fs.PyFileSystem(fs.FSSpecHandler(other)), str(path)
    except (OSError, ValueError, ImportError) as error:
        raise _unread(root, error) from error


def _unread(root: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200]
    return InputError(f"cannot read {root!r} ({reason}); check the address and your access to it")


@dataclass(frozen=True, slots=True)
class File:
    """A file at or below a place. What is below is a path: no address, so #, ? and % are plain."""

    root: str
    below: str = ""

    @property
    def name(self) -> str:
        return f"{self.root.rstrip('/')}{self.below}" if self.below else self.root

    def open(self) -> Any:
        """For reading, by its file system."""
        try:
            if not is_place(self.root):
                return open(os.path.expanduser(self.name), "rb")
            system, path = _file_system(self.root)
            return system.open_input_file(f"{path.rstrip('/')}{self.below}" if self.below else path)
        except OSError as error:
            raise _unread(self.name, error) from error


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a file somewhere, read when it is called; all of it unless a size is given."""

    file: File
    offset: int = 0
    size: int | None = None

    def __call__(self) -> bytes:
        with self.file.open() as file:
            try:
                file.seek(self.offset)
                data: bytes = file.read(self.size) if self.size is not None else file.read()
            except OSError as error:
                raise _unread(self.file.name, error) from error
        return data


def files(root: str) -> list[File]:
    """The files below a place, in order; the place itself if it is one.

    Hidden ones are left out, and Parquet files that begin with _ or lie in such a folder: those
    are notes of the program that wrote the others.
    """
    system, path = _file_system(root)
    from pyarrow import fs

    try:
        kind = system.get_file_info(path).type
        if kind == fs.FileType.NotFound:
            raise InputError(f"{root!r} does not exist; check the address")
        if kind == fs.FileType.File:
            return [File(root)]
        below = system.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise _unread(root, error) from error
    names = [f.path[len(path.rstrip("/")) :] for f in below if f.type == fs.FileType.File]
    return [File(root, name) for name in sorted(names) if not _hidden(name)]


def _hidden(name: str) -> bool:
    return "/." in name or ("/_" in name and name.endswith(".parquet"))


# --------------------------------------------------------------------------- Parquet


@lru_cache(maxsize=4)
def row_group(file: File, group: int, column: str) -> Any:
    from pyarrow import parquet

    with file.open() as opened:
        try:
            return parquet.ParquetFile(opened).read_row_group(group, [column])[column]
        except (OSError, ValueError) as error:
            raise _unread(file.name, error) from error


@dataclass(frozen=True)
class Row:
    """An image in a row of a Parquet file: bytes, or Hugging Face's {"bytes": …, "path": …}."""

    file: File
    group: int
    row: int
    column: str

    def __call__(self) -> Any:
        value = row_group(self.file, self.group, self.column)[self.row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise InputError(
                f"row {self.row} of {self.file.name!r} has no bytes under {self.column!r}; write "
                "encoded images there"
            )
        return data


def table(file: File) -> tuple[Any, str, str | None]:
    """An open Parquet file's facts, and its columns of images and labels."""
    from pyarrow import parquet

    with file.open() as opened:
        try:
            facts = parquet.ParquetFile(opened)
            schema, meta = facts.schema_arrow, facts.metadata
        except (OSError, ValueError) as error:
            raise _unread(file.name, error) from error
    image = next((c for c in IMAGE if c in schema.names), None)
    if image is None:
        raise InputError(
            f"{file.name!r} has the columns {', '.join(schema.names)} and none of images; call "
            f"it {IMAGE[0]!r}"
        )
    return meta, image, next((c for c in LABEL if c in schema.names), None)


def rows(file: File) -> Iterator[Row]:
    meta, image, _ = table(file)
    for group in range(meta.num_row_groups):
        for row in range(meta.row_group(group).num_rows):
            yield Row(file, group, row, image)


# --------------------------------------------------------------------------- what predict takes


def expand(inputs: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Images with their names, in order: addresses and Parquet files here, the rest as always."""
    names = list(inputs)
    local = expand_local(names)  # which refuses at once what cannot be meant
    return _expand(names) if any(map(is_elsewhere, names)) else local


def _expand(names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield from _elsewhere(name) if is_elsewhere(name) else expand_local([name])


def _elsewhere(name: str) -> Iterator[tuple[str, Any]]:
    """What cannot be read costs neither the other files nor the other inputs."""
    try:
        there = files(name)
    except InputError as error:
        yield name, error
        return
    if packed := [f.name for f in there if is_archive(f.name) and not f.name.endswith(".tar")]:
        warnings.warn(
            f"archives in {name!r} are skipped, {len(packed)} such as {packed[0]!r}; in an "
            "object store only .tar and .parquet are read",
            stacklevel=2,
        )
    some = False
    for file in there:
        try:
            for item in _images(file):
                some = True
                yield item
        except InputError as error:
            some = True
            yield file.name, error
    if not some:
        yield name, InputError(f"{name!r} holds no image; check the address")


@dataclass(frozen=True)
class Listing:
    """The images of some inputs, all known before the first of them is read.

    Attributes:
        names: of the images, in the order of the inputs.
        sources: of each image, what is read or why it cannot be.
        below: of each image, its name as seen from the input that it lies in.
    """

    names: list[str]
    sources: list[Any]
    below: list[str]

    @property
    def can_shuffle(self) -> bool:
        """Whether order matters and makes no difference to the time: Parquet is read in groups."""
        return len(self.names) > 1 and not any(isinstance(s, Row) for s in self.sources)

    def items(self, seed: int | None) -> Iterator[tuple[str, Any]]:
        """The images in the shuffled order of a seed, or for None as they are listed."""
        order: Iterable[int] = range(len(self.names))
        if seed is not None and self.can_shuffle:
            order = shuffled(self.below, seed)
        for i in order:
            source = self.sources[i]
            yield self.names[i], source.read() if isinstance(source, Packed) else source


def listing(inputs: Iterable[str]) -> Listing | None:
    """What `expand` gives, listed; None where there are pipes and tars, which are read to know."""
    names = list(inputs)
    expand(names)  # which refuses at once what cannot be meant
    if any(is_pipe(n) or (is_archive(n) and not _can_be_listed(n)) for n in names):
        return None
    listed = Listing([], [], [])
    for name in names:
        for image, source in _elsewhere(name) if is_elsewhere(name) else entries(name):
            listed.names.append(image)
            listed.sources.append(source)
            below = os.path.relpath(image, name).replace(os.sep, "/")
            listed.below.append(os.path.basename(image) if below == "." else below)
    return listed


def _can_be_listed(archive: str) -> bool:
    return is_place(archive) or archive.lower().endswith(".zip")


def _images(file: File) -> Iterator[tuple[str, Any]]:
    name = file.name
    if name.endswith(".parquet"):
        yield from ((f"{name}/{i}", row) for i, row in enumerate(rows(file)))
    elif name.endswith(".tar"):
        yield from ((f"{name}/{s.key}", place) for s, place in members(file, notes=False))
    elif is_image(PurePosixPath(name).name):
        yield name, Place(file)


def members(tar: File, notes: bool = True) -> list[tuple[Sample, Place]]:
    """The samples of a plain tar, and where their images lie."""
    try:
        with tar.open() as file:
            packed = samples(file, tar.name, notes)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise _unread(tar.name, error) from error
    return [(sample, Place(tar, sample.offset, sample.size)) for sample in packed]
