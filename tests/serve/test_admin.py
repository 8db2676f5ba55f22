"""`adte state` on a small service's folder: what it writes over, merges and waits for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.files.claims import kind_of
from adte.serve import admin
from adte.serve.service import Service
from serving import jpeg, made, running, small


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
    assert kind_of(thesis) == "state"


def test_export_never_writes_over_the_database(folder):
    before = (folder / "adte.sqlite").read_bytes()
    said = ran(folder, "export", "shop", str(folder / "adte.sqlite"), "--force", code=2)
    assert "in the input folder" in said
    assert (folder / "adte.sqlite").read_bytes() == before


def test_a_stream_is_not_merged_into_itself(folder):
    assert "cannot merge a stream into itself" in ran(folder, "merge", "shop", "shop", code=2)
    assert [row["seen"] for row in admin.listing(folder)] == [2]


def test_a_folder_in_use_says_to_stop_its_server(tmp_path):
    with running(tmp_path / "s") as (client, _):
        made(client, "shop"), made(client, "other")
        (tmp_path / "file").write_bytes(b"x")
        tries = (
            lambda: admin.merge_(tmp_path / "s", "shop", "other"),
            lambda: admin.import_(tmp_path / "s", "shop", str(tmp_path / "file")),
            lambda: admin.prune(tmp_path / "s"),
            lambda: Service(tmp_path / "s", small()),
        )
        for attempt in tries:
            with pytest.raises(InputError, match=r"used by another process \(\d+\); stop the serv"):
                attempt()
