"""Caltech-101, DTD, EuroSAT and Food-101: a folder of images a class, and CoOp's random split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adte.data.cards import CARDS
from adte.data.coop import CoopReader, Split
from adte.data.files import image_names, lines, subfolders
from adte.data.registry import Found, register_dataset

__all__ = ["DTD", "Caltech101", "EuroSAT", "Food101"]


@dataclass(frozen=True, kw_only=True)
class ClassFolders(CoopReader):
    """Labels are ranks of the folder names in code-point order."""

    marks: ClassVar[tuple[str, ...]] = ()  # class folders, any of which gives the set away
    drop: ClassVar[frozenset[str]] = frozenset()  # folders that are no class
    total: ClassVar[int] = 0  # images without a split
    test_list: ClassVar[str] = ""  # the official list of test images, relative to the set's folder
    names: ClassVar[Mapping[str, str]] = {}  # of classes that are not called as their folders

    def find_official(self, base: Path) -> Found | None:
        for place in self.images:
            folder = base / place
            if not any((folder / mark).is_dir() for mark in self.marks):
                continue
            for home in (folder.parent, base):
                if self.test_list and (home / self.test_list).is_file():
                    return Found(folder, f"official test list {self.test_list} (not CoOp's split)",
                                 self.total, home / self.test_list)  # fmt: skip
            if not self.test_list:
                return Found(folder, "all images, no split (CoOp's file is not here)", self.total)
        return None

    def read_official(self, found: Found) -> Split:
        folders = tuple(f for f in subfolders(found.folder) if f not in self.drop)
        rank = {f: i for i, f in enumerate(folders)}
        if found.split is None:
            files = [(f"{f}/{n}", rank[f]) for f in folders for n in image_names(found.folder / f)]
        else:
            names = [n if n.lower().endswith(".jpg") else f"{n}.jpg" for n in lines(found.split)]
            rank |= {n.split("/")[0]: -1 for n in names if n.split("/")[0] not in rank}
            files = [(n, rank[n.split("/")[0]]) for n in names]
        return Split(files, tuple(self.names.get(f, f) for f in folders), folders)


@register_dataset(CARDS["caltech101"])
@dataclass(frozen=True, kw_only=True)
class Caltech101(ClassFolders):
    """CoOp's 100 classes: neither the background nor `Faces_easy`, and four names rewritten."""

    split_name = "split_zhou_Caltech101.json"
    homes = ("caltech-101", "Caltech101", "caltech101")
    images = ("101_ObjectCategories", "caltech-101/101_ObjectCategories", "images", "")
    sizes = (4128, 1649, 2465)
    marks = ("Faces", "BACKGROUND_Google", "yin_yang", "accordion")
    drop = frozenset({"BACKGROUND_Google", "Faces_easy"})
    total = 8242
    names: ClassVar[Mapping[str, str]] = {
        "airplanes": "airplane",
        "Faces": "face",
        "Leopards": "leopard",
        "Motorbikes": "motorbike",
    }


@register_dataset(CARDS["dtd"])
@dataclass(frozen=True, kw_only=True)
class DTD(ClassFolders):
    """Textures; the official test set is the first of ten partitions."""

    split_name = "split_zhou_DescribableTextures.json"
    homes = ("dtd", "DTD", "dtd/dtd")
    images = ("images", "dtd/images", "")
    sizes = (2820, 1128, 1692)
    marks = ("banded", "polka-dotted", "zigzagged")
    total = 1880
    test_list = "labels/test1.txt"


@register_dataset(CARDS["eurosat"])
@dataclass(frozen=True, kw_only=True)
class EuroSAT(ClassFolders):
    """Satellite images; CoOp's names are wordier than the folders, and better prompts."""

    split_name = "split_zhou_EuroSAT.json"
    homes = ("eurosat", "EuroSAT")
    images = ("2750", "EuroSAT/2750", "images", "")
    sizes = (13500, 5400, 8100)
    marks = ("AnnualCrop", "SeaLake", "PermanentCrop")
    total = 27_000
    names: ClassVar[Mapping[str, str]] = {
        "AnnualCrop": "Annual Crop Land",
        "HerbaceousVegetation": "Herbaceous Vegetation Land",
        "Highway": "Highway or Road",
        "Industrial": "Industrial Buildings",
        "Pasture": "Pasture Land",
        "PermanentCrop": "Permanent Crop Land",
        "Residential": "Residential Buildings",
        "SeaLake": "Sea or Lake",
    }


@register_dataset(CARDS["food101"])
@dataclass(frozen=True, kw_only=True)
class Food101(ClassFolders):
    """Dishes. In code-point order `cheese_plate` comes before `cheesecake`."""

    split_name = "split_zhou_Food101.json"
    homes = ("food-101", "Food101", "food101")
    images = ("images", "")
    sizes = (50_500, 20_200, 30_300)
    marks = ("apple_pie", "cheese_plate", "waffles")
    total = 25_250
    test_list = "meta/test.txt"
