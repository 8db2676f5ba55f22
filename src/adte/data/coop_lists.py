"""Oxford Pets, FGVC Aircraft, SUN397 and UCF101: the official test lists are text files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adte.core.errors import InputError
from adte.data.cards import CARDS
from adte.data.coop import CoopReader, Split
from adte.data.files import first, lines
from adte.data.registry import Found, register_dataset

__all__ = ["SUN397", "UCF101", "Aircraft", "Pets"]


def _label(rank: dict[str, int], name: str, path: Path) -> int:
    if name not in rank:
        raise InputError(
            f"{str(path)!r} names the class {name!r}, which the list of classes lacks; both "
            "files must come from the same release"
        )
    return rank[name]


@dataclass(frozen=True, kw_only=True)
class ListReader(CoopReader):
    """A list of test images and a list of classes, in one folder."""

    lists: ClassVar[tuple[str, ...]] = ("",)  # folders that may hold the lists
    test_list: ClassVar[str] = ""
    class_list: ClassVar[str] = ""

    def find_official(self, base: Path) -> Found | None:
        needed = [n for n in (self.test_list, self.class_list) if n]
        home = first(base, self.lists, lambda p: all((p / n).is_file() for n in needed))
        folder = first(base, self.images, Path.is_dir)
        if home is None or folder is None:
            return None
        return Found(folder, f"official test list {self.test_list}", self.info.images,
                     home / self.test_list)  # fmt: skip


@register_dataset(CARDS["pets"])
@dataclass(frozen=True, kw_only=True)
class Pets(ListReader):
    """Breeds by the class number of the list: cats are capitalised in file names, so sort none."""

    split_name = "split_zhou_OxfordPets.json"
    homes = ("oxford_pets", "OxfordPets", "oxford-iiit-pet")
    images = ("images", "")
    sizes = (2944, 736, 3669)
    lists = ("annotations",)
    test_list = "test.txt"

    def recognise(self, root: Path) -> bool:
        found = self.find(root)
        if found is None or found.split is None:
            return False
        if found.split.suffix == ".json":
            return True
        return any(re.match(r"\w+_\d+ \d+ \d+ \d+", row) for row in lines(found.split)[:1])

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        files, names = [], {}
        for line in lines(found.split):
            image, number = line.split()[:2]
            files.append((f"{image}.jpg", int(number) - 1))
            names[int(number) - 1] = image.rpartition("_")[0].lower()
        if sorted(names) != list(range(len(names))):
            raise InputError(
                f"the class numbers of {str(found.split)!r} do not run from 1 without gaps; "
                "give the test.txt of the release"
            )
        by_label = tuple(names[i] for i in range(len(names)))
        return Split(files, by_label, by_label)


@register_dataset(CARDS["aircraft"])
@dataclass(frozen=True, kw_only=True)
class Aircraft(ListReader):
    """Variants. Names hold spaces and slashes, so lines are split at the first space only."""

    homes = ("fgvc_aircraft", "fgvc-aircraft-2013b/data", "fgvc-aircraft-2013b", "data",
             "fgvc_aircraft/data")  # fmt: skip
    images = ("images",)
    test_list = "images_variant_test.txt"
    class_list = "variants.txt"

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        names = tuple(lines(found.split.parent / self.class_list))
        rank = {n: i for i, n in enumerate(names)}
        files = []
        for line in lines(found.split):
            image, _, variant = line.partition(" ")
            files.append((f"{image}.jpg", _label(rank, variant, found.split)))
        return Split(files, names, names)


@register_dataset(CARDS["sun397"])
@dataclass(frozen=True, kw_only=True)
class SUN397(ListReader):
    """Scenes by the line of `ClassName.txt`; CoOp turns a second level round: "outdoor abbey"."""

    split_name = "split_zhou_SUN397.json"
    homes = ("sun397", "SUN397")
    images = ("SUN397", "")
    sizes = (15_880, 3_970, 19_850)
    lists = ("", "SUN397", "Partitions")
    test_list = "Testing_01.txt"
    class_list = "ClassName.txt"

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        ids = tuple(line.lstrip("/") for line in lines(found.split.parent / self.class_list))
        rank = {i: y for y, i in enumerate(ids)}  # such as a/apartment_building/outdoor
        paths = [line.lstrip("/") for line in lines(found.split)]
        files = [(p, _label(rank, p.rpartition("/")[0], found.split)) for p in paths]
        names = tuple(" ".join(reversed(i.split("/")[1:])) for i in ids)
        return Split(files, names, ids)


@register_dataset(CARDS["ucf101"])
@dataclass(frozen=True, kw_only=True)
class UCF101(ListReader):
    """Actions by the number of `classInd.txt`, which is not quite the alphabet."""

    split_name = "split_zhou_UCF101.json"
    homes = ("ucf101", "UCF101")
    images = ("UCF-101-midframes", "")
    sizes = (7639, 1898, 3783)
    lists = ("ucfTrainTestlist", "")
    test_list = "testlist01.txt"
    class_list = "classInd.txt"

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        numbered = dict(line.split() for line in lines(found.split.parent / self.class_list))
        actions = [numbered.get(str(i + 1), "") for i in range(len(numbered))]
        rank = {a: i for i, a in enumerate(actions)}
        names = tuple(map(_snake, actions))
        files = []
        for line in lines(found.split):
            action, _, video = line.split()[0].partition("/")
            label = _label(rank, action, found.split)
            files.append((f"{names[label]}/{video.rpartition('.')[0]}.jpg", label))
        return Split(files, names, names)


def _snake(action: str) -> str:
    """CleanAndJerk → Clean_And_Jerk."""
    return "_".join(re.findall(r"[A-Z][^A-Z]*", action)) or action
