"""A damaged disk: the service starts from what is good and says what it dropped, or refuses."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from adte import InputError, StateError
from adte.cli import main
from adte.serve import admin
from adte.serve.client import ServiceError
from adte.serve.database import MARK, NAME
from adte.serve.packing import checksum
from adte.serve.service import Service
from adte.serve.store import Store
from adte.serve.streams import Stream
from adte.testing import SmallModel
from serving import classifier, figure, jpeg, made, running, small


def lived(folder: Path, images: int = 20, crash: bool = True, every: int = 4) -> Path:
    """The disk of a service that has seen images, as a power cut leaves it."""
    with running(folder / "alive", snapshot=every) as (client, _):
        stream = made(client)
        for i in range(images):
            stream.predict(jpeg(i), key=f"key-{i}")
        if crash:
            shutil.copytree(folder / "alive", folder / "dead")
    return folder / ("dead" if crash else "alive")


def open_files(folder: Path) -> list[str]:
    """What this process has open there, where the system says so."""
    there = [os.path.realpath(link) for link in Path("/proc/self/fd").glob("*")]
    return [name for name in there if Path(name).is_relative_to(folder.resolve())]


def expected(images: int) -> list[float]:
    """What the image number `images` gets after those before it."""
    clf = classifier()
    clf.predict([jpeg(i) for i in range(images)])
    return clf.predict(jpeg(images)).probs.tolist()


def change(folder: Path, command: str, *values: object) -> None:
    """Somebody else's hand in the database."""
    db = sqlite3.connect(folder / NAME)
    assert db.execute(command, values).rowcount > 0
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_an_event_that_cannot_be_done_again_stops_no_other_stream(tmp_path, monkeypatch):
    """Whatever it raises: a library that was upgraded since may refuse a picture in any way."""
    with running(tmp_path / "alive") as (client, _):
        made(client, "other").predict(jpeg(1))
        made(client).predict(jpeg(0))
        shutil.copytree(tmp_path / "alive", tmp_path / "dead")
    redo = Stream.redo

    def fails(self, event):
        if self.id == "shop":
            raise RuntimeError("another library")
        return redo(self, event)

    monkeypatch.setattr(Stream, "redo", fails)
    with running(tmp_path / "dead") as (client, service):
        (note,) = service.notes
        assert "'shop': event 1 cannot be done again (RuntimeError('another library'))" in note
        assert client.stream("other").state()["seen"] == 1
        with pytest.raises(ServiceError, match="damaged"):
            client.stream("shop").predict(jpeg(1))
        client.stream("shop").reset()
        assert client.stream("shop").predict(jpeg(0)).seen == 1


def test_a_stream_whose_method_is_gone_is_named_and_can_be_deleted(tmp_path):
    folder = lived(tmp_path, 2, crash=False)
    with running(folder) as (client, _):
        made(client, "other").predict(jpeg(1))
    with sqlite3.connect(folder / NAME) as db:
        row = db.execute("SELECT id, settings, created FROM streams WHERE id = 'shop'").fetchone()
    row = row[0], row[1].replace('"tilt"', '"gone"'), row[2]
    change(folder, "UPDATE streams SET settings = ?, sum = ? WHERE id = 'shop'", row[1],
           checksum(*row))  # fmt: skip
    db.close()
    with pytest.raises(
        StateError, match=r"'shop' cannot be made any more: .*'gone'.* delete shop`"
    ):
        Service(folder, small())
    assert [row["method"] for row in admin.listing(folder)] == ["gone", "tilt"]
    done = CliRunner().invoke(main, ["state", str(folder), "delete", "shop"])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(main, ["state", str(folder), "delete", "shop"])
    assert "there is no stream 'shop'" in again.output
    with running(folder) as (client, service):
        assert service.notes == []
        assert client.stream("other").state()["seen"] == 1


