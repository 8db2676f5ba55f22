"""ImageNet-V2, -A, -R and -Sketch.

A and R have 200 of the classes and are 200-way tasks: a label is the rank among the 200 ids. V2's
folders are numbers and mean themselves; sorted as texts (0, 1, 10, 100, …), as an image folder
would, they permute the classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import first, image_names, subfolders
from adte.data.imagenet import WordNetFolders
from adte.data.registry import Found, register_dataset

__all__ = ["ImageNetA", "ImageNetR", "ImageNetSketch", "ImageNetV2"]


@register_dataset(CARDS["imagenet-v2"])
@dataclass(frozen=True, kw_only=True)
class ImageNetV2(WordNetFolders):
    """ImageNet-V2: a folder's number is the label."""

    variant: Literal["matched-frequency", "threshold0.7", "top-images"] = option(
        "matched-frequency", "which of the three samples to read; the paper uses the first"
    )

    def find(self, root: Path) -> Found | None:
        name = f"imagenetv2-{self.variant}-format-val"
        folder = first(root, (name, f"imagenetv2/{name}", ""), lambda p: bool(self._known(p)))
        if folder is None:
            return None
        other = re.search(r"threshold0\.7|top-images|matched-frequency", folder.resolve().name)
        if other and other.group() != self.variant:
            raise InputError(
                f"{str(folder)!r} is the {other.group()} variant of ImageNet-V2, which is easier "
                f"or harder; give {name}, or put ?variant={other.group()} behind the path"
            )
        return Found(folder, f"numbered folders of {self.variant}", self.info.images)

    def _known(self, folder: Path) -> set[str]:
        return {n for n in subfolders(folder) if n.isascii() and n.isdigit() and int(n) < 1000}

    def recognise(self, root: Path) -> bool:
        for variant in ("matched-frequency", "threshold0.7", "top-images"):
            name = f"imagenetv2-{variant}-format-val"
            places = ("", name, f"imagenetv2/{name}")
            if first(root, places, lambda p: len(self._known(p)) > 100):
                return True
        return False

    def read(self, root: Path, found: Found) -> Dataset:
        folders = sorted(self._known(found.folder), key=int)
        return self.dataset(root, found, [(f"{f}/{name}", int(f)) for f in folders
                                          for name in image_names(found.folder / f)])  # fmt: skip


@register_dataset(CARDS["imagenet-a"])
@dataclass(frozen=True, kw_only=True)
class ImageNetA(WordNetFolders):
    """ImageNet-A: 200 classes."""

    subset = "imagenet-a"
    places = ("", "imagenet-a", "imagenet-adversarial/imagenet-a", "images", "imagenet-a/images")


@register_dataset(CARDS["imagenet-r"])
@dataclass(frozen=True, kw_only=True)
class ImageNetR(WordNetFolders):
    """ImageNet-R: 200 classes."""

    subset = "imagenet-r"
    places = ("", "imagenet-r", "imagenet-rendition/imagenet-r", "images", "imagenet-r/images")


@register_dataset(CARDS["imagenet-sketch"])
@dataclass(frozen=True, kw_only=True)
class ImageNetSketch(WordNetFolders):
    """ImageNet-Sketch: 1000 classes."""

    places = ("", "sketch", "images", "imagenet-sketch/images", "ImageNet-Sketch",
              "ImageNet-Sketch/sketch", "imagenet-sketch/sketch")  # fmt: skip
    prefix = "sketch_"
