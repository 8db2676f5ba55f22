"""All that serves, put together: store, keeper, engine, limits, access."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from typing import Any

from adte._version import __version__
from adte.core.machine import resident
from adte.methods import create_method, list_methods, method_info
from adte.models.base import Model
from adte.models.prompts import template_sets
from adte.serve.access import Access
from adte.serve.engine import Engine
from adte.serve.keeper import Call, Keeper
from adte.serve.limits import Gate, Limits
from adte.serve.metrics import Metrics
from adte.serve.store import Store, trouble

__all__ = ["Service"]

LATE = 0.8  # seconds that bodies have to arrive, once the end has begun


class Service:
    """Streams of one model in one folder, ready to be asked.

    Args:
        folder: where the state lies; made if it is not there.
        model: one with a text tower, in evaluation mode.
        snapshot: events of a stream from one snapshot to the next.
        workers: threads that open pictures.
        window: seconds that an image may wait for company on its way through the tower, on a GPU.
        disk: bytes that the database may have; 0 sets no limit.

    Attributes:
        notes: what had to be dropped when the streams were restored, in sentences.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: Model,
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        snapshot: int = 128,
        workers: int | None = None,
        window: float = 0.005,
        disk: int = 0,
    ) -> None:
        self.limits = limits or Limits()
        self.access = access or Access(None, False)
        self.metrics, self.gate, self.model = Metrics(), Gate(self.limits), model
        store = Store(folder, most=disk)
        try:
            self.keeper = Keeper(store, model, self.limits, self.metrics, snapshot)
        except BaseException as error:
            store.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise trouble(folder, error) from error
            raise
        self.notes = self.keeper.notes
        self.engine = Engine(self.keeper, workers, window)
        self.maker = ThreadPoolExecutor(1, "adte-maker")  # of streams; texts take their time
        self.making = threading.Lock()  # held meanwhile
        self.awaited: set[asyncio.Future[Call]] = set()  # streams that requests wait for
        self._measure()

    def _measure(self) -> None:
        keeper, streams = self.keeper, self.keeper.streams
        self.metrics.gauges.update(
            streams=lambda: len(streams),
            damaged_streams=lambda: sum(bool(s.damaged) for s in list(streams.values())),
            waiting_images=lambda: self.gate.images,
            waiting_bytes=lambda: self.gate.bytes,
            writable=lambda: keeper.writable,
            database_bytes=lambda: keeper.store.bytes,
            resident_bytes=resident,
            largest_drift=lambda: max([0.0, *(s.drift or 0.0 for s in list(streams.values()))]),
        )

    @cached_property
    def info(self) -> dict[str, Any]:
        """What there is, for pages and programs that ask; made once, for it takes long."""
        methods = []
        for name in list_methods():
            method = create_method(name)
            if method.needs <= self.model.offers | {"logits", "pixels"}:
                methods.append({"name": name, "summary": method_info(name).summary,
                                "stateful": method.stateful, "options": method.params})  # fmt: skip
        return {
            "version": __version__,
            "model": self.model.name,
            "methods": methods,
            "templates": sorted(template_sets()),
            "formats": [f.lower() for f in self.limits.allowed],
            "limits": asdict(self.limits),
            "tokens": self.access.required,
        }

    @property
    def ready(self) -> bool:
        return self.engine.alive and self.keeper.writable

    def end_within(self, drain: float) -> None:
        """Soon wait for no more bodies, and after `drain` seconds cut off; of the event loop."""
        loop = asyncio.get_running_loop()
        loop.call_later(min(LATE, drain), self.gate.give_up)
        loop.call_later(drain, self.cut_off)

    def cut_off(self) -> None:
        """Refuse what still waits, for the tower or for a stream that is being made."""
        self.engine.cut_off()
        for stream in list(self.awaited):
            stream.cancel()

    def close(self) -> None:
        """Finish what was accepted, write it down, end. A stream that is being made is left."""
        self.maker.shutdown(wait=False, cancel_futures=True)
        self.engine.stop()