def test_a_damaged_newest_snapshot_is_passed_over(tmp_path):
    folder = lived(tmp_path, 18)
    change(folder, "UPDATE snapshots SET data = zeroblob(40) WHERE seq = 16")
    assert "snapshot at event 16 is damaged" in "".join(admin.verify(folder))
    with running(folder, snapshot=4) as (client, service):
        (note,) = service.notes
        assert "the snapshot at event 16 was dropped" in note
        assert client.stream("shop").predict(jpeg(18), probs=True).probs == expected(18)
    assert admin.verify(folder) == []
    with running(folder) as (client, service):
        assert service.notes == []
        assert client.stream("shop").facts()["seen"] == 19


def test_a_damaged_event_is_dropped_alone(tmp_path):
    folder = lived(tmp_path, 18)
    change(folder, "UPDATE log SET data = zeroblob(9) WHERE seq = 17")
    with running(folder) as (client, service):
        (note,) = service.notes
        assert "event 17 is damaged" in note
        clf = classifier()
        clf.predict([jpeg(i) for i in range(18) if i != 16])
        found = client.stream("shop").predict(jpeg(18), probs=True)
        assert found.probs == clf.predict(jpeg(18)).probs.tolist()
        assert found.seen == 18


def test_events_before_the_newest_snapshot_are_verified(tmp_path):
    folder = lived(tmp_path, 18)  # snapshots at 12 and 16, and the log since 12
    assert admin.verify(folder) == []
    change(folder, "UPDATE log SET data = zeroblob(9) WHERE seq = 14")
    change(folder, "DELETE FROM log WHERE seq = 15")
    assert admin.verify(folder) == [
        "stream 'shop': event 14 is damaged", "stream 'shop': events 15 to 15 are missing"
    ]  # fmt: skip


def test_events_that_come_meanwhile_are_not_missing(tmp_path, monkeypatch):
    with running(tmp_path) as (client, _):
        stream, fact = made(client), Store._fact
        stream.predict(jpeg(0))

        def slowly(self, name):
            found = fact(self, name)
            stream.predict(jpeg(1))
            return found

        monkeypatch.setattr(Store, "_fact", slowly)
        assert admin.verify(tmp_path) == []


def test_without_any_good_snapshot_a_stream_says_so(tmp_path):
    folder = lived(tmp_path, 18)
    change(folder, "UPDATE snapshots SET sum = x'00'")
    with running(folder) as (client, service):
        assert "no good snapshot" in service.notes[-1]
        stream = client.stream("shop")
        for ask in (lambda: stream.predict(jpeg(1)), stream.export, stream.freeze):
            with pytest.raises(ServiceError) as error:
                ask()
            assert (error.value.status, error.value.code) == (409, "damaged")
        assert stream.facts()["damaged"]
        assert made(client, "other").predict(jpeg(1)).seen == 1  # the others go on
        assert stream.reset()["damaged"] is None
        assert stream.predict(jpeg(0), probs=True).probs == expected(0)
    with running(folder) as (client, service):
        assert service.notes == []
        assert client.stream("shop").predict(jpeg(1), probs=True).probs == expected(1)


def test_a_log_that_goes_back_to_the_beginning_needs_no_snapshot(tmp_path):
    folder = lived(tmp_path, 7)  # one snapshot at 4
    change(folder, "UPDATE snapshots SET sum = x'00'")
    with running(folder) as (client, service):
        assert len(service.notes) == 1
        assert client.stream("shop").predict(jpeg(7), probs=True).probs == expected(7)


SLOWLY = [pytest.param(share, marks=pytest.mark.slow) for share in (0.0, 0.3, 0.95)]


@pytest.mark.parametrize("share", [0.7, 0.999, *SLOWLY])
def test_a_cut_log_tail_is_noticed(tmp_path, share):
    folder = lived(tmp_path, 18)
    wal = Path(f"{folder / NAME}-wal")
    size = wal.stat().st_size
    assert size > 10_000
    with wal.open("r+b") as f:
        f.truncate(int(size * share))
    with running(folder) as (client, service):
        streams = {s["id"]: s["seen"] for s in client.streams()}
        assert "the tail of the log was cut" in service.notes[0]
        if "shop" in streams:
            seen = streams["shop"]
            assert seen < 18
            assert service.notes[0].startswith(f"{18 - seen} events")
            found = client.stream("shop").predict(jpeg(seen), probs=True)
            assert found.probs == expected(seen)
    with running(folder) as (_, service):
        assert service.notes == []  # said once


