"""Listing folders: images and class folders in code-point order, without the debris."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from adte.data.images import SUFFIXES
from adte.errors import InputError

__all__ = ["first", "image_names", "is_image", "missing", "subfolders", "walk_images"]


def is_image(name: str) -> bool:
    """By suffix; hidden files (.DS_Store, ._copy.jpg) are none."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES


def image_names(folder: str | os.PathLike[str]) -> list[str]:
    """The images directly in a folder, sorted; README.txt, Thumbs.db and the like are left out."""
    return sorted(e.name for e in _entries(folder) if is_image(e.name))


def subfolders(folder: str | os.PathLike[str]) -> list[str]:
    """The folders directly in a folder, sorted by code point, hidden ones left out."""
    return sorted(e.name for e in _entries(folder) if not e.name.startswith(".") and e.is_dir())


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"cannot list {str(folder)!r} ({error.strerror}); check its permissions"
        ) from error


def walk_images(folder: Path) -> list[str]:
    """Every image below a folder, as sorted relative paths with forward slashes."""
    found: list[str] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [f for f in folders if not f.startswith(".")]
        base = Path(place).relative_to(folder)
        found += [(base / n).as_posix() for n in names if is_image(n)]
    return sorted(found)


def first(root: Path, places: Iterable[str], test: Callable[[Path], bool]) -> Path | None:
    """The first of these places below root that passes the test."""
    return next((p for p in (root / place for place in places) if test(p)), None)


def missing(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Those of the relative paths that are not there; each folder is listed once."""
    listed: dict[str, set[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        parent = str(path.parent)
        if parent not in listed:
            try:
                listed[parent] = set(os.listdir(folder / parent))
            except (FileNotFoundError, NotADirectoryError):
                listed[parent] = set()
        if path.name not in listed[parent]:
            yield name
