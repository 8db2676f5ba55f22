"""The jobs of the engine, each with the promise of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from adte.core.errors import AdteError, StateError
from adte.serve.limits import Refused
from adte.serve.pictures import Part
from adte.serve.settings import Kind
from adte.serve.streams import Stream

__all__ = ["Call", "Change", "Job", "OfStream", "Predict", "refusal", "together"]

LOGITS = 1 << 23  # of requests that are learned from at once; one by itself may have more


@dataclass(eq=False, kw_only=True)
class Job:
    """Something to be done by the writer, in its turn."""

    future: Future[Any] = field(default_factory=Future)

    @property
    def reads(self) -> bool:
        """Whether it leaves everything as it is."""
        return False

    def done(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False, kw_only=True)
class Call(Job):
    """A call by the writer's thread. One that writes goes `alone`."""

    call: Callable[[], Any]
    alone: bool = False

    @property
    def reads(self) -> bool:
        return not self.alone


@dataclass(eq=False, kw_only=True)
class OfStream(Job):
    """Something that changes a stream. A key that was used before gets the old answer."""

    stream: Stream
    key: str | None = None
    digest: bytes = b""


@dataclass(eq=False, kw_only=True)
class Change(OfStream):
    """Freeze, unfreeze, reset, set the temperature, take over a state."""

    kind: Kind
    data: bytes = b""


@dataclass(eq=False, kw_only=True)
class Predict(OfStream):
    """Labels for images. `parts` come from the encoder, in order."""

    images: list[bytes]
    learn: bool = True
    top: int = 5
    probs: bool = False
    truths: list[int] | None = None
    explain: bool = False
    thumbnails: int = 0
    parts: list[Part] = field(default_factory=list)

    @property
    def reads(self) -> bool:
        return not self.learn


def refusal(error: Exception) -> Exception:
    """An error of ours as a refusal; others as they are."""
    if isinstance(error, Refused) or not isinstance(error, AdteError):
        return error
    return Refused(422, "state" if isinstance(error, StateError) else "request", str(error))


def together(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Jobs in order, but that those of a stream which learn from images come together."""
    waiting: dict[Stream, list[Job]] = {}
    room: dict[Stream, int] = {}  # logits that may still come with them
    for job in jobs:
        if isinstance(job, Predict) and job.learn and not job.explain and job.stream.joins:
            stream = job.stream
            size = len(job.parts) * stream.settings.views * len(stream.settings.classes)
            if stream in waiting and size > room[stream]:
                yield waiting.pop(stream)
            if stream not in waiting:
                waiting[stream], room[stream] = [], LOGITS
            waiting[stream].append(job)
            room[stream] -= size
        else:
            yield from waiting.values()
            waiting = {}
            yield [job]
    yield from waiting.values()