@pytest.mark.parametrize("where", [0, 20, 4096, pytest.param(9000, marks=pytest.mark.slow)])
def test_a_database_that_cannot_be_read_is_refused(tmp_path, where):
    folder = lived(tmp_path, 6, crash=False)
    data = bytearray((folder / NAME).read_bytes())
    data[where : where + 4000] = b"\xff" * 4000
    (folder / NAME).write_bytes(data)
    with pytest.raises(StateError, match=r"damaged|no database|format") as held:
        Service(folder, small())
    with pytest.raises(StateError):
        Service(folder, small())  # and the lock is free again
    with pytest.raises(StateError):
        admin.listing(folder)
    assert open_files(folder) == [], held  # though its frames are held


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("UPDATE streams SET settings = replace(settings, '6', '7')", "the row of stream 'shop'"),
        ("UPDATE streams SET settings = CAST(x'7b22ff' AS TEXT)", "the row of stream 'shop'"),
        ("UPDATE facts SET value = '{}' WHERE name = 'model'", "the fact 'model'"),
        ("UPDATE facts SET value = '9' WHERE name = 'events'", "the fact 'events'"),
    ],
)  # fmt: skip
def test_damage_within_text_is_refused(tmp_path, command, what):
    """SQLite sees nothing wrong with it; the checksum does."""
    folder = lived(tmp_path, 2, crash=False)
    change(folder, command)
    with pytest.raises(StateError, match=f"{what}, in the database in .*, is damaged; put a back"):
        Service(folder, small())


def test_damage_of_what_is_only_shown_stops_nothing(tmp_path):
    folder = lived(tmp_path, 3, crash=False)
    for origin in (b"\xff", "text"):
        change(folder, "UPDATE streams SET origin = ?", origin)
        change(folder, "UPDATE history SET time = CAST(x'32ff' AS TEXT) WHERE seq = 2")
        with running(folder) as (client, service):
            (note,) = service.notes
            assert note.startswith("stream 'shop': the prior that drift is measured from is dam")
            stream = client.stream("shop")
            assert [row["seq"] for row in stream.history()] == [1, 3]
            assert stream.state()["seen"] == 3
            assert client.call("GET", "/ready")["status"] == "ready"


def test_a_damaged_answer_is_refused_and_teaches_nothing(tmp_path):
    folder = lived(tmp_path, 3, crash=False)
    with running(folder) as (client, _):
        client.stream("shop").freeze(key="f")
    assert admin.verify(folder) == []
    change(folder, "UPDATE answers SET answer = x'7b7d' WHERE key IN ('key-1', 'f')")
    assert admin.verify(folder) == [
        f"stream 'shop': the answer kept for key {key!r} is damaged" for key in ("key-1", "f")
    ]
    with running(folder) as (client, service):
        stream = client.stream("shop")
        for ask in (lambda: stream.predict(jpeg(1), key="key-1"), lambda: stream.freeze(key="f")):
            with pytest.raises(ServiceError, match=r"this key is damaged; .* go on") as error:
                ask()
            assert (error.value.status, error.value.code) == (409, "key")
        assert stream.predict(jpeg(0), key="key-0").repeated
        assert stream.facts()["seen"] == 3
        assert figure(service, "errors_total") == 0


@pytest.mark.parametrize("damage", ["class = 77", "confidence = 9e999", "truth = 'cat'"])
def test_damaged_history_is_left_out(tmp_path, damage):
    folder = lived(tmp_path, 3, crash=False)
    change(folder, f"UPDATE history SET {damage} WHERE seq IN (2, 3)")
    assert admin.verify(folder) == [
        f"stream 'shop': the history of event {seq} is damaged" for seq in (2, 3)
    ]
    with running(folder) as (client, _):
        stream = client.stream("shop")
        assert [row["seq"] for row in stream.history()] == [1]
        assert (stream.state()["seen"], sum(stream.state()["counts"])) == (3, 1)
        assert stream.predict(jpeg(3), probs=True).probs == expected(3)


