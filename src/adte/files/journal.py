"""The journal of a run: rows in a file, each image once, and how far a state covers them.

Rows are appended to the file as they come. A state file holds, beside what was learned, how many of
them it covers (`Mark`). Both change in one step, since a state is written whole. A run that goes on
cuts the file to the rows that the state covers: rows after these were written, but the saved state
has not learned from them, so their images are predicted again.

Rows that report an error taught nothing, and no state covers them. Their images are tried again;
when the file is finished, the rows of errors that are out of date go.

    journal = Journal("labels.csv", 5, Mark.among(marks, "labels.csv", "shop.adte"))
    save(outputs=journal.mark("shop.adte", marks))  # before the first row
    with journal.begin():
        for name, source in images:
            if journal.take(name) is None:
                journal.write(row)  # and every so often save(outputs=journal.mark(…)) again
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from sys import intern
from typing import Any, BinaryIO, NamedTuple

from adte.core.errors import InputError
from adte.core.schema import Count
from adte.files.devices import StrPath, is_special, open_through, standard_output
from adte.files.inputs import is_newer
from adte.files.order import put_back
from adte.files.rows import DAMAGE, Csv, Lines, Row, format_of
from adte.files.whole import reason, target_of, write_whole

__all__ = ["Done", "Journal", "Mark", "Stream", "form_of", "is_stream", "place_of"]

KEEP = 100  # outputs that a state remembers
MODULUS = 1 << 128  # of the sum of the digests of rows


@dataclass(frozen=True)
class Mark:
    """How much of an output a state covers. Rows that report an error are no part of it.

    Attributes:
        rows: of the output, from its beginning, whose images the state knows.
        digest: of the bytes of these, in whatever order, as a finished file has another one.
        folder: where relative names of images start, as seen from the output's own folder: the
            one in which its first run was started.
        asked: options that the rows follow from, as on the command line.
    """

    rows: Count = 0
    digest: str = ""
    folder: str = "."
    asked: str = ""

    @staticmethod
    def key(path: StrPath, state: StrPath) -> str:
        """The output's name as seen from the state's folder, so that both may move together."""
        return _relative(os.path.realpath(path), os.path.dirname(os.path.realpath(state)))

    @classmethod
    def among(cls, marks: Mapping[str, Any], path: StrPath, state: StrPath) -> Mark | None:
        """The mark of an output, if a state with `marks` under "outputs" knows of it."""
        mark = marks.get(cls.key(path, state))
        return None if mark is None else cls(**mark)

    def base(self, path: StrPath) -> str:
        """The folder where the names in an output start."""
        return os.path.realpath(Path(os.path.realpath(path)).parent / self.folder)


class Done(NamedTuple):
    """The label that an image has from an earlier run; None is unsure."""

    label: str | None


def is_stream(path: StrPath) -> bool:
    """Whether rows are gone once they are written: standard output, a FIFO, a device."""
    return os.fspath(path) == "-" or is_special(path)


def form_of(path: StrPath, top: int) -> Csv | Lines:
    """The form of rows by the name of their file; a stream has lines of JSON if it says none."""
    fmt = format_of(path)
    if fmt is None and not is_stream(path):
        raise InputError(
            f"the name {os.fspath(path)!r} does not say which format to write; end it in .csv, "
            ".jsonl, .json or .parquet"
        )
    return Csv(top) if fmt == "csv" else Lines()


def place_of(name: str, folder: str) -> str:
    """The path of an image whose name starts at a folder; an address is its own."""
    return name if "://" in name or name == "-" else str(Path(folder, name))


def _identity(name: str, folder: str) -> str:
    """Equal for one image by whatever way its folder is reached: .., links, another folder."""
    if "://" in name or name == "-":
        return name
    above, last = os.path.split(name)
    if last in ("", ".", ".."):
        return _real(folder, name)
    return os.path.join(_real(folder, above), last)


@lru_cache(maxsize=1024)
def _real(folder: str, below: str) -> str:
    path = os.path.join(folder, below)
    with suppress(OSError, ValueError):
        return os.path.realpath(path)
    return path


def _relative(path: str, start: str) -> str:
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return path


def _digest(line: bytes) -> int:
    return int.from_bytes(blake2b(line, digest_size=16).digest(), "big")


class Stream:
    """Rows on their way to standard output, a FIFO or a device. Nothing is remembered.

    Attributes:
        path: as it was given.
        rows: how many were written.
    """

    def __init__(self, path: StrPath, top: int = 0) -> None:
        self.path, self.rows = os.fspath(path), 0
        self._form = form_of(path, top)
        self._file: BinaryIO | None = None
        self._size = 0

    def begin(self) -> Stream:
        """Open it, and write the names of the columns."""
        try:
            self._file = self._open()
        except OSError as error:
            raise InputError(f"cannot write {self.path!r}: {reason(error)}") from error
        if not self._size:
            self._put(self._form.head)
        return self

    def _open(self) -> BinaryIO:
        return standard_output().buffer if self.path == "-" else open_through(self.path)

    def write(self, row: Row) -> None:
        """Add a row; the keys are those of `adte.files.rows`."""
        self._put(self._form.line(row))
        self.rows += 1

    def _put(self, data: bytes) -> None:
        """Hand it to the system at once."""
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            self._file.flush()
        except BrokenPipeError:  # the reader has seen enough
            raise
        except OSError as error:
            raise self._failure(error) from error
        self._size += len(data)

    def _failure(self, error: OSError) -> InputError:
        return InputError(f"cannot write {self.path!r} after {self.rows} rows: {reason(error)}")

    def take(self, name: str) -> Done | None:
        """The row without an error that an image has; asked once per image, as names may repeat."""
        return None

    def is_older(self, source: object) -> bool:
        """Whether an image file was changed after the last row, and may be another one by now."""
        return False

    def mark(self, state: StrPath, marks: Mapping[str, Any]) -> dict[str, Any]:
        """What a state that is saved to `state` now has to say under "outputs".

        Args:
            marks: as the state had them; other outputs stay in it.
        """
        return dict(marks)

    def close(self, listing: Sequence[str] | None = None) -> None:
        """Finish; again does nothing.

        Args:
            listing: names of images in the order that their rows shall have in a file. It needs a
                state that covers all rows.
        """
        file, self._file = self._file, None
        if file is not None and self.path != "-":
            file.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Journal(Stream):
    """Rows in a file, of which a state covers some. Making it reads them and changes nothing.

    The caller holds the lock of the file.

    Args:
        path: the file.
        top: how many of the best classes a row has.
        mark: what the state covers; rows after that go. None begins anew.
        asked: options that the rows follow from, for a new mark.

    Attributes:
        lost: rows that the state covers of a file that is gone or empty.
    """

    def __init__(
        self, path: StrPath, top: int = 0, mark: Mark | None = None, asked: str = ""
    ) -> None:
        super().__init__(path, top)
        self._place, self._cwd = target_of(path), os.getcwd()
        here = _relative(self._cwd, str(self._place.parent))
        self._mark = mark or Mark(folder=here, asked=asked)
        self._base, self._is_elsewhere = self._mark.base(path), self._mark.folder != here
        self._labels: dict[str, list[str]] = {}
        self._errors: Counter[tuple[str, str]] = Counter()  # rows that an earlier run reported
        self._good, self._digest = 0, _digest(self._form.head)
        self._written = self.lost = 0
        if mark is None:
            return
        try:
            with open(self._place, "rb") as file:
                status = os.fstat(file.fileno())
                self._written, is_ours = status.st_mtime_ns, self._read(file)
        except FileNotFoundError:
            status, is_ours = None, True
        except OSError as error:
            raise InputError(f"cannot read {self.path!r}: {error.strerror}; check it") from error
        if status is None or not status.st_size:
            self.lost = mark.rows
        elif not (is_ours and self._good == mark.rows and mark.digest in ("", self._hex)):
            raise InputError(
                f"{self.path!r} was changed since it was written, or saved by another program; put "
                "it back as it was, or give another name"
            )

    def _read(self, file: BinaryIO) -> bool:
        """Take in the rows that stay: up to the first without an error that is not covered.

        A line that is no row is another's, unless it has no end, as a killed process leaves it.
        """
        head = file.readline() if self._form.head else b""
        if head != self._form.head:
            return not head.endswith(b"\n")
        self._size = len(head)
        for line in file:
            try:
                row = self._form.row(line)
                key = _identity(row["path"], self._base)
            except DAMAGE:
                return not line.endswith(b"\n")
            if not line.endswith(b"\n"):
                return True
            if row["error"]:
                self._errors[key, row["error"]] += 1
            elif self._good == self._mark.rows:
                return True
            else:
                self._labels.setdefault(key, []).append(intern(row["label"] or ""))
                self._good += 1
                self._digest = (self._digest + _digest(line)) % MODULUS
            self.rows += 1
            self._size += len(line)
        return True

    @property
    def _hex(self) -> str:
        return f"{self._digest:032x}"

    def _open(self) -> BinaryIO:
        file = open(self._place, "ab", buffering=0)  # noqa: SIM115  # closed by close
        if os.fstat(file.fileno()).st_size != self._size:  # else it keeps its time, see `is_older`
            file.truncate(self._size)
        return file

    def write(self, row: Row) -> None:
        """Add a row; an error that an earlier run has reported already has its row.

        A run that goes on from another folder writes whole paths: names have one beginning.
        """
        key = _identity(row["path"], self._cwd)
        if row["error"] and self._errors[key, row["error"]]:
            self._errors[key, row["error"]] -= 1
            return
        if self._is_elsewhere:
            row = {**row, "path": place_of(row["path"], self._cwd)}
        line = self._form.line(row)
        self._put(line)
        self.rows += 1
        if not row["error"]:
            self._good += 1
            self._digest = (self._digest + _digest(line)) % MODULUS

    def _put(self, data: bytes) -> None:
        try:
            super()._put(data)
        except InputError:  # leave whole rows
            assert self._file is not None
            with suppress(OSError):
                self._file.truncate(self._size)
            raise

    def take(self, name: str) -> Done | None:
        labels = self._labels.get(_identity(name, self._cwd))
        return Done(labels.pop(0) or None) if labels else None

    def is_older(self, source: object) -> bool:
        return bool(self._labels) and isinstance(source, Path) and is_newer(source, self._written)

    def mark(self, state: StrPath, marks: Mapping[str, Any]) -> dict[str, Any]:
        """The rows are on the disk when this returns: a state never covers rows that are not."""
        self._sync()
        key = Mark.key(self.path, state)
        others = [(k, v) for k, v in marks.items() if k != key]
        mark = replace(self._mark, rows=self._good, digest=self._hex)
        return {**dict(others[1 - KEEP :]), key: asdict(mark)}

    def _sync(self) -> None:
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failure(error) from error

    def close(self, listing: Sequence[str] | None = None) -> None:
        if self._file is None:
            return
        try:
            self._sync()
        finally:
            super().close()
        lines, rows = self.rows, self._current()
        order = list(range(len(rows)))
        if listing is not None:
            names = (_identity(name, self._cwd) for name in listing)
            order = put_back([row.key for row in rows], names)
        self.rows = len(rows)
        if len(rows) == lines and order == sorted(order):  # a file that is right keeps its time
            return

        def write(name: str) -> None:
            with open(self._place, "rb") as file, open(name, "wb") as out:
                out.write(self._form.head)
                for i in order:
                    file.seek(rows[i].start)
                    out.write(file.read(rows[i].end - rows[i].start))

        write_whole(self._place, write)

    def _current(self) -> list[_Line]:
        """The rows but for errors that are out of date: a later row is of the same image, or of one
        in the folder or archive that could not be opened. The same error twice is that of an image
        that was named twice."""
        lines: list[_Line] = []
        end = len(self._form.head)
        with open(self._place, "rb") as file:
            file.seek(end)
            for text in file:
                start, end, row = end, end + len(text), self._form.row(text)
                key = _identity(row["path"], self._base)
                place = place_of(row["path"], self._base)  # of a link to a folder, too
                lines.append(_Line(start, end, key, place, row["error"] or ""))
        current: list[_Line] = []
        later: set[str] = set()
        errors: dict[str, str] = {}  # of the rows behind, by image
        for line in reversed(lines):
            if not line.error or line.key not in later or errors.get(line.key) == line.error:
                current.append(line)
                errors[line.key] = line.error
            for above in (line.key, line.place):
                while above not in later:
                    later.add(above)
                    above = os.path.dirname(above)
        return current[::-1]


class _Line(NamedTuple):
    """Where a row begins and ends in its file, and which image it is of."""

    start: int
    end: int
    key: str
    place: str
    error: str
