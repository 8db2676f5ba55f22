"""The service on Ray Serve: the same application, with replicas of the tower.

    requests ─→ Owner (one replica) ──picture──→ Tower (n replicas) ──features──→ Owner ─→ answer
                  │ the application of `adte.serve`: its routes, limits, page and streams
                  └ the store: every stream's state, log and snapshots, in one folder

There is one owner, so every stream has one writer, and what was acknowledged is in its store, as on
one machine. Pictures are checked and opened there; replicas render and encode, which is nearly all
of the work. An owner that dies is started again and restores the streams from the folder, which
therefore lies on a disk that it finds wherever it comes up.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from starlette.types import ASGIApp, Receive, Scope, Send
from torch import Tensor

from adte.cluster.connect import ClusterOptions, connected, import_ray, places
from adte.cluster.worker import Tower
from adte.core.errors import InputError, LockedError, MissingExtra
from adte.images import Views
from adte.pipeline import Pipeline
from adte.serve.app import make_app
from adte.serve.engine import Far
from adte.serve.jobs import Predict
from adte.serve.limits import Refused
from adte.serve.log import log
from adte.serve.run import GRACE, on_signal
from adte.serve.service import Service

__all__ = ["answer", "application", "deployed"]

NAME = "adte"
TRIES = 3  # replicas that may die with an image
CONNECTIONS = 1024  # requests under way at a time
LEAVE = 1.0  # seconds that the last answers take by way of Ray


@dataclass(eq=False)
class Distant(Pipeline):
    """A pipeline whose tower is a deployment: pictures are opened here, views made there."""

    handle: Any = None

    def prepare(self, source: Any) -> Any:
        found = self._sent(self.picture(source))
        if isinstance(found, str):
            raise InputError(found)
        features, seconds = found
        return Far(torch.from_numpy(features), seconds)

    def _sent(self, picture: Any) -> Any:
        """The answer of a replica for a picture; that it died is no fault of the picture's."""
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException

        for i in range(TRIES):
            try:
                return self.handle.encode.remote(picture, self.views).result()
            except RayTaskError as error:  # it lives, and would say so again
                log.error("the image tower failed", exc_info=error)
                text = "something went wrong here; the log of the server has it"
                raise Refused(500, "server", text) from error
            except (RayError, RayServeException) as error:
                log.warning("a replica of the tower died: %s", type(error).__name__)
                time.sleep(0.1 * 2**i)  # until it is known to be gone
        raise Refused(503, "tower", "the image tower died; try again soon", 5)

    def pixels(self, images: Sequence[Any], size: int = 0) -> Tensor:
        if not all(isinstance(x, Far) for x in images):
            return super().pixels(images, size)
        return torch.stack([x.features for x in images])  # (B, V, D), in the place of pixels

    def encode(self, pixels: Tensor, size: int | None = None) -> Tensor:
        return pixels if pixels.ndim == 3 else super().encode(pixels, size)


class Spread:
    """An engine that gives the streams of its jobs a tower elsewhere; all else is as it was.

    A stream whose method needs pixels keeps the tower that the owner has.
    """

    def __init__(self, engine: Any, handle: Any) -> None:
        self._engine, self._handle = engine, handle

    def submit(self, job: Any) -> Any:
        if isinstance(job, Predict):
            clf = job.stream.clf
            if type(clf.pipeline) is Pipeline and not clf.pipeline.keep_pixels:
                clf.pipeline = Distant(clf.model, clf.views, handle=self._handle)
        return self._engine.submit(job)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class TowerReplica:
    """A model that renders and encodes, for whichever stream."""

    def __init__(self, tower: Tower) -> None:
        torch.set_num_threads(1)
        self.model = tower.open()

    def encode(self, picture: Any, views: Views) -> Any:
        """Features (V, D) of a picture and the seconds that they took, or why there are none."""
        start = time.perf_counter()
        try:
            (done,) = Pipeline(self.model, views)([(0, picture)])
        except InputError as error:
            return str(error)
        features = done.features.cpu().numpy()
        return features, time.perf_counter() - start


class Finished:
    """Requests are finished even if the one who asked has gone, as on one machine: Ray would cancel
    them, while their images go on.
    """

    def __init__(self, app: ASGIApp, requests: set[asyncio.Task[None]]) -> None:
        self.app, self.requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = asyncio.ensure_future(self.app(scope, receive, send))
        self.requests.add(request)
        request.add_done_callback(self.requests.discard)
        await asyncio.shield(request)


