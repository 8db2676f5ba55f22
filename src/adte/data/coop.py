"""The ten cross-domain sets: CoOp's split files, or the official lists.

A split file is {"train" | "val" | "test": [[path, label, class name], …]}. Names are taken by
label over all three parts, never by first appearance. For Caltech, Flowers, Food, DTD and EuroSAT
CoOp drew the split at random, so without the file its test set cannot be had; the reader then takes
the official test set, or all images, and says so in `split`. With `complete=False` images that the
split names and the folder lacks are left out: a part of a set can be read under the real split.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import published
from adte.data.files import first, image_names, lines, load_mat, subfolders
from adte.data.registry import Location, Reader

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
    by_label = _without_gaps(names, path)
    own = [min(folders[y]) for y in range(len(names))]
    apart = all(len(places) == 1 for places in folders.values()) and len(set(own)) == len(own)
    return Split([(f, y) for f, y, _ in rows[part]], by_label, tuple(own) if apart else by_label)


def _without_gaps(names: Mapping[int, str], path: Path) -> tuple[str, ...]:
    """Names by label."""
    gap = next((y for y in range(len(names)) if y not in names), None)
    if gap is not None:
        raise InputError(
            f"{str(path)!r} has no label {gap} among its {len(names)}; the labels of a release run "
            "without gaps: fetch it again"
        )
    return tuple(names[y] for y in range(len(names)))


@published("pets", "flowers", "aircraft", "dtd", "eurosat", "cars", "food101", "sun397",
           "caltech101", "ucf101")  # fmt: skip
@dataclass(frozen=True, kw_only=True)
class CoopReader(Reader):
    """A set with a CoOp split file, an official list, or both."""

    rule: ClassVar[str] = ""  # how labels are had without CoOp's file, see RULES
    homes: ClassVar[tuple[str, ...]] = ()  # folders of the set below a root for all sets
    folders: ClassVar[tuple[str, ...]] = ("",)  # of the images below the set's own
    coop: ClassVar[str] = ""  # the split file
    coop_md5: ClassVar[str] = ""  # of the one in circulation, the same in two repositories
    sizes: ClassVar[tuple[int, int, int]] = (0, 0, 0)  # train, val, test of the split file
    lists: ClassVar[tuple[str, ...]] = ()  # where the official list may lie
    official: ClassVar[int | None] = None  # images without the split file, if there are others
    marks: ClassVar[tuple[str, ...]] = ()  # folders, any of which gives the set away
    note: ClassVar[str] = ""  # what to know if the list is missing
    no_class: ClassVar[tuple[str, ...]] = ()  # folders that are no class
    renamed: ClassVar[Mapping[str, str]] = {}  # names of classes that are not their folders'
    names: ClassVar[tuple[str, ...]] = ()  # by label, where no file has them

    split: Literal["auto", "coop", "official"] = option(
        "auto", "split to read; auto takes CoOp's if its file is there, else the official one"
    )
    part: Literal["test", "val", "train"] = option("test", "part of CoOp's split to read")
    split_file: str | None = option(None, "CoOp's split file, if it is not beside the images")

    def find(self, root: Path) -> Location | None:
        if self.split == "official" and self.part != "test":
            raise InputError(
                f"part={self.part!r} belongs to CoOp's split; put ?split=coop or ?part=test behind "
                "the path"
            )
        bases = [root, *(root / home for home in self.homes)]
        if root.absolute().name in self.folders:  # it is the images; the lists lie beside it
            bases.append(root.absolute().parent)
        if self.split != "official" and (location := self._find_split(root, bases)):
            return location
        if self.split == "coop" or self.part != "test":
            raise InputError(
                f"{str(root)!r} has no {self.coop or 'split file'}; it is linked from "
                "KaiyangZhou/CoOp DATASETS.md: put it beside the images, or "
                "?split_file=FILE behind the path"
            )
        return self._find_official(bases)

    def _find_split(self, root: Path, bases: Sequence[Path]) -> Location | None:
        if not self.coop:
            return None
        own = Path(os.path.expanduser(self.split_file)) if self.split_file else None
        if own and not own.is_file():
            raise InputError(f"split file {str(own)!r} does not exist; check the path")
        count = self.sizes[PARTS.index(self.part)]
        for base in bases:
            path = own or base / self.coop
            if not path.is_file():
                continue
            words = f"CoOp's split, part {self.part} of {path.name}"
            files = read_split(path, self.part).files
            places = [base / place for place in self.folders]
            here = (p for p in places if any((p / _nested(p, name)).is_file() for name, _ in files))
            folder = next(here, None if own else places[0])
            if folder is not None:
                return Location(folder, words, count, path)
        return Location(root, f"CoOp's split, part {self.part}", None, own) if own else None

    def _find_official(self, bases: Sequence[Path]) -> Location | None:
        marked = None
        for folder in (base / place for base in bases for place in self.folders):
            if not (any((folder / mark).is_dir() for mark in self.marks or ("",))):
                continue
            if not self.lists:
                words = "all images, no split (CoOp's file is not here)"
                return Location(folder, words, self.official)
            for name, home in product(self.lists, (folder.parent, folder)):
                if (home / name).is_file():
                    words = f"official test list {name}"
                    words += " (not CoOp's split)" if self.official else ""
                    return Location(folder, words, self.official or self.info.images, home / name)
            marked = folder if self.marks else None
        if marked is not None:
            raise InputError(
                f"{str(marked)!r} has images of {self.info.title} and no {self.lists[0]}"
                f"{self.note}; add that file, or CoOp's {self.coop}"
            )
        return None

    def recognise(self, root: Path) -> bool:
        location = self.find(root)
        return location is not None and bool(self._split(location).files)

    def _split(self, location: Location) -> Split:
        if location.split and location.split.suffix == ".json":
            return read_split(location.split, self.part)
        return RULES[self.rule](self, location.folder, location.split or location.folder)

    def read(self, root: Path, location: Location) -> Dataset:
        split = self._split(location)
        files = [(_nested(location.folder, name), label) for name, label in split.files]
        return self.dataset(root, location, files, split.names, split.ids)


def _nested(folder: Path, name: str) -> str:
    """Where an image lies: some copies of Cars nest cars_test/cars_test/."""
    top, slash, _ = name.partition("/")
    return f"{top}/{name}" if slash and (folder / top / top).is_dir() else name


# --------------------------------------------------------------------------- the official labels


def class_folders(reader: CoopReader, folder: Path, path: Path) -> Split:
    """Labels are ranks of the folder names in code-point order: in Food-101, `cheese_plate` comes
    before `cheesecake`.
    """
    folders = tuple(f for f in subfolders(folder) if f not in reader.no_class)
    rank = {f: label for label, f in enumerate(folders)}
    if path == folder:
        files = [(f"{f}/{n}", rank[f]) for f in folders for n in image_names(folder / f)]
    else:
        names = [n if n.lower().endswith(".jpg") else f"{n}.jpg" for n in lines(path)]
        files = [(n, rank.get(n.split("/")[0], -1)) for n in names]
    return Split(files, tuple(reader.renamed.get(f, f) for f in folders), folders)


def numbered(reader: CoopReader, folder: Path, path: Path) -> Split:
    """Pets' breeds by class number: cats are capitalised in file names, so sort none."""
    rows = [line.split()[:2] for line in lines(path)]
    files = [(f"{image}.jpg", int(number) - 1) for image, number in rows]
    names = {label: file.rpartition("_")[0].lower() for file, label in files}
    by_label = _without_gaps(names, path)
    return Split(files, by_label, by_label)


