"""The ten cross-domain sets share CoOp's split files.

A split file is {"train" | "val" | "test": [[path, label, class name], …]}. Names are taken by
label over all three parts, never by first appearance. For Caltech, Flowers, Food, DTD and EuroSAT
CoOp drew the split at random, so without the file its test set cannot be had; the reader then takes
the official test set, or all images, and says so in `split`. With `complete=False` images that the
split names and the folder lacks are left out: a part of a set can be read under the real split.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.registry import Found, Reader

__all__ = ["CoopReader", "Split", "read_split"]

PARTS = ("train", "val", "test")


class Split(NamedTuple):
    """Images of one part with labels, and the names and ids of all classes by label."""

    files: list[tuple[str, int]]
    names: tuple[str, ...]
    ids: tuple[str, ...]


def read_split(path: str | Path, part: str = "test") -> Split:
    """One part of a CoOp split file. Ids are the images' folders where each class has its own."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        rows = {p: [(str(f), int(y), str(n)) for f, y, n in data[p]] for p in PARTS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(path)!r} is not a CoOp split file ({type(error).__name__}: {error}); it must "
            "map train, val and test to lists of [path, label, class name]"
        ) from error
    names: dict[int, str] = {}
    folders: dict[int, set[str]] = {}
    for file, label, name in (row for p in PARTS for row in rows[p]):
        if names.setdefault(label, name) != name:
            raise InputError(
                f"{str(path)!r} calls label {label} both {names[label]!r} and {name!r}; "
                "one label must have one name"
            )
        folders.setdefault(label, set()).add(file.rpartition("/")[0])
    labels = sorted(names)
    if labels != list(range(len(labels))):
        gap = next(i for i, y in enumerate([*labels, -1]) if y != i)
        raise InputError(
            f"{str(path)!r} has no label {gap} among its {len(labels)}; labels must run from 0 "
            "without gaps"
        )
    own = [min(folders[y]) for y in labels]
    apart = all(len(folders[y]) == 1 for y in labels) and len(set(own)) == len(own)
    by_label = tuple(names[y] for y in labels)
    ids = tuple(own) if apart else by_label
    return Split([(f, y) for f, y, _ in rows[part]], by_label, ids)


@dataclass(frozen=True, kw_only=True)
class CoopReader(Reader):
    """A set with a CoOp split file, an official list, or both."""

    split_name: ClassVar[str] = ""  # of the split file
    homes: ClassVar[tuple[str, ...]] = ()  # folders of the set below a root for all sets
    images: ClassVar[tuple[str, ...]] = ("",)  # folders of the images below the set's own
    sizes: ClassVar[tuple[int, int, int]] = (0, 0, 0)  # train, val, test of the split file

    split: Literal["auto", "coop", "official"] = option(
        "auto", "split to read; auto takes CoOp's if its file is found, else the official one"
    )
    part: Literal["test", "val", "train"] = option("test", "part of CoOp's split to read")
    split_file: str | None = option(None, "CoOp's split file, if it is not beside the images")
    check_files: bool = option(
        True, "check that all images that the split names exist; false does so as they are read"
    )

    def find(self, root: Path) -> Found | None:
        if self.split == "official" and self.part != "test":
            raise InputError(
                f"part={self.part!r} belongs to CoOp's split; put ?split=coop or ?part=test behind "
                "the path"
            )
        bases = [root, *(root / home for home in self.homes)]
        whole = root.absolute()
        if whole.name in self.images:  # it is the images; the lists lie beside it
            bases.append(whole.parent)
        if self.split != "official" and (found := self._find_split(root, bases)):
            return found
        if self.split == "coop" or self.part != "test":
            raise InputError(
                f"{str(root)!r} has no {self.split_name or 'split file'}; it is linked from "
                "KaiyangZhou/CoOp DATASETS.md: put it beside the images, or "
                "?split_file=FILE behind the path"
            )
        return next((f for base in bases if (f := self.find_official(base))), None)

    def _find_split(self, root: Path, bases: Sequence[Path]) -> Found | None:
        given = Path(os.path.expanduser(self.split_file)) if self.split_file else None
        if given and not given.is_file():
            raise InputError(f"split file {str(given)!r} does not exist; check the path")
        if not self.split_name:
            return None
        for base in bases:
            path = given or base / self.split_name
            if not path.is_file():
                continue
            count = self.sizes[PARTS.index(self.part)]
            layout = f"CoOp's split, part {self.part} of {path.name}"
            folders = [base / place for place in self.images]
            here = (f for f in folders if f.is_dir())
            if self.check_files:
                names = [name for name, _ in read_split(path, self.part).files]
                here = (f for f in here if any((f / self.locate(f, n)).is_file() for n in names))
            folder = next(here, None if given else folders[0])
            if folder is not None:
                return Found(folder, layout, count, path)
        return Found(root, f"CoOp's split, part {self.part}", None, given) if given else None

    def locate(self, folder: Path, name: str) -> str:
        """Where an image of the split lies below the folder of images."""
        return name

    @abstractmethod
    def find_official(self, base: Path) -> Found | None:
        """The set without CoOp's file."""

    @abstractmethod
    def read_official(self, found: Found) -> Split:
        """Its images and names."""

    def read(self, root: Path, found: Found) -> Dataset:
        coop = found.layout.startswith("CoOp")
        split = read_split(found.split, self.part) if coop and found.split else None
        split = split or self.read_official(found)
        files = [(self.locate(found.folder, f), y) for f, y in split.files]
        layout = found.layout
        if self.check_files:
            files, less = self._there(found, files)
            layout += less
        return Dataset.of_files(
            self.info.name, found.folder, files, classes=split.names, class_ids=split.ids,
            split=layout, root=root, templates=self.info.templates,
        )  # fmt: skip
