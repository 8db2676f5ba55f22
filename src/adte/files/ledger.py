"""An interrupted run goes on, exactly: each image has one row, and is learned from once.

A state file holds, beside what was learned, how many rows of which output it covers (`Mark`). Both
change in one step, since a state is written whole. `Ledger` reads an output that is there already
and cuts it to the rows that the state covers. Rows after these were written, but the saved state
has not learned from them: their images are predicted again.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from adte.errors import InputError
from adte.files.outputs import (
    Kept,
    Mark,
    Output,
    format_of,
    here,
    is_stream,
    mark_key,
    open_at,
    open_output,
    part_of,
)
from adte.files.rows import Csv, Done, Lines
from adte.files.whole import StrPath, target_of, write_whole

__all__ = ["Ledger"]


class Ledger:
    """What an output that is there already has done. Reading it changes nothing.

    A row that reports an error is done like any other. In use, with a state:

        ledger = Ledger("labels.csv", top=5)
        with ledger.resume(ledger.covered("shop.adte", marks)) as out:
            save(outputs=out.mark("shop.adte", marks))  # before the first row
            for name, source in images:
                if not ledger.take(name):
                    out.write(row)  # and every so often save(outputs=out.mark(…)) again

    Attributes:
        rows: whole rows that it holds. A torn last line, as a killed process leaves it, is none.
    """

    def __init__(self, path: StrPath, fmt: str | None = None, top: int = 0) -> None:
        self.path, self.top = os.fspath(path), top
        self._fmt = format_of(path, fmt)
        self._form = Csv(top) if self._fmt == "csv" else Lines()
        self._done: list[Done] = []
        self._ends: list[int] = []  # bytes from the beginning to the end of each row
        self._seen: int | None = None  # bytes of the file, where it is the one to go on with
        self._damaged = False
        self._kept = 0
        self._left: Counter[str] = Counter()
        if is_stream(path):
            return
        part = part_of(path) if self._fmt == "json" else target_of(path)
        self._is_list = self._fmt == "json" and not part.exists()
        self._place = target_of(path) if self._is_list else part
        try:
            self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"cannot read {self.path!r}: {error.strerror}; check it") from error

    @property
    def rows(self) -> int:
        return len(self._done)

    @property
    def failed(self) -> list[str]:
        """The images whose rows report an error, of the rows that were kept."""
        return [done.name for done in self._done[: self._kept] if done.failed]

    def _read(self) -> None:
        lines = self._lines()
        size, head, bad = 0, self._form.head, False
        if head:
            first = next(lines, b"")
            size = len(first)
            if first != head and not head.startswith(first):
                raise InputError(
                    f"{self.path!r} has other columns than this command writes; ask for the same "
                    "number of classes per image, give another name, or --force to begin again"
                )
        for line in lines:
            self._damaged = self._damaged or bad  # only the last line may be torn
            try:
                done = self._form.read(line)
                bad = not line.endswith(b"\n")
            except (ValueError, RecursionError, csv.Error):
                bad = True
                if self._is_list or not self._form.is_torn(line):
                    self._damaged = True
            if not bad and not self._damaged:
                size += len(line)
                self._done.append(done)
                self._ends.append(size)
        if not self._is_list:
            self._seen = self._place.stat().st_size

    def _lines(self) -> Iterator[bytes]:
        """Lines as JSON lines or CSV has them, whichever file they are in."""
        with self._place.open("rb") as f:
            for line in f:
                if not self._is_list:
                    yield line
                elif line not in (b"[\n", b"]\n"):
                    yield line.removesuffix(b"\n").removesuffix(b",") + b"\n"

    def _digest(self, rows: int) -> blake2b:
        """Of the first rows, and of the names of the columns."""
        digest = blake2b(self._form.head, digest_size=16)
        if rows:
            start = 1 if self._form.head else 0
            for line in islice(self._lines(), start, start + rows):
                digest.update(line)
        return digest

    def covered(self, state: StrPath, marks: Mapping[str, Any] | None = None) -> Mark:
        """How much of this output a state covers, by what its header says under "outputs".

        Rows that the state does not know of are refused: their images would be learned from twice,
        or their labels lost.
        """
        if not self.rows and not self._damaged:
            return Mark(folder=here(self.path))
        if (found := (marks or {}).get(mark_key(self.path, state))) is None:
            raise InputError(
                f"{self.path!r} holds rows that the state {os.fspath(state)!r} does not know of; "
                "give the state that was saved with them, another output, or --force to begin again"
            )
        return Mark(**found)

    def resume(self, covered: Mark | int | None = None) -> Output:
        """The output, cut to its first `covered` rows and open for more; None keeps all rows."""
        if is_stream(self.path):
            return open_output(self.path, self._fmt, self.top)
        if isinstance(covered, Mark):
            mark = covered
        else:
            mark = Mark(self.rows if covered is None else covered, folder=here(self.path))
        rows = mark.rows
        changed = rows > self.rows or (covered is None and self._damaged)
        if changed or (mark.digest and self._digest(rows).hexdigest() != mark.digest):
            raise InputError(
                f"{self.path!r} was changed since it was written, or a line of it is damaged; put "
                "it back as it was, give another name, or --force to begin again"
            )
        self._kept = rows
        if self._is_list and rows:
            first = b"".join(islice(self._lines(), rows))
            self._place = write_whole(
                part_of(self.path), lambda name: Path(name).write_bytes(first)
            )
            self._is_list = False
        size = self._ends[rows - 1] if rows else 0
        kept = Kept(rows, size, self._digest(rows), self._seen)
        out = open_at(self.path, self._form, self._fmt, kept)
        base = os.path.realpath(Path(os.path.realpath(self.path)).parent / mark.folder)
        self._left = Counter(str(Path(base, done.name)) for done in self._done[:rows])
        return out

    def take(self, name: str) -> bool:
        """Whether an image has a row already; asked once per image, as names may repeat."""
        key = str(Path(os.getcwd(), name))
        if not self._left[key]:
            return False
        self._left[key] -= 1
        return True