class Owner:
    """The application and the streams; the only one who writes."""

    def __init__(self, handle: Any, tower: Tower, folder: str, settings: dict[str, Any]) -> None:
        self.service = _opened(folder, tower, settings)
        self.service.engine = Spread(self.service.engine, handle)  # type: ignore[assignment]
        self.ending = False
        self.requests: set[asyncio.Task[None]] = set()  # under way

    def __serve_build_asgi_app__(self) -> Any:
        app = make_app(self.service, named=False)  # Ray does it
        app.add_middleware(Finished, requests=self.requests)
        return app

    def check_health(self) -> None:
        if not self.service.engine.alive and not self.ending:
            raise RuntimeError("the service has ended")

    async def finish(self, drain: float) -> None:
        """Do what was accepted, while there are towers still, `drain` seconds at most; what comes
        now is refused.
        """
        self.ending = True
        self.service.end_within(drain)
        await asyncio.to_thread(self.service.close)
        self.service.cut_off()  # a stream that is still being made comes too late
        if answered := set(self.requests):
            await asyncio.wait(answered, timeout=GRACE)
        await asyncio.sleep(LEAVE)


def _opened(folder: str, tower: Tower, settings: dict[str, Any], patience: float = 30) -> Service:
    """The service; an owner that was killed may hold its folder for a moment still."""
    model, until = tower.open(), time.monotonic() + patience
    while True:
        try:
            return Service(folder, model, **settings)
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def application(
    tower: Tower,
    folder: str | os.PathLike[str],
    replicas: int = 1,
    gpus: float = 0.0,
    **settings: Any,
) -> Any:
    """The argument of `serve.run`.

    Args:
        tower: the model of all streams.
        folder: where the state lies; the owner has to find it wherever it comes up.
        replicas: of the tower; gpus: for each of them.
        settings: of `Service`: limits, access, snapshot, workers, disk.
    """
    serve = _serve()
    options = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus}
    towers = serve.deployment(
        TowerReplica, name="tower", num_replicas=replicas, ray_actor_options=options
    )
    owner = serve.deployment(
        serve.ingress()(Owner),
        name="owner",
        num_replicas=1,
        max_ongoing_requests=CONNECTIONS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=GRACE,
        graceful_shutdown_wait_loop_s=0.1,
    )
    # An image of each stream at a time in the tower would leave replicas idle.
    settings["workers"] = max(settings.get("workers") or 0, 2 * replicas)
    return owner.bind(towers.bind(tower), tower, os.path.abspath(folder), settings)


def _serve() -> Any:
    import_ray()
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtra(error.name or "ray", "ray", "a service on a cluster") from error
    return serve


@contextmanager
def deployed(app: Any, host: str = "127.0.0.1", port: int = 8017) -> Iterator[None]:
    """The application behind an address of the cluster that this process is connected to."""
    serve = _serve()
    there = serve.status()
    if there.proxies or there.applications:
        others = ", ".join(there.applications) or "none"
        raise InputError(
            f"Ray Serve runs on this cluster already, with the applications: {others}; it has one "
            "address, and would end with adte. Take another cluster, or end it there with `serve "
            "shutdown`, as after an `adte serve` that was killed"
        )
    try:
        try:
            serve.start(http_options={"host": host, "port": port}, proxy_location="HeadOnly")
            serve.run(app, name=NAME, route_prefix="/", logging_config={"log_level": "ERROR"})
        except RuntimeError as error:
            last = [line.strip() for line in str(error).splitlines() if line.strip()][-1]
            if "Failed to bind" in last:  # Ray itself takes ports while it starts
                raise InputError(
                    f"port {port} of {host} was taken while the cluster came up; try again, or "
                    "choose another --port"
                ) from error
            raise InputError(
                f"the service did not come up on the cluster ({last}); check the model's weights "
                "and the folder of the state on its machines"
            ) from error
        yield
    finally:
        serve.shutdown()


def answer(
    app: Any,
    host: str,
    port: int,
    say: Callable[[str], None],
    options: ClusterOptions,
    drain: float = 30.0,
) -> None:
    """Answer until a signal comes, then finish what is under way, `drain` seconds at most."""
    serve, asked = _serve(), threading.Event()
    with connected(options) as ray:
        places(ray, options, least=options.workers or 1)  # Ray would wait for them, without a word
        with deployed(app, host, port):
            say(f"serving on http://{host}:{port}, by a Ray cluster")
            with on_signal(asked.set):  # a second one does not wait for the end
                asked.wait()
            with suppress(TimeoutError, ray.exceptions.RayError):
                ended = serve.get_app_handle(NAME).finish.remote(drain)
                ended.result(timeout_s=drain + 2 * GRACE)
    say("ended; what was acknowledged is on the disk")
