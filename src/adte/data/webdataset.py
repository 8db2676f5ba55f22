"""WebDataset tars, read with random access: `<key>.jpg` beside `<key>.cls` or `<key>.json`.

An index of offsets is built once, from the tar headers; images are then read straight from the
files. Compressed tars allow no random access and are refused.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import numpy as np

from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import first
from adte.data.names import read_names
from adte.data.registry import Found, Reader, register_dataset
from adte.errors import InputError
from adte.images import is_image
from adte.options import option

__all__ = [
    "MOST",
    "TarMembers",
    "WebDataset",
    "expand",
    "is_picture",
    "second_image",
    "split_member",
    "warn_of_others",
]


MOST = 1 << 31  # classes


def expand(pattern: str) -> list[str]:
    """Paths of a pattern with {000..012} or * in it, or the tars of a folder.

    >>> expand("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match:
        low, high = match.groups()
        head, tail = pattern[: match.start()], pattern[match.end() :]
        return [p for i in range(int(low), int(high) + 1)
                for p in expand(f"{head}{i:0{len(low)}d}{tail}")]  # fmt: skip
    if os.path.isdir(pattern):
        return sorted(glob(os.path.join(pattern, "**", "*.tar"), recursive=True))
    return sorted(glob(pattern)) if has_magic(pattern) else [pattern]


def split_member(name: str) -> tuple[str, str]:
    """Key and kind of a tar's member: what is before and behind the first dot of its base name.

    >>> split_member("./v1.0/000.seg.png")
    ('v1.0/000', 'seg.png')
    """
    folder, _, file = name.rpartition("/")
    stem, _, kind = file.partition(".")
    path = f"{folder}/{stem}" if folder else stem
    return (path.removeprefix("./").lstrip("/") if stem else ""), kind


def is_picture(kind: str) -> bool:
    """Whether a member of this kind is the sample's image; seg.png and the like go with it."""
    return "." not in kind and is_image(f"x.{kind}")


def warn_of_others(tar: str, others: list[str]) -> None:
    """Say which samples have a seg.png or the like and no image, for they are left out."""
    if others:
        warnings.warn(
            f"{len(others)} samples of {tar!r} have no image, only such as {others[0]!r}, and are "
            "left out; name images KEY.jpg, with one dot",
            stacklevel=2,
        )


def second_image(tar: str, key: str) -> InputError:
    return InputError(f"sample {key!r} in {tar!r} has two images; pack one image for each key")


@dataclass
class TarMembers(Sequence[Any]):
    """Members of tars as bytes, by offset; files are opened for each read."""

    paths: list[str]
    where: np.ndarray[Any, Any]  # (N, 3): tar, offset, size

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: Any) -> Any:
        tar, offset, size = self.where[index].tolist()
        with open(self.paths[tar], "rb") as file:
            file.seek(offset)
            return file.read(size)


@register_dataset(CARDS["webdataset"])
@dataclass(frozen=True, kw_only=True)
class WebDataset(Reader):
    """Labels are numbers; names come from `classes`, or a classes.json or classnames.txt nearby."""

    generic = True
    mend = "check the path"

    classes: str | None = option(None, "file of class names; else classes.json or classnames.txt")
    label_key: str = option("label", "key of the label, where labels are in .json members")

    def find(self, root: Path) -> Found | None:
        return Found(root, "tars")

    def recognise(self, root: Path) -> bool:
        return (root.is_dir() and bool(list(root.glob("*.tar")))) or root.suffix == ".tar"

    def load(self, path: str | os.PathLike[str] | None) -> Dataset:
        if path is None:
            return super().load(path)
        pattern = os.path.expanduser(path)
        tars = expand(str(pattern))
        lost = [t for t in tars if not os.path.isfile(t)]
        if lost or not tars:
            raise InputError(
                f"{(lost or [pattern])[0]!r} is no tar; give a file, a folder of tars, or a "
                "pattern such as test-{000..009}.tar"
            )
        found = Found(Path(tars[0]).parent, f"{len(tars)} tars")
        data = self._read(tars, found)
        self._assert(data, Path(pattern), found)
        return data

    def read(self, root: Path, found: Found) -> Dataset:
        return self._read(expand(str(root)), found)

    def _read(self, tars: list[str], found: Found) -> Dataset:
        rows = [(i, *row) for i, tar in enumerate(tars) for row in self._index(tar)]
        labels = np.array([row[4] for row in rows], dtype=np.int64)
        names = self._names(found.folder)
        return Dataset(
            name=found.folder.resolve().name,
            classes=tuple(names.values()),
            class_ids=tuple(names),
            sources=TarMembers(tars, np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)),
            labels=labels,
            ids=[f"{Path(tars[row[0]]).stem}/{row[3]}" for row in rows],
            split=found.layout,
            root=found.folder,
        )

    def _names(self, folder: Path) -> dict[str, str]:
        if self.classes:
            return read_names(Path(self.classes).expanduser(), by_label=True)
        places = ("classes.json", "classnames.txt", "../classes.json", "../classnames.txt")
        path = first(folder, places, Path.is_file)
        if path is None:
            raise InputError(
                f"no class names lie with the tars in {str(folder)!r}; put classnames.txt there, "
                "one name a line, or ?classes=FILE behind the path"
            )
        return read_names(path, by_label=True)

    def _index(self, tar: str) -> Iterator[tuple[int, int, str, int]]:
        """Offset, size, key and label of every image of a tar."""
        samples: dict[str, dict[str, Any]] = {}
        try:
            with tarfile.open(tar, "r:") as archive:
                for member in archive:
                    key, kind = split_member(member.name)
                    if not member.isfile() or not key:
                        continue
                    sample = samples.setdefault(key, {})
                    if kind in ("cls", "json"):
                        content = archive.extractfile(member)
                        sample[kind] = content.read() if content else b""
                    elif is_picture(kind):
                        if "image" in sample:
                            raise second_image(tar, key)
                        sample["image"] = member.offset_data, member.size
                    elif is_image(f"x.{kind}"):
                        sample["other"] = member.name
        except (tarfile.TarError, OSError) as error:
            raise InputError(
                f"{tar!r} cannot be read as a plain tar ({error}); unpack compressed tars first"
            ) from error
        lost = [s["other"] for s in samples.values() if "other" in s and "image" not in s]
        warn_of_others(tar, lost)
        for key, sample in samples.items():
            if "image" in sample:
                yield *sample["image"], key, self._label(tar, key, sample)

    def _label(self, tar: str, key: str, sample: dict[str, Any]) -> int:
        try:
            label = sample["cls"] if "cls" in sample else json.loads(sample["json"])[self.label_key]
            number = int(label)
            if (isinstance(label, float) and number != label) or not 0 <= number < MOST:
                raise ValueError(label)
            return number
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"image {key!r} in {tar!r} has no whole number as label in .cls or under "
                f"{self.label_key!r} in .json; put ?label_key=KEY behind the path if it is "
                "called otherwise"
            ) from error
