"""Rows of predictions as lines of CSV or JSON, and names that no line can break.

A row is one image: path, label, confidence, index, learned, error, and `top`, a list of
{"class", "probability"}. CSV writes `top` as columns class_1, probability_1, …; JSON writes it as
it is, and any further keys after it. One row is one line, always.

A file name may hold bytes that are not UTF-8, and line breaks. In a row, such a name has `\\udcff`
for the byte ff, `\\u000a` for a line break and `\\\\` for each backslash of its own; every other
name is written as it is. `unescape_name` gives the name back, and `os.fsencode` of that its bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adte.core.errors import InputError
from adte.files.devices import StrPath

__all__ = [
    "COLUMNS", "DAMAGE", "Csv", "Lines", "Row", "escape_cell", "escape_name", "format_of",
    "holds_rows", "read_rows", "rows_of", "unescape_cell", "unescape_name",
]  # fmt: skip

COLUMNS = ("path", "label", "confidence", "index", "learned", "error")
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
DAMAGE = (ValueError, KeyError, TypeError, RecursionError, csv.Error)  # of a line that is no row
Row = Mapping[str, Any]

_UNSAFE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u(?:00[01][0-9a-f]|007f|d[89a-f][0-9a-f]{2})")
_ESCAPE = re.compile(r"\\\\|\\u([0-9a-f]{4})")
_FORMULA = re.compile("'* *[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # look.js has it, too


def escape_name(name: str) -> str:
    r"""A name as one line of valid Unicode, as most names are.

    >>> print(escape_name("caf\udce9.jpg"))
    caf\udce9.jpg
    """
    if not _UNSAFE.search(name) and not _ESCAPED.search(name):
        return name
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", name.replace("\\", "\\\\"))


def unescape_name(text: str) -> str:
    r"""The name that `escape_name` was given.

    >>> unescape_name(r"caf\udce9.jpg").encode("utf-8", "surrogateescape")
    b'caf\xe9.jpg'
    """
    if not _ESCAPED.search(text):
        return text
    return _ESCAPE.sub(lambda m: "\\" if m[1] is None else chr(int(m[1], 16)), text)


def escape_cell(value: Any) -> Any:
    """A value as CSV holds it: a text that a spreadsheet would run gets an apostrophe.

    >>> escape_cell("=1+1"), escape_cell("it's"), escape_cell(-0.5)
    ("'=1+1", "it's", -0.5)
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unescape_cell(text: str) -> str:
    """The text that `escape_cell` was given.

    >>> unescape_cell("'=1+1"), unescape_cell("''=1+1"), unescape_cell("'n roll")
    ('=1+1', "'=1+1", "'n roll")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _read_cell(text: str) -> str:
    return unescape_name(unescape_cell(text))


def _plain(value: Any) -> Any:
    """What JSON can say: texts on one line, no NaN."""
    if isinstance(value, str):
        return escape_name(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {escape_name(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


class Csv:
    """A line of column names, then a line per row, with columns for the `top` best classes."""

    def __init__(self, top: int = 0) -> None:
        numbered = (f"{c}_{i + 1}" for i in range(top) for c in ("class", "probability"))
        self.top, self.columns = top, (*COLUMNS, *numbered)
        self.head = self._join(self.columns)

    @classmethod
    def of(cls, head: bytes) -> Csv:
        """The form of a file that begins with this line."""
        return cls(max(0, head.count(b",") + 1 - len(COLUMNS)) // 2)

    def _join(self, cells: Sequence[Any]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue().encode()

    def line(self, row: Row) -> bytes:
        row = _plain(row)
        best = [
            t[key] for t in (row.get("top") or [])[: self.top] for key in ("class", "probability")
        ]
        best += [None] * (2 * self.top - len(best))
        cells = [*(row.get(c) for c in COLUMNS), *best]
        return self._join(
            [str(c).lower() if isinstance(c, bool) else escape_cell(c) for c in cells]
        )

    def row(self, line: bytes) -> dict[str, Any]:
        """The row that `line` was given."""
        (cells,) = csv.reader([line.decode().removesuffix("\n")], strict=True)
        cell = dict(zip(self.columns, map(_read_cell, cells), strict=True))
        best = ((cell[f"class_{i}"], cell[f"probability_{i}"]) for i in range(1, self.top + 1))
        return {
            **{c: cell[c] or None for c in COLUMNS},
            "path": cell["path"],
            "confidence": float(cell["confidence"]) if cell["confidence"] else None,
            "index": int(cell["index"]) if cell["index"] else None,
            "learned": cell["learned"] == "true",
            "top": [{"class": c, "probability": float(p)} for c, p in best if c],
        }


class Lines:
    """A JSON object per line."""

    head = b""

    def line(self, row: Row) -> bytes:
        row = _plain(row)
        first = {c: row.get(c) for c in COLUMNS}
        return json.dumps({**first, **row}, ensure_ascii=False).encode() + b"\n"

    def row(self, line: bytes) -> dict[str, Any]:
        """The row that `line` was given."""
        row = json.loads(line)
        if tuple(row)[: len(COLUMNS)] != COLUMNS:
            raise ValueError("not a row")
        best = [{**t, "class": unescape_name(t["class"])} for t in row.get("top") or []]
        texts = {c: unescape_name(row[c]) if row[c] else None for c in ("label", "error")}
        return {**row, **texts, "path": unescape_name(row["path"]), "top": best}


def format_of(path: StrPath) -> str | None:
    """The format of rows by the name of their file."""
    return SUFFIXES.get(Path(path).suffix.lower())


def rows_of(out: str) -> str:
    """The file that the rows of an output are kept in as they come: itself, or one beside it."""
    is_table = Path(out).suffix.lower() in (".json", ".parquet")
    return f"{out.rstrip('/')}.jsonl" if is_table else out


def holds_rows(path: StrPath) -> bool:
    """Whether a file has rows of ours, and so labels that no person gave."""
    try:
        return any(True for _ in read_rows(path))
    except InputError:
        return False


def read_rows(path: StrPath) -> Iterator[dict[str, Any]]:
    """The rows of an output, in order; those of a .json or .parquet are read from beside it.

    A torn last line, as a run leaves it that goes on or was killed, is no row.
    """
    name = rows_of(os.fspath(path))
    fmt = format_of(name)
    if fmt is None:
        raise InputError(
            f"{name!r} is not a file of labels by its name; give the .csv, .jsonl, .json or "
            ".parquet that `adte predict --out` wrote"
        )
    try:
        with open(name, "rb") as file:
            form: Csv | Lines = Lines()
            if fmt == "csv":
                form = Csv.of(head := file.readline())
                if head not in (form.head, b""):
                    raise InputError(
                        f"{name!r} holds no rows of `adte predict --out`, or another program has "
                        "saved it since; give the file as it was written"
                    )
            for number, line in enumerate(file, 1 + bool(form.head)):
                if not line.endswith(b"\n"):
                    break
                try:
                    row = form.row(line)
                except DAMAGE as error:
                    raise InputError(
                        f"line {number} of {name!r} is damaged or no row of `adte predict --out`; "
                        "give the file as it was written, or label anew with --force"
                    ) from error
                yield row
    except OSError as error:
        raise InputError(f"cannot read {name!r} ({error.strerror}); check the path") from error
