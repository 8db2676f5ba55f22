"""The log and the snapshots on disk: SQLite, write-ahead, every commit forced to the disk.

    facts      the model of all streams, the number of events
    streams    settings, and the token of each stream
    log        the events of a stream since its last snapshot but one
    snapshots  the newest two of each stream
    answers    the answer to each idempotency key
    history    predictions, for people to look at

Every row carries a checksum. Beside the database, the file `adte.mark` has the number of events
that were acknowledged. It is not forced to the disk, and never runs ahead; if the database has
fewer, its tail was cut.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from adte.core.errors import AdteError, InputError, LockedError, StateError
from adte.core.schema import MANY
from adte.files.claims import own_folder
from adte.files.locks import Lock
from adte.serve.packing import checksum

__all__ = ["FORMAT", "MARK", "NAME", "Database", "trouble"]

NAME, MARK = "adte.sqlite", "adte.mark"
FORMAT = 2  # of the database
APPLICATION = 0x61647465  # "adte"

SEQ = f"seq INTEGER NOT NULL CHECK (typeof(seq) = 'integer' AND seq BETWEEN 0 AND {MANY})"
SCHEMA = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, sum BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (id TEXT PRIMARY KEY, settings TEXT NOT NULL, created TEXT NOT NULL,
    sum BLOB NOT NULL, made BLOB, token BLOB, origin BLOB);
CREATE TABLE log (stream TEXT NOT NULL, {SEQ}, kind TEXT NOT NULL,
    images INTEGER NOT NULL, data BLOB NOT NULL, sum BLOB NOT NULL, PRIMARY KEY (stream, seq));
CREATE TABLE snapshots (stream TEXT NOT NULL, {SEQ}, data BLOB NOT NULL,
    sum BLOB NOT NULL, PRIMARY KEY (stream, seq));
CREATE TABLE answers (stream TEXT NOT NULL, {SEQ}, key TEXT NOT NULL,
    digest BLOB NOT NULL, answer BLOB NOT NULL, sum BLOB NOT NULL, PRIMARY KEY (stream, key));
CREATE INDEX answers_by_age ON answers (stream, seq);
CREATE TABLE history (stream TEXT NOT NULL, {SEQ}, image INTEGER NOT NULL,
    time TEXT NOT NULL, class INTEGER NOT NULL, confidence REAL NOT NULL, learned INTEGER NOT NULL,
    drift REAL, truth INTEGER, sum BLOB NOT NULL, PRIMARY KEY (stream, seq, image)) WITHOUT ROWID;
"""


def _locked(path: Path) -> Lock:
    """The lock of a database, which a server keeps until it ends."""
    try:
        return Lock(path, timeout=2.0).acquire()
    except LockedError as error:
        raise LockedError(
            f"{error.problem}; stop the server that uses this folder, ask it over HTTP, or give "
            "another folder"
        ) from error


