"""MATLAB files, for the sets whose labels are in them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, MissingExtra

__all__ = ["load_mat"]


def load_mat(path: Path) -> dict[str, Any]:
    """A MATLAB file."""
    try:
        io = import_module("scipy.io")
    except ImportError as error:
        raise MissingExtra("scipy", "data", f"reading {path.name}") from error
    try:
        table: dict[str, Any] = io.loadmat(str(path), squeeze_me=True)
    except Exception as error:  # scipy raises many kinds
        raise InputError(
            f"{str(path)!r} is not a readable MATLAB file ({error}); fetch it again"
        ) from error
    return table
