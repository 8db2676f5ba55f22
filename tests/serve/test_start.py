"""The start of a service: probes are answered while it is loaded."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from email.message import Message

import pytest

import adte
from adte.serve import run
from adte.serve.access import Access
from adte.serve.service import Service
from adte.testing import SmallModel
from serving import PATIENCE, jpeg, made, running, small, wait_ready


def ask(port: int, path: str, verb: str = "GET", **headers: str) -> tuple[int, Message, dict]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        line.request(verb, path, headers=headers)
        answer = line.getresponse()
        return answer.status, answer.headers, json.loads(answer.read() or b"null")
    finally:
        line.close()


@pytest.fixture
def servers(monkeypatch):
    """The calls that end the servers that were begun."""
    found: list[Callable[[], None]] = []
    monkeypatch.setattr(run, "on_signal", lambda end: nullcontext(found.append(end)))
    return found


def test_probes_are_answered_while_it_loads(tmp_path, servers):
    go, said = threading.Event(), list[str]()

    def load() -> Service:
        assert go.wait(PATIENCE)
        return Service(tmp_path, small())

    with run.listen("127.0.0.1", 0) as where, ThreadPoolExecutor(1) as pool:
        port = where.getsockname()[1]
        served = pool.submit(run.serve, load, where, said.append)
        assert ask(port, "/health")[0] == 200
        assert ask(port, "/health", "HEAD")[0] == 200
        status, headers, body = ask(port, "/ready")
        assert (status, body["status"], headers["X-Frame-Options"]) == (503, "loading", "DENY")
        status, headers, body = ask(port, "/v1/streams", "POST")
        assert (status, headers["Retry-After"], body["error"]["code"]) == (503, "1", "loading")
        assert ask(port, "/health", Host="elsewhere")[0] == 400
        web = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AA=="}
        assert ask(port, "/v1/info", Connection="Upgrade", **web)[0] == 503  # as any other
        assert not said
        go.set()
        wait_ready(port)
        assert ask(port, "/v1/streams")[0] == 200
        servers[0]()
        served.result(PATIENCE)
    assert said == [f"serving on http://127.0.0.1:{port}",
                    "ended; what was acknowledged is on the disk"]  # fmt: skip


def test_hosts_are_checked_by_the_access_that_is_given(tmp_path, servers):
    go = threading.Event()
    with run.listen("127.0.0.1", 0) as where, ThreadPoolExecutor(1) as pool:
        access = Access("a-token-of-some-length", True)
        served = pool.submit(run.serve, lambda: go.wait(PATIENCE) and Service(tmp_path, small()),
                             where, print, access=access)  # fmt: skip
        port = where.getsockname()[1]
        assert ask(port, "/health", Host="10.1.2.3:8017")[0] == 200  # a probe
        go.set()
        wait_ready(port)  # an end before that ends this process
        servers[0]()
        served.result(PATIENCE)


def test_a_load_that_fails_ends_it_with_the_reason(tmp_path):
    def load() -> Service:
        raise adte.InputError("no such weights")

    said = list[str]()
    with run.listen("127.0.0.1", 0) as where, pytest.raises(adte.InputError, match="no such"):
        run.serve(load, where, said.append)
    assert not said


def test_an_end_does_not_wait_for_the_load(tmp_path, servers, monkeypatch):
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(run.os, "_exit", leave)
    go, said = threading.Event(), list[str]()
    with run.listen("127.0.0.1", 0) as where, ThreadPoolExecutor(1) as pool:
        served = pool.submit(run.serve, lambda: go.wait(PATIENCE) and None, where, said.append)
        assert ask(where.getsockname()[1], "/ready")[0] == 503
        servers[0]()
        assert isinstance(served.exception(PATIENCE), SystemExit)
        assert said == ["ended while it was being loaded"]
        go.set()


class Counting(SmallModel):
    """Counts the texts that it encodes, and how often its weights are looked through."""

    texts = looks = 0

    def encode_text(self, texts):
        self.texts += len(texts)
        return super().encode_text(texts)

    @property
    def fingerprint(self) -> str:
        self.looks += 1
        return super().fingerprint


def test_streams_of_the_same_settings_are_encoded_once(tmp_path):
    """With thousands of streams a start, and an end, took minutes."""
    image, answers = jpeg(9), {}
    with running(tmp_path, model=(model := Counting())) as (client, service):
        for i in range(4):
            made(client, f"s{i}").predict_many([jpeg(i), jpeg(i + 1)])
        made(client, "frozen", protocol="frozen")
        client.stream("s0").freeze()
        made(client, "s4").predict(jpeg(1))
        for id in service.writer.streams:
            answers[id] = client.stream(id).predict(image, learn=False, probs=True).probs
        assert model.texts == 2 * len(client.stream("s0").facts()["classes"])
        looks = model.looks
    assert model.looks == looks  # by the snapshots of the end
    with running(tmp_path, model=(model := Counting())) as (client, service):
        assert model.texts == 2 * len(client.stream("s0").facts()["classes"])
        assert [client.stream(f"s{i}").facts()["seen"] for i in range(5)] == [2, 2, 2, 2, 1]
        for id in answers:
            assert client.stream(id).predict(image, learn=False, probs=True).probs == answers[id]
        made(client, "later")
        assert model.texts == 2 * len(client.stream("s0").facts()["classes"])
        looks = model.looks
        client.stream("s1").predict(jpeg(3))
    assert model.looks == looks
