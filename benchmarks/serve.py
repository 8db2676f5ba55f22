"""The service under load, beside the bare pipeline in the same run: rates and latencies.

    python benchmarks/serve.py [--model tiny] [--clients 16] [--images 64] [--json FILE]
    python benchmarks/serve.py --soak 10 --views 8     # ten minutes, and the memory meanwhile

The service and the bare pipeline take turns, so that a busy machine hurts both alike; figures are
medians over the turns. `bare` is `Classifier.stream`, decoding ahead in threads, one after the
other on a CPU and as many together as pay on a GPU: the same model, views, images and settings,
without HTTP and without a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from adte.bench import subject, timing
from adte.bench.pipeline import photographs
from adte.classifier import Classifier
from adte.core.errors import AdteError, InputError
from adte.core.machine import resident
from adte.pipeline import default_group, default_workers
from adte.serve.client import Client

__all__ = ["run", "soak"]

Row = dict[str, Any]


@contextmanager
def server(model: str, **options: str | None) -> Iterator[tuple[Client, int]]:
    """`adte serve` in a process of its own, with a state that goes away."""
    given = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    with tempfile.TemporaryDirectory(prefix="adte-bench-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "adte", "serve", "--port", "0", "--model", model,
                   "--state", str(Path(folder) / "state"), *given]  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(command, stderr=out)
        try:
            yield _client(process, log), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _client(process: subprocess.Popen[bytes], log: Path) -> Client:
    until = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < until:
        said = log.read_text(encoding="utf-8")
        if "serving on " in said:
            return Client(said.partition("serving on ")[2].split()[0], retries=100)
        time.sleep(0.1)
    raise InputError(f"the server did not start; it said: {log.read_text(encoding='utf-8')[-500:]}")


class Load:
    """Clients that each send one image after the other."""

    def __init__(self, client: Client, clients: int, streams: list[str], images: list[bytes]):
        self.client, self.clients, self.streams, self.images = client, clients, streams, images
        self.seconds: list[float] = []

    def run(self, enough: Callable[[int], bool]) -> float:
        """Send until there are enough; images per second."""
        lock, sent, errors = threading.Lock(), [0], list[BaseException]()

        def work(number: int) -> None:
            stream = self.client.stream(self.streams[number % len(self.streams)])
            try:
                while True:
                    with lock:
                        if enough(sent[0]) or errors:
                            return
                        mine, sent[0] = sent[0], sent[0] + 1
                    start = time.perf_counter()
                    stream.predict(self.images[mine % len(self.images)])
                    with lock:
                        self.seconds.append(time.perf_counter() - start)
            except (AdteError, OSError) as error:
                errors.append(error)
            finally:
                self.client.close()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(self.clients)]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise errors[0]
        return sent[0] / (time.perf_counter() - start)


class Crowd:
    """Many clients in a few processes, for one Python would be slower than the service."""

    def __init__(self, client: Client, clients: int, streams: list[str], images: list[bytes]):
        few = max(1, min(4, clients, (os.cpu_count() or 1) // 4))
        self.parts = [clients // few + (i < clients % few) for i in range(few)]
        self.seconds: list[float] = []
        context = get_context("spawn")
        given = (context.Barrier(few), client.url, streams, images)
        self.pool = ProcessPoolExecutor(few, context, _begin, given)

    def run(self, images: int) -> float:
        """Send so many; images per second."""
        start, few = time.perf_counter(), len(self.parts)
        shares = [images // few + (i < images % few) for i in range(few)]
        sent = [s for some in self.pool.map(_send, self.parts, shares) for s in some]
        self.seconds += sent
        return len(sent) / (time.perf_counter() - start)

    def __enter__(self) -> Crowd:
        self.run(sum(self.parts))  # the processes start, and wait for each other
        self.seconds.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()


_given: list[Any] = []  # in a process of the crowd: what all its clients use


def _begin(all_here: Any, url: str, streams: list[str], images: list[bytes]) -> None:
    _given[:] = [Client(url, retries=100), streams, images]
    all_here.wait(300)


def _send(clients: int, images: int) -> list[float]:
    """Some images; the seconds that each took."""
    client, streams, photos = _given
    load = Load(client, clients, streams, photos)
    load.run(lambda n: n >= images)
    return load.seconds


def quantiles(seconds: list[float]) -> dict[str, float]:
    """p50, p95 and p99.

    >>> quantiles([0.1, 0.2, 0.3])["p50"]
    0.2
    """
    if len(seconds) < 2:
        return {f"p{n}": seconds[0] if seconds else 0.0 for n in (50, 95, 99)}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{n}": cuts[n - 1] for n in (50, 95, 99)}


def run(
    model: str = "tiny",
    weights: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    clients: int = 16,
    streams: int = 4,
    images: int = 64,
    views: int = 64,
    turns: int = 3,
    classes: int | None = None,
    method: str = "tilt",
) -> Row:
    """Images per second of the service under load, beside the bare pipeline."""
    timing.check_counts(clients=clients, streams=streams, images=images, turns=turns)
    net = subject.load(model, weights, device, dtype)
    names = subject.class_names(net, classes)
    photos = photographs(images, None)
    bare = Classifier(net, names, method, views=views)
    stream = partial(bare.stream, workers=default_workers(), batch=default_group(net))
    rates: dict[str, list[float]] = {"bare pipeline": [], "service": []}
    with server(model, weights=weights, device=device, dtype=dtype) as (client, _):
        ids = [client.create(names, id=f"s{i}", method=method, views=views).id
               for i in range(streams)]  # fmt: skip
        list(stream(photos[:4]))
        with Crowd(client, clients, ids, photos) as crowd:
            for _ in range(turns):
                start = time.perf_counter()
                count = sum(1 for _ in stream(photos))
                rates["bare pipeline"].append(count / (time.perf_counter() - start))
                rates["service"].append(crowd.run(images))
        lone = Load(client, 1, ids, photos)
        alone = lone.run(lambda n: n >= max(8, images // 4))
        client.close()
    rate = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(
        s / b for s, b in zip(rates["service"], rates["bare pipeline"], strict=True)
    )
    rows: list[Row] = [
        {"name": "bare pipeline", "seconds": 1 / rate["bare pipeline"], "ratio": 1.0,
         "images_per_s": rate["bare pipeline"]},
        {"name": f"service, {clients} clients", "seconds": 1 / rate["service"], "ratio": ratio,
         "images_per_s": rate["service"], **quantiles(crowd.seconds)},
        {"name": "service, 1 client", "seconds": 1 / alone,
         "ratio": alone / rate["bare pipeline"], "images_per_s": alone, **quantiles(lone.seconds)},
    ]  # fmt: skip
    facts = subject.facts(net, views, method=method, clients=clients, streams=streams,
                          images=images, turns=turns, classes=len(names))  # fmt: skip
    return timing.result(rows, ratio, "images per second, service over bare pipeline", **facts)


def soak(
    minutes: float,
    model: str = "tiny",
    weights: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    clients: int = 16,
    streams: int = 4,
    views: int = 64,
    report: Callable[[str], None] = lambda text: None,
) -> Row:
    """Load for some minutes, and the memory of the server over that time."""
    net = subject.load(model, weights, device, dtype)
    names, photos = subject.class_names(net, None), photographs(32, None)
    points: list[Row] = []
    with server(model, weights=weights, device=device, dtype=dtype) as (client, pid):
        ids = [client.create(names, id=f"s{i}", views=views).id for i in range(streams)]
        begun, load = time.monotonic(), Load(client, clients, ids, photos)
        end = begun + 60 * minutes
        while (now := time.monotonic()) < end:
            until = min(end, now + max(5.0, 3 * minutes))  # twenty points
            rate = load.run(lambda n, until=until: time.monotonic() >= until)  # type: ignore[misc]
            at, memory = time.monotonic() - begun, resident(pid)
            points.append({"seconds": at, "images_per_s": rate, "resident_bytes": memory})
            report(f"{at:5.0f} s  {rate:6.1f} images/s  {memory / 2**20:7.1f} MB")
        text = client.call("GET", "/metrics").decode()
        client.close()
    late = points[len(points) // 4 :]  # caches have filled by then
    half = len(late) // 2
    grown = statistics.mean(p["resident_bytes"] for p in late[half:]) / statistics.mean(
        p["resident_bytes"] for p in late[:half] or late
    )
    return {"minutes": minutes, "clients": clients, "streams": streams, "views": views,
            "points": points, "growth": grown - 1, "images": len(load.seconds),
            **quantiles(load.seconds), "errors": _value(text, "adte_errors_total"),
            "machine": subject.facts(net, views)}  # fmt: skip


def _value(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("model", "tiny"), ("weights", None), ("device", None), ("dtype", None)):
        parser.add_argument(f"--{name}", default=value)
    for name, value in (
        ("clients", 16),
        ("streams", 4),
        ("images", 64),
        ("views", 64),
        ("turns", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--json", metavar="FILE")
    options = vars(parser.parse_args())
    file, minutes = options.pop("json"), options.pop("soak")
    if minutes is None:
        result = run(**options)
    else:
        del options["images"], options["turns"]
        result = soak(minutes, report=print, **options)
    print(json.dumps(result, indent=1))
    if file:
        Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
