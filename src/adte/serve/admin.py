"""The actions of `adte state`: list, verify, backup, export, delete, prune."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, StateError
from adte.files import write_whole
from adte.files.claims import Target, claim
from adte.models import load_model
from adte.serve.database import trouble
from adte.serve.packing import learned_in
from adte.serve.recovery import check_model, recover
from adte.serve.store import Store, Stored
from adte.serve.streams import Stream

__all__ = ["backup", "delete", "export", "listing", "prune", "verify"]

StrPath = str | os.PathLike[str]
NAMED = 10  # streams that an error lists


@contextmanager
def _open(folder: StrPath, reading: bool = True) -> Iterator[Store]:
    if not reading:
        Store(folder, reading=True).db.close()  # it must be there
    store = Store(folder, reading=reading)
    try:
        if reading:
            store.db.execute("BEGIN")  # one moment of a server that may go on
        yield store
    except sqlite3.Error as error:
        raise trouble(folder, error) from error
    finally:
        store.close()


def listing(folder: StrPath) -> list[dict[str, Any]]:
    """A row for each stream, as a server would restore it from the disk."""
    rows = []
    with _open(folder) as store:
        for s in store.streams():
            snapshots = store.snapshots(s.id)
            seq = seen = events = 0
            if newest := next((x for x in snapshots if x.good), None):
                seq, seen = newest.seq, learned_in(newest.data)[1]["seen"]
            for number, event in store.log(s.id):
                events += 1
                if number <= seq or (seq == 0 and number > 1):  # in the snapshot, or cut off
                    continue
                seq = number
                if event is not None and event.kind in ("reset", "state"):
                    seen = learned_in(event.data)[1]["seen"] if event.data else 0
                elif event is not None and event.kind != "look":
                    seen += event.images
            if seq < (last := store.last(s.id)):  # damaged
                seen, seq = 0, last
            rows.append({
                "id": s.id, "method": s.settings.method, "classes": len(s.settings.classes),
                "views": s.settings.views, "created": s.created, "seen": seen, "seq": seq,
                "log": events, "snapshots": len(snapshots),
            })  # fmt: skip
    return rows


def verify(folder: StrPath) -> list[str]:
    """Everything that is wrong, in sentences; nothing if all is well."""
    faults = []
    with _open(folder) as store:
        for (text,) in store.db.execute("PRAGMA integrity_check"):
            if text != "ok":
                faults.append(f"the database: {text}")
        if store.lost:
            faults.append(
                f"{store.lost} acknowledged events are missing: the tail of the log was cut"
            )
        for s in store.streams():
            faults += [f"stream {s.id!r}: {text}" for text in _faults(store, s.id)]
    return faults


def _faults(store: Store, id: str) -> Iterator[str]:
    """The rows of a stream that are damaged or missing."""
    snapshots = store.snapshots(id)
    for snapshot in snapshots:
        if not snapshot.good:
            yield f"the snapshot at event {snapshot.seq} is damaged"
    last = -1
    for seq, event in store.log(id):
        if last < 0:  # the log reaches back to a snapshot, or beyond
            last = min(seq - 1, max([0, *(x.seq for x in snapshots if x.good)]))
        if seq != last + 1:
            yield f"events {last + 1} to {seq - 1} are missing"
        if event is None:
            yield f"event {seq} is damaged"
        last = seq
    for key, good in store.answers(id):
        if not good:
            yield f"the answer kept for key {key!r} is damaged"
    for row, good in store.history(id, -1):
        if not good:
            yield f"the history of event {row.seq} is damaged"


def backup(folder: StrPath, file: str) -> dict[str, Any]:
    """Copy the database as it is at one moment of a server that may go on; "-" is standard output.

    Nothing is written over, and nothing into the folder itself.
    """
    place = os.path.dirname(file) or "."
    if file != "-" and os.path.realpath(place) == os.path.realpath(folder):
        raise InputError(f"{file!r} is in the folder {str(folder)!r} itself; give another place")
    if os.path.isfile(file):
        raise InputError(f"{file!r} is there already, and a backup replaces nothing; give another "
                         "name, or move it away")  # fmt: skip
    claim([Target("FILE", file)], [folder])
    file, size = "/dev/stdout" if file == "-" else file, 0

    def copy(name: str) -> None:
        nonlocal size
        os.chmod(name, 0o600)  # as the database itself
        try:
            store.db.execute("VACUUM INTO ?", (name,))  # one read, which writers do not begin anew
        except sqlite3.OperationalError as error:
            why = f"cannot write {file!r} ({error}); see that its disk has room"
            raise InputError(why) from error
        size = os.path.getsize(name)

    store = Store(folder, reading=True)
    try:
        write_whole(file, copy)
    except sqlite3.Error as error:
        raise trouble(folder, error) from error
    finally:
        store.close()
    return {"file": file, "bytes": size}


def _recovered(store: Store, id: str, **model: Any) -> Stream:
    """A stream of the store.

    `model` are arguments of `load_model`; by default the name is that of the streams' model.
    """
    stored, known = _stored(store, id), store.model
    assert known is not None
    net = load_model(**{"name": known["name"], **model}).eval()
    check_model(store, net)
    stream, notes = recover(store, stored, net)
    if stream.damaged:
        raise StateError(f"stream {id!r} is damaged: {'; '.join(notes)}")
    return stream


def _stored(store: Store, id: str) -> Stored:
    there = {s.id: s for s in store.streams()}
    if id not in there:
        names = sorted(there)[:NAMED]
        if len(there) > NAMED:
            names.append(f"… ({len(there)} in all, which `adte state {store.folder}` lists)")
        raise InputError(
            f"there is no stream {id!r} in {str(store.folder)!r}; it has: "
            f"{', '.join(names) or 'none'}"
        )
    return there[id]


def export(
    folder: StrPath, id: str, file: str, *, force: bool = False, **model: Any
) -> dict[str, Any]:
    """Write a stream's state to a file that `Classifier.load` reads; "-" is standard output.

    A file that is no state of ours goes only by `force`, and never one in the service's folder.
    """
    claim([Target("FILE", file, "state")], [folder], force)
    file = "/dev/stdout" if file == "-" else file
    with _open(folder) as store:
        stream = _recovered(store, id, **model)
    data = stream.dump()
    write_whole(file, lambda name: Path(name).write_bytes(data), len(data))
    return {"stream": id, "file": file, "seen": stream.clf.seen}


def delete(folder: StrPath, id: str) -> dict[str, Any]:
    """Forget a stream and all that it learned, one that cannot be made any more too."""
    with _open(folder, reading=False) as store:
        _stored(store, id)
        with store.group():
            store.drop_stream(id)
    return {"stream": id}


def prune(folder: StrPath, answers: int = 1000, history: int = 200) -> dict[str, Any]:
    """Forget all but the last answers and history, and give space back; bytes before and after."""
    with _open(folder, reading=False) as store:
        before = store.bytes
        with store.group():
            for s in store.streams():
                store.trim(s.id, answers, history)
        store.db.execute("VACUUM")
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return {"bytes_before": before, "bytes_after": store.bytes}
