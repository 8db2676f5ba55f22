"""Data sets that lie elsewhere: Parquet files, object stores (`adte.data.places`).

remote:s3://bucket/photos               a folder per class
remote:s3://bucket/test-{000..009}.tar  tars of <key>.jpg with <key>.cls or .json; classes=FILE
parquet:FILE, FOLDER or address         columns image (bytes) and label (a name or a number)
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
from adte.data.names import read_names
from adte.data.places import LABEL, File, Place, files, is_place, members, row_group, rows, table
from adte.data.registry import DatasetInfo, Found, Reader, register_dataset
from adte.data.webdataset import MOST, label_of
from adte.data.webdataset import expand as expand_pattern
from adte.images.decode import is_image

__all__ = ["Parquet", "Remote"]

OWN = "it is your own"


@dataclass(frozen=True, kw_only=True)
class _Elsewhere(Reader):
    """A reader of places: nothing of it need lie on this machine."""

    generic = True
    mend = "check the address"

    classes: str | None = option(None, "file of class names, if labels are numbers")

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
            names = read_names(self.classes, by_label=numbers)
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


STORED = ("ADDRESS/CLASS/*.jpg", "ADDRESS/*.tar of KEY.jpg with KEY.cls or .json")
ROWS = ("*.parquet with columns image and label",)


@register_dataset(DatasetInfo("remote", "images in an object store", how=OWN, layouts=STORED))
@dataclass(frozen=True, kw_only=True)
class Remote(_Elsewhere):
    """A folder per class, or tars with <key>.jpg beside <key>.cls or <key>.json."""

    label_key: str = option("label", "key of the label, if labels are in .json members")

    def open(self, name: str) -> Dataset:
        pattern = name.endswith(".tar")
        there = [File(f) for f in expand_pattern(name)] if pattern else files(name)
        if tars := [f for f in there if f.name.endswith(".tar")]:
            found = [
                (f"{_stem(tar)}/{s.key}", place, label_of(s, tar.name, self.label_key))
                for tar in tars
                for s, place in members(tar)
            ]
            return self._data(name, found, f"{len(tars)} tars")
        below = [(f.below.lstrip("/"), f) for f in there if is_image(PurePosixPath(f.name).name)]
        return self._data(
            name, [(b, Place(f), b.partition("/")[0]) for b, f in below if "/" in b], "folders"
        )


@register_dataset(DatasetInfo("parquet", "images in Parquet files", how=OWN, layouts=ROWS))
@dataclass(frozen=True, kw_only=True)
class Parquet(_Elsewhere):
    """Columns image and label; see `IMAGE` and `LABEL` for other names of them."""

    def open(self, name: str) -> Dataset:
        tables = [f for f in files(name) if f.name.endswith(".parquet")]
        found: list[tuple[str, Any, Any]] = []
        for file in tables:
            meta, _, label = table(file)
            if label is None:
                raise InputError(f"{file.name!r} has no column of labels; call it {LABEL[0]!r}")
            labels: list[Any] = []
            for group in range(meta.num_row_groups):
                labels += row_group(file, group, label).to_pylist()
            found += [
                (f"{_stem(file)}/{i}", row, _label(file, i, y))
                for i, (row, y) in enumerate(zip(rows(file), labels, strict=True))
            ]
        return self._data(name, found, f"{len(tables)} Parquet files")


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
