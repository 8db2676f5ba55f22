"""ImageNet-1k and its relatives: folders by WordNet id, or a list that gives images their ids.

A label is the rank of the WordNet id among those of the set: ImageNet-A, -R and Tiny-ImageNet have
200 of the 1000 and are 200-way tasks. V2's folders are numbers and mean themselves; sorted as texts
(0, 1, 10, 100, …) they would permute the classes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import published
from adte.data.corrupted import CorruptedReader
from adte.data.corruptions import CORRUPTIONS
from adte.data.files import first, image_names, lines, load_mat, subfolders
from adte.data.names import imagenet_ids, imagenet_names
from adte.data.registry import Location, Reader

__all__ = ["ImageNet", "ImageNetC", "ImageNetV2", "TinyImageNet", "WordNetFolders"]

WNID = re.compile(r"n\d{8}")
KAGGLE = "LOC_val_solution.csv"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"  # by the devkit's own numbering of the classes


@published("imagenet-a", "imagenet-r", "imagenet-sketch")
@dataclass(frozen=True, kw_only=True)
class WordNetFolders(Reader):
    """A tree of folders named by WordNet id."""

    subset: ClassVar[str] = "imagenet"  # whose ids, see `imagenet_ids`
    homes: ClassVar[tuple[str, ...]] = ("",)  # "{part}" is that option
    prefix: ClassVar[str] = ""  # of the file names, where the set has one of its own

    @property
    def folders(self) -> Sequence[str]:
        """The name of each class's folder, by label."""
        return imagenet_ids(self.subset)

    def find(self, root: Path) -> Location | None:
        homes = (home.format(**vars(self)) for home in self.homes)
        folder = first(root, homes, lambda p: bool(self._known(p)))
        if folder is None:
            return None
        words = f"folders by WordNet id in {folder.relative_to(root).as_posix()}/"
        return Location(folder, words, self.info.images)

    def _known(self, folder: Path) -> set[str]:
        return set(subfolders(folder)) & set(self.folders)

    def recognise(self, root: Path) -> bool:
        location = self.find(root)
        if location is None or location.split is not None:  # a list of images is the set's own
            return location is not None
        known = self._known(location.folder)
        if self._strays(location.folder) or len(known) < 0.9 * len(self.folders):
            return False
        names = image_names(location.folder / min(known)) if self.prefix else [self.prefix]
        return bool(names) and names[0].startswith(self.prefix)

    def _strays(self, folder: Path) -> list[str]:
        return [n for n in subfolders(folder) if WNID.fullmatch(n) and n not in self.folders]

    def read(self, root: Path, location: Location) -> Dataset:
        if location.split is not None:
            return self._dataset(root, location, self._listed(location, location.split))
        if strays := self._strays(location.folder):
            raise InputError(
                f"folder {strays[0]!r} in {str(location.folder)!r} is none of the "
                f"{len(self.folders)} classes of {self.info.title}{self._hint(root)}"
            )
        return self._dataset(root, location, self._files(location.folder))

    def _files(self, folder: Path) -> list[tuple[str, int]]:
        """The images of the folders, with their labels."""
        files = []
        for label, name in enumerate(self.folders):
            images = image_names(folder / name)
            images = images or [f"images/{n}" for n in image_names(folder / name / "images")]
            files += [(f"{name}/{image}", label) for image in images]
        return files

    def _listed(self, location: Location, path: Path) -> list[tuple[str, int]]:
        """The images that a list names, with their labels."""
        rank = {wnid: label for label, wnid in enumerate(self.folders)}
        files = []
        for name, wnid in sorted(self._ids(path)):
            if wnid not in rank:
                raise InputError(
                    f"{str(path)!r} gives {name!r} the class {wnid!r}, which is none of the "
                    f"{len(rank)}; take the list and the images from one release"
                )
            files.append((name, rank[wnid]))
        return files

    def _ids(self, path: Path) -> list[tuple[str, str]]:
        """The images in a list, with their WordNet ids."""
        raise NotImplementedError

    def _dataset(self, root: Path, location: Location, files: list[tuple[str, int]]) -> Dataset:
        names, ids = imagenet_names(self.subset), imagenet_ids(self.subset)
        return self.dataset(root, location, files, names, ids)


@published("imagenet")
@dataclass(frozen=True, kw_only=True)
class ImageNet(WordNetFolders):
    """ImageNet-1k validation, in folders by id or flat with a ground truth."""

    def find(self, root: Path) -> Location | None:
        if location := super().find(root):
            return location
        places = ("", "val", "ILSVRC2012_img_val", "ILSVRC/Data/CLS-LOC/val")
        folder = first(
            root, places, lambda p: any(n.startswith(self.prefix) for n in image_names(p))
        )
        if folder is None:
            return None
        kits = ("ILSVRC2012_devkit_t12/data/", "devkit/data/", "data/", "")
        lists = [*(f"{kit}{TRUTH}" for kit in kits), KAGGLE]
        for base in (root, folder, root.parent):
            if path := first(base, lists, Path.is_file):
                return Location(folder, f"flat files with {path.name}", self.info.images, path)
        raise InputError(
            f"the images in {str(folder)!r} are flat and carry no labels; put "
            f"ILSVRC2012_devkit_t12/ or {KAGGLE} beside them"
        )

    def _ids(self, path: Path) -> list[tuple[str, str]]:
        if path.name == KAGGLE:
            with path.open(newline="") as file:
                return [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0])
                        for row in csv.DictReader(file)]  # fmt: skip
        synsets = load_mat(path.parent / "meta.mat")["synsets"]
        ids = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets.ravel()}
        numbers = path.read_text().split()
        numbered = enumerate(numbers, 1)
        return [(f"{self.prefix}{i:08d}.JPEG", ids.get(int(n), "")) for i, n in numbered]


