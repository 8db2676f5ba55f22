"""`adte state` on a small service's folder: what it writes over and waits for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.files.states import is_state
from adte.serve import admin
from adte.serve.database import NAME
from adte.serve.service import Service
from adte.testing import SmallModel
from serving import classifier, jpeg, made, running, small


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The state of a service whose one stream has seen two images."""
    monkeypatch.setattr(admin, "load_model", lambda name, **where: small())
    with running(tmp_path / "s") as (client, _):
        made(client, "shop").predict_many([jpeg(1), jpeg(2)])
    return tmp_path / "s"


def ran(folder, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["state", str(folder), *words])
    assert done.exit_code == code, done.output
    return done.output


def test_export_writes_over_states_alone(folder, tmp_path):
    thesis, state = tmp_path / "thesis.txt", tmp_path / "shop.adte"
    thesis.write_text("my thesis")
    said = ran(folder, "export", "shop", str(thesis), code=2)
    assert "exists and is not a state file of adte; give another name, or --force" in said
    assert thesis.read_text() == "my thesis"
    for _ in range(2):  # the second time over its own
        assert "2 images seen" in ran(folder, "export", "shop", str(state))
    ran(folder, "export", "shop", str(thesis), "--force")
    assert thesis.read_bytes() == state.read_bytes()
    assert is_state(thesis)


def test_export_never_writes_over_the_database(folder):
    before = (folder / "adte.sqlite").read_bytes()
    said = ran(folder, "export", "shop", str(folder / "adte.sqlite"), "--force", code=2)
    assert "in the input folder" in said
    assert (folder / "adte.sqlite").read_bytes() == before


@contextmanager
def unwritable(place: Path):
    """Within the block nothing can be written there, even where tests run as root."""
    for path in (*place.iterdir(), place):
        path.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        place.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs the permissions of Unix")
def test_a_backup_that_cannot_be_written_is_read(folder):
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(shutil.copytree(folder, Path(name, "backup")))
        with unwritable(place):
            assert [row["seen"] for row in admin.listing(place)] == [2]
            assert admin.verify(place) == []
            assert "cannot lock" in ran(place, "prune", code=2)
        (place / f"{NAME}-wal").write_bytes(b"what was not yet put in its place")
        with unwritable(place), pytest.raises(InputError, match="may be read and written"):
            admin.listing(place)


@pytest.mark.skipif(os.name != "posix", reason="needs the permissions of Unix")
def test_a_backup_is_made_while_the_server_goes_on(tmp_path):
    with running(tmp_path / "s") as (client, _):
        shop = made(client, "shop")
        shop.predict_many([jpeg(1), jpeg(2)])
        said = ran(tmp_path / "s", "backup", str(tmp_path / "copy.sqlite"))
        assert said.endswith(" bytes\n")
        state = shop.state()
        shop.predict(jpeg(3))
    assert (tmp_path / "copy.sqlite").stat().st_mode & 0o777 == 0o600
    (tmp_path / "t").mkdir()
    (tmp_path / "copy.sqlite").rename(tmp_path / "t" / NAME)
    assert "0 faults" in ran(tmp_path / "t", "verify")
    with running(tmp_path / "t") as (client, _):
        assert client.stream("shop").state() == state


def test_a_backup_replaces_nothing(folder, tmp_path):
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("my thesis")
    assert "replaces nothing" in ran(folder, "backup", str(thesis), "--force", code=2)
    assert thesis.read_text() == "my thesis"
    before = sorted(folder.iterdir())
    assert "itself; give" in ran(folder, "backup", str(folder / "adte.sqlite-wal"), code=2)
    assert "does not exist" in ran(folder, "backup", str(tmp_path / "no" / "copy"), code=2)
    assert sorted(folder.iterdir()) == before


