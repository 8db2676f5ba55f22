"""Threads: some that open pictures, one that encodes, one that awaits it, one that writes.

    accepted ─→ pictures (several, in order) ─→ tower ─→ landing ─→ writer ─→ answered

Images go through the tower in the order in which they were accepted, and so do the changes of each
stream. On a CPU one image goes at a time, and the threads make its views. A GPU makes the views
itself, and works on a pass while the tower's thread prepares the next: one pass is under way, and
one more is queued, when it is full or the first nearly done. So images that come meanwhile gather,
up to 16 of all streams, and go together; where the GPU is idle, the first waits for others no
longer than `window`. Few images are held in memory at a time, however many wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adte.core.errors import AdteError
from adte.pipeline import Encoded, Pipeline, default_group, default_workers
from adte.serve.jobs import Call, Job, OfStream, Predict, refusal
from adte.serve.limits import Refused, stopping
from adte.serve.log import log
from adte.serve.pictures import Memory, Part, check_picture, prepared
from adte.serve.streams import Stream
from adte.serve.writer import Writer

__all__ = ["Engine", "Far"]

MOST = 64  # jobs that are written together
LEAD = 0.01  # seconds before a GPU is done that it gets its next pass


class Far(NamedTuple):
    """An image that has been through a tower elsewhere: features (V, D) float16."""

    features: Tensor
    seconds: float  # that its pass took there


class _Item(NamedTuple):
    """One image of a job."""

    job: Predict
    image: bytes
    part: Future[Part]
    number: int
    last: bool

    @property
    def views(self) -> int:
        return self.job.stream.settings.views

    @property
    def keeps_pixels(self) -> bool:
        """Whether the method looks at pixels."""
        return self.job.stream.clf.pipeline.keep_pixels


class _Flight(NamedTuple):
    """A pass of images through the tower, some of its rows to fill up."""

    ready: list[tuple[_Item, Part]]
    pixels: Tensor | None  # where a method looks at them
    features: Tensor
    here: Tensor  # the features on the host, once `landed` has returned
    landed: Callable[[], object]
    start: float


class Engine:
    """Takes jobs, and keeps their promises.

    Args:
        writer: the one who changes the streams.
        workers: threads that open pictures.
        window: seconds that an image may wait for others to go through the tower with, on a GPU.
    """

    def __init__(self, writer: Writer, workers: int | None = None, window: float = 0.005) -> None:
        self.writer, self.window = writer, window
        self.workers = max(1, default_workers() if workers is None else workers)
        self.group = default_group(writer.model)
        self.stopping = self.cut = False
        self.second = 0.05  # seconds an image takes in the tower, of late
        self._pictures: queue.Queue[_Item | None] = queue.Queue()
        self._order: queue.Queue[_Item | Job | None] = queue.Queue()
        self._landing: queue.Queue[_Flight | Job | None] = queue.Queue()
        self._write: queue.Queue[Job | None] = queue.Queue()
        self._accept = threading.Lock()
        self._under_way: dict[tuple[Stream, str], OfStream] = {}  # by their keys
        # A worker takes a place before it takes an image, so the first in line always has one.
        self._places = threading.Semaphore(self.workers + 2 * self.group)
        self._memory = Memory(writer.limits.decode_bytes)
        self._air = threading.Semaphore(2)  # passes that the tower has begun and not done
        self._last = 0.0  # when the last one was done
        self._latest: tuple[float, int] | None = None  # the one begun last: when, and its rows
        self._takes: dict[int, float] = {}  # seconds of a pass by its rows, of late
        count = torch.get_num_threads()
        heads = count if writer.model.device.type == "cpu" else 1  # small tensors: one is fastest
        self._threads = [
            *(self._thread(self._open, f"adte-picture-{i}", 1) for i in range(self.workers)),
            self._thread(self._encode, "adte-tower", count),
            self._thread(self._land, "adte-landing", 1),
            self._thread(self._write_all, "adte-writer", heads),
        ]

    def _thread(self, work: Callable[[], None], name: str, count: int) -> threading.Thread:
        ready = threading.Event()

        def run() -> None:
            torch.set_num_threads(count)
            ready.set()
            work()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        ready.wait()  # one after the other: new threads take the number that was set last
        return thread

    # ------------------------------------------------------------------ what the application calls

    def submit(self, job: Job) -> Future[Any]:
        """Accept a job; its place in the order is decided here.

        One whose key is under way with the same request gets the answer of that.
        """
        with self._accept:
            self.check_open()
            if isinstance(job, OfStream) and job.key is not None:
                mark = job.stream, job.key
                first = self._under_way.setdefault(mark, job)
                if first is job:
                    job.future.add_done_callback(lambda _: self._under_way.pop(mark))
                elif first.digest == job.digest:
                    return first.future
            if isinstance(job, Predict):
                for i, image in enumerate(job.images, 1):
                    item = _Item(job, image, Future(), i, i == len(job.images))
                    self._order.put(item)
                    self._pictures.put(item)
            else:
                self._order.put(job)
        return job.future

    def ask(self, call: Callable[[], Any], alone: bool = False) -> Future[Any]:
        """Let the writer's thread make a call before what still waits for the tower."""
        job = Call(call=call, alone=alone)
        with self._accept:
            self.check_open()
            self._write.put(job)
        return job.future

    def check_open(self) -> None:
        """Refuse, once the end has begun."""
        if self.stopping or self.cut:
            raise stopping()

    def cut_off(self) -> None:
        """Refuse what still waits for the tower, and new jobs; what has been there is finished."""
        with self._accept:
            self.cut = True

    def stop(self) -> None:
        """Finish what was accepted, then end. New jobs are refused."""
        with self._accept:
            if self.stopping:
                return
            self.stopping = True
            self._order.put(None)
            for _ in range(self.workers):
                self._pictures.put(None)
        for thread in self._threads:
            thread.join()
        self.writer.close()

    @property
    def alive(self) -> bool:
        return all(t.is_alive() for t in self._threads) and not (self.stopping or self.cut)

    # ------------------------------------------------------------------ pictures

    def _open(self) -> None:
        while True:
            self._places.acquire()
            item = self._pictures.get()
            if item is None:
                self._places.release()
                return
            try:
                item.part.set_result(self._view(item))
            except AdteError as error:
                item.part.set_exception(error)
            except MemoryError:  # the machine's, and no fault of the file
                log.error("there was no memory for a picture")
                item.part.set_exception(
                    Refused(
                        503,
                        "memory",
                        "there is no memory for the image now; try again "
                        "later, or send a smaller one",
                        5,
                    )
                )
            except Exception as error:  # whatever a stranger's file does
                log.warning("a picture could not be opened: %s", type(error).__name__)
                item.part.set_exception(
                    Refused(422, "image", "the image cannot be read; send a complete file")
                )

    def _view(self, item: _Item) -> Part:
        job = item.job
        if job.future.done():  # another image of it could not be read
            raise Refused(422, "image", "another image of the request could not be read")
        if self.cut:
            raise stopping()
        image = check_picture(item.image, self.writer.limits)
        return prepared(image, job.stream.clf, self._memory, job.explain, job.thumbnails)

    # ------------------------------------------------------------------ the tower

    def _encode(self) -> None:
        held: deque[_Item | Job | None] = deque()  # taken, but not yet in the tower
        while (first := held.popleft() if held else self._order.get()) is not None:
            if isinstance(first, _Item):
                self._air.acquire()  # others come meanwhile
                self._pass(self._company(first, held))
            elif self.cut:
                first.fail(stopping())
            else:
                self._landing.put(first)
        self._landing.put(None)

    def _company(self, first: _Item, held: deque[_Item | Job | None]) -> list[_Item]:
        """Who goes through the tower with the first one; who was taken beyond them is held.

        Others are waited for as long as the tower is busy anyway, or for the window. A pass has a
        power of two of rows: where more than a quarter of them were in vain, half of it goes first.
        """
        group, until = [first], max(time.perf_counter() + self.window, self._free() - LEAD)
        while len(group) < self.group:
            left = until - time.perf_counter()
            try:
                item = held.popleft() if held else self._order.get(left > 0, max(0.0, left))
            except queue.Empty:
                break
            if not isinstance(item, _Item) or item.views != first.views:
                held.appendleft(item)
                break
            group.append(item)
        rows = self._rows(len(group))
        if len(group) < 0.75 * rows:
            held.extendleft(reversed(group[rows // 2 :]))
            del group[rows // 2 :]
        return group

    def _rows(self, images: int) -> int:
        """Of a pass: few shapes, which a GPU's libraries prepare once each."""
        return min(self.group, 1 << (images - 1).bit_length())

    def _free(self) -> float:
        """When the tower will have done its passes."""
        if self._latest is None:
            return 0.0
        start, rows = self._latest
        return max(start, self._last) + self._takes.get(rows, 0.0)

    def _pass(self, group: list[_Item]) -> None:
        ready: list[tuple[_Item, Part]] = []
        for item in group:
            try:
                part = item.part.result()
                if self.cut:
                    raise stopping()
                ready.append((item, part))
            except Exception as error:
                self._places.release()
                item.job.fail(_placed(refusal(error), item))
        if ready:
            self._through(ready)
        else:
            self._air.release()

    def _through(self, ready: list[tuple[_Item, Part]]) -> None:
        pipeline: Pipeline = ready[0][0].job.stream.clf.pipeline
        start = time.perf_counter()
        size = self._rows(len(ready))
        try:
            views: list[Any] = [part.content for _, part in ready]
            pixels = pipeline.pixels(views, size)
            features = pipeline.encode(pixels, size)
            kept = pixels if any(item.keeps_pixels for item, _ in ready) else None
            start -= sum(x.seconds for x in views if isinstance(x, Far))
            flight = _Flight(ready, kept, features, *_sent(features), start)
            self._latest = start, size
        except Exception as error:
            self._lose(ready, error)
            return
        finally:
            for _ in ready:
                self._places.release()
        self._landing.put(flight)

    def _lose(self, ready: list[tuple[_Item, Part]], error: Exception) -> None:
        log.error("the image tower failed", exc_info=error)
        self._latest = None
        for item, _ in ready:
            item.job.fail(error)
        self._air.release()

    def _land(self) -> None:
        while (done := self._landing.get()) is not None:
            if isinstance(done, Job):
                self._write.put(done)
                continue
            try:
                done.landed()
            except Exception as error:  # a GPU says late what went wrong
                self._lose(done.ready, error)
                continue
            self._time(done)
            self._air.release()
            self._hand_over(done)
        self._write.put(None)

    def _time(self, flight: _Flight) -> None:
        end, rows = time.perf_counter(), len(flight.features)
        taken, self._last = end - max(flight.start, self._last), end
        self._takes[rows] = 0.7 * self._takes.get(rows, taken) + 0.3 * taken
        if self._latest == (flight.start, rows):
            self._latest = None
        self.second = 0.9 * self.second + 0.1 * taken / len(flight.ready)
        self.writer.metrics.encode_seconds.observe(taken)
        self.writer.metrics.group_size.observe(len(flight.ready))

    def _hand_over(self, flight: _Flight) -> None:
        for i, (item, part) in enumerate(flight.ready):
            job = item.job
            features = flight.here if job.stream.on_host else flight.features
            pixels = flight.pixels if item.keeps_pixels else None
            encoded = Encoded("image", features[i], None if pixels is None else pixels[i])
            job.parts.append(part._replace(content=encoded))
            if item.last and not job.future.done():
                job.images = job.images if item.keeps_pixels else []  # no longer needed
                self._write.put(job)

    # ------------------------------------------------------------------ the writer

    def _write_all(self) -> None:
        ended = False
        while not ended:
            jobs: list[Job] = []
            job = self._write.get()
            while job is not None and not _alone(job):
                jobs.append(job)
                if len(jobs) >= MOST:
                    break
                try:
                    job = self._write.get_nowait()
                except queue.Empty:
                    break
            else:
                ended = job is None
                self._apply(jobs)
                jobs = [] if job is None else [job]
            self._apply(jobs)

    def _apply(self, jobs: list[Job]) -> None:
        try:
            if jobs:
                self.writer.apply(jobs)
        except Exception as error:  # whatever it was, those who wait get it, and the thread goes on
            log.exception("a group of requests failed")
            for job in jobs:
                job.fail(error)


def _sent(features: Tensor) -> tuple[Tensor, Callable[[], object]]:
    """The same on the host, and what waits until they are there."""
    if features.device.type != "cuda":
        return features.cpu(), lambda: None
    here = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
    here.copy_(features, non_blocking=True)
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return here, event.synchronize


def _placed(error: Exception, item: _Item) -> Exception:
    """A refusal that says which one of several images it is of."""
    count = len(item.job.images)
    if count == 1 or not isinstance(error, Refused) or error.status >= 500:  # no image's fault
        return error
    return Refused(error.status, error.code, f"image {item.number} of {count}: {error}")


def _alone(job: Job) -> bool:
    return isinstance(job, Call) and job.alone
