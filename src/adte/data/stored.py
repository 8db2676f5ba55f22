"""Images that are pieces of files, here or in an object store: tars, Parquet (`adte.data.places`).

webdataset:test-{000..009}.tar   tars of <key>.jpg with <key>.cls or .json; a folder or address, too
remote:s3://bucket/photos        a folder per class, or such tars
parquet:FILE, FOLDER or address  columns image (bytes) and label (a name or a number)
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import published
from adte.data.files import first
from adte.data.names import read_names
from adte.data.places import LABEL, File, Place, files, is_place, members, row_group, rows, table
from adte.data.registry import Location, Reader
from adte.data.tars import MOST, expand, label_of
from adte.images.decode import is_image

__all__ = ["Parquet", "Tars"]


@dataclass(frozen=True, kw_only=True)
class Stored(Reader):
    """A reader of a path, a pattern or an address: nothing of it need lie on this machine."""

    generic = True

    classes: str | None = option(
        None, "file of class names, if labels are numbers; by default classes.json or "
        "classnames.txt beside the files"
    )  # fmt: skip

    def find(self, root: Path) -> Location | None:
        return Location(root, "files of images") if self.recognise(root) else None

    def read(self, root: Path, location: Location) -> Dataset:
        return self.open(str(root))

    def load(self, path: str | os.PathLike[str] | None) -> Dataset:
        name = self._need(path)
        name = name if is_place(name) else os.path.expanduser(name)
        data = self.open(name)
        if not len(data):
            raise self._unknown_layout(name)
        self._assert(data, Path(name), Location(Path(name), data.split))
        return data

    @abstractmethod
    def open(self, name: str) -> Dataset:
        """The set at this path or address."""

    def _data(
        self, name: str, folder: Path | None, items: Sequence[tuple[str, Any, Any]], split: str
    ) -> Dataset:
        """A set of (id, source, label); labels are names, or numbers of the names in a file that
        is given or lies in or above the folder.
        """
        numbers = any(isinstance(label, int) for _, _, label in items)
        near = ("classes.json", "classnames.txt", "../classes.json", "../classnames.txt")
        path = self.classes
        if path is None and numbers and folder is not None:
            path = str(first(folder, near, Path.is_file) or "")
        if path:
            names = read_names(path, by_label=numbers)
        elif numbers:
            raise InputError(
                f"the labels of {name!r} are numbers, and no class names lie beside it; put "
                "classnames.txt there, one name a line, or ?classes=FILE behind the path"
            )
        else:
            names = {label: label for label in sorted({label for _, _, label in items})}
        rank = {key: i for i, key in enumerate(names)}
        labels = [y if isinstance(y, int) else rank.get(y, -1) for _, _, y in items]
        return Dataset(
            name=folder.resolve().name if folder else name.rstrip("/").rpartition("/")[2],
            classes=tuple(names.values()),
            class_ids=tuple(names),
            sources=[source for _, source, _ in items],
            labels=np.array(labels, dtype=np.int64),
            ids=[key for key, _, _ in items],
            split=split,
            root=folder,
        )


@published("webdataset", "remote")
@dataclass(frozen=True, kw_only=True)
class Tars(Stored):
    """Tars with <key>.jpg beside <key>.cls or <key>.json; at an address also a folder per class."""

    label_key: str = option("label", "key of the label, if labels are in .json members")

    def recognise(self, root: Path) -> bool:
        return (root.is_dir() and bool(list(root.glob("*.tar")))) or root.suffix == ".tar"

    def open(self, name: str) -> Dataset:
        folder = None
        if not is_place(name):
            folder, tars = _local(name)
        elif name.endswith(".tar"):
            tars = [File(address) for address in expand(name)]
        else:
            there = files(name)
            tars = [f for f in there if f.name.endswith(".tar")]
            if not tars:
                images = [f for f in there if is_image(PurePosixPath(f.name).name)]
                below = [(f.below.lstrip("/"), f) for f in images]
                items = [(b, Place(f), b.partition("/")[0]) for b, f in below if "/" in b]
                return self._data(name, None, items, "folders")
        packed = [
            (f"{_stem(tar)}/{s.key}", place, label_of(s, tar.name, self.label_key))
            for tar in tars
            for s, place in members(tar)
        ]
        return self._data(name, folder, packed, f"{len(tars)} tars")


def _local(pattern: str) -> tuple[Path, list[File]]:
    """The folder that holds the tars of a pattern, and the tars below it."""
    paths = expand(pattern)
    lost = [path for path in paths if not os.path.isfile(path)]
    if lost:
        raise InputError(
            f"{lost[0]!r} is no tar; give a file, a folder of tars, or a pattern such as "
            "test-{000..009}.tar"
        )
    folder = Path(pattern)
    if not folder.is_dir():
        folder = Path(os.path.commonpath([os.path.dirname(p) or "." for p in paths or [pattern]]))
    return folder, [File(str(folder), f"/{Path(p).relative_to(folder).as_posix()}") for p in paths]


@published("parquet")
@dataclass(frozen=True, kw_only=True)
class Parquet(Stored):
    """Columns image and label; see `IMAGE` and `LABEL` for other names of them."""

    def recognise(self, root: Path) -> bool:
        return root.suffix == ".parquet"

    def open(self, name: str) -> Dataset:
        tables = [f for f in files(name) if f.name.endswith(".parquet")]
        items: list[tuple[str, Any, Any]] = []
        for file in tables:
            meta, _, label = table(file)
            if label is None:
                raise InputError(f"{file.name!r} has no column of labels; call it {LABEL[0]!r}")
            labels: list[Any] = []
            for group in range(meta.num_row_groups):
                labels += row_group(file, group, label).to_pylist()
            items += [
                (f"{_stem(file)}/{i}", row, _label(file, i, y))
                for i, (row, y) in enumerate(zip(rows(file), labels, strict=True))
            ]
        folder = None if is_place(name) else Path(name)
        return self._data(name, folder, items, f"{len(tables)} Parquet files")


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
