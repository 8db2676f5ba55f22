"""What the rows of an output say, read back."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adte.errors import InputError
from adte.files.outputs import format_of, part_of
from adte.files.rows import unescape_name
from adte.files.whole import StrPath

__all__ = ["Past", "read_past"]


class Past(NamedTuple):
    """What an earlier run said of an image; a label of None was unsure."""

    label: str | None
    error: str | None


def read_past(out: StrPath, folder: str) -> dict[str, Past]:
    """The rows of an output by the absolute path of their image.

    Args:
        folder: where relative names start, as seen from the output's own folder, see `Mark`.
    """
    base = Path(os.path.realpath(Path(os.path.realpath(out)).parent / folder))
    try:
        return {
            str(base / unescape_name(str(row["path"]))): Past(
                row["label"] or None, row["error"] or None
            )
            for row in _rows(out)
        }
    except (OSError, ValueError, LookupError, csv.Error) as error:
        raise InputError(f"cannot read {os.fspath(out)!r} ({error}); check it") from error


def _rows(out: StrPath) -> Iterator[Mapping[str, Any]]:
    fmt = format_of(out, None)
    if fmt == "csv":
        with open(out, encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
        return
    place = Path(out)
    if fmt == "json" and part_of(out).exists():
        place = part_of(out)
    with place.open(encoding="utf-8") as lines:
        for line in lines:
            if line.rstrip() not in ("[", "]"):
                yield json.loads(line.rstrip().removesuffix(","))
