"""Rows of JSON lines as one file, at the end of a run: a JSON list, or Parquet by Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from adte.core.errors import MissingExtra
from adte.files.whole import write_whole
from adte.files.written import note_written

__all__ = ["check_table", "write_table"]

BATCH = 1024  # rows that are put into a file together


def _arrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", "writing Parquet") from error
    return pyarrow


def check_table(out: str) -> None:
    """Refuse, before any work, a table that lacks what writes it."""
    if out.lower().endswith(".parquet"):
        _arrow()


def write_table(rows: str, out: str) -> int:
    """Write a file of rows, whole or not at all; return how many they are."""
    count = 0

    def write(name: str) -> None:
        nonlocal count
        with open(rows, "rb") as lines:
            fill = _fill_list if out.lower().endswith(".json") else _fill_parquet
            count = fill(name, lines)
        note_written(Path(name).read_bytes())

    write_whole(out, write)
    return count


def _fill_list(name: str, lines: Iterator[bytes]) -> int:
    count = 0
    with open(name, "wb") as file:
        for count, line in enumerate(lines, 1):
            file.write((b"[\n" if count == 1 else b",\n") + line.removesuffix(b"\n"))
        file.write(b"\n]\n" if count else b"[\n]\n")
    return count


def _fill_parquet(name: str, lines: Iterator[bytes]) -> int:
    pyarrow = _arrow()
    schema = pyarrow.schema({
        "path": pyarrow.string(), "label": pyarrow.string(), "confidence": pyarrow.float64(),
        "index": pyarrow.int64(), "learned": pyarrow.bool_(), "error": pyarrow.string(),
        "classes": pyarrow.list_(pyarrow.string()),
        "probabilities": pyarrow.list_(pyarrow.float64()),
    })  # fmt: skip
    count = 0
    with pyarrow.parquet.ParquetWriter(name, schema) as writer:
        while some := [_flat(json.loads(line)) for line in islice(lines, BATCH)]:
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
            count += len(some)
    return count


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    best = row.pop("top", [])
    classes, probabilities = [t["class"] for t in best], [t["probability"] for t in best]
    return {**row, "classes": classes, "probabilities": probabilities}
