"""Rows of predictions as lines of CSV or JSON, and names that no line can break.

A row is one image: path, label, confidence, index, learned, error, and `top`, a list of
{"class", "probability"}. CSV writes `top` as columns class_1, probability_1, …; JSON writes it as
it is, and any further keys after it. One row is one line, always.

A file name may hold bytes that are not UTF-8, and line breaks. In a row, such a name has `\\udcff`
for the byte ff, `\\u000a` for a line break and `\\\\` for each backslash of its own; every other
name is written as it is. `unescape_name` gives the name back, and `os.fsencode` of that its bytes.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from sys import intern
from typing import Any, BinaryIO, NamedTuple

__all__ = [
    "COLUMNS", "Csv", "Done", "Lines", "Row", "escape_cell", "escape_name", "head_of", "is_facts",
    "is_resaved", "is_rows", "unescape_cell", "unescape_name",
]  # fmt: skip

HEAD = 1 << 20  # bytes that tell whether a file is of our making,
LONGEST = 1 << 28  # or as many as its first row takes, if that
BEGINS = b'{"path": '  # so
COLUMNS = ("path", "label", "confidence", "index", "learned", "error")
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


class Done(NamedTuple):
    """What is read back of a row; a label of None was unsure, or the image could not be read, of
    which `error` tells."""

    name: str
    label: str | None
    confidence: float | None
    learned: bool
    error: str
    top: int | None = None  # classes that are listed, where the line itself says it

    @property
    def failed(self) -> bool:
        return bool(self.error)


class Csv:
    """A line of column names, then a line per row, with columns for the `top` best classes."""

    def __init__(self, top: int = 0) -> None:
        numbered = (f"{c}_{i + 1}" for i in range(top) for c in ("class", "probability"))
        self.top, self.columns = top, (*COLUMNS, *numbered)
        self.head = self._join(self.columns)

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

    def read(self, line: bytes) -> Done:
        (cells,) = csv.reader([line.decode().removesuffix("\n")], strict=True)
        if len(cells) != len(self.columns):
            raise ValueError("another number of columns")
        name, label, confidence, _, learned, error = cells[: len(COLUMNS)]
        sure = float(confidence) if confidence else None
        name, label, error = map(_read_cell, (name, label, error))
        return Done(name, intern(label) or None, sure, learned == "true", error)

    def row(self, line: bytes) -> dict[str, Any]:
        """The row that `line` was given."""
        (cells,) = csv.reader([line.decode()], strict=True)
        found = dict(zip(self.columns, map(_read_cell, cells), strict=True))
        best = ((found[f"class_{i}"], found[f"probability_{i}"]) for i in range(1, self.top + 1))
        return {
            **{c: found[c] or None for c in COLUMNS},
            "confidence": float(found["confidence"]) if found["confidence"] else None,
            "index": int(found["index"]) if found["index"] else None,
            "learned": found["learned"] == "true",
            "top": [{"class": c, "probability": float(p)} for c, p in best if c],
        }

    def is_torn(self, line: bytes) -> bool:
        """Whether a line may be the beginning of a row; under our head any line may."""
        return True


class Lines:
    """A JSON object per line."""

    head = b""

    def line(self, row: Row) -> bytes:
        row = _plain(row)
        first = {c: row.get(c) for c in COLUMNS}
        return json.dumps({**first, **row}, ensure_ascii=False).encode() + b"\n"

    def read(self, line: bytes) -> Done:
        row = json.loads(line)
        if not _is_row(row):
            raise ValueError("not a row")
        label, sure = row["label"], row["confidence"]
        return Done(
            unescape_name(row["path"]),
            intern(unescape_name(label)) if isinstance(label, str) and label else None,
            float(sure) if isinstance(sure, int | float) else None,
            row["learned"] is True,
            unescape_name(str(row["error"] or "")),
            len(best) if isinstance(best := row.get("top"), list) else None,
        )

    def row(self, line: bytes) -> dict[str, Any]:
        """The row that `line` was given; as one of a list it ends in a comma."""
        row = json.loads(line.removesuffix(b","))
        best = [{**t, "class": unescape_name(t["class"])} for t in row.get("top") or []]
        texts = {c: unescape_name(row[c]) if row[c] else None for c in ("path", "label", "error")}
        return {**row, **texts, "top": best}

    def is_torn(self, line: bytes) -> bool:
        """Whether a line may be the beginning of a row, or room that a crash left empty."""
        start = b'{"%s": "' % COLUMNS[0].encode()
        return line.startswith(start) or start.startswith(line) or not line.strip(b"\0")


def _is_row(row: object) -> bool:
    keys = tuple(row)[: len(COLUMNS)] if isinstance(row, dict) else ()
    return keys == COLUMNS and isinstance(row["path"], str)  # type: ignore[index]


def is_facts(head: bytes) -> bool:
    """Whether a file that begins so holds facts of ours: JSON that is marked {"adte": …}."""
    return re.match(rb'\s*\{\s*"adte"\s*:', head) is not None


def is_resaved(head: bytes) -> bool:
    """Whether a file that begins so holds rows of ours as a spreadsheet, an editor or git saved it:
    with a mark of its encoding, other ends of lines, semicolons, tabs or quotes.
    """
    first = head.partition(b"\n")[0]
    plain = first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r").replace(b'"', b"")
    plain = plain.replace(b";", b",").replace(b"\t", b",")
    return plain != first and _is_head(plain)


def _is_head(line: bytes) -> bool:
    columns = ",".join(COLUMNS).encode()
    return line == columns or line.startswith(columns + b",class_1,")


def head_of(file: BinaryIO) -> bytes:
    """The beginning of a file, which tells what it is: with its first row, however long."""
    parts = [file.read(HEAD)]
    first = parts[0].removeprefix(b"[\n")
    if first.startswith(BEGINS) and b"\n" not in first:
        for _ in range(LONGEST // HEAD):
            parts.append(file.read(HEAD))
            if not parts[-1] or b"\n" in parts[-1]:
                break
    return b"".join(parts)


def is_rows(head: bytes) -> bool:
    """Whether a file that begins so holds rows of ours."""
    first, _, rest = head.partition(b"\n")
    if _is_head(first):
        return True
    if first == b"[":  # a list is written with one row per line
        first = rest.partition(b"\n")[0].removesuffix(b",")
        if first == b"]":
            return True
    with suppress(ValueError, RecursionError):
        return _is_row(json.loads(first))
    return False