def test_a_backup_goes_to_standard_output_and_nothing_else_does(folder):
    """From within the folder, too, where "-" could pass for a file of it."""
    command = [sys.executable, "-m", "adte.cli", "state", ".", "backup", "-"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert done.stdout.startswith(b"SQLite format 3")
    assert f"{len(done.stdout):,} bytes" in done.stderr.decode()


def damage(folder) -> None:
    """No snapshot is good, and the log has lost its beginning."""
    db = sqlite3.connect(folder / NAME)
    db.execute("UPDATE snapshots SET data = x'00'")
    db.execute("DELETE FROM log WHERE seq = 1")
    db.commit()
    db.close()


def test_an_import_makes_a_damaged_stream_whole(folder, tmp_path):
    state = tmp_path / "shop.adte"
    ran(folder, "export", "shop", str(state))
    damage(folder)
    assert "is damaged" in ran(folder, "export", "shop", str(tmp_path / "no"), code=2)
    clf = classifier()
    clf.load_state(state)
    with running(folder) as (client, _):
        stream = client.stream("shop")
        assert stream.facts()["damaged"]
        assert stream.take_over(state)["damaged"] is None
        assert admin.verify(folder) == []
    with running(folder) as (client, service):
        assert service.notes == []
        found = client.stream("shop").predict(jpeg(3), probs=True)
        assert found.probs == clf.predict(jpeg(3)).probs.tolist()
        assert found.seen == 3


def test_what_was_before_an_import_is_shown_no_more(tmp_path):
    with running(tmp_path) as (client, _):
        stream = made(client)
        for i in range(3):
            stream.predict(jpeg(i), label="cat")
        stream.take_over(stream.export())
    with running(tmp_path) as (client, service):
        assert service.notes == []
        shown = client.stream("shop").state()
        assert (shown["seen"], shown["seq"]) == (3, 4)
        assert (sum(shown["counts"]), shown["labelled"]) == (0, 0)
        assert shown["drift"] is shown["accuracy"] is None
        assert client.stream("shop").history() == []


def test_the_list_says_what_the_server_says(tmp_path):
    clf = classifier(small())
    clf.predict([jpeg(i) for i in range(6)])
    clf.save(tmp_path / "a.adte")
    warm = base64.b64encode((tmp_path / "a.adte").read_bytes()).decode()

    def agreed(client, place) -> dict[str, int]:
        told = {s["id"]: (s["seen"], s["seq"]) for s in client.streams()}
        assert {row["id"]: (row["seen"], row["seq"]) for row in admin.listing(place)} == told
        return {id: seen for id, (seen, _) in told.items()}

    with running(tmp_path / "s") as (client, _):
        made(client, "state", state=warm).predict(jpeg(1))
        made(client, "start", start=warm).predict(jpeg(1))
        made(client, "reset").predict_many([jpeg(1), jpeg(2)])
        client.stream("reset").reset()
        assert agreed(client, tmp_path / "s") == {"state": 7, "start": 1, "reset": 0}
        shutil.copytree(tmp_path / "s", tmp_path / "dead")
    db = sqlite3.connect(tmp_path / "dead" / NAME)
    db.execute("UPDATE log SET data = x'00' WHERE stream = 'state' AND seq = 2")
    db.execute("DELETE FROM log WHERE stream = 'start' AND seq = 1")
    db.commit()
    db.close()
    with running(tmp_path / "dead") as (client, service):
        assert len(service.notes) == 2
        assert agreed(client, tmp_path / "dead") == {"state": 6, "start": 0, "reset": 0}


def test_options_that_an_action_does_not_use_are_refused(folder):
    for action, *words in (("list",), ("verify",), ("prune",), ("delete", "shop")):
        for option in ("--model", "--weights", "--device", "--dtype"):
            said = ran(folder, action, *words, option, "mars", code=2)
            assert f"{option} is not for `adte state DIR {action}`" in said


def test_another_model_than_the_streams_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(admin, "load_model", lambda name, **where: SmallModel(name=name))
    state = str(tmp_path / "a.adte")
    said = ran(folder, "export", "shop", state, "--model", "big", code=2)
    assert "were learned with model 'small', not 'big'" in said
    assert "2 images seen" in ran(folder, "export", "shop", state, "--model", "small")


def test_json_says_what_was_done(folder, tmp_path):
    file, state = tmp_path / "done.json", str(tmp_path / "a.adte")
    ran(folder, "export", "shop", state, "--json", str(file))
    said = json.loads(file.read_text())
    assert said.pop("adte")
    assert said == {"action": "export", "stream": "shop", "file": state, "seen": 2}
    ran(folder, "prune", "--json", str(file))
    said = json.loads(file.read_text())
    assert said["action"] == "prune"
    assert said["bytes_before"] >= said["bytes_after"] > 0
    assert json.loads(CliRunner().invoke(main, ["state", str(folder), "prune", "--json"]).stdout)


def test_json_goes_over_nothing_that_is_read_or_written(folder, tmp_path):
    state, before = str(tmp_path / "a.adte"), (folder / NAME).read_bytes()
    ran(folder, "export", "shop", state)
    said = ran(folder, "prune", f"--json={folder / NAME}", "--force", code=2)
    assert "in the input folder" in said
    said = ran(folder, "export", "shop", "-", "--json", code=2)
    assert "the same file" in said
    assert (folder / NAME).read_bytes() == before


def test_a_folder_in_use_says_to_stop_its_server(tmp_path):
    with running(tmp_path / "s") as (client, _):
        made(client, "shop")
        tries = (
            lambda: admin.delete(tmp_path / "s", "shop"),
            lambda: admin.prune(tmp_path / "s"),
            lambda: Service(tmp_path / "s", small()),
        )
        for attempt in tries:
            with pytest.raises(InputError, match=r"used by another process \(\d+\); stop the serv"):
                attempt()


def test_of_many_streams_an_error_names_some(folder):
    assert ran(folder, "delete", "gone", code=2).rstrip().endswith("it has: shop")
    with running(folder) as (client, _):
        for i in range(12):
            made(client, f"s{i:02}")
    said = ran(folder, "delete", "gone", code=2)
    assert f"s09, … (13 in all, which `adte state {folder}` lists)" in said
    assert "s10" not in said
