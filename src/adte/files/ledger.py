"""An interrupted run goes on, exactly: each image has one row, and is learned from once.

A state file holds, beside what was learned, how many rows of which output it covers (`Mark`). Both
change in one step, since a state is written whole. `Ledger` reads an output that is there already
and cuts it to the rows that the state covers. Rows after these were written, but the saved state
has not learned from them: their images are predicted again. Rows that report an error taught
nothing, and no state covers them: their images are tried again, and the row of the last trial takes
the place of theirs.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.inputs import is_newer
from adte.files.outputs import (
    Kept,
    Mark,
    Output,
    base_of,
    digest_of,
    format_of,
    here,
    is_stream,
    known_by,
    mark_key,
    open_at,
    open_output,
    part_of,
    place_of,
)
from adte.files.rows import Csv, Done, Lines, is_resaved
from adte.files.whole import target_of, write_whole

__all__ = ["Ledger", "check_saved"]


class Ledger:
    """What an output that is there already has done. Reading it changes nothing.

    In use, with a state:

        ledger = Ledger("labels.csv", top=5)
        with ledger.resume(ledger.covered("shop.adte", marks)) as out:
            save(outputs=out.mark("shop.adte", marks))  # before the first row
            for name, source in images:
                if not ledger.take(name):
                    out.write(row)  # and every so often save(outputs=out.mark(…)) again

    Attributes:
        rows: whole rows that it holds. A torn last line, as a killed process leaves it, is none.
    """

    def __init__(self, path: StrPath, top: int = 0) -> None:
        self.path, self.top = os.fspath(path), top
        self._fmt = format_of(path)
        self._form = Csv(top) if self._fmt == "csv" else Lines()
        self._done: list[Done] = []
        self._ends: list[int] = []  # bytes from the beginning to the end of each row
        self._seen: int | None = None  # bytes of the file, where it is the one to go on with
        self._written = 0  # when, in nanoseconds
        self._damaged = False
        self._left: dict[str, list[Done]] = {}  # by `place_of`
        self._failed: dict[str, list[int]] = {}
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
    def done(self) -> list[Done]:
        """What the rows say, in order."""
        return self._done

    def _read(self) -> None:
        lines = self._lines()
        size, head, bad = 0, self._form.head, False
        if head:
            first = next(lines, b"")
            size = len(first)
            if is_resaved(first):
                raise _resaved(self.path)
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
        found = self._place.stat()
        self._written = found.st_mtime_ns
        if not self._is_list:
            self._seen = found.st_size

    def _lines(self) -> Iterator[bytes]:
        """Lines as JSON lines or CSV has them, whichever file they are in."""
        with self._place.open("rb") as f:
            for line in f:
                if not self._is_list:
                    yield line
                elif line not in (b"[\n", b"]\n"):
                    yield line.removesuffix(b"\n").removesuffix(b",") + b"\n"

    def _first(self, rows: int, failed: bool = False) -> Iterator[bytes]:
        """The names of the columns and the first rows, of which `failed` counts those too that
        report an error.
        """
        yield self._form.head
        lines = islice(self._lines(), 1 if self._form.head else 0, None)
        some = (x for x, done in zip(lines, self._done, strict=False) if failed or not done.failed)
        yield from islice(some, rows)

    def _stay(self, mark: Mark) -> int | None:
        """How many rows stay, or None if these are not the rows that the mark is of.

        Rows that report an error stay up to the first row that is not covered.
        """
        good = [i for i, done in enumerate(self._done) if not done.failed]
        if mark.rows <= len(good) and (
            mark.digest in ("", f"{digest_of(self._first(mark.rows)):032x}")
            or mark.digest == _in_order(self._first(mark.rows))
        ):
            return [*good, self.rows][mark.rows]
        if mark.rows > self.rows:
            return None
        every = _in_order(self._first(mark.rows, failed=True))  # as marks counted errors once
        return mark.rows if mark.digest == every else None

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

    def lost(self, state: StrPath, marks: Mapping[str, Any] | None = None) -> int:
        """Rows that a state covers of an output that has none any more."""
        found = None if self.rows else (marks or {}).get(mark_key(self.path, state))
        return 0 if found is None else Mark(**found).rows

    def resume(self, covered: Mark | int | None = None) -> Output:
        """The output, cut to its first `covered` rows and open for more; None keeps all rows.

        Rows that report an error are not counted.
        """
        if is_stream(self.path):
            return open_output(self.path, self.top)
        if isinstance(covered, Mark):
            mark = covered
        else:
            all_good = sum(not done.failed for done in self._done)
            mark = Mark(all_good if covered is None else covered, folder=here(self.path))
        rows = self._stay(mark)
        if rows is None or (covered is None and self._damaged):
            raise InputError(
                f"{self.path!r} was changed since it was written, or a line of it is damaged; put "
                "it back as it was, give another name, or --force to begin again"
            )
        if self._is_list and rows:
            first = b"".join(islice(self._lines(), rows))
            self._place = write_whole(part_of(self.path), first)
            self._is_list = False
        size = self._ends[rows - 1] if rows else 0
        good = sum(not done.failed for done in self._done[:rows])
        kept = Kept(rows, good, size, digest_of(self._first(good)), self._seen, mark.folder)
        out = open_at(self.path, self._form, self._fmt, kept)
        base = base_of(self.path, mark.folder)
        for i, done in enumerate(self._done[:rows]):
            key = known_by(done.name, base)
            if done.failed:
                self._failed.setdefault(key, []).append(i)
                continue
            self._left.setdefault(key, []).append(done)
            for number in self._failed.pop(key, []):  # tried again by a run that was killed
                out.drop(number)
        return out

    def take(self, name: str) -> Done | None:
        """The row without an error that an image has; asked once per image, as names may repeat."""
        found = self._left.get(known_by(name, os.getcwd()))
        return found.pop(0) if found else None

    def is_older(self, image: Path) -> bool:
        """Whether an image file was changed after the last row, and may be another one by now."""
        return is_newer(image, self._written)

    def failures(self, name: str) -> dict[int, str]:
        """What was reported of an image, by the number of the row; asked once too."""
        numbers = self._failed.pop(known_by(name, os.getcwd()), [])
        return {number: self._done[number].error for number in numbers}

    def opened(self, name: str) -> list[int]:
        """Rows that report an error of a folder or an archive that an image lies in: it is open."""
        if not self._failed:
            return []
        ways = place_of(name, os.getcwd()), known_by(name, os.getcwd())
        above = {str(folder) for way in ways for folder in Path(way).parents}
        return [number for folder in above for number in self._failed.pop(folder, [])]


def _in_order(lines: Iterable[bytes]) -> str:
    """The digest of marks that knew of one order of the rows alone."""
    digest = blake2b(digest_size=16)
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def check_saved(path: StrPath) -> None:
    """Refuse rows that another program has saved in its own way, which are not taken for ours."""
    head = b""
    if not is_stream(path):
        with suppress(OSError, ValueError), open(path, "rb") as file:
            head = file.readline(1 << 20)
    if is_resaved(head):
        raise _resaved(os.fspath(path))


def _resaved(path: str) -> InputError:
    return InputError(
        f"{path!r} was saved by another program, with other separators or ends of lines; put it "
        "back as it was, or give another name"
    )
