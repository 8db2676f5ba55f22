"""A Hugging Face data set on disk, as `save_to_disk` writes it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from adte.core.errors import InputError, MissingExtra
from adte.core.options import option
from adte.data.base import Dataset, Lazy
from adte.data.cards import published
from adte.data.names import read_names
from adte.data.registry import Location, Reader

__all__ = ["HuggingFace"]


@published("hf")
@dataclass(frozen=True, kw_only=True)
class HuggingFace(Reader):
    """The first image column and the first class-label column, unless they are named."""

    generic = True

    part: str | None = option(
        None, "split to read; by default test, else validation, else the first"
    )
    image: str | None = option(None, "column of images; by default the one of that type")
    label: str | None = option(None, "column of labels; by default the one of that type")
    classes: str | None = option(None, "file of class names, if the column has none")

    def find(self, root: Path) -> Location | None:
        marks = "dataset_dict.json", "dataset_info.json", "state.json"
        here = any((root / mark).is_file() for mark in marks)
        return Location(root, f"saved data set, part {self.part or 'by default'}") if here else None

    def read(self, root: Path, location: Location) -> Dataset:
        data = _load(root, self.part)
        kinds = {name: type(feature).__name__ for name, feature in data.features.items()}
        image = _column("image", self.image, kinds, "Image")
        label = _column("label", self.label, kinds, "ClassLabel")
        if self.classes:
            names = tuple(read_names(self.classes, by_label=True).values())
        elif kinds[label] == "ClassLabel":
            names = tuple(data.features[label].names)
        else:
            raise InputError(
                f"column {label!r} of {str(root)!r} has no class names; give a file of "
                "them: put ?classes=FILE behind the path"
            )
        unique = len(set(names)) == len(names)
        return Dataset(
            name=root.resolve().name,
            classes=names,
            class_ids=names if unique else tuple(map(str, range(len(names)))),
            sources=Lazy(len(data), partial(_image, root, self.part, image, time.time_ns())),
            labels=np.array(data.select_columns([label])[label][:], dtype=np.int64),
            ids=[f"{data.split or 'all'}/{i:06d}" for i in range(len(data))],
            split=f"saved data set, part {data.split or 'without a name'}",
            root=root,
        )


def _column(what: str, name: str | None, kinds: dict[str, str], kind: str) -> str:
    """The column of this name, or the first of its kind."""
    columns = [c for c, k in kinds.items() if (k == kind if name is None else c == name)]
    if not columns:
        raise InputError(
            f"the data set has no {what} column {name or f'of kind {kind}'!r}; put "
            f"?{what}=NAME behind the path, one of: {', '.join(kinds)}"
        )
    return columns[0]


def _load(folder: Path, part: str | None) -> Any:
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise MissingExtra("datasets", "hf", "reading a Hugging Face data set") from error
    data = library.load_from_disk(str(folder))
    if not isinstance(data, dict):
        return data
    if part is None:
        part = next((p for p in ("test", "validation", "val", *data) if p in data), None)
    if part not in data:
        raise InputError(
            f"{str(folder)!r} has no part {part!r}; put ?part=NAME behind the path, one of: "
            f"{', '.join(data)}"
        )
    return data[part]


@lru_cache(maxsize=4)
def _encoded(folder: Path, part: str | None, column: str, loaded: int) -> Any:
    """The set, opened once for each time that it was loaded: it may be another one by then."""
    encoded = import_module("datasets").Image(decode=False)
    return _load(folder, part).cast_column(column, encoded)


def _image(folder: Path, part: str | None, column: str, loaded: int, index: int) -> Any:
    """An image as it is stored."""
    image = _encoded(folder, part, column, loaded)[index][column]
    return image["bytes"] if image["bytes"] is not None else Path(image["path"])
