"""A cluster of this machine, asked to end: as without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

import adte
from clusters import patiently
from serving import free_port, jpeg

pytest.importorskip("ray")
pytest.importorskip("fastapi")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to handle"),
]


@contextmanager
def started(*words):
    """A process of its own, with a Ray of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "adte", *map(str, words), "--engine", "ray"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_serve_answers_what_is_under_way(tmp_path):
    patiently(lambda: serve_and_end(tmp_path))


def serve_and_end(tmp_path):
    words = ("serve", "--state", tmp_path / "state", "--port", free_port())
    words += ("--cluster-workers", 1, "--drain", 300)
    with started(*words) as process:
        said = []
        while not any(x.startswith("serving on ") for x in said):
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        line = said[-1]
        client = adte.Client(line.split()[2].rstrip(","), retries=0)
        stream = client.create(["cat", "dog"], id="shop", views=64)
        with ThreadPoolExecutor(1) as asking:
            asked = asking.submit(stream.predict_many, [jpeg(i) for i in range(8)])
            while "adte_waiting_images 8" not in client.call("GET", "/metrics").decode():
                assert not asked.done(), "eight images of 64 views take longer"
            process.send_signal(signal.SIGTERM)
            err = process.stderr.read()
            assert len(asked.result(300)) == 8
        assert process.wait(300) == 0, err
        client.close()
    assert "ended; what was acknowledged is on the disk" in err
    assert "SIGTERM received" not in err


def test_serve_refuses_what_still_waits_after_the_drain(tmp_path):
    patiently(lambda: serve_and_cut_off(tmp_path))


def serve_and_cut_off(tmp_path):
    words = ("serve", "--state", tmp_path / "state", "--port", free_port())
    words += ("--cluster-workers", 1, "--drain", 0.5)
    with started(*words) as process, ThreadPoolExecutor(5) as asking:
        while not (line := process.stderr.readline()).startswith("serving on "):
            assert line
        client = adte.Client(line.split()[2].rstrip(","), retries=0)
        stream = client.create(["cat", "dog"], id="shop", views=256)
        images = [jpeg(i, 900, 700) for i in range(12)]
        asked = [asking.submit(stream.predict_many, images) for _ in range(5)]
        while "adte_waiting_images 60" not in client.call("GET", "/metrics").decode():
            assert not any(x.done() for x in asked), "so many images of 256 views take longer"
        process.send_signal(signal.SIGTERM)
        told = {(e.status, e.code) for x in asked if (e := x.exception(300))}
        assert told == {(503, "stopping")}
        with suppress(httpx.TransportError):  # it has ended
            assert client._send("GET", "/v1/streams").status_code == 503  # and not Ray's 404
        assert process.wait(300) == 0
        client.close()


def test_predict_ends_in_a_sentence(tmp_path):
    patiently(lambda: predict_and_end(tmp_path))


def predict_and_end(tmp_path):
    (tmp_path / "photos").mkdir(exist_ok=True)
    for i in range(300):
        (tmp_path / "photos" / f"{i:03d}.jpg").write_bytes(jpeg(i))
    out = tmp_path / "rows.csv"
    words = ("predict", tmp_path / "photos", "--classes", "cat, dog", "--out", out)
    words += ("--cluster-workers", 1)
    with started(*words) as process:
        until = time.monotonic() + 600
        while not (out.exists() and out.read_text().count("\n") > 3):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        err = process.stderr.read()
        assert process.wait(300) == 143, err
    assert "\nterminated; the files written so far are complete" in err
    assert "core_worker" not in err  # Ray's own words on how its actors are made
    assert "NumPy" not in err  # PyTorch's on arrays that may not be written to
    assert 3 < out.read_text().count("\n") < 300
