"""Folders in code-point order without the debris: images, class folders; lists, MATLAB files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from adte.core.errors import InputError, MissingExtra
from adte.images.decode import is_image

__all__ = ["first", "image_names", "lines", "load_mat", "missing", "need_scipy", "subfolders"]


def image_names(folder: str | os.PathLike[str]) -> list[str]:
    """The images directly in a folder, sorted; README.txt, Thumbs.db and the like are left out."""
    return sorted(e.name for e in _entries(folder) if is_image(e.name))


def subfolders(folder: str | os.PathLike[str]) -> list[str]:
    """The folders directly in a folder, sorted by code point, without hidden ones and __MACOSX."""
    return sorted(
        e.name
        for e in _entries(folder)
        if not e.name.startswith(".") and e.name != "__MACOSX" and e.is_dir()
    )


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


def lines(path: Path) -> list[str]:
    """The lines of a list that say something, without the space around them."""
    return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]


def load_mat(path: Path) -> dict[str, Any]:
    """The tables of a MATLAB file."""
    io = need_scipy("io", f"reading {path.name}")
    try:
        tables: dict[str, Any] = io.loadmat(str(path), squeeze_me=True)
    except Exception as error:  # scipy raises many kinds
        raise InputError(
            f"{str(path)!r} is not a readable MATLAB file ({error}); fetch it again"
        ) from error
    return tables


def need_scipy(module: str, purpose: str) -> Any:
    """A module of SciPy, which comes with the extra `data`."""
    try:
        return import_module(f"scipy.{module}")
    except ImportError as error:
        raise MissingExtra("scipy", "data", purpose) from error


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
