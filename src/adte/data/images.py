"""Image files on disk."""

from __future__ import annotations

import os
from pathlib import Path

from adte.errors import InputError

__all__ = ["SUFFIXES", "find_images"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"}


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """The image itself, or every image below a folder, in code-point order of the paths."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{str(path)!r} does not exist; check the path")
    if path.is_file():
        return [path]
    found = sorted(
        p for p in path.rglob("*")
        if p.suffix.lower() in SUFFIXES and p.is_file() and not p.name.startswith(".")
    )  # fmt: skip
    if not found:
        raise InputError(
            f"the folder {str(path)!r} holds no image; images end in {', '.join(sorted(SUFFIXES))}"
        )
    return found
