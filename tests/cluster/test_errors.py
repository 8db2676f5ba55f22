"""What can go wrong before anything runs: one sentence each, and exit code 2."""

from __future__ import annotations

import socket
import sys

import pytest
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.cluster.connect import ClusterOptions, connected

PREDICT = ["predict", "nothing.jpg", "--classes", "cat, dog", "--engine", "ray"]


def told(*words: str) -> str:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 2, found.output
    lines = [line for line in found.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, found.output
    return lines[0]


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'adte[ray]'" in told(*PREDICT)


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_a_cluster_that_cannot_be_reached(form):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{free.getsockname()[1]}")
        said = told(*PREDICT, "--cluster", address)
    assert f"the Ray cluster {address} cannot be reached" in said
    assert "ray start --head" in said


def test_views_that_stop_by_what_was_learned():
    """Workers do not know it; 64 views in their place would be another answer than asked for."""
    assert "give a number of --views" in told(*PREDICT, "--views", "auto")


def test_no_address_at_all():
    pytest.importorskip("ray")
    with (
        pytest.raises(InputError, match="no address of a Ray cluster"),
        connected(ClusterOptions(address="the big one")),
    ):
        pass


def test_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("a file")
    photo = tmp_path / "photos" / "cat"
    photo.mkdir(parents=True)
    (photo / "a.jpg").write_bytes(b"any")
    data = ("--data", f"folder:{tmp_path / 'photos'}")
    said = told("extract", *data, "--out", str(tmp_path / "taken" / "cache"), "--engine", "ray")
    assert "taken" in said
    out = str(tmp_path / "taken" / "rows.csv")
    assert "cannot write" in told(*PREDICT, "--out", out)


def test_options_of_a_cluster_want_one():
    said = told("predict", "a.jpg", "--classes", "cat, dog", "--cluster-workers", "2")
    assert "--cluster-workers is for a cluster" in said


@pytest.mark.parametrize("option", [{"workers": 0}, {"decoders": -1}, {"gpus": -1}, {"chunk": 0}])
def test_options_that_cannot_be(option):
    with pytest.raises(InputError, match=f"{next(iter(option))}="):
        ClusterOptions(**option)
