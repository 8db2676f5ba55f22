"""`adte serve` on the command line, in real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner
from starlette.datastructures import Headers

import adte
from adte.cli import main
from adte.serve.client import ServiceError
from adte.serve.run import admin_token
from serving import PATIENCE, jpeg


def refused(*words: str, **environment: str) -> str:
    done = CliRunner().invoke(main, ["serve", *words], env=environment)
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_ends_it_in_good_order(tmp_path, monkeypatch, number):
    monkeypatch.setattr("adte.cli.serve._fastapi", lambda: signal.raise_signal(number))
    done = CliRunner().invoke(main, ["serve", "--state", str(tmp_path / "s")])
    assert (done.exit_code, done.output) == (0, "ended while it was being loaded\n")
    assert not (tmp_path / "s").exists()


def test_what_cannot_be_served(tmp_path):
    state = ("--state", str(tmp_path / "s"))
    assert "--state" in refused()
    assert "ADTE_ADMIN_TOKEN" in refused(*state, "--host", "0.0.0.0", ADTE_ADMIN_TOKEN="")
    assert "where tokens are needed" in refused(*state, "--host", "0.0.0.0", "--no-tokens")
    assert "cannot read the token file" in refused(*state, "--tokens", "--token-file", "/no/file")
    (tmp_path / "empty").write_text("\n")
    empty = refused(*state, "--tokens", "--token-file", str(tmp_path / "empty"))
    assert f"the token file {str(tmp_path / 'empty')!r} is empty" in empty
    assert "cannot read the token file" in refused(*state, "--token-file", "/no/file")
    (tmp_path / "short").write_text("secret")
    assert "has 6 letters" in refused(*state, "--token-file", str(tmp_path / "short"))
    both = refused(*state, "--no-tokens", "--token-file", str(tmp_path / "short"))
    assert "contradict each other" in both
    assert "has 6 letters" in refused(*state, ADTE_ADMIN_TOKEN="secret")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(jpeg(0))
    assert "holds other files, such as 'a.jpg'" in refused("--state", str(tmp_path / "photos"))
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    assert "unknown image format" in refused(*state, "--formats", "eps")
    assert "formats names none" in refused(*state, "--formats", "")
    few = "max_images=0 of the service must be at least 1"
    assert few in refused(*state, "--max-images", "0")
    for seconds in ("--drain", "--window"):
        assert f"{seconds[2:]}=-1.0 of the service must be" in refused(*state, seconds, "-1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "cannot listen" in refused(*state, "--port", port)
    assert not (tmp_path / "s").exists()  # nothing was begun


def test_the_token_of_the_environment_is_trimmed(monkeypatch):
    monkeypatch.setenv("ADTE_ADMIN_TOKEN", "a token of some length\n")  # as secrets often end
    assert admin_token(None) == "a token of some length"
    monkeypatch.setenv("ADTE_ADMIN_TOKEN", " \n")
    assert admin_token(None) is None


def test_the_address_that_is_listened_on_is_a_known_name(tmp_path, monkeypatch):
    def answer(load, where, *rest):
        service = load()
        service.access.check_origin(Headers({"host": f"127.0.0.2:{where.getsockname()[1]}"}))
        service.close()

    monkeypatch.setattr("adte.serve.run.serve", answer)
    words = ["serve", "--state", str(tmp_path / "s"), "--port", "0", "--host", "127.0.0.2"]
    done = CliRunner().invoke(main, words, env={"ADTE_ADMIN_TOKEN": ""})
    assert done.exit_code == 0, done.output


def test_a_client_without_a_server():
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    client = adte.Client(f"http://127.0.0.1:{port}", retries=0)
    with pytest.raises(ServiceError, match="check that it is running"):
        client.info()
    with pytest.raises(adte.InputError, match="no address"):
        adte.Client("localhost")


def headers_of(size: int, url: str) -> int:
    """The status of a request whose headers never end."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as s:
        with suppress(OSError):  # it hangs up
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * size)
        return int(s.recv(100).split()[1])


@pytest.mark.slow
def test_the_whole_command(tmp_path):
    """Tokens, a page, an answer, an orderly end with 0, and the state again."""
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    command = [sys.executable, "-m", "adte", "serve", "--port", "0", "--state", str(tmp_path / "s"),
               "--token-file", str(tmp_path / "token")]  # fmt: skip
    seen = []
    for turn in range(2):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        line = process.stderr.readline()
        client = adte.Client(line.split()[-1], "a-token-of-some-length", retries=20)
        stranger = adte.Client(line.split()[-1], retries=20)
        with pytest.raises(ServiceError, match="a token is needed"):
            stranger.streams()
        stranger.close()
        if turn == 0:
            client.create(["cat", "dog"], id="shop", views=4)
        seen.append(client.stream("shop").predict(jpeg(turn)).seen)
        assert headers_of(1 << 20, client.url) == 400  # whatever else is installed beside it
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert "ended" in process.stderr.read()
        process.stderr.close()
    assert seen == [1, 2]
