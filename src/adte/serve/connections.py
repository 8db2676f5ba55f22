"""Connections: who sends half a request, or opens too many, keeps nobody else out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BACKLOG", "Connection", "room"]

CONNECTIONS = 1024  # open at a time; half of them may be of one address
HEADERS = 10.0  # seconds for the headers of a request
BACKLOG = 256  # connections that the system keeps until they are taken
OTHERS = 256  # files that the process opens beside its connections


def room() -> int:
    """How many connections may be open: each takes a file, of which the system allows so many."""
    try:
        import resource
    except ImportError:  # not on Windows
        return CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + BACKLOG + OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = CONNECTIONS if soft == resource.RLIM_INFINITY else soft - BACKLOG - OTHERS
    return max(16, min(CONNECTIONS, left))


class Connection(H11Protocol):
    """One whose headers come in time.

    Where there are too many, of one address or of all, the one that has waited longest for a
    request is closed. If none waits, the new one is answered with 503. Uvicorn's
    `limit_concurrency` says how many are too many.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = self.limit_concurrency or CONNECTIONS
        self.limit_concurrency = None  # it refuses all requests, also of those who were there
        self._since = 0.0  # when it began to wait for a request
        self._late: asyncio.TimerHandle | None = None

    @property
    def _waits(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        if len(self.connections) <= self._most // 2:
            return
        every = [c for c in self.connections if isinstance(c, Connection)]
        others = [c for c in every if c is not self and not c.transport.is_closing()]
        own = [c for c in others if _host(c) == _host(self)]
        if len(own) >= self._most // 2:
            self._take_place_of(own)
        elif len(others) >= self._most:
            self._take_place_of(others)

    def _take_place_of(self, others: list[Connection]) -> None:
        waiting = [c for c in others if c._waits]
        if waiting:
            min(waiting, key=lambda c: c._since).transport.close()
        else:
            self.limit_concurrency = 1  # so that it is refused

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()  # which waits for another request's first byte

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Wait for headers, but not for ever; what comes behind an answer is waited for, too."""
        if not self._waits:
            self._stop_watching()
        elif self._late is None:
            self._late = self.loop.call_later(HEADERS, self._give_up)

    def _stop_watching(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._waits:
            self.transport.close()


def _host(connection: Connection) -> str:
    return connection.client[0] if connection.client else ""
