"""Images beyond folders: Parquet files and object stores, through the file systems of Arrow.

A place is a path or an address such as s3://bucket/folder, gs://…, abfs://…, hdfs://…: whatever
`pyarrow.fs` reads, and where it does not know the scheme, `fsspec`. Nothing is copied to disk: a
worker reads an image where it decodes it.

    remote:s3://bucket/photos             a folder per class
    remote:s3://bucket/test-{000..009}.tar  tars, <key>.jpg beside <key>.cls, with classes=FILE
    parquet:FILE, FOLDER or address       columns image (bytes) and label (a name or a number)

The first two are data sets, of `--data`; `predict` takes such places as they are.
"""

from __future__ import annotations

import os
import re
import tarfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from adte.data.base import Dataset
from adte.data.names import read_names
from adte.data.registry import DatasetInfo, Found, Reader, register_dataset
from adte.data.webdataset import MOST, is_picture, second_image, split_member, warn_of_others
from adte.data.webdataset import expand as expand_pattern
from adte.errors import InputError, MissingExtra
from adte.files.inputs import expand as expand_local
from adte.images import is_image
from adte.options import option

__all__ = ["File", "Parquet", "Place", "Remote", "expand", "is_place"]

IMAGE = ("image", "jpg", "jpeg", "png", "bytes", "content")
LABEL = ("label", "cls", "class", "fine_label")
OWN = "it is your own"


def is_place(name: str) -> bool:
    """Whether a name is an address rather than a path."""
    return re.match(r"^[a-z][a-z0-9+.-]+://", name) is not None


@lru_cache(maxsize=64)
def _file_system(root: str) -> tuple[Any, str]:
    """The file system of a place, and the path in it."""
    try:
        from pyarrow import ArrowInvalid, fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("pyarrow", "ray", "reading from an object store") from error
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
    said = " ".join(str(error).split())[:200]
    return InputError(f"cannot read {root!r} ({said}); check the address and your access to it")


@dataclass(frozen=True)
class File:
    """A file at or below a place. What is below is a path: no address, so #, ? and % are plain."""

    root: str
    below: str = ""

    @property
    def name(self) -> str:
        return f"{self.root.rstrip('/')}{self.below}" if self.below else self.root

    def open(self) -> Any:
        """For reading, by its file system."""
        system, path = _file_system(self.root)
        try:
            return system.open_input_file(f"{path.rstrip('/')}{self.below}" if self.below else path)
        except OSError as error:
            raise _unread(self.name, error) from error


@dataclass(frozen=True)
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


def _files(root: str) -> list[File]:
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
        found = system.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise _unread(root, error) from error
    names = [f.path[len(path.rstrip("/")) :] for f in found if f.type == fs.FileType.File]
    return [File(root, name) for name in sorted(names) if not _hidden(name)]


def _hidden(name: str) -> bool:
    return "/." in name or ("/_" in name and name.endswith(".parquet"))


# --------------------------------------------------------------------------- Parquet