def trouble(folder: str | os.PathLike[str], error: Exception) -> AdteError:
    """The error of a database that cannot be used: the disk is at fault, or its content."""
    if isinstance(error, sqlite3.OperationalError | OSError):
        return InputError(
            f"cannot use the database in {str(folder)!r} ({error}); see that its disk has room and "
            "that its files may be read and written"
        )
    return StateError(
        f"the database in {str(folder)!r} is damaged ({error}); put a backup in its place"
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Which file a path leads to."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _read_through(path: Path) -> None:
    """Read a database once in the order of the disk, which the check of its pages does not keep to:
    1 GB of small rows is checked in 3 s then, else in 13 s.

    To be called before the database is opened: who closes the file gives up all its locks.
    """
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


class Database:
    """A folder with the database, for one thread at a time.

    Args:
        folder: made if it is not there, unless `reading`.
        reading: look only; a server may use it at the same time.
        most: bytes that the database may have; 0 sets no limit.

    Attributes:
        events: in the database.
        lost: events that had been acknowledged and were not there when it was opened.
    """

    def __init__(
        self, folder: str | os.PathLike[str], reading: bool = False, most: int = 0
    ) -> None:
        self.folder, self.path = Path(folder), Path(folder) / NAME
        if reading and not self.path.is_file():
            raise InputError(
                f"{str(folder)!r} holds no state of a service; give the folder of `adte serve "
                f"--state`, or one in which a backup has the name {NAME}"
            )
        self._held = ExitStack()  # what is open, to be closed with the store or a start that fails
        if not reading:
            own_folder(folder, NAME, f"{NAME}*", MARK)
            self._held.callback(_locked(self.path).release)
        marked = self._marked()  # first: a server beside us goes on
        try:
            self._check_there(marked)
            if not reading:
                _read_through(self.path)
            self.db = self._open(reading, most)
            self.events = int(self._fact("events") or 0)
            self._files = self._at_path()  # which are open
            self.lost = max(0, marked - self.events)
            if not reading:
                (self.folder / MARK).touch(0o600)
                mark = (self.folder / MARK).open("r+b", buffering=0)
                self._mark = self._held.enter_context(mark)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # of SQLite's own words, too
            self._held.close()
            raise trouble(self.folder, error) from error
        except BaseException:
            self._held.close()
            raise

    def _check_there(self, marked: int) -> None:
        """Refuse an empty database where there was more: SQLite deletes the log beside it."""
        log = Path(f"{self.path}-wal")
        sizes = [path.stat().st_size if path.exists() else 0 for path in (self.path, log)]
        if sizes[0] or not (sizes[1] or marked):
            return
        there = f"{marked} events were acknowledged" if marked else f"{log.name} holds events"
        names = [*([MARK] if marked else []), *([log.name] if sizes[1] else [])]
        raise StateError(
            f"{str(self.path)!r} is empty or gone, though {there}; move {' and '.join(names)} "
            "away, then put a backup in its place, or begin anew"
        )

    def _at_path(self) -> list[tuple[int, int] | None]:
        """Which files the database and its log are."""
        return [_identity(f"{self.path}{suffix}") for suffix in ("", "-wal")]

    @property
    def there(self) -> bool:
        """Whether what is open still lies in the folder; SQLite writes to a deleted file, too."""
        return self._at_path() == self._files

    def _connect(self, mode: str) -> sqlite3.Connection:
        where = f"{self.path.resolve().as_uri()}?mode={mode}"
        db = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        db.text_factory = lambda data: data.decode(errors="replace")  # damage is no reason to fail
        return self._held.enter_context(closing(db))

    def _look(self) -> sqlite3.Connection:
        """One that only reads; SQLite would write beside a database, which a backup may forbid."""
        db = self._connect("ro")
        try:
            db.execute("PRAGMA user_version")
        except sqlite3.OperationalError:
            db.close()
            log = Path(f"{self.path}-wal")
            if log.exists() and log.stat().st_size:  # what it has would be left out
                raise
            db = self._connect("ro&immutable=1")
        return db

    def _open(self, reading: bool, most: int) -> sqlite3.Connection:
        old = os.umask(0o077)  # what people sent is theirs
        try:
            db = self._look() if reading else self._connect("rwc")
            form = db.execute("PRAGMA user_version").fetchone()[0]
            if form not in (0, FORMAT):
                raise StateError(
                    f"{str(self.path)!r} has format {form}, this version of adte reads format "
                    f"{FORMAT}; use the version that wrote it"
                )
            if (fault := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(fault)
            if not reading:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute("PRAGMA fullfsync=ON")
                if form == 0:
                    db.executescript(
                        f"BEGIN; {SCHEMA} PRAGMA application_id={APPLICATION}; "
                        f"PRAGMA user_version={FORMAT}; COMMIT;"
                    )
                if most:
                    size = db.execute("PRAGMA page_size").fetchone()[0]
                    db.execute(f"PRAGMA max_page_count={max(1, most // size)}")
            elif form == 0:
                raise StateError(f"{str(self.path)!r} is no database of adte; check the path")
        finally:
            os.umask(old)
        return db

    def close(self) -> None:
        """Write what is in the log into the database, and let others have it."""
        with suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._held.close()

    # ------------------------------------------------------------------ writing

    @contextmanager
    def group(self) -> Iterator[None]:
        """All or nothing, and on the disk when the block has ended."""
        before, changes = self.events, self.db.total_changes
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            if self.events != before:
                self.set_fact("events", str(self.events))
            if self.db.total_changes != changes and not self.there:
                raise sqlite3.OperationalError("the database was moved, replaced or deleted")
            self.db.execute("COMMIT")
        except BaseException:
            self.events = before
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        if self.events != before:
            self.note_events()

    def _marked(self) -> int:
        """Events that were acknowledged, as far as it is known."""
        try:
            data = (self.folder / MARK).read_bytes()[:8]
        except OSError:
            return 0
        return int.from_bytes(data, "little") if len(data) == 8 else 0

    def note_events(self) -> None:
        """Note how many events there are; earlier losses were reported."""
        with suppress(OSError):  # the events are on the disk, and the mark may stay behind
            self._mark.seek(0)
            self._mark.write(self.events.to_bytes(8, "little"))

    # ------------------------------------------------------------------ rows

    def _put(self, table: str, *row: Any, verb: str = "INSERT") -> None:
        """Write a row with its checksum."""
        marks = ", ".join("?" * (len(row) + 1))
        self.db.execute(f"{verb} INTO {table} VALUES ({marks})", (*row, checksum(*row)))  # nosec B608

    def set_fact(self, name: str, value: str) -> None:
        self._put("facts", name, value, verb="INSERT OR REPLACE")

    def _rows(self, query: str, *values: Any) -> Iterator[tuple[Any, bool]]:
        """Rows whose last column is the checksum of the others; whether each is whole."""
        for *row, total in self.db.execute(query, values):
            yield row, checksum(*row) == total

    def _sealed(self, what: str, row: list[Any], good: bool) -> list[Any]:
        """A row without which nothing can be served."""
        if not good:
            raise StateError(f"{what}, in the database in {str(self.folder)!r}, is damaged; put a "
                             "backup in its place")  # fmt: skip
        return row

    def _fact(self, name: str) -> str | None:
        for row, good in self._rows("SELECT * FROM facts WHERE name = ?", name):
            return str(self._sealed(f"the fact {name!r}", row, good)[1])
        return None

    @property
    def bytes(self) -> int:
        """Of the database and its log."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                total += Path(f"{self.path}{suffix}").stat().st_size
        return total
