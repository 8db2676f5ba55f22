"""Rows of an output, read back by whoever wants all of what they say."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.outputs import SUFFIXES, part_of
from adte.files.rows import COLUMNS, Csv, Lines, head_of, is_rows

__all__ = ["read_rows"]


def read_rows(path: StrPath) -> Iterator[dict[str, Any]]:
    """The rows of a .csv, .jsonl or .json as `adte.files.rows` has them, in order.

    A torn last line, as a run leaves it that goes on or was killed, is no row. Those of a JSON list
    that is not put together yet are found, too.
    """
    name, place = os.fspath(path), Path(path)
    fmt = SUFFIXES.get(place.suffix.lower())
    if fmt is None:
        raise InputError(
            f"{name!r} is not a file of labels by its name; give the .csv, .jsonl or .json that "
            "`adte predict --out` wrote"
        )
    if fmt == "json" and not place.exists():
        place = part_of(path)
    try:
        with place.open("rb") as file:
            head = head_of(file)
            if head and not is_rows(head):
                raise InputError(
                    f"{name!r} holds no rows of `adte predict --out`, or another program has saved "
                    "it since; give the file as it was written"
                )
            file.seek(0)
            form: Csv | Lines = Lines()
            if fmt == "csv":
                form = Csv((file.readline().count(b",") + 1 - len(COLUMNS)) // 2)
            for number, line in enumerate(file, 1 + bool(form.head)):
                if line in (b"[\n", b"]\n") or not line.endswith(b"\n"):
                    continue
                try:
                    yield form.row(line.removesuffix(b"\n"))
                except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
                    raise InputError(
                        f"line {number} of {name!r} is damaged; take it out, or label anew with "
                        "adte predict --force"
                    ) from error
    except OSError as error:
        raise InputError(f"cannot read {name!r} ({error.strerror}); check the path") from error
