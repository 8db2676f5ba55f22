"""Any folder with one folder of images a class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import published
from adte.data.files import image_names, subfolders
from adte.data.names import imagenet_classes, read_names
from adte.data.registry import Location, Reader
from adte.images.decode import holds_images, walk_images

__all__ = ["ImageFolder"]

SPLITS = {"train", "val", "valid", "validation", "test"}


@published("folder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(Reader):
    """Labels are ranks of the folder names in code-point order, as numbers where a file says so.

    Names come from `classes`, else from a classes.json {folder: name} in the folder, else from
    ImageNet where every folder is a WordNet id of it, else they are the folders' own.
    """

    generic = True
    mend = "put the images into one folder per class, or check the path"

    classes: str | None = option(
        None, "file of class names by folder; by default classes.json, if there is one"
    )

    def find(self, root: Path) -> Location | None:
        folders = subfolders(root)
        if not any(holds_images(root / f) for f in folders):
            return None
        if set(folders) <= SPLITS and all(subfolders(root / f) for f in folders):
            best = next(s for s in ("test", "val", "validation", "valid", "train") if s in folders)
            raise InputError(
                f"the folders of {str(root)!r} are splits ({', '.join(folders)}), not classes; "
                f"give one of them, such as {str(root / best)!r}"
            )
        return Location(root, "image folder")

    def recognise(self, root: Path) -> bool:
        return any(image_names(root / f) for f in subfolders(root)[:50])

    def read(self, root: Path, location: Location) -> Dataset:
        folders = subfolders(root)
        names, words = self._names(root, folders)
        stray = [f for f in folders if f not in names and holds_images(root / f)]
        if stray:
            raise InputError(
                f"folder {stray[0]!r} in {str(root)!r} has no name in {words}; add it, or take the "
                "folder away"
            )
        # one walk from the root: a link in a class that leads back to it shows all the others
        inside: dict[str, list[str]] = {}
        for name in walk_images(root):
            inside.setdefault(name.rpartition("/")[0].partition("/")[0], []).append(name)
        if loose := inside.get(""):
            warnings.warn(
                f"images in {str(root)!r} that are in no folder of a class are left out, "
                f"{len(loose)} such as {loose[0]!r}; put them into one, or take them away",
                stacklevel=2,
            )
        files = [(name, y) for y, f in enumerate(names) for name in inside.get(f, [])]
        return Dataset.of_files(
            root.resolve().name, root, files,
            classes=tuple(names.values()), class_ids=tuple(names),
            split=f"image folder, names from {words}", root=root,
        )  # fmt: skip

    def _names(self, root: Path, folders: list[str]) -> tuple[dict[str, str], str]:
        path = Path(self.classes) if self.classes else root / "classes.json"
        if self.classes or path.is_file():
            names = read_names(path)
            if set(names) == {str(i) for i in range(len(names))} and not set(folders) <= set(names):
                if len(names) != len(folders):
                    raise InputError(
                        f"{str(path)!r} has {len(names)} names for {len(folders)} folders in "
                        f"{str(root)!r}; give a name a folder, in sorted order, or an object"
                    )
                return dict(zip(folders, names.values(), strict=True)), path.name
            return names, path.name
        known = dict(imagenet_classes())
        if folders and set(folders) <= set(known):
            return {f: known[f] for f in folders}, "ImageNet's WordNet ids"
        return {f: f for f in folders}, "the folders"
