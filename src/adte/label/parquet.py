"""Rows as a Parquet file, by Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from adte.core.errors import MissingExtra
from adte.files.whole import write_whole

__all__ = ["is_ours", "to_parquet"]

BATCH = 1024  # rows that are put into a file together


def _arrow() -> Any:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", "writing Parquet") from error
    return pyarrow


def _schema(pyarrow: Any) -> Any:
    return pyarrow.schema({
        "path": pyarrow.string(), "label": pyarrow.string(), "confidence": pyarrow.float64(),
        "index": pyarrow.int64(), "learned": pyarrow.bool_(), "error": pyarrow.string(),
        "classes": pyarrow.list_(pyarrow.string()),
        "probabilities": pyarrow.list_(pyarrow.float64()),
    })  # fmt: skip


def is_ours(path: str) -> bool:
    """Whether a file is there that has the columns of ours."""
    pyarrow = _arrow()
    try:
        with open(path, "rb") as file:
            names: list[str] = pyarrow.parquet.read_schema(file).names
    except (OSError, ValueError):
        return False
    return names == list(_schema(pyarrow).names)


def to_parquet(rows: str, path: str) -> int:
    """Rows of JSON lines as a Parquet file, written whole; how many they are."""
    pyarrow = _arrow()
    schema = _schema(pyarrow)
    count = 0

    def write(name: str) -> None:
        nonlocal count
        with pyarrow.parquet.ParquetWriter(name, schema) as writer:
            for some in _batches(rows):
                writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
                count += len(some)

    write_whole(path, write)
    return count


def _batches(rows: str) -> Iterator[list[dict[str, Any]]]:
    some: list[dict[str, Any]] = []
    with open(rows, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            top = row.pop("top", [])
            row["classes"] = [t["class"] for t in top]
            row["probabilities"] = [t["probability"] for t in top]
            some.append(row)
            if len(some) == BATCH:
                yield some
                some = []
    if some:
        yield some