@published("imagenet-v2")
@dataclass(frozen=True, kw_only=True)
class ImageNetV2(WordNetFolders):
    """ImageNet-V2: a folder's number is the label."""

    variant: Literal["matched-frequency", "threshold0.7", "top-images"] = option(
        "matched-frequency", "which of the three samples to read; the paper uses the first"
    )

    @property
    def folders(self) -> Sequence[str]:
        return [str(label) for label in range(1000)]

    def find(self, root: Path) -> Location | None:
        location = super().find(root)
        if location is None:
            return None
        name = location.folder.resolve().name
        other = re.search(r"threshold0\.7|top-images|matched-frequency", name)
        if other and other.group() != self.variant:
            raise InputError(
                f"{str(location.folder)!r} is the {other.group()} variant of ImageNet-V2, which is "
                f"easier or harder; give imagenetv2-{self.variant}-format-val, or put "
                f"?variant={other.group()} behind the path"
            )
        return replace(location, layout=f"numbered folders of {self.variant}")


@published("tiny-imagenet")
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(WordNetFolders):
    """Tiny-ImageNet: the validation set as it is distributed, or moved into folders by id.

    Labels are ranks of the sorted ids, as in the folders of the training part; `wnids.txt` is in
    another order and is not used. Nor is `words.txt`: names are ImageNet's.
    """

    part: Literal["val", "train"] = option(
        "val", "part to read: validation (10,000 images) or training (100,000)"
    )

    def find(self, root: Path) -> Location | None:
        lists = (f"{home}/val_annotations.txt".lstrip("/") for home in self.homes)
        lists = (path.format(part="val") for path in lists)
        path = first(root, lists, lambda p: p.is_file() and bool(image_names(p.parent / "images")))
        if path is not None and self.part == "val":
            words = "val with val_annotations.txt"
            return Location(path.parent / "images", words, self.info.images, path)
        location = super().find(root)
        return replace(location, images=100_000) if location and self.part == "train" else location

    def _ids(self, path: Path) -> list[tuple[str, str]]:
        rows = (line.split("\t") for line in lines(path))
        return [(name, wnid) for name, wnid, *_ in rows]


@published("imagenet-c")
@dataclass(frozen=True, kw_only=True)
class ImageNetC(CorruptedReader, WordNetFolders):
    """ImageNet-C from the published archives, a domain for each type and severity.

    The images are 224 × 224 centre crops already, so a model's own resizing does nothing and its
    field of view is tighter than on the clean set, which the archives do not hold.
    """

    def _home(self, root: Path, corruption: str) -> Path | None:
        archives = ("", "noise/", "blur/", "weather/", "digital/", "extra/")
        tops = ("", "ImageNet-C/", "imagenet-c/")
        return first(root, (f"{t}{a}{corruption}" for t in tops for a in archives), Path.is_dir)

    def find(self, root: Path) -> Location | None:
        homes = {c: home for c in CORRUPTIONS if (home := self._home(root, c))}
        if not homes:
            return None
        for c, s in self.chosen:
            if c not in homes or not (homes[c] / str(s)).is_dir():
                here = f"corruption={','.join(homes)}"
                if c in homes:
                    here = f"severity={','.join(n for n in subfolders(homes[c]) if n in '12345')}"
                raise InputError(
                    f"{str(root)!r} has no {c}/{s}/; unpack its archive there, or put ?{here} "
                    "behind the path to take what is there"
                )
        count = len(self.chosen) * (self.info.images or 0)
        return Location(root, f"published archives, {self.words}", count)

    def recognise(self, root: Path) -> bool:
        homes = [home for c in CORRUPTIONS if (home := self._home(root, c))]
        return any(self._known(home / s) for home in homes for s in subfolders(home)[:5])

    def read(self, root: Path, location: Location) -> Dataset:
        files: list[tuple[str, int]] = []
        domains: list[str] = []
        for c, s in self.chosen:
            home = self._home(root, c)
            assert home is not None  # `find` saw it
            place = (home / str(s)).relative_to(root).as_posix()
            rows = [(f"{place}/{name}", label) for name, label in self._files(root / place)]
            files += rows
            domains += [f"{c}/{s}"] * len(rows)
        ids = ["/".join(name.split("/")[-2:]) for name, _ in files]  # of the photograph
        return replace(self._dataset(root, location, files), domains=domains, ids=ids)
