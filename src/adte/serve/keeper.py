"""The one who changes streams and writes it down, in one thread.

Requests that wait are taken together: each is applied in memory, all are written in one
transaction, and only when that is on the disk are they answered. If it cannot be written, every
stream goes back to where it stood, those who teach are told so, and the others are answered. Images
of one stream that wait are learned from at once, as one batch: a method gives the same numbers
however its stream is cut.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from typing import Any

from adte.core.errors import AdteError, InputError
from adte.core.prediction import Prediction
from adte.models.base import Model
from adte.pipeline.way import joined
from adte.serve.explain import explain
from adte.serve.jobs import Change, Job, OfStream, Predict, refusal, together
from adte.serve.limits import Limits, Refused
from adte.serve.log import log, stamp
from adte.serve.metrics import Metrics
from adte.serve.packing import pack
from adte.serve.recovery import recover_all
from adte.serve.settings import ONCE, Event
from adte.serve.store import HISTORY, Answered, Store
from adte.serve.streams import Kept, Stream
from adte.serve.telling import (
    as_kept,
    read_kept,
    read_making,
    tell_history,
    tell_predictions,
    tell_state,
)

__all__ = ["Call", "Keeper", "now"]

DOUBT = 60.0  # seconds after which a write that succeeded says nothing of the next
TRIAL = 1 << 16  # bytes that a disk in doubt must take, about as an image that is learned from
PROBE = 1 << 18  # bytes that a disk which was full must take


def now() -> str:
    return stamp(datetime.now(timezone.utc))


@dataclass(eq=False, kw_only=True)
class Call(Job):
    """A function of the keeper. One that writes goes `alone`."""

    call: Callable[[Keeper], Any]
    alone: bool = False

    @property
    def reads(self) -> bool:
        return not self.alone


class Keeper:
    """Streams and their store.

    Args:
        every: events of a stream from one snapshot to the next.

    Attributes:
        notes: what had to be said when the streams were restored.
    """

    def __init__(
        self, store: Store, model: Model, limits: Limits, metrics: Metrics, every: int = 128
    ) -> None:
        if every < 1:
            raise InputError(f"a snapshot every {every} events is not possible; give at least 1")
        self.store, self.model, self.limits, self.metrics = store, model, limits, metrics
        self.every = every
        self._proved: float | None = 0.0  # when a write succeeded; None after one that failed
        self.streams, self.notes = recover_all(store, model)
        self._marks: dict[str, Kept] = {}  # of the streams that the present group has changed
        self._after: list[Callable[[], object]] = []  # once it is on the disk
        with store.group():
            if store.model is None or store.empty:
                facts = {"name": model.name, "fingerprint": model.fingerprint}
                store.set_fact("model", json.dumps(facts))
            for stream in self.streams.values():
                self._tidy(stream)
        self._end_group()
        store.found()
        with suppress(Refused):  # it cannot be written, though all could be read
            for size in self.trial:
                probe = Call(call=partial(Keeper.probe, size=size), alone=True)
                self.apply([probe])
                probe.future.result()

    @property
    def writable(self) -> bool:
        """Whether the last group could be written, and the next one has a place."""
        return self._proved is not None and self.store.there

    @property
    def doubtful(self) -> bool:
        """Whether it is to be tried whether anything can be written."""
        return not self.writable or time.monotonic() - (self._proved or 0.0) > DOUBT

    @property
    def trial(self) -> tuple[int, int]:
        """The sizes to be tried then, one after the other."""
        return (PROBE if self._proved is None else TRIAL), 0

    def _tidy(self, stream: Stream) -> None:
        """After a restart that had to drop a snapshot, write another."""
        if self.store.unnumbered(stream.id):
            self.store.drop_unnumbered(stream.id)
        bad = [s.seq for s in self.store.snapshots(stream.id) if not s.good]
        if bad and not stream.damaged:
            for seq in bad:
                self.store.drop_snapshot(stream.id, seq)
            self._snapshot(stream)

    # ------------------------------------------------------------------ groups

    def apply(self, jobs: Sequence[Job]) -> None:
        """Do some jobs in order, write them together, answer them."""
        start, events = time.perf_counter(), self.store.events
        done: list[tuple[Job, Any]] = []
        try:
            with self.store.group():
                for some in together(jobs):
                    done += self._do_some(some)
                for id in self._marks:
                    stream = self.streams[id]
                    if stream.seq - stream.kept >= self.every:
                        self._snapshot(stream)
        except sqlite3.Error as error:
            self._take_back()
            self._proved = None
            self.metrics.count("storage_errors_total")
            log.error("the state cannot be written: %s", error)
            writes = [job for job in jobs if not job.reads] or jobs
            for job in writes:
                job.fail(Refused(503, "storage", "the state cannot be written now, and nothing "
                                 "has changed; try again later", 5))  # fmt: skip
            if reads := [job for job in jobs if job not in writes]:
                self.apply(reads)  # what they found may rest on what was taken back
            return
        except Exception as error:
            self._take_back()
            if len(jobs) > 1:  # the others are not to suffer
                for job in jobs:
                    self.apply([job])
                return
            jobs[0].fail(error)  # who waits for it counts and logs it
            return
        if self.store.events != events:
            self._proved = time.monotonic()
            self.metrics.see("commit_seconds", time.perf_counter() - start)
        self._end_group()
        for job, result in done:
            job.done(result)

    def _end_group(self) -> None:
        for action in self._after:
            action()
        self._after, self._marks = [], {}

    def _take_back(self) -> None:
        for id, kept in self._marks.items():
            try:
                self.streams[id].back_to(kept)
            except Exception:  # the others are not to suffer, nor the thread
                log.exception("stream %r cannot go back", id)
                self.streams[id].damaged = "it could not be taken back to where it stood"
        self._after, self._marks = [], {}

    def _do_some(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Each job that was done with its answer; of several, all are of one stream, and learn."""
        if len(jobs) > 1 and (answers := self._learn_from(jobs)):  # type: ignore[arg-type]
            yield from zip(jobs, answers, strict=True)
            return
        for job in jobs:
            seq = job.stream.seq if isinstance(job, OfStream) else 0
            try:
                yield job, self._do(job)
            except AdteError as error:
                if isinstance(job, OfStream) and job.stream.seq != seq:
                    raise RuntimeError("a change was made and not written") from error
                job.fail(refusal(error))

    def _do(self, job: Job) -> Any:
        if isinstance(job, Call):
            return job.call(self)
        assert isinstance(job, OfStream)
        stream = job.stream
        self._known(stream)
        if job.key is not None and (found := self.store.answer(stream.id, job.key)) is not None:
            self._count("repeated_total")
            return _again(job, found)
        if stream.damaged and not (isinstance(job, Change) and job.kind in ("reset", "state")):
            raise Refused(409, "damaged", f"the state of this stream is damaged: {stream.damaged}")
        if isinstance(job, Predict) and not job.learn:
            return self._predict(job, stream)
        if stream.id not in self._marks:
            self._marks[stream.id] = stream.mark()
        if isinstance(job, Predict):
            return self._predict(job, stream)
        assert isinstance(job, Change)
        return self._change(job, stream)

    def known(self, job: OfStream) -> dict[str, Any] | None:
        """The answer to a request that was written before; any thread may ask."""
        stream, found = job.stream, None
        if job.key is not None:
            found = self.store.written(stream.id, job.key)
        if found is None or self.streams.get(stream.id) is not stream:
            return None
        return _again(job, found)

    def _record(self, job: OfStream, answer: dict[str, Any], *events: Event) -> dict[str, Any]:
        """Write events and their answer down."""
        stream = job.stream
        if events[0].kind in ("reset", "state"):
            self.store.renew(stream, *events)
            self._note_snapshot(stream)
        else:
            self.store.append(stream, *events)
        taught = answer.get("learned", True)  # who was frozen learns the same images later
        if job.key is not None and (taught or not job.key.startswith(ONCE)):
            self.store.keep_answer(stream.id, job.key, stream.seq, job.digest, as_kept(answer))
        return answer

    def _snapshot(self, stream: Stream) -> None:
        self.store.add_snapshot(stream)
        self._note_snapshot(stream)

    def _note_snapshot(self, stream: Stream) -> None:
        seq = stream.seq
        self._after.append(lambda: setattr(stream, "kept", seq))
        self._count("snapshots_total")

    def _count(self, name: str, by: int = 1, **labels: object) -> None:
        """Count what was done, once it is on the disk."""
        self._after.append(lambda: self.metrics.count(name, by, **labels))

    # ------------------------------------------------------------------ predictions

    def _predict(self, job: Predict, stream: Stream) -> dict[str, Any]:
        batch = joined([part.encoded for part in job.parts], stream.clf.context)
        found = stream.learn(batch) if job.learn else stream.look(batch)
        told = [explain(stream, batch[i], p, job.parts[i]) for i, p in enumerate(found)
                if job.explain]  # fmt: skip
        return self._answer(job, stream, found, told)

    def _learn_from(self, jobs: Sequence[Predict]) -> list[dict[str, Any]]:
        """Several requests of a stream in one step; none where one needs a look of its own."""
        stream, keys = jobs[0].stream, [job.key for job in jobs if job.key is not None]
        if (
            stream.damaged
            or self.streams.get(stream.id) is not stream
            or len(set(keys)) < len(keys)
            or any(self.store.answer(stream.id, key) is not None for key in keys)
        ):
            return []
        if stream.id not in self._marks:
            self._marks[stream.id] = stream.mark()
        parts = [part.encoded for job in jobs for part in job.parts]
        try:
            found = iter(stream.learn(joined(parts, stream.clf.context)))
        except InputError:
            return []
        later, answers = len(parts), []
        for job in jobs:
            later -= len(job.parts)
            try:
                mine = list(islice(found, len(job.parts)))
                answers.append(self._answer(job, stream, mine, later=later))
            except AdteError as error:
                raise RuntimeError("a change was made and not written") from error
        return answers

    def _answer(
        self,
        job: Predict,
        stream: Stream,
        found: list[Prediction],
        explained: Sequence[dict[str, Any]] = (),
        later: int = 0,
    ) -> dict[str, Any]:
        """What is said of predictions, and written down if they were learned from.

        `later` images of other requests were learned from after these, in the same step.
        """
        event = None
        if job.learn:
            event = stream.note(found, [part.encoded.features for part in job.parts], job.images)
        learned = event is not None and event.kind != "look"
        rows = tell_predictions(job, found, explained)
        seen = stream.clf.seen - (later if learned else 0)
        answer = {"stream": stream.id, "seq": stream.seq, "seen": seen, "learned": learned,
                  "repeated": False, "predictions": rows}  # fmt: skip
        self._count("images_total", len(found), learned=str(learned).lower())
        if event is None:
            return answer
        origin, drifts = stream.origin, stream.measure_drift(found)
        if origin is not stream.origin and stream.origin is not None:
            self.store.set_origin(stream.id, pack({"origin": stream.origin}))
        time = now()
        truths: Sequence[int | None] = job.truths or [None] * len(found)
        self.store.add_history(stream.id, [
            (stream.seq, i, time, p.index, p.confidence, int(learned), drift, truth)
            for i, (p, drift, truth) in enumerate(zip(found, drifts, truths, strict=True))
        ])  # fmt: skip
        return self._record(job, answer, event)

    def _change(self, job: Change, stream: Stream) -> dict[str, Any]:
        events = stream.change(job.kind, job.data)
        if stream.damaged:  # which only a reset or a state mends
            self._after.append(lambda: setattr(stream, "damaged", ""))
        answer = {**stream.facts(), "damaged": None, "repeated": False}
        return self._record(job, answer, *events)

    # ------------------------------------------------------------------ streams

    def check_new(self, id: str) -> None:
        """Refuse a stream for which there is no place."""
        if id in self.streams:
            raise Refused(409, "exists", f"there is a stream {id!r} already; choose another id, "
                          "or delete it first")  # fmt: skip
        if len(self.streams) >= self.limits.max_streams:
            raise Refused(409, "limit", f"there are {len(self.streams)} streams, which is the "
                          "limit; delete one first")  # fmt: skip

    def create(
        self,
        stream: Stream,
        warm: Sequence[Event] = (),
        key: str | None = None,
        digest: bytes = b"",
    ) -> dict[str, Any]:
        """Add a stream that was made, and what its warm state was."""
        if (facts := self.created(key, digest, stream.token)) is not None:
            return facts  # the same request, a moment ago
        self.check_new(stream.id)
        self.store.add_stream(stream)
        self.store.append(stream, *warm)
        if key is not None:
            self.store.keep_making(key, digest, json.dumps([stream.id, stream.created]))
        self._after.append(lambda: self.streams.__setitem__(stream.id, stream))
        return stream.facts()

    def created(self, key: str | None, digest: bytes, token: bytes | None) -> dict[str, Any] | None:
        """The stream that the same request has made before, which has this token from now on."""
        if key is None or (found := self.store.making(key)) is None:
            return None
        if found.digest != digest:
            raise _other_request()
        with _readable():
            id, created = read_making(found.answer)
        stream = self.streams.get(id)
        if stream is None or stream.created != created:
            raise Refused(409, "key", "the stream that this Idempotency-Key has made was deleted; "
                          "use a new one for another")  # fmt: skip
        if token is not None:
            self.set_token(stream, token)
        self._count("repeated_total")
        return stream.facts()

    def delete(self, stream: Stream, key: str | None = None, digest: bytes = b"") -> None:
        """Delete a stream; of the key is remembered who has used it."""
        gone = self.streams.get(stream.id) is not stream
        if gone and key is not None and self.deleted(stream.id, key, digest):
            return  # the same request, a moment ago
        self._known(stream)
        self.store.drop_stream(stream.id)
        if key is not None:
            self.store.keep_deletion(stream.id, key, digest)
        self._after.append(lambda: self.streams.pop(stream.id))

    def deleted(self, id: str, key: str, digest: bytes) -> bool:
        """Whether the same request has deleted a stream before."""
        return self.store.deletion(id, key) == digest

    def set_token(self, stream: Stream, token: bytes | None) -> None:
        self._known(stream)
        self.store.set_token(stream.id, token)
        self._after.append(lambda: setattr(stream, "token", token))

    def _known(self, stream: Stream) -> None:
        if self.streams.get(stream.id) is not stream:
            raise Refused(404, "stream", f"there is no stream {stream.id!r}; check the id")

    def probe(self, size: int) -> None:
        """See whether the disk takes so many bytes more; with 0 they are given back."""
        self.store.set_fact("probe", "x" * size)
        if size == 0:
            self._after.append(lambda: setattr(self, "_proved", time.monotonic()))

    # ------------------------------------------------------------------ reading

    def state(self, stream: Stream) -> dict[str, Any]:
        """What a stream has learned, and what it has said of late."""
        self._known(stream)
        return tell_state(stream, self.store.history(stream.id, HISTORY))

    def history(self, stream: Stream, last: int) -> dict[str, Any]:
        self._known(stream)
        return tell_history(stream, self.store.history(stream.id, last))

    def export(self, stream: Stream) -> bytes:
        self._known(stream)
        if stream.damaged:
            raise Refused(409, "damaged", f"the state of this stream is damaged: {stream.damaged}")
        return stream.dump()

    def close(self) -> None:
        """Snapshots of all that has changed, so that the next start has nothing to redo."""
        for stream in self.streams.values():
            if stream.seq <= stream.kept or stream.damaged:
                continue
            try:
                with self.store.group():
                    self._snapshot(stream)
                self._end_group()
            except Exception as error:  # the log has it all
                self._after = []
                log.warning("the last snapshot of %r could not be written: %s", stream.id, error)
        self.store.close()


def _other_request() -> Refused:
    return Refused(409, "key", "this Idempotency-Key was used for another request; "
                   "use a new one for each")  # fmt: skip


@contextmanager
def _readable() -> Iterator[None]:
    """Within the block an answer is read that was kept."""
    try:
        yield
    except ValueError as error:
        said = ("the answer that was kept for this key is damaged; the request was done and is not "
                "done again, so go on without its answer")  # fmt: skip
        raise Refused(409, "key", said) from error


def _again(job: OfStream, found: Answered) -> dict[str, Any]:
    """The answer that a key has already."""
    if found.digest != job.digest:
        raise _other_request()
    facts = job.stream.facts() if isinstance(job, Change) else {}
    with _readable():
        return {**facts, **read_kept(found.answer), "repeated": True}
