"""The process: an address, the server on it, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import uvicorn

from adte.errors import InputError
from adte.serve.app import make_app
from adte.serve.service import Service

__all__ = ["admin_token", "listen", "serve"]

CONNECTIONS = 1024  # open at a time
LATE = 0.8  # seconds that bodies have to arrive, once the end has begun
GRACE = 5  # seconds after the drain in which what was decided is written and answered


def admin_token(file: str | None) -> str | None:
    """The administrator's token: of a file, or of the environment."""
    if file is None:
        return os.environ.get("ADTE_ADMIN_TOKEN", "").strip() or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token file {file!r} ({error}); check it") from error
    if not token:
        raise InputError(f"the token file {file!r} is empty; write the administrator's token to it")
    return token


def listen(host: str, port: int) -> socket.socket:
    """An open address; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio would not switch Nagle's waiting off: 40 ms for each answer.
    where = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let others take the port
            where.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        where.bind((host, port))
        where.listen(256)
    except (OSError, OverflowError) as error:
        where.close()
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host}, port {port} ({why}); choose another") from error
    return where


class _Server(uvicorn.Server):
    """One that cuts off what still waits `drain` seconds after it was asked to end."""

    def __init__(self, config: uvicorn.Config, service: Service, drain: float) -> None:
        super().__init__(config)
        self.service, self.drain = service, drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(min(LATE, self.drain), self.service.gate.give_up)
        loop.call_later(self.drain, self.service.cut_off)
        await super().shutdown(sockets)


@contextmanager
def _asked_to_end(server: uvicorn.Server) -> Iterator[None]:
    """A signal ends the server in good order, and its process goes on to its own end."""

    def end(number: int, frame: object) -> None:
        server.should_exit = True

    old = {}
    if threading.current_thread() is threading.main_thread():
        old = {s: signal.signal(s, end) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def serve(
    service: Service, where: socket.socket, say: Callable[[str], None], drain: float = 30.0
) -> None:
    """Answer until a signal comes, then finish what is under way.

    After `drain` seconds what still waits for the tower is refused, and nothing is learned from it;
    so is who waits for a stream that is being made, and the process ends here.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # senders are told, not we
    config = uvicorn.Config(
        make_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=ceil(drain) + GRACE,
        http="h11",  # the quicker httptools takes headers of any size
        h11_max_incomplete_event_size=64 << 10,
        lifespan="on",
    )
    host, port = where.getsockname()[:2]
    say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
    server = _Server(config, service, drain)
    with _asked_to_end(server):
        server.run(sockets=[where])
    say("ended; what was acknowledged is on the disk")
    if service.making.locked():  # Python would wait for its thread
        os._exit(0)