@lru_cache(maxsize=4)
def _row_group(file: File, group: int, column: str) -> Any:
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
        value = _row_group(self.file, self.group, self.column)[self.row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise InputError(
                f"row {self.row} of {self.file.name!r} has no bytes under {self.column!r}; write "
                "encoded images there"
            )
        return data


def _table(file: File) -> tuple[Any, str, str | None]:
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


def _rows(file: File) -> Iterator[Row]:
    meta, image, _ = _table(file)
    for group in range(meta.num_row_groups):
        for row in range(meta.row_group(group).num_rows):
            yield Row(file, group, row, image)


# --------------------------------------------------------------------------- what predict takes


def expand(inputs: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Images with their names, in order: addresses and Parquet files here, the rest as always."""
    names = list(inputs)
    if not any(map(_is_ours, names)):
        yield from expand_local(names)
        return
    for name in names:
        if not _is_ours(name):
            yield from expand_local([name])
            continue
        found = _files(name)
        images = 0
        for file in found:
            for item in _images(file):
                images += 1
                yield item
        if not images:
            yield name, InputError(f"{name!r} holds no image; check the address")


def _is_ours(name: str) -> bool:
    """An address or a Parquet file; many of these in a folder may end in a slash."""
    return is_place(name) or name.rstrip("/").endswith(".parquet")


def _images(file: File) -> Iterator[tuple[str, Any]]:
    name = file.name
    if name.endswith(".parquet"):
        yield from ((f"{name}/{i}", row) for i, row in enumerate(_rows(file)))
    elif name.endswith(".tar"):
        yield from ((f"{name}/{key}", place) for key, place, _ in _members(file, labelled=False))
    elif is_image(PurePosixPath(name).name):
        yield name, Place(file)


def _members(tar: File, labelled: bool = True) -> Iterator[tuple[str, Place, int | None]]:
    """Key, image and, if asked for, label of a plain tar's samples, from its headers."""
    images: dict[str, Place] = {}
    labels: dict[str, int] = {}
    others: dict[str, str] = {}  # the name of a seg.png or the like, by key
    try:
        with (
            tar.open() as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            for member in archive:
                key, kind = split_member(member.name)
                if not member.isfile() or not key:
                    continue
                if is_picture(kind):
                    if key in images:
                        raise second_image(tar.name, key)
                    images[key] = Place(tar, member.offset_data, member.size)
                elif is_image(f"x.{kind}"):
                    others[key] = member.name
                elif kind == "cls" and labelled:
                    content = archive.extractfile(member)
                    labels[key] = _number(content.read() if content else b"", tar, key)
    except InputError:
        raise
    except (OSError, ValueError, tarfile.TarError) as error:
        raise _unread(tar.name, error) from error
    warn_of_others(tar.name, [name for key, name in others.items() if key not in images])
    if labelled and (lost := next((key for key in images if key not in labels), None)):
        raise _unlabelled(tar, lost)
    yield from ((key, place, labels.get(key)) for key, place in images.items())


def _number(label: bytes, tar: File, key: str) -> int:
    try:
        number = int(label)
    except ValueError as error:
        raise _unlabelled(tar, key) from error
    if not 0 <= number < MOST:
        raise _unlabelled(tar, key)
    return number


def _unlabelled(tar: File, key: str) -> InputError:
    return InputError(
        f"image {key!r} in {tar.name!r} has no whole number as label in .cls; number the "
        "classes from 0 on"
    )


# --------------------------------------------------------------------------- what --data takes


@dataclass(frozen=True, kw_only=True)
class _Elsewhere(Reader):
    """A reader of places: nothing of it need lie on this machine."""

    generic = True
    mend = "check the address"

    classes: str | None = option(None, "file of class names, where labels are numbers")

    def find(self, root: Path) -> Found | None:
        return None

    def read(self, root: Path, found: Found) -> Dataset:
        raise InputError(f"{str(root)!r} is read by its address; write {self.info.name}:ADDRESS")

    def load(self, path: str | os.PathLike[str] | None) -> Dataset:
        if path is None:
            return super().load(path)
        name = os.fspath(path)
        data = self.open(name)
        if not len(data):
            raise InputError(
                f"{name!r} does not hold {self.info.title} in a layout that adte knows "
                f"({'; '.join(self.info.layouts)}); check the address"
            )
        self._assert(data, Path(name), Found(Path(name), data.split))
        return data

    @abstractmethod
    def open(self, name: str) -> Dataset:
        """The set at this address."""

    def _data(self, name: str, items: Sequence[tuple[str, Any, Any]], split: str) -> Dataset:
        """A set of (id, source, label); labels are names, or numbers of the names in a file."""
        numbers = any(isinstance(label, int) for _, _, label in items)
        if self.classes:
            names = read_names(os.path.expanduser(self.classes), by_label=numbers)
        elif numbers:
            raise InputError(
                f"the labels of {name!r} are numbers; give a file with their names: put "
                "?classes=FILE behind the address"
            )
        else:
            names = {label: label for label in sorted({label for _, _, label in items})}
        rank = {key: i for i, key in enumerate(names)}
        labels = [y if isinstance(y, int) else rank.get(y, -1) for _, _, y in items]
        return Dataset(
            name=name.rstrip("/").rpartition("/")[2],
            classes=tuple(names.values()),
            class_ids=tuple(names),
            sources=[source for _, source, _ in items],
            labels=np.array(labels, dtype=np.int64),
            ids=[key for key, _, _ in items],
            split=split,
            root=None if is_place(name) else Path(name),
        )


STORED = ("ADDRESS/CLASS/*.jpg", "ADDRESS/*.tar with KEY.jpg and KEY.cls")
ROWS = ("*.parquet with columns image and label",)


@register_dataset(DatasetInfo("remote", "images in an object store", how=OWN, layouts=STORED))
@dataclass(frozen=True, kw_only=True)
class Remote(_Elsewhere):
    """A folder per class, or tars with <key>.jpg beside <key>.cls."""

    def open(self, name: str) -> Dataset:
        pattern = name.endswith(".tar")
        files = [File(f) for f in expand_pattern(name)] if pattern else _files(name)
        if tars := [f for f in files if f.name.endswith(".tar")]:
            found = [
                (f"{_stem(tar)}/{key}", place, label)
                for tar in tars
                for key, place, label in _members(tar)
            ]
            return self._data(name, found, f"{len(tars)} tars")
        below = [(f.below.lstrip("/"), f) for f in files if is_image(PurePosixPath(f.name).name)]
        return self._data(
            name, [(b, Place(f), b.partition("/")[0]) for b, f in below if "/" in b], "folders"
        )


@register_dataset(DatasetInfo("parquet", "images in Parquet files", how=OWN, layouts=ROWS))
@dataclass(frozen=True, kw_only=True)
class Parquet(_Elsewhere):
    """Columns image and label; see `IMAGE` and `LABEL` for other names of them."""

    def open(self, name: str) -> Dataset:
        files = [f for f in _files(name) if f.name.endswith(".parquet")]
        found: list[tuple[str, Any, Any]] = []
        for file in files:
            meta, _, label = _table(file)
            if label is None:
                raise InputError(f"{file.name!r} has no column of labels; call it {LABEL[0]!r}")
            labels: list[Any] = []
            for group in range(meta.num_row_groups):
                labels += _row_group(file, group, label).to_pylist()
            rows = zip(_rows(file), labels, strict=True)
            found += [
                (f"{_stem(file)}/{i}", row, _label(file, i, y)) for i, (row, y) in enumerate(rows)
            ]
        return self._data(name, found, f"{len(files)} Parquet files")


def _stem(file: File) -> str:
    """Where a file lies below its place, without its ending; its name, if it is the place."""
    path = PurePosixPath(file.below.lstrip("/") or PurePosixPath(file.name).name)
    return str(path.with_suffix(""))


def _label(file: File, row: int, value: Any) -> str | int:
    """A label of a table: a name or a whole number."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) or (isinstance(value, int) and 0 <= value < MOST):
        return value
    raise InputError(
        f"row {row} of {file.name!r} has the label {value!r}; give every row a name or a whole "
        "number from 0 on"
    )
