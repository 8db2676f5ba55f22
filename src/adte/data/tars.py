"""WebDataset tars: samples of `<key>.jpg` beside `<key>.cls` or `<key>.json`, by offset.

An index is made from the tar headers; images are then read straight from the files. Compressed tars
allow no random access and are refused.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import warnings
from collections.abc import Mapping
from glob import glob, has_magic
from typing import IO, NamedTuple

from adte.core.errors import InputError
from adte.files.tars import Header, members
from adte.images.decode import is_image

__all__ = ["MOST", "Sample", "expand", "label_of", "samples"]

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


class Sample(NamedTuple):
    """An image in a tar: where its bytes lie, and what its .cls and .json hold."""

    key: str
    offset: int
    size: int
    notes: Mapping[str, bytes]


def samples(file: IO[bytes], tar: str, notes: bool = True) -> list[Sample]:
    """The images of a plain tar, from its headers; `notes` reads their .cls and .json, too.

    A member whose kind has a dot, such as seg.png, goes with the sample and is not its image.
    """
    images: dict[str, tuple[int, int]] = {}
    read: dict[str, dict[str, bytes]] = {}
    others: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=Header) as archive:
            for member in members(archive, tar):
                key, kind = _split(member.name)
                picture = is_image(f"x.{kind}")
                if not key or member.isdir() or not (picture or kind in ("cls", "json")):
                    continue
                if picture and "." in kind:
                    others[key] = member.name
                elif picture and not member.isfile():
                    raise InputError(
                        f"{member.name!r} in {tar!r} is a link or a device; pack the image itself"
                    )
                elif picture and key in images:
                    raise InputError(
                        f"sample {key!r} in {tar!r} has two images; pack one image for each key"
                    )
                elif picture:
                    images[key] = member.offset_data, member.size
                elif notes and member.isfile() and (content := archive.extractfile(member)):
                    read.setdefault(key, {})[kind] = content.read()
    except tarfile.TarError as error:
        mend = "make it again" if images or read else "unpack compressed tars first"
        raise InputError(f"{tar!r} cannot be read as a plain tar ({error}); {mend}") from error
    if lost := [name for key, name in others.items() if key not in images]:
        warnings.warn(
            f"{len(lost)} samples of {tar!r} have no image, only such as {lost[0]!r}, and are "
            "left out; name images KEY.jpg, with one dot",
            stacklevel=2,
        )
    return [Sample(key, *place, read.get(key, {})) for key, place in images.items()]


def _split(name: str) -> tuple[str, str]:
    """Key and kind of a member: what is before and behind the first dot of its base name.

    >>> _split("./v1.0/000.seg.png")
    ('v1.0/000', 'seg.png')
    """
    folder, _, file = name.replace("\\", "/").rpartition("/")
    stem, _, kind = file.partition(".")
    path = f"{folder}/{stem}" if folder else stem
    return (path.removeprefix("./").lstrip("/") if stem else ""), kind


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
