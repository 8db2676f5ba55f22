"""A running service for tests: in this process behind a real socket, or in one that is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import randrange
from typing import Any

import httpx
import numpy as np
import torch
import uvicorn
from PIL import Image

import adte
from adte.serve.app import make_app
from adte.serve.limits import Limits
from adte.serve.run import listen
from adte.serve.service import Service
from adte.testing import SmallModel

CLASSES = ["cat", "dog", "car", "oak tree"]
PATIENCE = 300.0  # seconds: what takes one on an idle machine may take a hundred on a busy one


def small() -> SmallModel:
    return SmallModel()


def jpeg(seed: int, width: int = 40, height: int = 32) -> bytes:
    """A made-up photograph."""
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def classifier(model: SmallModel | None = None, **settings: Any) -> adte.Classifier:
    """What a stream of the same settings must equal."""
    return adte.Classifier(model or small(), CLASSES, views=settings.pop("views", 6), **settings)


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[tuple[adte.Client, Service]]:
    """A service behind a socket of this process."""
    torch.set_num_threads(1)
    service = Service(folder, options.pop("model", None) or small(), **options)
    where = listen("127.0.0.1", 0)
    config = uvicorn.Config(make_app(service), log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [where]}, daemon=True)
    thread.start()
    client = adte.Client(f"http://127.0.0.1:{where.getsockname()[1]}", retries=0)
    while not server.started and thread.is_alive():
        time.sleep(0.002)
    try:
        yield client, service
    finally:
        client.close()
        server.should_exit = True
        thread.join(PATIENCE)
        where.close()
        assert not thread.is_alive()


def made(client: adte.Client, id: str = "shop", **settings: Any) -> Any:
    """A small stream."""
    return client.create(CLASSES, id=id, **{"views": 6, **settings})


# --------------------------------------------------------------------------- processes to be killed

CHILD = """
import json, os, sys
import torch
torch.set_num_threads(1)
import adte.serve.app, adte.serve.run, uvicorn
from adte.serve.limits import Limits
from adte.serve.service import Service
from adte.testing import SmallModel
import uvicorn.lifespan.on, uvicorn.loops.asyncio, uvicorn.protocols.http.auto
import adte
model = SmallModel()
PHOTO = bytes.fromhex(sys.stdin.readline())
for method in ("tilt", "tda", "adte", "zero-shot"):  # so that lives begin warm, too
    clf = adte.Classifier(model, ["cat", "dog"], method, views=6)
    clf.predict([PHOTO] * 3)
print("warm", flush=True)
for line in sys.stdin:
    what, value = json.loads(line)
    if what == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        out = os.open(value["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1), os.dup2(out, 2)
        code = 1
        try:
            where = adte.serve.run.listen("127.0.0.1", value["port"])
            limits = Limits(**value.get("limits", {}))
            service = Service(value["folder"], model, limits=limits, **value.get("options", {}))
            say = lambda text: print(text, flush=True)
            adte.serve.run.serve(lambda: service, where, say, value.get("drain", 30.0))
            code = 0
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
        os._exit(code)
    print(pid, flush=True)
"""


class Forge:
    """Starts servers in milliseconds, forked from a warm process."""

    def __init__(self) -> None:
        self.warm = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.warm.stdin.write(jpeg(0).hex() + "\n")
        self.warm.stdin.flush()
        assert self.warm.stdout.readline() == "warm\n"

    def _ask(self, *request: object) -> int:
        self.warm.stdin.write(json.dumps(request) + "\n")
        self.warm.stdin.flush()
        return int(self.warm.stdout.readline())

    def start(self, folder: Path, port: int, **more: Any) -> int:
        log = str(folder.parent / "server.log")
        value = {"folder": str(folder), "port": port, "log": log, **more}
        return self._ask("start", value)

    def end(self, pid: int, how: int = signal.SIGKILL) -> int:
        os.kill(pid, how)
        return self._ask("wait", pid)

    def close(self) -> None:
        self.warm.stdin.close()
        self.warm.wait()
        self.warm.stdout.close()


def free_port() -> int:
    """One that nobody is given who asks for any, as Ray does by the dozen before ours is taken."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", randrange(20000, 32000))) as s:
            return int(s.getsockname()[1])


def wait_ready(port: int) -> None:
    client = adte.Client(f"http://127.0.0.1:{port}", retries=0, timeout=5)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            client.call("GET", "/ready")
            client.close()
            return
        except adte.AdteError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def form(*images: bytes) -> tuple[str, bytes]:
    """The Content-Type and the body of a form with images."""
    files = [("image", ("image", image)) for image in images]
    request = httpx.Request("POST", "http://localhost", files=files)
    return request.headers["content-type"], request.read()


def figure(service: Service, name: str) -> float:
    """A metric over all its labels."""
    samples = [s for metric in service.metrics.registry.collect() for s in metric.samples]
    return sum(s.value for s in samples if s.name == f"adte_{name}")


def wait_together(client: adte.Client, images: int, done: Sequence[object] = ()) -> None:
    """Until so many images wait in the service, or one request is done."""
    until = time.monotonic() + PATIENCE
    while f"adte_waiting_images {images}" not in client.call("GET", "/metrics").decode():
        assert time.monotonic() < until, "the requests never waited together"
        if done:
            break
        time.sleep(0.005)


__all__ = ["CLASSES", "PATIENCE", "Forge", "Limits", "classifier", "figure", "form", "free_port",
           "jpeg", "made", "running", "small", "wait_ready", "wait_together"]  # fmt: skip
