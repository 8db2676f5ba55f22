"""The limits of the service, and its refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from adte.core.errors import AdteError, InputError, unknown
from adte.core.options import check, option

__all__ = ["FORMATS", "Entry", "Gate", "Limits", "Refused", "Tuning", "clipped", "stopping"]

FORMATS = ("bmp", "gif", "jpeg", "png", "ppm", "tiff", "webp")  # that may be allowed
PIXELS = 178_956_970  # beyond which Pillow opens nothing
NAMED = 40  # letters of a name that are repeated


class Refused(AdteError):
    """A request that is not answered: the status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after
        self.headers: dict[str, str] = {}


def stopping() -> Refused:
    """The refusal of requests that the end of the process does not wait for."""
    return Refused(503, "stopping", "the server is ending; try again soon", 5)


def clipped(name: str, most: int = NAMED) -> str:
    """A name that a stranger sent, short enough for a refusal, with `!r`."""
    return name if len(name) <= most else f"{name[:most]}…"


@dataclass(frozen=True)
class Limits:
    """The most that strangers may ask for."""

    max_bytes: int = option(16 << 20, "maximum size of a request's body, in bytes", low=1)
    max_pixels: int = option(
        40_000_000, "maximum number of pixels of an image, as its header says", low=1, high=PIXELS
    )
    max_images: int = option(16, "maximum number of images per request", low=1)
    max_views: int = option(256, "maximum number of views per image of a stream", low=1)
    max_classes: int = option(10_000, "maximum number of classes of a stream", low=1)
    max_prompts: int = option(
        100_000, "maximum number of prompts of a stream, classes times templates", low=1
    )
    max_streams: int = option(256, "maximum number of streams", low=1)
    max_state: int = option(64 << 20, "maximum size of a stream's state, in bytes", low=1)
    rate: float = option(0.0, "maximum images per second for each stream; 0 sets no limit", low=0)
    queue: int = option(
        64, "maximum number of images that wait; further ones get status 429", low=1
    )
    queue_bytes: int = option(
        256 << 20,
        "maximum bytes of requests that wait; further ones get status 429",
        low=1,
    )
    decode_bytes: int = option(
        1_280_000_000,
        "memory in which images are decoded at a time, in bytes; one that needs more goes alone",
        low=1,
    )
    body_seconds: float = option(30.0, "maximum seconds for a request's body to arrive", above=0)
    formats: str = option(
        "jpeg,png,webp,gif,bmp", f"image formats that are accepted, of {', '.join(FORMATS)}"
    )

    def __post_init__(self) -> None:
        check(self, "the service")
        if not self.allowed:
            raise InputError(f"formats names none; give some of {', '.join(FORMATS)}")
        for name in self.allowed:
            if name.lower() not in FORMATS:
                raise unknown("image format", name.lower(), FORMATS)

    @property
    def allowed(self) -> tuple[str, ...]:
        """The formats by Pillow's names."""
        return tuple(f.strip().upper() for f in self.formats.split(",") if f.strip())


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How a service works and stores."""

    snapshot: int = option(128, "events of a stream between two snapshots of its state", low=1)
    disk: int = option(
        0, "largest size of the database in bytes, without its log of some MB; 0 sets no limit",
        low=0,
    )  # fmt: skip
    workers: int | None = option(None, "threads that decode images", low=1, high=1024)
    window: float = option(
        0.005, "seconds that an image may wait for others, to go through a GPU together", low=0
    )
    drain: float = option(
        30.0, "seconds to finish requests under way when the server is stopped", low=0
    )

    def __post_init__(self) -> None:
        check(self, "the service")


class Gate:
    """Counts what is under way, and turns away what would be too much. Of the event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.images = self.bytes = 0
        self.second = 0.1  # seconds an image takes, by the engine; for Retry-After
        self.reading: set[asyncio.Task[object]] = set()  # requests whose bodies are still coming
        # Of each stream, images left as of when.
        self._allowances = WeakKeyDictionary[object, tuple[float, float]]()

    @contextmanager
    def entered(self, size: int) -> Iterator[Entry]:
        """A request of so many bytes, if it might be taken now.

        Its bytes count as they come, and its images once they have come: who sends slowly takes
        nobody's place.
        """
        entry = Entry(self)
        entry.check(1, size)
        try:
            yield entry
        finally:
            self.images -= entry.images
            self.bytes -= entry.bytes

    @contextmanager
    def read(self) -> Iterator[None]:
        """Within the block a request waits for its body, and `give_up` ends it."""
        task = asyncio.current_task()
        assert task is not None
        self.reading.add(task)
        try:
            yield
        finally:
            self.reading.discard(task)

    def give_up(self) -> None:
        """Wait for no more bodies: their requests are cancelled."""
        for task in list(self.reading):
            task.cancel()

    def spend(self, stream: object, images: int) -> None:
        """Take images from the allowance of a stream; refuse if there is none left.

        A request may take more than there are, so that others do not keep it from ever having
        enough; those after it wait until they have come.
        """
        rate = self.limits.rate
        if not rate:
            return
        most, now = max(rate, 1.0), time.monotonic()
        left, then = self._allowances.get(stream, (most, now))
        left = min(most, left + rate * (now - then))
        if left < 1:
            wait = max(1, round((1 - left) / rate + 0.5))
            raise Refused(429, "rate", f"this stream may send {rate:g} images per second; "
                          f"try again in {wait} s", wait)  # fmt: skip
        self._allowances[stream] = left - images, now


class Entry:
    """One request that was let in."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.images, self.bytes = gate, 0, 0

    def take(self, images: int, size: int) -> None:
        """Count so many more, or refuse."""
        self.check(images, size)
        self.gate.images += images
        self.gate.bytes += size
        self.images += images
        self.bytes += size

    def check(self, images: int, size: int) -> None:
        """Refuse so many more, if they are too many. One request alone may have more bytes."""
        gate, limits = self.gate, self.gate.limits
        if self.images + images > limits.queue:  # which no waiting would help
            raise Refused(413, "images", f"more than the {limits.queue} images that may wait came "
                          "in one request; send fewer")  # fmt: skip
        full = gate.images + images > limits.queue or gate.bytes + size > limits.queue_bytes
        if full and (gate.images, gate.bytes) != (self.images, self.bytes):
            wait = max(1, min(60, round(gate.images * gate.second)))
            raise Refused(429, "busy", f"{gate.images} images of {gate.bytes:,} bytes are under "
                          f"way, and more may not wait; try again in {wait} s", wait)  # fmt: skip
