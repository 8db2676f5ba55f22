"""ImageNet-1k, in folders by WordNet id or flat as its archive is.

A label is the rank of the WordNet id among the 1000. The ground truth of the flat archive counts
classes in an order of its own, which `meta.mat` of the devkit maps to ids.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import first, image_names, subfolders
from adte.data.mat import load_mat
from adte.data.names import imagenet_ids, imagenet_names
from adte.data.registry import Found, Reader, register_dataset

__all__ = ["ImageNet", "WordNetFolders"]

WNID = re.compile(r"n\d{8}")
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
KAGGLE = "LOC_val_solution.csv"


@dataclass(frozen=True, kw_only=True)
class WordNetFolders(Reader):
    """A tree of folders named by WordNet id."""

    subset: ClassVar[str] = "imagenet"  # whose ids, see `imagenet_ids`
    places: ClassVar[tuple[str, ...]] = ("",)
    prefix: ClassVar[str] = ""  # of the file names, where the set has one of its own

    def find(self, root: Path) -> Found | None:
        folder = first(root, self.places, lambda p: bool(self._known(p)))
        if folder is None:
            return None
        place = folder.relative_to(root).as_posix()
        return Found(folder, f"folders by WordNet id in {place}/", self.info.images)

    def _known(self, folder: Path) -> set[str]:
        return set(subfolders(folder)) & set(imagenet_ids(self.subset))

    def recognise(self, root: Path) -> bool:
        found = self.find(root)
        if found is None or found.split is not None:  # a list that names the images is its own
            return found is not None
        ids = {name for name in subfolders(found.folder) if WNID.fullmatch(name)}
        if not ids <= set(imagenet_ids(self.subset)) or len(ids) < 0.9 * len(
            imagenet_ids(self.subset)
        ):
            return False
        if not self.prefix:
            return True
        names = image_names(found.folder / min(ids))
        return bool(names) and names[0].startswith(self.prefix)

    def read(self, root: Path, found: Found) -> Dataset:
        ids = imagenet_ids(self.subset)
        stray = [n for n in subfolders(found.folder) if WNID.fullmatch(n) and n not in set(ids)]
        if stray:
            raise InputError(
                f"folder {stray[0]!r} in {str(found.folder)!r} is none of the {len(ids)} classes "
                f"of {self.info.title}{self._hint(root)}"
            )
        files = [(f"{wnid}/{name}", label) for label, wnid in enumerate(ids)
                 for name in self.images_of(found.folder, wnid)]  # fmt: skip
        return self.dataset(root, found, files)

    def images_of(self, folder: Path, wnid: str) -> list[str]:
        return image_names(folder / wnid)

    def dataset(self, root: Path, found: Found, files: list[tuple[str, int]]) -> Dataset:
        return Dataset.of_files(
            self.info.name,
            found.folder,
            files,
            classes=imagenet_names(self.subset),
            class_ids=imagenet_ids(self.subset),
            split=found.layout,
            root=root,
            templates=self.info.templates,
        )


@register_dataset(CARDS["imagenet"])
@dataclass(frozen=True, kw_only=True)
class ImageNet(WordNetFolders):
    """ImageNet-1k validation, in folders by id or flat with a ground truth."""

    places = ("", "val", "images/val", "imagenet/images/val", "ImageNet/val", "imagenet/val",
              "imagenet-1k/val", "images", "imagenet-1k/images")  # fmt: skip
    prefix = "ILSVRC2012_val_"

    devkit: str | None = option(
        None, "folder ILSVRC2012_devkit_t12, for the flat archive; by default the one beside it"
    )

    def find(self, root: Path) -> Found | None:
        found = super().find(root)
        if found is not None:
            return found
        places = ("", "val", "ILSVRC2012_img_val", "ILSVRC/Data/CLS-LOC/val")
        folder = first(root, places, lambda p: any(self._flat(p)))
        if folder is None:
            return None
        names = "ILSVRC2012_devkit_t12/data", "devkit/data", "data", ""
        given = [Path(os.path.expanduser(self.devkit))] if self.devkit else []
        for base in given or [root, folder, root.parent]:
            truth = first(base, names, lambda p: (p / TRUTH).is_file())
            if truth is not None:
                return Found(folder, "flat files with the devkit's ground truth",
                             self.info.images, truth)  # fmt: skip
            if (base / KAGGLE).is_file():
                return Found(folder, f"flat files with {KAGGLE}", self.info.images, base / KAGGLE)
        raise InputError(
            f"the images in {str(folder)!r} are flat and carry no labels; put "
            f"ILSVRC2012_devkit_t12/ (or {KAGGLE}) beside them, or ?devkit=FOLDER behind the path"
        )

    @staticmethod
    def _flat(folder: Path) -> list[str]:
        return [n for n in image_names(folder) if n.startswith("ILSVRC2012_val_")]

    def read(self, root: Path, found: Found) -> Dataset:
        if found.split is None:
            return super().read(root, found)
        rank = {wnid: i for i, wnid in enumerate(imagenet_ids())}
        wnids = _kaggle(found.split) if found.split.is_file() else _devkit(found.split)
        files = []
        for name in self._flat(found.folder):
            number = int(name.split("_")[2].split(".")[0])
            if wnids.get(number) not in rank:
                raise InputError(
                    f"{name!r} has no label in {str(found.split)!r}; give the ground truth of "
                    "ILSVRC2012 (50,000 lines)"
                )
            files.append((name, rank[wnids[number]]))
        return self.dataset(root, found, files)


def _devkit(folder: Path) -> dict[int, str]:
    """WordNet id of validation image 1, 2, …, by the devkit's own numbering of the classes."""
    synsets = load_mat(folder / "meta.mat")["synsets"]
    ids = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets.ravel()}
    lines = (folder / TRUTH).read_text().split()
    return {i: ids.get(int(number), "") for i, number in enumerate(lines, 1)}


def _kaggle(path: Path) -> dict[int, str]:
    with path.open(newline="") as file:
        return {int(row["ImageId"].split("_")[2]): row["PredictionString"].split()[0]
                for row in csv.DictReader(file)}  # fmt: skip
