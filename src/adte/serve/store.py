"""The rows of streams: their settings, log, snapshots, answers and history."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from adte.serve.database import Database
from adte.serve.packing import checksum
from adte.serve.settings import ONCE, Event, Settings
from adte.serve.streams import Stream

__all__ = ["HISTORY", "Answered", "Row", "Snapshot", "Store", "Stored"]

ANSWERS, HISTORY = 10_000, 1_000  # kept for each stream
ANSWER_BYTES = 64 << 20  # of its answers; with all probabilities of many classes each may be large
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


class Store(Database):
    """The rows of all streams."""

    # ------------------------------------------------------------------ writing

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
