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

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from adte.core.errors import AdteError, InputError, LockedError, StateError
from adte.core.options import MANY
from adte.files.claims import Lock, own_folder
from adte.serve.packing import checksum
from adte.serve.settings import ONCE, Event, Settings
from adte.serve.streams import Stream

__all__ = ["FORMAT", "NAME", "Answered", "Row", "Snapshot", "Store", "Stored", "trouble"]

NAME, MARK = "adte.sqlite", "adte.mark"
FORMAT = 2  # of the database
APPLICATION = 0x61647465  # "adte"
ANSWERS, HISTORY = 10_000, 1_000  # kept for each stream
ANSWER_BYTES = 64 << 20  # of its answers; with all probabilities of many classes each may be large

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
TABLES = ("log", "snapshots", "answers", "history")


class Snapshot(NamedTuple):
    seq: int
    data: bytes
    good: bool


class Answered(NamedTuple):
    """The answer to a request with a key."""

    digest: bytes  # of the request
    answer: bytes  # "" for a change
    good: bool


class Row(NamedTuple):
    """A prediction of the history."""

    seq: int
    image: int
    time: str
    predicted: int
    confidence: float
    learned: int
    drift: float | None
    truth: int | None


class Stored(NamedTuple):
    """A stream as the database has it."""

    id: str
    settings: Settings
    created: str
    made: bytes | None
    token: bytes | None
    origin: bytes | None


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
    """What to say of a database that cannot be used: the disk is at fault, or its content."""
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


