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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import first
from adte.data.names import read_names
from adte.data.registry import Found, Reader, register_dataset
from adte.files.tars import Header, members
from adte.images.decode import is_image

__all__ = [
    "MOST",
    "Sample",
    "TarMembers",
    "WebDataset",
    "expand",
    "label_of",
    "samples",
    "split_member",
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
    folder, _, file = name.replace("\\", "/").rpartition("/")
    stem, _, kind = file.partition(".")
    path = f"{folder}/{stem}" if folder else stem
    return (path.removeprefix("./").lstrip("/") if stem else ""), kind


def _is_picture(kind: str) -> bool:
    """Whether a member of this kind is the sample's image; seg.png and the like go with it."""
    return "." not in kind and is_image(f"x.{kind}")


class Sample(NamedTuple):
    """An image in a tar: where its bytes lie, and what its .cls and .json hold."""

    key: str
    offset: int
    size: int
    notes: Mapping[str, bytes]


def samples(file: IO[bytes], tar: str, notes: bool = True) -> list[Sample]:
    """The images of a plain tar, from its headers; `notes` reads their .cls and .json, too."""
    images: dict[str, tuple[int, int]] = {}
    read: dict[str, dict[str, bytes]] = {}
    others: dict[str, str] = {}  # the name of a seg.png or the like
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=Header) as archive:
            for member in members(archive, tar):
                key, kind = split_member(member.name)
                if not key or member.isdir():
                    continue
                if not member.isfile():
                    if _is_picture(kind):
                        raise InputError(
                            f"{member.name!r} in {tar!r} is a link or a device; pack the image "
                            "itself"
                        )
                    continue
                if _is_picture(kind):
                    if key in images:
                        raise InputError(
                            f"sample {key!r} in {tar!r} has two images; pack one image for each key"
                        )
                    images[key] = member.offset_data, member.size
                elif is_image(f"x.{kind}"):
                    others[key] = member.name
                elif notes and kind in ("cls", "json"):
                    content = archive.extractfile(member)
                    read.setdefault(key, {})[kind] = content.read() if content else b""
    except tarfile.TarError as error:
        mend = "make it again" if images or read else "unpack compressed tars first"
        raise InputError(f"{tar!r} cannot be read as a plain tar ({error}); {mend}") from error
    _warn_of_others(tar, [name for key, name in others.items() if key not in images])
    return [Sample(key, *place, read.get(key, {})) for key, place in images.items()]


def _warn_of_others(tar: str, others: list[str]) -> None:
    """Say which samples have a seg.png or the like and no image, for they are left out."""
    if others:
        warnings.warn(
            f"{len(others)} samples of {tar!r} have no image, only such as {others[0]!r}, and are "
            "left out; name images KEY.jpg, with one dot",
            stacklevel=3,
        )


def label_of(sample: Sample, tar: str, label_key: str) -> int:
    """The number in a sample's .cls, else under this key in its .json."""
    notes = sample.notes
    try:
        label = notes["cls"] if "cls" in notes else json.loads(notes["json"])[label_key]
        number = int(label)
        if (isinstance(label, float) and number != label) or not 0 <= number < MOST:
            raise ValueError(label)
        return number
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"image {sample.key!r} in {tar!r} has no whole number as label in .cls or under "
            f"{label_key!r} in .json; number the classes from 0 on, or put ?label_key=KEY behind "
            "the path if it is called otherwise"
        ) from error


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

    classes: str | None = option(
        None, "file of class names; by default classes.json or classnames.txt"
    )
    label_key: str = option("label", "key of the label, if labels are in .json members")

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
        images = [(i, s) for i, tar in enumerate(tars) for s in self._samples(tar)]
        where = [(i, s.offset, s.size) for i, s in images]
        labels = [label_of(s, tars[i], self.label_key) for i, s in images]
        names = self._names(found.folder)
        stems = [Path(tar).stem for tar in tars]
        if len({*stems}) < len(stems):  # of one name in several folders
            above = os.path.commonpath([os.path.dirname(tar) or "." for tar in tars])
            stems = [Path(os.path.relpath(tar, above)).with_suffix("").as_posix() for tar in tars]
        return Dataset(
            name=found.folder.resolve().name,
            classes=tuple(names.values()),
            class_ids=tuple(names),
            sources=TarMembers(tars, np.array(where, np.int64).reshape(-1, 3)),
            labels=np.array(labels, np.int64),
            ids=[f"{stems[i]}/{s.key}" for i, s in images],
            split=found.layout,
            root=found.folder,
        )

    def _names(self, folder: Path) -> dict[str, str]:
        if self.classes:
            return read_names(self.classes, by_label=True)
        places = ("classes.json", "classnames.txt", "../classes.json", "../classnames.txt")
        path = first(folder, places, Path.is_file)
        if path is None:
            raise InputError(
                f"no class names lie with the tars in {str(folder)!r}; put classnames.txt there, "
                "one name a line, or ?classes=FILE behind the path"
            )
        return read_names(path, by_label=True)

    def _samples(self, tar: str) -> list[Sample]:
        try:
            with open(tar, "rb") as file:
                return samples(file, tar)
        except OSError as error:
            raise InputError(f"cannot read {tar!r} ({error}); check the file") from error
