"""The service: store, writer, engine, limits and access, and how its streams are made."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

from pydantic import ValidationError

from adte._version import __version__
from adte.core.errors import AdteError, InputError, unknown
from adte.core.machine import resident
from adte.methods import create_method, list_methods, method_info
from adte.models.base import Model
from adte.models.prompts import template_sets
from adte.serve.access import Access
from adte.serve.database import trouble
from adte.serve.engine import Engine
from adte.serve.jobs import Call, refusal
from adte.serve.limits import Gate, Limits, Refused, Tuning, clipped
from adte.serve.metrics import Metrics
from adte.serve.schemas import New
from adte.serve.settings import Event, Settings
from adte.serve.store import Store
from adte.serve.streams import Stream
from adte.serve.writer import Writer, now

__all__ = ["Service"]

FAULTS = 1000  # of a body, beyond which the first is not looked for
LATE = 0.8  # seconds that bodies have to arrive, once the end has begun


class Service:
    """Streams of one model in one folder, ready to be asked.

    Args:
        folder: where the state lies; made if it is not there.
        model: one with a text tower, in evaluation mode.
        tuning: as in `Tuning`.

    Attributes:
        notes: sentences about what was dropped when the streams were restored.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: Model,
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        **tuning: Any,
    ) -> None:
        self.tuning = Tuning(**tuning)
        self.limits = limits or Limits()
        self.access = access or Access(None, False)
        self.metrics, self.gate, self.model = Metrics(), Gate(self.limits), model
        store = Store(folder, most=self.tuning.disk)
        try:
            self.writer = Writer(store, model, self.limits, self.metrics, self.tuning.snapshot)
        except BaseException as error:
            store.close()
            if isinstance(error, sqlite3.Error | OSError):
                raise trouble(folder, error) from error
            raise
        self.notes = self.writer.notes
        self.engine = Engine(self.writer, self.tuning.workers, self.tuning.window)
        self.maker = ThreadPoolExecutor(1, "adte-maker")  # of streams; texts take their time
        self.making = threading.Lock()  # held meanwhile
        self.awaited: set[asyncio.Future[Call]] = set()  # streams that requests wait for
        self._measure()

    def _measure(self) -> None:
        writer, streams = self.writer, self.writer.streams
        self.metrics.measure(
            streams=lambda: len(streams),
            damaged_streams=lambda: sum(bool(s.damaged) for s in list(streams.values())),
            waiting_images=lambda: self.gate.images,
            waiting_bytes=lambda: self.gate.bytes,
            writable=lambda: writer.writable,
            database_bytes=lambda: writer.store.bytes,
            resident_bytes=resident,
            largest_drift=lambda: max([0.0, *(s.drift or 0.0 for s in list(streams.values()))]),
        )

    # ------------------------------------------------------------------ making streams

    def read_new(self, body: bytes) -> dict[str, Any]:
        """The stream that a body asks for, or a refusal."""
        try:
            return New.model_validate_json(body).model_dump()
        except ValidationError as error:
            raise _first_fault(error) from None

    def make(
        self,
        id: str,
        asked: dict[str, Any],
        token: bytes | None = None,
        made: bytes | None = None,
    ) -> Call:
        """Make a stream, beside all that goes on; the call adds it to the others.

        `made` is the digest of a request with a key; repeated, it finds the stream that it made.
        """
        self.engine.check_open()  # those before it may have taken long
        taken = id in self.writer.streams
        if (twin := self.writer.made_by(made)) is not None:
            return Call(call=partial(self.writer.renew, twin, token), alone=True)
        self.writer.check_new(id, taken)
        try:
            with self.making:
                settings = Settings.of(asked, self.limits)
                others = list(self.writer.streams.values())
                like = next((s for s in others if s.settings == settings), next(iter(others), None))
                stream = Stream.make(id, settings, self.model, now(), token, self.limits, like)
                stream.made = made
                warm = list[Event]()
                if asked["state"] is not None:
                    warm = stream.change("state", _decoded("state", asked["state"]))
                elif asked["start"] is not None:
                    warm = stream.begin(_decoded("start", asked["start"]))
        except AdteError as error:
            raise refusal(error) from None
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise Refused(422, "request", "a stream with these options does not work "
                          f"({type(error).__name__}); check them") from error  # fmt: skip
        return Call(call=partial(self.writer.create, stream, warm), alone=True)

    # ------------------------------------------------------------------ facts and the end

    @cached_property
    def info(self) -> dict[str, Any]:
        """Facts for pages and programs that ask; made once, for it takes long."""
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
        return self.engine.alive and self.writer.writable

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


def _first_fault(error: ValidationError) -> Refused:
    """The first thing that is wrong, by the name of its field and without what it holds."""
    if error.error_count() > FAULTS:
        return Refused(422, "request", f"the body has {error.error_count():,} faults; check it")
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place, known = first["loc"], New.model_fields
    if first["type"] == "extra_forbidden":
        return Refused(422, "request", str(unknown("field", clipped(str(place[0])), known)))
    where = ".".join(str(x) for x in place if isinstance(x, int) or x in known)
    text = first["msg"].removeprefix("Value error, ")
    if place[:1] == ("options",) and len(place) > 1:
        where = f"options[{clipped(str(place[1]))!r}]"
        if place[-1] != "[key]":  # of what it may be, the first would be named
            text = "Input should be a number, a text of up to 100 letters, true, false or null"
    return Refused(422, "request", f"{where or 'the body'}: {text}")


def _decoded(name: str, text: str) -> bytes:
    """A file that came as base64 in a field of a JSON body."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # `base64` breaks lines
    except (binascii.Error, ValueError):
        raise InputError(f"{name} is no base64; encode an export") from None
