"""Predictions on their way to a file, row by row. `adte.files.rows` says what a row looks like.

An interrupted run goes on with `adte.files.ledger`; what a state has to say for that is a `Mark`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from adte.core.errors import InputError, LockedError
from adte.core.schema import Count
from adte.files.devices import StrPath, is_special, open_through, standard_output
from adte.files.locks import try_lock
from adte.files.order import put_back
from adte.files.rows import Csv, Lines, Row
from adte.files.whole import reason, target_of, write_whole

__all__ = ["Mark", "Output", "open_output"]

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
PART = ".jsonl.part"
KEEP = 100  # outputs that a state remembers
MODULUS = 1 << 128  # of the sum of the digests of rows

Kind = Literal["file", "part", "stream", "list"]  # part and list: a JSON list, on disk or streamed


@dataclass(frozen=True)
class Mark:
    """How much of an output a state covers. Rows that report an error are no part of it.

    Attributes:
        rows: of the output, from its beginning, whose images the state knows.
        digest: of the bytes of these, in whatever order, and of the names of the columns.
        folder: where relative names of images start, as seen from the output's own folder: the
            one in which its first run was started.
    """

    rows: Count = 0
    digest: str = ""
    folder: str = "."


def format_of(path: StrPath) -> str:
    """The format of an output, by its name; a stream has lines of JSON if that does not say it."""
    fmt = SUFFIXES.get(Path(path).suffix.lower()) or ("jsonl" if is_stream(path) else None)
    if fmt is None:
        raise InputError(
            f"the name {os.fspath(path)!r} does not say which format to write; end it in "
            f"{', '.join(SUFFIXES)} or .parquet"
        )
    return fmt


def is_stream(path: StrPath) -> bool:
    """Whether rows are gone once they are written: standard output, a FIFO, a device."""
    return os.fspath(path) == "-" or is_special(path)


def part_of(path: StrPath) -> Path:
    """Where the rows of a JSON list are kept until it is put together."""
    target = target_of(path)
    return target_of(target.with_name(target.name + PART))  # which may be too long a name


def _relative(path: str, start: str) -> str:
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return path


def mark_key(path: StrPath, state: StrPath) -> str:
    """The output's name as seen from the state's folder, so that both may move together."""
    return _relative(os.path.realpath(path), os.path.dirname(os.path.realpath(state)))


def here(path: StrPath) -> str:
    """The current folder as seen from the folder of a file."""
    return _relative(os.getcwd(), os.path.dirname(os.path.realpath(path)))


def place_of(name: str, folder: str) -> str:
    """What an image is known by: its path, its name starting at a folder, or its address."""
    return name if "://" in name or name == "-" else str(Path(folder, name))


def known_by(name: str, folder: str) -> str:
    """The same for an image by whatever way its folder was reached: .., links, another folder."""
    if "://" in name or name == "-":
        return name
    above, slash, last = name.rpartition(os.sep)
    if last in ("", ".", "..") or (os.altsep or os.sep) in last:
        above, last = os.path.split(place_of(name, folder))
        slash = ""
    return os.path.join(_real(folder, above + slash), last)


@lru_cache(maxsize=1024)
def _real(folder: str, below: str) -> str:
    path = str(Path(folder, below))
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def base_of(path: StrPath, folder: str) -> str:
    """The folder of a mark, where the names in an output start."""
    return os.path.realpath(Path(os.path.realpath(path)).parent / folder)


def digest_of(lines: Iterable[bytes]) -> int:
    """Of rows in whatever order, as a finished file may have another one than its mark knows."""
    return sum(int.from_bytes(blake2b(x, digest_size=16).digest(), "big") for x in lines) % MODULUS


# --------------------------------------------------------------------------- writing


class Output:
    """An open output, made by `open_output` or `Ledger.resume`.

    Every row is handed to the system as it comes; `close` waits until all are on the disk. A file
    may then get its rows in another order; a mark of all of them is a mark of that file, too, so
    that a kill on either side of the change leaves what can be resumed.

    Attributes:
        path: as it was given.
        rows: how many it holds.
    """

    def __init__(
        self,
        path: StrPath,
        form: Csv | Lines,
        file: BinaryIO,
        kind: Kind,
        folder: str | None = None,
    ) -> None:
        self.path, self.rows = os.fspath(path), 0
        self._folder = here(path) if folder is None else folder
        self._elsewhere = self._folder != here(path)
        self._form, self._file, self._kind = form, file, kind
        self._digest = self._size = 0
        self._good = 0  # rows without an error
        self._dropped: set[int] = set()
        self._is_open = True

    def write(self, row: Row) -> None:
        """Add a row; a failure leaves whole rows. The keys are those of `adte.files.rows`.

        A run that goes on from another folder writes whole paths: names have one beginning.
        """
        if self._elsewhere:
            row = {**row, "path": place_of(row["path"], os.getcwd())}
        line = self._form.line(row)
        if self._kind == "list":
            line = (b",\n" if self.rows else b"[\n") + line.removesuffix(b"\n")
        good = not row.get("error")
        self._put(line, good)
        self.rows += 1
        self._good += good

    def drop(self, number: int) -> None:
        """Take a row that reports an error out when the file is finished; no mark covers it."""
        self._dropped.add(number)

    def _put(self, data: bytes, covered: bool = True) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            self._file.flush()
        except BrokenPipeError:  # the reader has seen enough
            raise
        except OSError as error:
            if self._kind in ("file", "part"):
                with suppress(OSError):
                    self._file.truncate(self._size)
            raise self._failure(error) from error
        self._size += len(data)
        if covered:
            self._digest = (self._digest + digest_of([data])) % MODULUS

    def _sync(self) -> None:
        if self._kind in ("file", "part"):
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failure(error) from error

    def _failure(self, error: OSError) -> InputError:
        return InputError(f"cannot write {self.path!r} after {self.rows} rows: {reason(error)}")

    def mark(self, state: StrPath, marks: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a state that is saved to `state` now has to say under "outputs".

        When this returns the rows are on the disk: a state never covers rows that are not there.

        Args:
            marks: what the state said before; other outputs stay in it.
        """
        if self._kind not in ("file", "part"):
            return dict(marks or {})
        self._sync()
        key = mark_key(self.path, state)
        others = [(k, v) for k, v in (marks or {}).items() if k != key]
        mark = Mark(self._good, f"{self._digest:032x}", self._folder)
        return {**dict(others[1 - KEEP :]), key: asdict(mark)}

    def close(self, listing: Sequence[str] | None = None) -> None:
        """Finish the file. A JSON list is put together here, of the rows that there are.

        Args:
            listing: names of images in the order that their rows shall have in a file. It needs a
                state that covers all rows.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._kind == "list":
                self._put(b"\n]\n" if self.rows else b"[\n]\n")
            self._sync()
            if self._kind == "part":
                self._assemble(listing)
        finally:
            if self.path != "-":
                self._file.close()  # and its lock goes
        if self._kind == "file" and (listing or self._dropped):
            self._rewrite(listing)
        self.rows -= len(self._dropped)

    def _rows(self, place: Path, listing: Sequence[str] | None) -> list[tuple[int, int]]:
        """Where the rows that stay begin and end, in the order of the listing."""
        rows: list[tuple[int, int]] = []
        names: list[str] = []
        base = base_of(self.path, self._folder)
        end = len(self._form.head)
        with open(place, "rb") as lines:
            lines.seek(end)
            for i, line in enumerate(lines):
                start, end = end, end + len(line)
                if i not in self._dropped:
                    rows.append((start, end))
                    if listing is not None:
                        names.append(known_by(self._form.read(line).name, base))
        if listing is None:
            return rows
        cwd = os.getcwd()
        return [rows[i] for i in put_back(names, (known_by(name, cwd) for name in listing))]

    def _rewrite(self, listing: Sequence[str] | None) -> None:
        place = Path(self._file.name)
        rows = self._rows(place, listing)
        if not self._dropped and rows == sorted(rows):  # a file that is right keeps its time
            return

        def write(name: str) -> None:
            with open(place, "rb") as lines, open(name, "wb") as out:
                out.write(self._form.head)
                out.writelines(_pieces(lines, rows))

        write_whole(place, write)

    def _assemble(self, listing: Sequence[str] | None) -> None:
        part = Path(self._file.name)
        rows = self._rows(part, listing)

        def write(name: str) -> None:
            with open(part, "rb") as lines, open(name, "wb") as out:
                for i, line in enumerate(_pieces(lines, rows)):
                    out.write((b",\n" if i else b"[\n") + line.removesuffix(b"\n"))
                out.write(b"\n]\n" if rows else b"[\n]\n")

        try:
            write_whole(str(part).removesuffix(PART), write)
        except InputError as error:
            raise InputError(f"{error}; the rows so far are in {str(part)!r}") from error
        with suppress(OSError):  # not while it is open on Windows; then it is found and cut later
            part.unlink()

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _pieces(file: BinaryIO, pieces: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for start, end in pieces:
        file.seek(start)
        yield file.read(end - start)


def open_output(path: StrPath, top: int = 0) -> Output:
    """An output without rows; those that were there go. `Ledger` keeps them.

    Args:
        path: a file, a special file such as a FIFO, or "-" for standard output.
        top: how many of the best classes CSV has columns for.

    A JSON list is put together when the output is closed. Until then its rows are in
    NAME.jsonl.part, where a killed process leaves them and `Ledger` finds them.
    """
    fmt = format_of(path)
    form = Csv(top) if fmt == "csv" else Lines()
    if not is_stream(path):
        return open_at(path, form, fmt)
    try:
        file = standard_output().buffer if os.fspath(path) == "-" else open_through(path)
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)!r}: {reason(error)}") from error
    out = Output(path, form, file, "list" if fmt == "json" else "stream")
    out._put(form.head)
    return out


class Kept(NamedTuple):
    """The rows that stay: how many, without an error too, their bytes, the size of the file when
    it was read, and where their names start."""

    rows: int
    good: int
    size: int
    digest: int
    seen: int | None
    folder: str


def open_at(path: StrPath, form: Csv | Lines, fmt: str, kept: Kept | None = None) -> Output:
    """The file, locked, and cut to the rows that stay."""
    place = part_of(path) if fmt == "json" else target_of(path)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(place, "a+b", buffering=0))
            free = try_lock(file.fileno()) is not False
            now = os.fstat(file.fileno())
            if kept is not None and kept.seen not in (None, now.st_size):
                free = False
            if not free or not os.path.samestat(now, place.stat()):
                raise LockedError(
                    f"{os.fspath(path)!r} is being written by another process; wait until it is "
                    "done, or give another name"
                )
            kind: Kind = "part" if fmt == "json" else "file"
            out = Output(path, form, file, kind, kept and kept.folder)
            size = kept.size if kept and kept.rows else 0
            if size != now.st_size:  # else the file keeps its time, see `Ledger.is_older`
                file.truncate(size)
        except OSError as error:
            raise InputError(f"cannot write {os.fspath(path)!r}: {reason(error)}") from error
        if kept is not None and kept.rows:
            out.rows, out._good = kept.rows, kept.good
            out._size, out._digest = kept.size, kept.digest
        else:
            out._put(form.head)
        stack.pop_all()  # the output closes it
    return out
