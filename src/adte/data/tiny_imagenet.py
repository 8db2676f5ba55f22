"""Tiny-ImageNet: the validation set as it is distributed, or moved into folders by WordNet id.

Labels are ranks of the sorted ids, as in the folders of the training part; `wnids.txt` is in
another order and is not used. Nor is `words.txt`: names are ImageNet's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import image_names, lines
from adte.data.imagenet import WordNetFolders
from adte.data.names import imagenet_ids
from adte.data.registry import Found, register_dataset

__all__ = ["TinyImageNet"]


@register_dataset(CARDS["tiny-imagenet"])
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(WordNetFolders):
    """Tiny-ImageNet: 200 classes, 50 validation images each."""

    subset = "tiny-imagenet"

    part: Literal["val", "train"] = option(
        "val", "part to read: validation (10,000 images) or training (100,000)"
    )

    def find(self, root: Path) -> Found | None:
        total = self.info.images if self.part == "val" else 100_000
        places = [root / self.part, root / "tiny-imagenet-200" / self.part]
        if self.part == "val":
            for folder in (*places, root):
                if (folder / "val_annotations.txt").is_file() and image_names(folder / "images"):
                    return Found(folder / "images", "val with val_annotations.txt", total,
                                 folder / "val_annotations.txt")  # fmt: skip
        for folder in (*places, root):
            if self._known(folder):
                return Found(folder, f"{self.part} in folders by WordNet id", total)
        return None

    def images_of(self, folder: Path, wnid: str) -> list[str]:
        names = image_names(folder / wnid)
        return names or [f"images/{n}" for n in image_names(folder / wnid / "images")]

    def read(self, root: Path, found: Found) -> Dataset:
        if found.split is None:
            return super().read(root, found)
        rank = {wnid: i for i, wnid in enumerate(imagenet_ids(self.subset))}
        rows = [line.split("\t") for line in lines(found.split)]
        for row in rows:
            if len(row) < 2 or row[1] not in rank:
                raise InputError(
                    f"line {chr(9).join(row)[:60]!r} of {str(found.split)!r} does not name a file "
                    "and one of the 200 ids; unpack tiny-imagenet-200.zip again"
                )
        files, less = self._there(found, [(row[0], rank[row[1]]) for row in rows])
        return self.dataset(root, replace(found, layout=found.layout + less), files)
