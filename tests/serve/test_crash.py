"""A server that is killed at any moment: nothing acknowledged is lost, nothing is learned twice."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adte
from adte.serve import admin
from adte.serve.client import Answer, RemoteStream, ServiceError
from serving import (
    CLASSES,
    PATIENCE,
    Forge,
    classifier,
    free_port,
    jpeg,
    small,
    wait_ready,
    wait_together,
)

KINDS = {"a": "tilt", "b": "tda", "c": "adte", "d": "zero-shot"}
WRITERS = 2  # clients of each stream
MANY = 40  # different images


class Load:
    """Clients that teach as fast as they can, and remember every answer."""

    def __init__(self, port: int) -> None:
        self.client = adte.Client(f"http://127.0.0.1:{port}", retries=0, timeout=PATIENCE)
        for id, method in KINDS.items():
            self.client.create(CLASSES, id=id, method=method, views=6)
        self.client.close()
        self.answers: dict[str, list[tuple[int, list[int], list[list[float]]]]] = {
            id: [] for id in KINDS
        }
        self.repeated = 0
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._work, args=(id, k))
            for id in KINDS
            for k in range(WRITERS)
        ]
        for t in self.threads:
            t.start()

    def _work(self, id: str, k: int) -> None:
        draw, turn = random.Random(f"{id}{k}"), 0
        stream = self.client.stream(id)
        try:
            while not self.stop.is_set():
                turn += 1
                numbers = [draw.randrange(MANY) for _ in range(draw.choice((1, 1, 1, 3)))]
                found = self._insist(stream, [jpeg(n) for n in numbers], f"{k}-{turn}")
                self.repeated += found[0].repeated
                self.answers[id].append((found[0].seq, numbers, [p.probs for p in found]))
        except BaseException as error:
            self.errors.append(error)

    def _insist(self, stream: RemoteStream, images: list[bytes], key: str) -> list[Answer]:
        """The same request until it is answered, whatever happens to the server."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return stream.predict_many(images, probs=True, key=key)
            except ServiceError as error:
                if error.code not in ("connection", "loading") or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def wait(self, answers: int, seconds: float) -> None:
        """Until so many more answers came, but not for ever."""
        before, until = sum(map(len, self.answers.values())), time.monotonic() + seconds
        while sum(map(len, self.answers.values())) < before + answers:
            if time.monotonic() > until:
                return
            time.sleep(0.005)

    def end(self) -> None:
        self.stop.set()
        for t in self.threads:
            t.join(PATIENCE)
        self.client.close()
        assert not self.errors, self.errors

    def check(self, folder: Path) -> int:
        """Every answer is that of an undisturbed classifier; how many images it was."""
        total, model = 0, small()
        rows = {row["id"]: row for row in admin.listing(folder)}
        for id, method in KINDS.items():
            done = sorted(self.answers[id])
            assert [seq for seq, *_ in done] == list(range(1, len(done) + 1))
            clf = classifier(model, method=method)
            for _, numbers, probs in done:
                found = [p.probs.tolist() for p in clf.predict([jpeg(n) for n in numbers])]
                # Streams share passes of the tower, whose kernels may round by the batch's size.
                np.testing.assert_allclose(found, probs, rtol=0, atol=1e-6)
            assert rows[id]["seen"] == clf.seen
            total += clf.seen
        return total


def kill_often(forge: Forge, folder: Path, kills: int) -> Load:
    """A server under load that is killed at once, or after some answers, in the midst of others."""
    port, draw = free_port(), random.Random(0)
    options: dict[str, Any] = {"options": {"snapshot": 9, "workers": 1}}
    pid = forge.start(folder, port, **options)
    wait_ready(port)
    load = Load(port)
    for _ in range(kills):
        load.wait(draw.choice((0, 1, 2, 6)), 0.5)
        time.sleep(0.03 * draw.random())
        forge.end(pid, signal.SIGKILL)
        pid = forge.start(folder, port, **options)
        wait_ready(port)
    load.wait(5, PATIENCE)
    load.end()
    assert forge.end(pid, signal.SIGTERM) == 0
    return load


def test_a_few_kills(forge, tmp_path):
    load = kill_often(forge, tmp_path / "s", 2)
    assert load.check(tmp_path / "s") > 4
    assert admin.verify(tmp_path / "s") == []
    assert "note:" not in (tmp_path / "server.log").read_text()


@pytest.mark.slow
def test_fifty_kills(forge, tmp_path):
    load = kill_often(forge, tmp_path / "s", 50)
    assert load.check(tmp_path / "s") > 60
    assert load.repeated  # some answers were lost on the way, and asked for again
    assert admin.verify(tmp_path / "s") == []
    assert "note:" not in (tmp_path / "server.log").read_text()


def test_a_polite_end_answers_what_is_under_way(forge, tmp_path):
    port = free_port()
    pid = forge.start(tmp_path / "s", port)
    wait_ready(port)
    client = adte.Client(f"http://127.0.0.1:{port}", retries=0)
    stream = client.create(CLASSES, id="one", views=64)
    done: list[int] = []
    failed: list[adte.AdteError] = []

    def work() -> None:
        try:
            done.append(stream.predict_many([jpeg(i) for i in range(16)])[0].seq)
        except adte.AdteError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    wait_together(client, 48, done)
    assert forge.end(pid, signal.SIGTERM) == 0
    for t in threads:
        t.join()
    assert sorted(done) == [1, 2, 3]
    assert not failed
    log = (tmp_path / "server.log").read_text()
    assert "ended; what was acknowledged is on the disk" in log
    (row,) = admin.listing(tmp_path / "s")
    assert (row["seen"], row["seq"]) == (48, 3)
    client.close()