def variants(reader: CoopReader, folder: Path, path: Path) -> Split:
    """Aircraft's variants: names hold spaces and slashes, so lines are split at the first space."""
    names = tuple(lines(path.parent / "variants.txt"))
    rows = [line.partition(" ") for line in lines(path)]
    return Split([(f"{i}.jpg", _label(names, v, path)) for i, _, v in rows], names, names)


def scenes(reader: CoopReader, folder: Path, path: Path) -> Split:
    """SUN's scenes by the line of `ClassName.txt`, such as /a/abbey/outdoor; CoOp turns a second
    level round: "outdoor abbey".
    """
    ids = tuple(line.lstrip("/") for line in lines(path.parent / "ClassName.txt"))
    paths = [line.lstrip("/") for line in lines(path)]
    files = [(p, _label(ids, p.rpartition("/")[0], path)) for p in paths]
    return Split(files, tuple(" ".join(reversed(i.split("/")[1:])) for i in ids), ids)


def actions(reader: CoopReader, folder: Path, path: Path) -> Split:
    """UCF's actions by the number of `classInd.txt`, which is not quite the alphabet."""
    numbers = dict(line.split() for line in lines(path.parent / "classInd.txt"))
    named = [numbers.get(str(i + 1), "") for i in range(len(numbers))]
    names = tuple("_".join(re.findall(r"[A-Z][^A-Z]*", a)) or a for a in named)  # Jump_Rope
    files = []
    for line in lines(path):
        action, _, video = line.split()[0].partition("/")
        label = _label(named, action, path)
        files.append((f"{names[label]}/{video.rpartition('.')[0]}.jpg", label))
    return Split(files, names, names)


def cars(reader: CoopReader, folder: Path, path: Path) -> Split:
    """Labels count from 1; like CoOp, the year is put first: "2012 Acura RL Sedan"."""
    meta = first(folder, ("devkit/cars_meta.mat", "cars_meta.mat"), Path.is_file)
    if meta is None:
        raise InputError(
            f"{str(folder)!r} has no devkit/cars_meta.mat, which holds the class names; "
            "unpack car_devkit.tgz there"
        )
    ids = tuple(str(n) for n in np.ravel(load_mat(meta)["class_names"]))
    rows = np.ravel(load_mat(path)["annotations"])
    files = [(f"cars_test/{row['fname']}", int(row["class"]) - 1) for row in rows]
    return Split(files, tuple(re.sub(r"(.*) (\d+)$", r"\2 \1", i) for i in ids), ids)


def flowers(reader: CoopReader, folder: Path, path: Path) -> Split:
    """Labels count from 1; the official test set is `tstid`, the largest of the three parts."""
    labels = np.ravel(load_mat(path.parent / "imagelabels.mat")["labels"])
    numbers = np.ravel(load_mat(path)["tstid"]).tolist()
    files = [(f"image_{i:05d}.jpg", int(labels[i - 1]) - 1) for i in numbers]
    return Split(files, reader.names, reader.names)


def _label(names: Sequence[str], name: str, path: Path) -> int:
    if name not in names:
        raise InputError(
            f"{str(path)!r} names the class {name!r}, which the list of classes lacks; both "
            "files must come from the same release"
        )
    return names.index(name)


RULES: Mapping[str, Callable[[CoopReader, Path, Path], Split]] = {
    "folders": class_folders, "numbered": numbered, "variants": variants, "scenes": scenes,
    "actions": actions, "cars": cars, "flowers": flowers,
}  # fmt: skip
