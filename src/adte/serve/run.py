"""The process: an address, the server on it, and an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path

import uvicorn
from starlette.concurrency import run_in_threadpool

from adte.core.errors import InputError
from adte.core.machine import return_large
from adte.serve.access import Access
from adte.serve.app import Door, make_app
from adte.serve.connections import BACKLOG, Connection, room
from adte.serve.log import log
from adte.serve.service import Service

__all__ = ["admin_token", "listen", "on_signal", "serve"]

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
        where.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        where.close()
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host}, port {port} ({why}); choose another") from error
    return where


class _Server(uvicorn.Server):
    """One that listens while its service is loaded.

    Asked to end, it soon gives up on bodies that have not arrived, and cuts off what still waits
    after `drain` seconds.
    """

    def __init__(self, config: uvicorn.Config, drain: float) -> None:
        super().__init__(config)
        self.drain = drain
        self.opened: Future[Service] = Future()

    @property
    def service(self) -> Service | None:
        """The service, once there is one."""
        loaded = self.opened.done() and self.opened.exception() is None
        return self.opened.result() if loaded else None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if (service := self.service) is not None:
            service.end_within(self.drain)
        await super().shutdown(sockets)
        if (service := self.service) is not None and not self.force_exit:
            await run_in_threadpool(service.close)


@contextmanager
def on_signal(end: Callable[[], None]) -> Iterator[None]:
    """Within the block SIGTERM and SIGINT make a call, and the process goes on to its own end."""
    old = {}
    if threading.current_thread() is threading.main_thread():  # others get no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            old[number] = signal.signal(number, lambda *_: end())
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def serve(
    load: Callable[[], Service],
    where: socket.socket,
    say: Callable[[str], None],
    drain: float = 30.0,
    access: Access | None = None,
) -> None:
    """Answer until a signal comes, then finish what is under way.

    The service is loaded by a thread of its own, and probes are answered meanwhile; what it raises
    is raised here. After `drain` seconds what still waits for the tower is refused, and nothing is
    learned from it; so is who waits for a stream that is being made, and the process ends here. It
    does so, too, if the service is still being loaded.
    """
    return_large()
    door = Door(access or Access(None, False))
    config = uvicorn.Config(
        door,
        log_config=None,  # its lines go where ours go
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=room(),
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=ceil(drain) + GRACE,
        http=Connection,  # on h11: the quicker httptools takes headers of any size
        h11_max_incomplete_event_size=64 << 10,
        ws="none",  # who asks for a web socket is answered as any other
        lifespan="off",
    )
    host, port = where.getsockname()[:2]
    server = _Server(config, drain)

    def open_door() -> None:
        try:
            service = load()
            app = make_app(service)
        except BaseException as error:
            server.opened.set_exception(error)
            server.should_exit = True
            return
        server.opened.set_result(service)
        door.app = app
        for note in service.notes:
            log.warning("note: %s", note)
        say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")

    threading.Thread(target=open_door, name="adte-loader", daemon=True).start()
    with on_signal(partial(setattr, server, "should_exit", True)):
        server.run(sockets=[where])
    if not server.opened.done():
        say("ended while it was being loaded")
        os._exit(0)  # nothing was acknowledged, and the thread cannot be stopped
    service = server.opened.result()
    say("ended; what was acknowledged is on the disk")
    if service.making.locked():  # Python would wait for its thread
        os._exit(0)
