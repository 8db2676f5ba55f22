"""What can go wrong before anything runs: one sentence each, and exit code 2."""

from __future__ import annotations

import re
import signal
import socket
import sys

import pytest
from click.testing import CliRunner

from adte import InputError
from adte.cli import main
from adte.cluster.connect import ClusterOptions, _aside, _own_end, connected, places

# Of a file that is there; nobody comes to open it.
PREDICT = ["predict", __file__, "--classes", "cat, dog", "--engine", "ray"]


def told(*words: str) -> str:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 2, found.output
    lines = [line for line in found.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, found.output
    return lines[0]


def test_missing_ray_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'adte[ray]'" in told(*PREDICT)


def test_ray_s_own_words_are_notes(capsys):
    """It prints them on standard output, where the results are."""
    note = _aside(set())
    for _ in range(2):
        note({"lines": ["A worker died. See the log. Lease: 01", "It is done again."]}, True)
    out, err = capsys.readouterr()
    assert out == ""
    told = ["A worker died. See the log", "It is done again."]
    assert err.splitlines() == [f"note: Ray says: {said}" for said in told]


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_a_cluster_that_cannot_be_reached(form):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{free.getsockname()[1]}")
        said = told(*PREDICT, "--cluster", address)
    assert f"the Ray cluster {address} cannot be reached" in said
    assert "ray start --head" in said


def test_a_machine_too_busy_to_start_ray(monkeypatch):
    """Ray's own error for it is a plain `Exception`, of which a traceback was all that was said."""

    def late(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(pytest.importorskip("ray"), "init", late)
    with pytest.raises(InputError, match=r"timed out during startup\); try again"), connected():
        pass


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


@pytest.mark.parametrize(
    ("verb", "option"),
    [("eval", "workers"), ("compare", "gpus"), ("serve", "chunk")],
)
def test_a_verb_has_only_the_options_that_it_uses(verb, option):
    found = CliRunner().invoke(main, [verb, "--engine", "ray", f"--cluster-{option}", "2"])
    assert found.exit_code == 2
    assert f"No such option '--cluster-{option}'" in found.output


@pytest.mark.parametrize("option", [{"workers": 0}, {"gpus": -1}, {"chunk": 0}])
def test_options_that_cannot_be(option):
    with pytest.raises(InputError, match=f"{next(iter(option))}="):
        ClusterOptions(**option)


# --------------------------------------------------------------------------- room


class Machines:
    """A cluster as `places` sees one."""

    def __init__(self, *resources: dict[str, float]) -> None:
        gone = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        self.found = [gone, *({"Alive": True, "Resources": r} for r in resources)]

    def nodes(self):
        return self.found


CORES = Machines({"CPU": 2.0})


@pytest.mark.parametrize(("machines", "asked", "room"), [
    (CORES, {}, 2),
    (CORES, {"workers": 100}, 2),
    (Machines({"CPU": 8.0, "GPU": 2.0}), {"gpus": 0.5}, 4),
    (Machines({"CPU": 1.0, "GPU": 3.0}, {"GPU": 1.0}), {"gpus": 2}, 1),
])  # fmt: skip
def test_as_many_workers_as_there_is_room_for(machines, asked, room):
    assert places(machines, ClusterOptions(**asked)) == room


@pytest.mark.parametrize(("machines", "asked", "least", "said"), [
    (CORES, {"gpus": 1}, 1, "2 CPUs and 0 GPUs, but a worker asks for 1 GPUs on one machine; "
     "lower --cluster-gpus"),
    (Machines({"GPU": 1.0}, {"GPU": 1.0}), {"gpus": 2}, 1, "0 CPUs and 2 GPUs, but a worker .*"),
    (CORES, {"workers": 100}, 100, "100 workers ask for 1 CPU each; lower --cluster-workers"),
])  # fmt: skip
def test_no_room_is_said_at_once(machines, asked, least, said, monkeypatch, capsys):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match=said):
        places(machines, ClusterOptions(**asked), least)
    assert places(machines, ClusterOptions(address="auto", **asked), least) == least  # it may grow
    assert re.search(said.partition("; lower")[0] + "; waiting for more machines",
                     capsys.readouterr().err.replace("\n", " "))  # fmt: skip


# --------------------------------------------------------------------------- signals


class Ended(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("waits", [False, True], ids=["ours", "in Ray"])
def test_sigterm_stays_ours(waits):
    """Ray puts its own handler in the place of ours, and forgets which interrupt came."""

    def ours(number, frame):
        raise Ended

    def rays(number, frame):
        raise SystemExit(number)

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with pytest.raises(Ended), _own_end() as take_back:  # noqa: PT012
            signal.signal(signal.SIGTERM, rays)
            take_back()
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                if waits:
                    raise KeyboardInterrupt from None
                raise
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile(nodes, tmp_path):
    pytest.importorskip("fastapi")
    from adte.cluster.deploy import application, deployed
    from adte.cluster.worker import Tower
    from serving import free_port, small

    app, port = application(Tower.itself(small()), tmp_path), free_port()
    told = pytest.raises(InputError, match=rf"port {port} of 127\.0\.0\.1 was taken .* --port")
    with socket.create_server(("127.0.0.1", port)), told, deployed(app, port=port):
        pass