@pytest.mark.parametrize("left", ["empty", "gone"])
def test_a_database_that_is_empty_or_gone_is_no_new_one(tmp_path, left):
    folder = lived(tmp_path, 6)
    log = Path(f"{folder / NAME}-wal")
    shutil.copy(folder / NAME, tmp_path / "header")
    (folder / NAME).unlink()
    for path in folder.glob("*-shm"):
        path.unlink()
    if left == "empty":
        (folder / NAME).touch()
    before = log.read_bytes()
    assert before
    said = (
        r"is empty or gone, though 7 events were acknowledged; move adte\.mark and adte\.sqlite-wal"
    )
    with pytest.raises(StateError, match=said):
        Service(folder, small())
    for look in (admin.listing, admin.prune):
        with pytest.raises(StateError if left == "empty" else InputError):
            look(folder)
    (folder / MARK).rename(tmp_path / MARK)
    with pytest.raises(
        StateError, match=r"though adte\.sqlite-wal holds events; move adte\.sqlite-"
    ):
        Service(folder, small())
    assert log.read_bytes() == before
    log.rename(tmp_path / "log")
    (tmp_path / MARK).rename(folder / MARK)
    with pytest.raises(StateError, match=r"7 events were acknowledged; move adte\.mark away, then"):
        Service(folder, small())
    (folder / MARK).unlink()
    with running(folder) as (client, service):  # to begin anew
        assert (service.notes, client.streams()) == ([], [])


def test_another_model_is_refused(tmp_path):
    folder = lived(tmp_path, 3, crash=False)
    with pytest.raises(StateError, match="learned with model 'small', not 'big'"):
        Service(folder, SmallModel(name="big"))
    other = small()
    other.project.weight.data.add_(1)
    with pytest.raises(StateError, match="other weights"):
        Service(folder, other)


def test_a_folder_without_streams_takes_any_model(tmp_path):
    with running(tmp_path) as (client, _):
        made(client).delete()
    other = SmallModel()
    other.name = "other"
    with running(tmp_path, model=other) as (client, _):
        made(client)
    with pytest.raises(StateError, match="'other'"):
        Service(tmp_path, small())


def test_a_newer_format_is_refused(tmp_path):
    folder = lived(tmp_path, 3, crash=False)
    db = sqlite3.connect(folder / NAME)
    db.execute("PRAGMA user_version=3")
    db.close()
    with pytest.raises(StateError, match="format 3, this version of adte reads format 2"):
        Service(folder, small())
    with pytest.raises(StateError, match="format 3"):
        admin.listing(folder)


def test_a_full_disk_takes_nothing_and_loses_nothing(tmp_path):
    clf, acknowledged = classifier(), []
    with running(tmp_path / "s", disk=100 << 10, snapshot=1000) as (client, service):
        stream = made(client)
        for i in range(400):
            try:
                found = stream.predict(jpeg(i), probs=True, key=f"key-{i}")
            except ServiceError as error:
                refused = error.status, error.code
                break
            acknowledged.append(found.probs)
        else:
            raise AssertionError("the disk never was full")
        full = len(acknowledged)
        assert refused == (503, "storage")
        assert full > 5
        assert not service.writer.writable
        with pytest.raises(ServiceError):
            client.call("GET", "/ready")
        assert stream.facts()["seen"] == figure(service, "images_total") == full
        asked = stream.predict(jpeg(full), learn=False, probs=True).probs  # reading goes on
        assert "adte_writable 0" in client.call("GET", "/metrics").decode()
        service.writer.store.db.execute("PRAGMA max_page_count=100000")  # somebody made room
        assert client.call("GET", "/ready")["status"] == "ready"
        found = stream.predict(jpeg(full), probs=True, key=f"key-{full}")
        assert found.probs == asked
        acknowledged.append(found.probs)
    with running(tmp_path / "s") as (client, service):
        assert service.notes == []
        assert client.stream("shop").facts()["seen"] == full + 1
    assert acknowledged == [clf.predict(jpeg(i)).probs.tolist() for i in range(full + 1)]