class Store:
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

    def _put(self, table: str, *row: Any, verb: str = "INSERT") -> None:
        """Write a row with its checksum."""
        marks = ", ".join("?" * (len(row) + 1))
        self.db.execute(f"{verb} INTO {table} VALUES ({marks})", (*row, checksum(*row)))  # nosec B608

    def set_fact(self, name: str, value: str) -> None:
        self._put("facts", name, value, verb="INSERT OR REPLACE")

    def add_stream(self, stream: Stream) -> None:
        row = (stream.id, json.dumps(asdict(stream.settings)), stream.created)
        self.db.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, NULL)",
                        (*row, checksum(*row), stream.made, stream.token))  # fmt: skip
        self.events += 1

    def drop_stream(self, id: str) -> None:
        for name in TABLES:
            self.db.execute(f"DELETE FROM {name} WHERE stream = ?", (id,))  # nosec B608  # of TABLES
        self.db.execute("DELETE FROM streams WHERE id = ?", (id,))
        self.events += 1

    def set_token(self, id: str, token: bytes | None) -> None:
        self.db.execute("UPDATE streams SET token = ? WHERE id = ?", (token, id))
        self.events += 1

    def set_origin(self, id: str, origin: bytes | None) -> None:
        self.db.execute("UPDATE streams SET origin = ? WHERE id = ?", (origin, id))

    def append(self, stream: Stream, *events: Event) -> None:
        """Write the last events of a stream."""
        for seq, event in enumerate(events, stream.seq - len(events) + 1):
            self._put("log", stream.id, seq, event.kind, event.images, event.data)
            self.events += 1

    def keep_answer(self, id: str, key: str, seq: int, digest: bytes, answer: bytes) -> None:
        self._put("answers", id, seq, key, digest, answer)

    def add_history(self, id: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._put("history", id, *row)

    def add_snapshot(self, stream: Stream) -> None:
        """Keep the state; then forget what the snapshot before this one made needless."""
        id = stream.id
        self._put("snapshots", id, stream.seq, stream.dump(), verb="INSERT OR REPLACE")
        self.db.execute(
            "DELETE FROM snapshots WHERE stream = ? AND seq NOT IN "
            "(SELECT seq FROM snapshots WHERE stream = ? ORDER BY seq DESC LIMIT 2)", (id, id),
        )  # fmt: skip
        (oldest, number), = self.db.execute(
            "SELECT min(seq), count(*) FROM snapshots WHERE stream = ?", (id,))  # fmt: skip
        if number == 2:
            self.db.execute("DELETE FROM log WHERE stream = ? AND seq <= ?", (id, oldest))
        self.trim(id, ANSWERS, HISTORY)

    def renew(self, stream: Stream, *events: Event) -> None:
        """Write a reset, or a state that was taken over; what was before it is shown no more, and
        its images may be learned from again.

        The stream is whole then: damaged snapshots go, and a new one needs nothing before it.
        """
        self.append(stream, *events)
        self.set_origin(stream.id, None)
        self.db.execute("DELETE FROM history WHERE stream = ?", (stream.id,))
        self.db.execute("DELETE FROM answers WHERE stream = ? AND substr(key, 1, 1) = ?",
                        (stream.id, ONCE))  # fmt: skip
        for shot in self.snapshots(stream.id):
            if not shot.good:
                self.drop_snapshot(stream.id, shot.seq)
        self.add_snapshot(stream)

    def drop_snapshot(self, id: str, seq: int) -> None:
        self.db.execute("DELETE FROM snapshots WHERE stream = ? AND seq = ?", (id, seq))

    def trim(self, id: str, answers: int, history: int) -> None:
        """Forget answers and history but for the last ones."""
        self.db.execute(
            "DELETE FROM answers WHERE stream = ? AND seq <= (SELECT seq FROM answers "
            "WHERE stream = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)", (id, id, answers),
        )  # fmt: skip
        (size,) = self.db.execute(
            "SELECT total(length(answer)) FROM answers WHERE stream = ?", (id,)
        ).fetchone()
        if size > ANSWER_BYTES:  # few have so much, and to find where it begins takes long
            self.db.execute(
                "DELETE FROM answers WHERE stream = ? AND seq <= (SELECT max(seq) FROM (SELECT "
                "seq, row_number() OVER newest AS n, sum(length(answer)) OVER newest AS size "
                "FROM answers WHERE stream = ? WINDOW newest AS (ORDER BY seq DESC)) "
                "WHERE n > 1 AND size > ?)", (id, id, ANSWER_BYTES),
            )  # fmt: skip
        self.db.execute(
            "DELETE FROM history WHERE stream = ? AND seq <= (SELECT seq FROM history "
            "WHERE stream = ? ORDER BY seq DESC, image DESC LIMIT 1 OFFSET ?)", (id, id, history),
        )  # fmt: skip

    # ------------------------------------------------------------------ reading

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
    def model(self) -> dict[str, Any] | None:
        """Name and fingerprint of the model that all streams were learned with."""
        text = self._fact("model")
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    @property
    def empty(self) -> bool:
        """Whether there are no streams."""
        return self.db.execute("SELECT 1 FROM streams LIMIT 1").fetchone() is None

    def streams(self) -> list[Stored]:
        rows = self.db.execute("SELECT * FROM streams ORDER BY rowid").fetchall()
        found = []
        for *row, total, made, token, origin in rows:
            good = checksum(*row) == total
            id, settings, created = self._sealed(f"the row of stream {row[0]!r}", row, good)
            plan = Settings(**json.loads(settings))
            found.append(Stored(id, plan, created, made, token, origin))
        return found

    def snapshots(self, id: str) -> list[Snapshot]:
        """The newest first."""
        rows = self._rows("SELECT * FROM snapshots WHERE stream = ? ORDER BY seq DESC", id)
        return [Snapshot(seq, data, good) for (_, seq, data), good in rows]

    def log(self, id: str, after: int = 0) -> Iterator[tuple[int, Event | None]]:
        """The events behind a number, in order; None for one that is damaged."""
        rows = self._rows("SELECT * FROM log WHERE stream = ? AND seq > ? ORDER BY seq", id, after)
        for (_, seq, kind, images, data), good in rows:
            yield seq, Event(kind, images, data) if good else None

    def last(self, id: str) -> int:
        """The number of the last event, of which at least a trace is left."""
        query = ("SELECT max(seq) FROM (SELECT seq FROM log WHERE stream = ?1 "
                 "UNION ALL SELECT seq FROM snapshots WHERE stream = ?1)")  # fmt: skip
        return self.db.execute(query, (id,)).fetchone()[0] or 0

    def answers(self, id: str) -> Iterator[tuple[str, bool]]:
        """All keys, the oldest first, and whether the answer to each is whole."""
        for row, good in self._rows("SELECT * FROM answers WHERE stream = ? ORDER BY seq", id):
            yield row[2], good

    def answer(self, id: str, key: str) -> Answered | None:
        query = "SELECT * FROM answers WHERE stream = ? AND key = ?"
        for (*_, digest, answer), good in self._rows(query, id, key):
            return Answered(digest, answer, good)
        return None

    def history(self, id: str, last: int) -> list[tuple[Row, bool]]:
        """The last predictions, the oldest first, and whether each row is whole.

        With `last` below zero, all of them.
        """
        query = "SELECT * FROM history WHERE stream = ? ORDER BY seq DESC, image DESC LIMIT ?"
        return [(Row(*row), good) for (_, *row), good in self._rows(query, id, last)][::-1]

    @property
    def bytes(self) -> int:
        """Of the database and its log."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                total += Path(f"{self.path}{suffix}").stat().st_size
        return total
