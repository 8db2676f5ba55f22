"""What a request is called, and the log."""

from __future__ import annotations

import http.client
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager

import pytest

import adte
from adte.serve.client import ServiceError
from adte.serve.limits import Limits
from adte.serve.log import logged, requests
from serving import PATIENCE, jpeg, made, running


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    limits = Limits(max_bytes=100_000, body_seconds=0.2)
    with running(tmp_path_factory.mktemp("log") / "s", limits=limits) as (client, service):
        made(client, "shop")
        yield client, service


def asked(client: adte.Client, verb: str, path: str, body=None, **headers: str):
    line = http.client.HTTPConnection(client.url.removeprefix("http://"), timeout=PATIENCE)
    try:
        line.request(verb, path, body, headers)
        answer = line.getresponse()
        return answer.status, answer.headers.get_all("x-request-id"), answer.read()
    finally:
        line.close()


@pytest.mark.parametrize(
    ("verb", "path", "body", "headers", "status"),
    [
        ("GET", "/health", None, {}, 200),
        ("GET", "/nothing", None, {}, 404),
        ("PUT", "/health", None, {}, 405),
        ("GET", "/health", None, {"Host": "elsewhere"}, 400),
        ("POST", "/v1/streams/shop/predict?top=0", b"", {}, 422),
        ("POST", "/v1/streams/shop/predict", b"", {"Content-Length": "999999999"}, 413),
        ("POST", "/v1/streams/shop/predict", b"", {"Content-Length": "5"}, 408),
    ],
)
def test_every_answer_names_its_request(served, verb, path, body, headers, status):
    found, ids, data = asked(served[0], verb, path, body, **{"X-Request-ID": "a1/b:2"}, **headers)
    assert (found, ids) == (status, ["a1/b:2"])
    if status >= 400:
        assert json.loads(data)["error"]["request_id"] == "a1/b:2"


@pytest.mark.parametrize("sent", ["", "a b", 'a"b', "é", "x" * 129, None])
def test_what_no_log_should_hold_is_replaced(served, sent):
    headers = {} if sent is None else {"X-Request-ID": sent}
    (one,), (two,) = (asked(served[0], "GET", "/health", **headers)[1] for _ in range(2))
    assert one not in (sent, two)
    assert len(one) == 16


def test_a_fault_is_logged_with_its_request(served, monkeypatch, caplog):
    client, service = served

    def fail(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr(service.metrics, "text", fail)
    with pytest.raises(ServiceError) as caught:
        client.call("GET", "/metrics")
    assert f"request {caught.value.request_id} failed" in caplog.text


def test_errors_of_the_client_name_the_request(served):
    with pytest.raises(ServiceError, match=r"no such stream.* \(request [0-9a-f]{16}\)$") as caught:
        served[0].stream("other").facts()
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.request_id in str(error)
    assert str(error).count("(request") == 1


def test_a_line_for_each_request(served, caplog):
    client, _ = served
    with caplog.at_level(logging.INFO, requests.name):
        asked(client, "GET", "/health")
        stream = client.stream("shop")
        stream.predict(jpeg(0), label="cat")
        asked(client, "GET", "/" + "x" * 1000, **{"X-Request-ID": "mine"})
    lines = [r.facts for r in caplog.records if r.name == requests.name]
    assert [(x["method"], x["status"], x["stream"]) for x in lines] == [
        ("POST", 200, "shop"), ("GET", 404, None)
    ]  # fmt: skip
    assert lines[0]["path"] == "/v1/streams/shop/predict"
    assert lines[0]["milliseconds"] > 0
    assert lines[0]["client"] == "127.0.0.1"
    assert len(lines[1]["path"]) == 201


@contextmanager
def alone():
    """No handlers but those of the block, and all as it was behind it."""
    loggers = [logging.getLogger(n) for n in ("", "adte", requests.name, "python_multipart")]
    levels, handlers = [x.level for x in loggers], logging.root.handlers
    logging.root.handlers = []
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.root.handlers = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def say_much() -> None:
    with logged("json"), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.getLogger("a.library").warning("two\nlines")
        warnings.warn("a warning", stacklevel=1)
        try:
            raise RuntimeError("a fault")
        except RuntimeError:
            logging.getLogger("adte.serve").exception("it failed")
        raise adte.InputError("no such weights")


def test_all_is_json_where_json_is_asked_for(capsys):
    with alone(), pytest.raises(SystemExit) as ended:
        say_much()
    assert ended.value.code == 2
    first, second, third, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"]) == ("warning", "two\nlines")
    assert first["time"].endswith("Z")
    assert "a warning" in second["message"]
    assert "RuntimeError: a fault" in third["exception"]
    assert (last["level"], last["message"]) == ("error", "no such weights")


def test_text_has_no_line_for_each_request(capsys):
    with alone(), logged("text"):
        requests.info("GET / 200")
        logging.getLogger("adte.serve").warning("a note")
    assert capsys.readouterr().err == "WARNING adte.serve: a note\n"


@pytest.mark.slow
def test_a_collector_can_read_every_line(tmp_path):
    command = [sys.executable, "-m", "adte", "serve", "--port", "0", "--log-format", "json",
               "--state", str(tmp_path / "s")]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    url = json.loads(process.stderr.readline())["message"].split()[-1]
    client = adte.Client(url, retries=0)
    made(client, "shop").predict(jpeg(0))
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as line:
        line.sendall(b"no HTTP\r\n\r\n")
        assert b" 400 " in line.recv(100)
    client.close()
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 2
    (error,) = map(json.loads, second.stderr.splitlines())
    assert error["level"] == "error"
    assert "another process" in error["message"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    lines = [json.loads(line) for line in process.stderr]
    process.stderr.close()
    assert [x.get("path") or x["message"] for x in lines] == [
        "/v1/streams", "/v1/streams/shop/predict", "Invalid HTTP request received.",
        "ended; what was acknowledged is on the disk",
    ]  # fmt: skip
    assert {"time", "level", "method", "status", "milliseconds", "stream", "request_id",
            "client"} <= set(lines[1])  # fmt: skip
