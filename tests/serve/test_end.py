"""The end of a service: what was decided is finished, what still waits is refused."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import adte
from adte.serve import admin, run
from adte.serve.app import Shell
from adte.serve.client import ServiceError
from adte.serve.jobs import Change, Predict
from adte.serve.limits import Refused
from adte.serve.service import Service
from adte.serve.settings import Settings
from adte.serve.streams import Stream
from serving import CLASSES, PATIENCE, free_port, jpeg, small, wait_ready, wait_together

ASKED = {"classes": CLASSES, "templates": "single", "method": "tilt", "views": 6, "seed": 0,
         "options": {}, "protocol": "online", "state": None, "start": None}  # fmt: skip


def test_what_waits_for_the_tower_is_cut_off(tmp_path):
    """The image in the tower is finished and written; those behind it teach nothing."""
    service = Service(tmp_path, small(), workers=1)
    engine, through = service.engine, service.engine._through
    stream = Stream.make("one", Settings.of(ASKED, service.limits), service.model, "now", None)
    engine.ask(lambda: service.writer.create(stream)).result(60)
    inside, go = threading.Event(), threading.Event()
    engine._through = lambda ready: (inside.set(), go.wait(30), through(ready))
    first, second = (Predict(stream=stream, images=[jpeg(i)]) for i in range(2))
    several = Predict(stream=stream, images=[jpeg(2), jpeg(3)])
    jobs = [first, second, several, Change(stream=stream, kind="freeze")]
    futures = [engine.submit(job) for job in jobs]
    assert inside.wait(30)
    engine.cut_off()
    assert not engine.alive
    with pytest.raises(Refused, match="the server is ending"):
        engine.submit(Predict(stream=stream, images=[jpeg(0)]))
    go.set()
    assert futures[0].result(30)["seen"] == 1
    errors = [f.exception(30) for f in futures[1:]]
    assert [(e.status, e.code, str(e)) for e in errors] == [
        (503, "stopping", "the server is ending; try again soon")
    ] * 3
    service.close()
    (row,) = admin.listing(tmp_path)
    assert (row["seen"], row["seq"]) == (1, 1)


def test_the_drain_ends_the_process_and_every_request_is_told(forge, tmp_path):
    port = free_port()
    pid = forge.start(tmp_path / "s", port, drain=0.2)
    wait_ready(port)
    client = adte.Client(f"http://127.0.0.1:{port}", retries=0)
    stream = client.create(CLASSES, id="one", views=256)
    done: list[int] = []
    failed: list[ServiceError] = []

    def work() -> None:
        try:
            done.append(len(stream.predict_many([jpeg(i, 900, 700) for i in range(12)])))
        except ServiceError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for t in threads:
        t.start()
    wait_together(client, 60)
    begun = time.monotonic()
    assert forge.end(pid, signal.SIGTERM) == 0
    assert time.monotonic() - begun < 60
    for t in threads:
        t.join()
    client.close()
    assert failed
    assert {(e.status, e.code) for e in failed} == {(503, "stopping")}
    (row,) = admin.listing(tmp_path / "s")
    assert (row["seen"], row["seq"]) == (sum(done), len(done))
    assert "Traceback" not in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("drain", [0.1, PATIENCE])
def test_a_body_that_never_ends_does_not_hold_up_the_end(forge, tmp_path, drain):
    port = free_port()
    pid = forge.start(tmp_path / "s", port, drain=drain, limits={"body_seconds": PATIENCE})
    wait_ready(port)
    client = adte.Client(f"http://127.0.0.1:{port}", retries=0)
    client.create(CLASSES, id="one", views=6)
    with socket.create_connection(("127.0.0.1", port), 30) as line:
        line.sendall(b"POST /v1/streams/one/predict HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Type: image/jpeg\r\nContent-Length: 1000\r\n\r\nsome")  # fmt: skip
        while "adte_waiting_bytes 4.0\n" not in client.call("GET", "/metrics").decode():
            time.sleep(0.01)
        client.close()
        begun = time.monotonic()
        assert forge.end(pid, signal.SIGTERM) == 0
        assert time.monotonic() - begun < 60
        head, _, body = line.recv(10_000).partition(b"\r\n\r\n")
    assert b" 503 " in head.splitlines()[0]
    assert json.loads(body)["error"]["code"] == "stopping"


def test_a_request_that_is_cancelled_is_told_so(tmp_path):
    service, sent = Service(tmp_path, small(), workers=1), []

    async def cancelled(*_):
        raise asyncio.CancelledError

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", b"localhost")]}
    asyncio.run(Shell(cancelled, service.access, service.metrics)(scope, None, send))
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "stopping"
    service.close()


def test_a_stream_that_is_being_made_does_not_hold_up_the_end(tmp_path, monkeypatch):
    """Its texts may take minutes, and Python would wait for their thread."""
    service, ended = Service(tmp_path, small()), []
    inside, go = threading.Event(), threading.Event()
    monkeypatch.setattr(
        Stream, "make", lambda *_: (inside.set(), go.wait(30), SimpleNamespace())[2]
    )
    monkeypatch.setattr(
        run._Server, "run", lambda self, sockets: (self.opened.result(30), service.close())
    )
    monkeypatch.setattr(run.os, "_exit", ended.append)
    jobs = [service.maker.submit(service.make, id, ASKED) for id in ("one", "two")]
    assert inside.wait(30)
    with run.listen("127.0.0.1", 0) as where:
        run.serve(lambda: service, where, lambda text: None)
    assert ended == [0]
    assert jobs[1].cancelled()
    go.set()
    jobs[0].result(30)


def test_who_waits_for_a_stream_is_refused_after_the_drain(tmp_path, monkeypatch):
    """And not after the seconds more in which what was decided is written."""
    service, servers, ended = Service(tmp_path, small()), [], []
    inside, go = threading.Event(), threading.Event()
    monkeypatch.setattr(
        Stream, "make", lambda *_: (inside.set(), go.wait(PATIENCE), SimpleNamespace())[2]
    )
    monkeypatch.setattr(run, "GRACE", 10 * PATIENCE)
    monkeypatch.setattr(run, "on_signal", lambda end: nullcontext(servers.append(end)))
    monkeypatch.setattr(run.os, "_exit", ended.append)
    with run.listen("127.0.0.1", 0) as where, ThreadPoolExecutor(3) as pool:
        port = where.getsockname()[1]
        served = pool.submit(run.serve, lambda: service, where, lambda text: None, 0.1)
        wait_ready(port)
        client = adte.Client(f"http://127.0.0.1:{port}", retries=0, timeout=PATIENCE)

        asked = [pool.submit(client.create, CLASSES, id) for id in ("one", "two")]
        assert inside.wait(PATIENCE)
        until = time.monotonic() + PATIENCE
        while len(service.awaited) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        servers[0]()
        for stream in asked:
            error = stream.exception(PATIENCE)
            assert (error.status, error.code) == (503, "stopping")
        served.result(PATIENCE)
        client.close()
        go.set()
    assert ended == [0]
    assert admin.listing(tmp_path) == []
