"""ImageNet-C from the published archives: <corruption>/<severity>/<WordNet id>/.

The images are 224 × 224 centre crops already, so a model's own resizing does nothing and its field
of view is tighter than on the clean set, which the archives do not hold. Many papers use a subset
of 5,000 images, 997 of the 1000 classes (RobustBench); `subset_file` names such a list.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.corrupted import corruption_list, severity_list
from adte.data.corruptions import CORRUPTIONS
from adte.data.files import first, image_names, lines, subfolders
from adte.data.imagenet import WordNetFolders
from adte.data.names import imagenet_ids
from adte.data.registry import Found, register_dataset

__all__ = ["ImageNetC"]

ARCHIVES = ("", "noise", "blur", "weather", "digital", "extra")


@register_dataset(CARDS["imagenet-c"])
@dataclass(frozen=True, kw_only=True)
class ImageNetC(WordNetFolders):
    """ImageNet-C: a domain for each type and severity."""

    corruption: str = option(
        "common", "types of corruption, separated by commas; common is 15, all 19"
    )
    severity: str | int = option("5", "severity, 1 to 5, or several as in 1,3 or 1-5")
    subset_file: str | None = option(
        None, "file that lists the images to use, such as RobustBench's 5,000"
    )

    def _home(self, root: Path, corruption: str) -> Path | None:
        tops = ("", "ImageNet-C", "imagenet-c")
        places = [f"{t}/{a}/{corruption}".lstrip("/") for t in tops for a in ARCHIVES]
        return first(root, places, Path.is_dir)

    def find(self, root: Path) -> Found | None:
        if not any(self._home(root, c) for c in CORRUPTIONS):
            return None
        wanted = [(c, s) for c in corruption_list(self.corruption)
                  for s in severity_list(self.severity)]  # fmt: skip
        for c, s in wanted:
            home = self._home(root, c)
            if home is None or not (home / str(s)).is_dir():
                types = ",".join(c for c in CORRUPTIONS if self._home(root, c))
                levels = ",".join(n for n in subfolders(home) if n in set("12345")) if home else ""
                here = f"severity={levels}" if levels else f"corruption={types}"
                raise InputError(
                    f"{str(root)!r} has no {c}/{s}/; unpack its archive there, or put ?{here} "
                    "behind the path to take what is there"
                )
        each = len(self._kept()) if self.subset_file else self.info.images or 0
        types, severity = ", ".join(dict.fromkeys(c for c, _ in wanted)), self.severity
        words = f"published archives, severity {severity}: {types}"
        if self.subset_file:
            words += f"; the {each} images of {Path(self.subset_file).name}"
        return Found(root, words, each * len(wanted), gaps=self.subset_file is not None)

    def recognise(self, root: Path) -> bool:
        homes = [h for c in CORRUPTIONS if (h := self._home(root, c))]
        return any(self._known(h / s) for h in homes for s in subfolders(h)[:5])

    def _kept(self) -> set[str]:
        path = Path(os.path.expanduser(self.subset_file or ""))
        if not path.is_file():
            raise InputError(f"subset_file={str(path)!r} does not exist; check the path")
        return {Path(line.split()[0]).name for line in lines(path)}

    def read(self, root: Path, found: Found) -> Dataset:
        kept = self._kept() if self.subset_file else None
        files: list[tuple[str, int]] = []
        facts: list[Any] = []
        for c in corruption_list(self.corruption):
            home = self._home(root, c)
            for s in severity_list(self.severity) if home else ():
                place = (home / str(s)).relative_to(root).as_posix()  # type: ignore[operator]
                rows = [(f"{place}/{wnid}/{n}", y) for y, wnid in enumerate(imagenet_ids())
                        for n in image_names(root / place / wnid)
                        if kept is None or n in kept]  # fmt: skip
                files += rows
                facts += [f"{c}/{s}"] * len(rows)
        ids = ["/".join(name.split("/")[-2:]) for name, _ in files]  # of the photograph
        return replace(self.dataset(root, found, files), domains=facts, ids=ids)
