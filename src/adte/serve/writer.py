"""The writer: the one thread that changes streams and writes the changes down.

Requests that wait are taken together: each is applied in memory, all are written in one
transaction, and only when that is on the disk are they answered. If it cannot be written, every
stream goes back to where it stood, those who teach get an error, and the others are answered.
Images of one stream that wait are learned from at once, as one batch: a method gives the same
numbers however its stream is cut, and takes a quarter of the time.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from typing import Any

from adte.core.errors import AdteError, InputError
from adte.core.prediction import Prediction
from adte.models.base import Model
from adte.pipeline.way import joined
from adte.serve.explain import explain
from adte.serve.jobs import Call, Change, Job, OfStream, Predict, refusal, together
from adte.serve.limits import Limits, Refused
from adte.serve.log import log, stamp
from adte.serve.metrics import Metrics
from adte.serve.packing import pack
from adte.serve.recovery import recover_all
from adte.serve.responses import history_of, predictions_of, repeated, state_of
from adte.serve.settings import ONCE, Event
from adte.serve.store import HISTORY, Answered, Row, Store
from adte.serve.streams import Mark, Stream

__all__ = ["PROBES", "Writer", "now"]

DOUBT = 60.0  # seconds after which a write that succeeded says nothing of the next
PROBES = 1 << 17, 0  # bytes that a disk in doubt must take, more than an image needs, then none


def now() -> str:
    return stamp(datetime.now(timezone.utc))


class Writer:
    """Streams and their store.

    Args:
        every: events of a stream from one snapshot to the next.

    Attributes:
        notes: sentences about what was dropped when the streams were restored.
    """

    def __init__(
        self, store: Store, model: Model, limits: Limits, metrics: Metrics, every: int = 128
    ) -> None:
        self.store, self.model, self.limits, self.metrics = store, model, limits, metrics
        self.every = every
        self._proved: float | None = 0.0  # when a write succeeded; None after one that failed
        self.streams, self.notes = recover_all(store, model)
        self._marks: dict[str, Mark] = {}  # of the streams that the present group has changed
        self._after: list[Callable[[], object]] = []  # once it is on the disk
        with store.group():
            if store.model is None or store.empty:
                facts = {"name": model.name, "fingerprint": model.fingerprint}
                store.set_fact("model", json.dumps(facts))
            for stream in self.streams.values():
                self._replace_damaged(stream)
        self._end_group()
        store.note_events()
        with suppress(Refused):  # it cannot be written, though all could be read
            for size in PROBES:
                probe = Call(call=partial(self.probe, size), alone=True)
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

    def probe(self, size: int) -> None:
        """Try whether the disk takes so many bytes more; with 0 they are freed."""
        self.store.set_fact("probe", "x" * size)
        if size == 0:
            self._after.append(lambda: setattr(self, "_proved", time.monotonic()))

    def _replace_damaged(self, stream: Stream) -> None:
        """Write another snapshot after a restart that had to drop one."""
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
            self.metrics.storage_errors.inc()
            log.error("the state cannot be written: %s", error)
            writes = [job for job in jobs if not job.reads] or jobs
            for job in writes:
                job.fail(Refused(503, "storage", "the state cannot be written now, and nothing "
                                 "has changed; try again later", 5))  # fmt: skip
            if reads := [job for job in jobs if job not in writes]:
                self.apply(reads)  # their answers may rest on what was taken back
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
            self.metrics.commit_seconds.observe(time.perf_counter() - start)
        self._end_group()
        for job, result in done:
            job.done(result)

    def _end_group(self) -> None:
        for action in self._after:
            action()
        self._after, self._marks = [], {}

    def _take_back(self) -> None:
        for id, mark in self._marks.items():
            try:
                self.streams[id].back_to(mark)
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
            return job.call()
        assert isinstance(job, OfStream)
        stream = job.stream
        self._check_known(stream)
        if job.key is not None and (answer := self.store.answer(stream.id, job.key)) is not None:
            return self._again(job, answer)
        if stream.damaged and not (isinstance(job, Change) and job.kind in ("reset", "state")):
            raise _damaged(stream)
        if isinstance(job, Predict) and not job.learn:
            return self._predict(job, stream)
        self._mark(stream)
        if isinstance(job, Predict):
            return self._predict(job, stream)
        assert isinstance(job, Change)
        return self._change(job, stream)

    def _mark(self, stream: Stream) -> None:
        """Note where a stream stood before the group."""
        if stream.id not in self._marks:
            self._marks[stream.id] = stream.mark()

    def _again(self, job: OfStream, answer: Answered) -> dict[str, Any]:
        """The answer that a key has already; that to a change is the stream as it is."""
        if not answer.good:
            raise Refused(409, "key", "the answer that was kept for this key is damaged; the "
                          "request was done and is not done again, so go on without its "
                          "answer")  # fmt: skip
        if answer.digest != job.digest:
            raise Refused(409, "key", "this Idempotency-Key was used for another request; use a "
                          "new one for each")  # fmt: skip
        self._after.append(self.metrics.repeated.inc)
        if isinstance(job, Change):
            return repeated(job.stream.facts())
        return repeated(json.loads(answer.answer))

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
            kept = json.dumps(repeated(answer)).encode() if isinstance(job, Predict) else b""
            self.store.keep_answer(stream.id, job.key, stream.seq, job.digest, kept)
        return answer

    def _snapshot(self, stream: Stream) -> None:
        self.store.add_snapshot(stream)
        self._note_snapshot(stream)

    def _note_snapshot(self, stream: Stream) -> None:
        seq = stream.seq
        self._after.append(lambda: setattr(stream, "kept", seq))
        self._after.append(self.metrics.snapshots.inc)

    # ------------------------------------------------------------------ predictions

    def _predict(self, job: Predict, stream: Stream) -> dict[str, Any]:
        batch = joined([part.content for part in job.parts], stream.clf.context)
        predictions = stream.learn(batch) if job.learn else stream.look(batch)
        explained = [explain(stream, batch[i], p, job.parts[i]) for i, p in enumerate(predictions)
                     if job.explain]  # fmt: skip
        return self._answer(job, stream, predictions, explained)

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
        self._mark(stream)
        parts = [part.content for job in jobs for part in job.parts]
        try:
            predictions = iter(stream.learn(joined(parts, stream.clf.context)))
        except InputError:
            return []
        later, answers = len(parts), []
        for job in jobs:
            later -= len(job.parts)
            try:
                mine = list(islice(predictions, len(job.parts)))
                answers.append(self._answer(job, stream, mine, later=later))
            except AdteError as error:
                raise RuntimeError("a change was made and not written") from error
        return answers

    def _answer(
        self,
        job: Predict,
        stream: Stream,
        predictions: list[Prediction],
        explained: Sequence[dict[str, Any]] = (),
        later: int = 0,
    ) -> dict[str, Any]:
        """The answer of predictions, written down if they were learned from.

        `later` images of other requests were learned from after these, in the same step.
        """
        event = None
        if job.learn:
            features = [part.content.features for part in job.parts]
            event = stream.note(predictions, features, job.images)
        learned = event is not None and event.kind != "look"
        seen = stream.clf.seen - (later if learned else 0)
        answer = {"stream": stream.id, "seq": stream.seq, "seen": seen, "learned": learned,
                  "repeated": False,
                  "predictions": predictions_of(job, predictions, explained)}  # fmt: skip
        images = self.metrics.images.labels(learned=str(learned).lower())
        self._after.append(partial(images.inc, len(predictions)))
        if event is None:
            return answer
        origin, drifts = stream.origin, stream.measure_drift(predictions)
        if origin is not stream.origin and stream.origin is not None:
            self.store.set_origin(stream.id, pack({"origin": stream.origin}))
        time = now()
        truths: Sequence[int | None] = job.truths or [None] * len(predictions)
        self.store.add_history(stream.id, [
            Row(stream.seq, i, time, p.index, p.confidence, int(learned), drift, truth)
            for i, (p, drift, truth) in enumerate(zip(predictions, drifts, truths, strict=True))
        ])  # fmt: skip
        return self._record(job, answer, event)

    def _change(self, job: Change, stream: Stream) -> dict[str, Any]:
        events = stream.change(job.kind, job.data)
        if stream.damaged:  # which only a reset or a state mends
            self._after.append(lambda: setattr(stream, "damaged", ""))
        answer = {**stream.facts(), "damaged": None, "repeated": False}
        return self._record(job, answer, *events)

    # ------------------------------------------------------------------ streams

    def check_new(self, id: str, taken: bool) -> None:
        """Refuse a stream for which there is no place."""
        if taken:
            raise Refused(409, "exists", f"there is a stream {id!r} already; choose another id, "
                          "or delete it first")  # fmt: skip
        if len(self.streams) >= self.limits.max_streams:
            raise Refused(409, "limit", f"there are {len(self.streams)} streams, which is the "
                          "limit; delete one first")  # fmt: skip

    def create(self, stream: Stream, warm: Sequence[Event] = ()) -> dict[str, Any]:
        """Add a stream that was made, and the events that gave it a warm state."""
        if (twin := self.made_by(stream.made)) is not None:  # the same request, a moment ago
            return self.renew(twin, stream.token)
        self.check_new(stream.id, stream.id in self.streams)
        self.store.add_stream(stream)
        self.store.append(stream, *warm)
        self._after.append(lambda: self.streams.__setitem__(stream.id, stream))
        return stream.facts()

    def made_by(self, made: bytes | None) -> Stream | None:
        """The stream that a request has made before, if it had a key."""
        streams = list(self.streams.values())
        return next((s for s in streams if made is not None and s.made == made), None)

    def renew(self, stream: Stream, token: bytes | None) -> dict[str, Any]:
        """The facts of a stream whose making is repeated, and a token that can be shown."""
        self.set_token(stream, token)
        self._after.append(self.metrics.repeated.inc)
        return stream.facts()

    def delete(self, stream: Stream) -> None:
        self._check_known(stream)
        self.store.drop_stream(stream.id)
        self._after.append(lambda: self.streams.pop(stream.id))

    def set_token(self, stream: Stream, token: bytes | None) -> None:
        self._check_known(stream)
        self.store.set_token(stream.id, token)
        self._after.append(lambda: setattr(stream, "token", token))

    def _check_known(self, stream: Stream) -> None:
        if self.streams.get(stream.id) is not stream:
            raise Refused(404, "stream", f"there is no stream {stream.id!r}; check the id")

    # ------------------------------------------------------------------ reading

    def state(self, stream: Stream) -> dict[str, Any]:
        """The state of a stream, and its last predictions summed up."""
        return state_of(stream, self._history(stream, HISTORY))

    def history(self, stream: Stream, last: int) -> dict[str, Any]:
        return history_of(stream, self._history(stream, last))

    def _history(self, stream: Stream, last: int) -> list[Row]:
        self._check_known(stream)
        return [row for row, good in self.store.history(stream.id, last) if good]

    def export(self, stream: Stream) -> bytes:
        self._check_known(stream)
        if stream.damaged:
            raise _damaged(stream)
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


def _damaged(stream: Stream) -> Refused:
    return Refused(409, "damaged", f"the state of this stream is damaged: {stream.damaged}")