def test_a_start_on_a_full_disk_is_not_ready(tmp_path):
    """Though nothing has failed yet; and ready again when there is room."""
    with running(tmp_path / "s") as (client, _):
        made(client).predict(jpeg(0))
    with sqlite3.connect(tmp_path / "s" / NAME) as db:
        db.execute("VACUUM")  # no page is left over from the trial of that start
    db.close()
    size = (tmp_path / "s" / NAME).stat().st_size
    with running(tmp_path / "s", disk=size) as (client, service):
        assert "adte_writable 0" in client.call("GET", "/metrics").decode()
        for _ in range(2):
            with pytest.raises(ServiceError, match="503"):
                client.call("GET", "/ready")
        assert client.stream("shop").predict(jpeg(1), learn=False).label
        service.writer.store.db.execute("PRAGMA max_page_count=100000")  # somebody made room
        assert client.call("GET", "/ready")["status"] == "ready"
        assert client.stream("shop").predict(jpeg(1)).seen == 2


def test_a_disk_that_fills_while_nobody_writes_is_noticed(tmp_path, monkeypatch):
    with running(tmp_path / "s") as (client, service):
        made(client)
        assert client.call("GET", "/ready")["status"] == "ready"
        db = service.writer.store.db
        db.execute("VACUUM")  # no page is left over from the last trial
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages}")
        assert client.call("GET", "/ready")["status"] == "ready"  # a minute has not passed
        monkeypatch.setattr("adte.serve.writer.DOUBT", 0.0)
        with pytest.raises(ServiceError, match="503"):
            client.call("GET", "/ready")


@pytest.mark.parametrize("lost", ["", NAME, f"{NAME}-wal"])
@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps open files where they are")
def test_what_would_be_written_to_lost_files_is_refused(tmp_path, lost, replaced):
    """SQLite goes on writing to files that were moved or deleted, which nobody would find."""
    clf, path, away = classifier(), tmp_path / "s" / lost, tmp_path / "away"
    with running(tmp_path / "s") as (client, service):
        stream = made(client)
        stream.predict(jpeg(0))
        path.rename(away)
        if replaced:
            shutil.copytree(away, path) if away.is_dir() else shutil.copy(away, path)
        with pytest.raises(ServiceError, match="503"):  # before anything has failed
            client.call("GET", "/ready")
        assert "adte_writable 0" in client.call("GET", "/metrics").decode()
        with pytest.raises(ServiceError) as refused:
            stream.predict(jpeg(1))
        assert (refused.value.status, refused.value.code) == (503, "storage")
        assert stream.predict(jpeg(1), learn=False).label  # reading goes on
        if replaced:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        away.rename(path)
        assert client.call("GET", "/ready")["status"] == "ready"
        found = [stream.predict(jpeg(1), probs=True).probs]
        assert service.notes == []
    clf.predict(jpeg(0))
    assert found == [clf.predict(jpeg(1)).probs.tolist()]
    assert admin.verify(tmp_path / "s") == []


def test_keys_outlive_a_crash_and_the_log(tmp_path):
    folder = lived(tmp_path, 18)
    with running(folder) as (client, _):
        stream = client.stream("shop")
        for i in (0, 17):
            assert stream.predict(jpeg(i), key=f"key-{i}").repeated
        assert stream.facts()["seen"] == 18


def test_old_events_are_forgotten(tmp_path):
    folder = lived(tmp_path, 30)
    store = Store(folder, reading=True)
    assert len(list(store.log("shop"))) <= 8
    assert len(store.snapshots("shop")) == 2
    store.close()


def test_kept_answers_are_bounded_by_number_and_bytes(tmp_path, monkeypatch):
    """All probabilities of many classes, for thousands of keys, would fill the disk."""
    monkeypatch.setattr("adte.serve.store.ANSWER_BYTES", 100)

    def left(most: int) -> list[str]:
        with store.group():
            store.trim("shop", most, 0)
        return [key for (key,) in store.db.execute("SELECT key FROM answers ORDER BY seq")]

    store = Store(tmp_path)
    with store.group():
        for i in range(8):
            store.keep_answer("shop", f"key-{i}", i, b"", b"x" * 25)
            store.keep_answer("other", f"other-{i}", i, b"", b"x" * 25)
    assert left(6)[-4:] == ["key-6", "other-6", "key-7", "other-7"]
    assert len(left(6)) == 8 + 4  # other streams keep theirs
    assert len(left(3)) == 8 + 3
    with store.group():
        store.keep_answer("shop", "large", 8, b"", b"x" * 1000)
    assert left(6)[-1] == "large"  # the newest stays, whatever it takes
    assert len(left(6)) == 8 + 1
    store.close()


def test_no_room_for_temporary_files_is_no_damage(tmp_path, monkeypatch):
    with running(tmp_path / "alive") as (client, _):
        stream = made(client)
        stream.predict(jpeg(0))
        stream.take_over(stream.export())
        shutil.copytree(tmp_path / "alive", tmp_path / "dead")
    change(tmp_path / "dead", "DELETE FROM snapshots")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # as on a system that has no files in memory
        patch.setattr("adte.serve.streams.load_into", fail)
        with pytest.raises(InputError, match=r"No space left on device\); see that its disk"):
            Service(tmp_path / "dead", small())
    if sys.platform == "linux":
        monkeypatch.setattr(tempfile, "mkdtemp", fail)
    service = Service(tmp_path / "dead", small(), workers=1)
    assert not service.notes
    assert service.writer.streams["shop"].clf.seen == 1
    assert admin.listing(tmp_path / "dead")[0]["seen"] == 1
    service.close()


def test_the_mark_is_no_more_than_a_help(tmp_path):
    folder = lived(tmp_path, 5)
    (folder / MARK).write_bytes(b"nonsense!!")
    with running(folder) as (client, service):
        assert len(service.notes) == 1
        assert client.stream("shop").facts()["seen"] == 5
    (folder / MARK).unlink()
    with running(folder) as (_, service):
        assert service.notes == []


def test_a_mark_that_cannot_be_written_stops_nobody(tmp_path, monkeypatch):
    class Full:
        def seek(self, place: int) -> None:
            raise OSError(28, "No space left on device")

    with running(tmp_path / "s") as (client, service):
        stream = made(client)
        with monkeypatch.context() as patch:
            patch.setattr(service.writer.store, "_mark", Full())
            assert [stream.predict(jpeg(i)).seen for i in range(2)] == [1, 2]
        assert stream.predict(jpeg(2)).seen == 3
    with running(tmp_path / "s") as (client, service):
        assert service.notes == []
        assert client.stream("shop").facts()["seen"] == 3


def test_a_disk_that_fails_is_no_damage(tmp_path, monkeypatch):
    folder = lived(tmp_path, 3)

    def fail(*words: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    for where in ("_open", "snapshots"):  # the start of the database, and of the streams
        with monkeypatch.context() as patch:
            patch.setattr(Store, where, fail)
            with pytest.raises(InputError, match=r"disk is full\); see that its disk has room"):
                Service(folder, small())
    with monkeypatch.context() as patch:
        patch.setattr(Store, "trim", fail)
        with pytest.raises(InputError, match="see that its disk has room"):
            admin.prune(folder)
    with monkeypatch.context() as patch:  # a block of the disk that is read before any page
        patch.setattr("adte.serve.database._read_through", Path.rmdir)
        with pytest.raises(InputError, match=r"cannot use the database in .*; see that"):
            Service(folder, small())
    (folder / MARK).unlink()
    (folder / MARK).mkdir()
    with pytest.raises(InputError, match=r"cannot use the database in .*; see that") as held:
        Service(folder, small())
    assert open_files(folder) == [], held
    (folder / MARK).rmdir()
    with running(folder) as (client, _):
        assert client.stream("shop").facts()["seen"] == 3


@pytest.mark.parametrize("seq", [2**63 - 1, -5, "many"])
@pytest.mark.parametrize("table", ["log", "history"])
def test_a_sequence_number_that_cannot_be_is_damage(tmp_path, table, seq):
    folder = lived(tmp_path, 3, crash=False)
    db = sqlite3.connect(folder / NAME)
    db.execute("PRAGMA ignore_check_constraints=ON")
    db.execute(f"UPDATE {table} SET seq = ? WHERE seq = 3", (seq,))
    db.commit()
    db.close()
    with pytest.raises(StateError, match=r"is damaged \(CHECK constraint failed in "):
        Service(folder, small())
