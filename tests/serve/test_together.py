"""Requests that wait are worked on together, with the numbers that each had by itself."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from contextlib import contextmanager

import pytest
import torch

from adte import InputError, list_methods
from adte.serve import engine as engines
from adte.serve import jobs as kinds
from adte.serve.jobs import Predict
from adte.serve.service import Service
from adte.serve.settings import Settings
from adte.serve.streams import HOST, Stream
from serving import CLASSES, classifier, figure, jpeg, small

IMAGES = [jpeg(i) for i in range(12)]
ASKED = {"classes": CLASSES, "templates": "single", "views": 6, "seed": 0, "options": {},
         "protocol": "online"}  # fmt: skip


def made(service: Service, id: str, method: str = "tilt") -> Stream:
    plan = Settings.of({**ASKED, "method": method}, service.limits)
    stream = Stream.make(id, plan, service.model, "now", None, service.limits)
    service.engine.ask(lambda: service.writer.create(stream)).result(60)
    return stream


@contextmanager
def gathered(service: Service):
    """What is asked within the block waits for the writer until its end."""
    begun, go = threading.Event(), threading.Event()
    service.engine.ask(lambda: (begun.set(), go.wait(30)))
    assert begun.wait(30)  # it takes what has come by then along
    yield
    end = time.monotonic() + 30
    while service.engine._write.qsize() < 10 and time.monotonic() < end:
        time.sleep(0.01)
    go.set()


@pytest.fixture
def steps(monkeypatch):
    """Images of each step of learning."""
    found, learn = [], Stream.learn
    monkeypatch.setattr(Stream, "learn", lambda s, b: (found.append(len(b)), learn(s, b))[1])
    return found


QUICK = ("tilt", "tda")
METHODS = [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in list_methods()]


@pytest.mark.parametrize("method", METHODS)
def test_waiting_requests_are_one_step(method, tmp_path, steps):
    model = small()
    service = Service(tmp_path, model, workers=1)
    streams = [made(service, "one", method), made(service, "two", method)]
    order = [0, 1, 0, 0, 1, 0, 1, 1, 0, 1]
    jobs = [
        Predict(stream=streams[which], images=[IMAGES[i]], probs=True, key=f"k{i}")
        for i, which in enumerate(order)
    ]
    with gathered(service):
        futures = [service.engine.submit(job) for job in jobs]
    answers = [f.result(60) for f in futures]
    service.close()
    assert (max(steps) > 1) == (streams[0].clf.method.needs <= HOST)
    again = Service(tmp_path, model, workers=1)  # what was learned, done again event by event
    for which, id in enumerate(("one", "two")):
        clf = classifier(model, method=method)
        mine = [i for i, w in enumerate(order) if w == which]
        for number, i in enumerate(mine, 1):
            assert (answers[i]["seq"], answers[i]["seen"]) == (number, number)
            assert answers[i]["predictions"][0]["probs"] == clf.predict(IMAGES[i]).probs.tolist()
        theirs, ours = (c.method.state_dict() for c in (clf, again.writer.streams[id].clf))
        assert all(torch.equal(theirs[k], ours[k]) for k in theirs)
    again.close()


def test_steps_take_little_memory(tmp_path, steps, monkeypatch):
    service = Service(tmp_path, small(), workers=1)
    stream = made(service, "one")
    monkeypatch.setattr(kinds, "LOGITS", 3 * 6 * len(CLASSES))  # three images of six views
    with gathered(service):
        sent = [IMAGES[:1]] * 7 + [IMAGES[:5], IMAGES[:1], IMAGES[:1]]
        futures = [service.engine.submit(Predict(stream=stream, images=i)) for i in sent]
    assert [f.result(60)["seen"] for f in futures] == [1, 2, 3, 4, 5, 6, 7, 12, 13, 14]
    assert steps == [3, 3, 1, 5, 2]
    service.close()


def test_one_that_fails_costs_the_others_nothing(tmp_path, monkeypatch):
    """Together they cannot be learned from; each by itself can, but for one."""
    service = Service(tmp_path, small(), workers=1)
    stream = made(service, "one")
    learn = Stream.learn
    calls = []

    def fail(self, batch):
        calls.append(len(batch))
        if len(batch) > 1 or len(calls) == 4:
            raise engines.InputError("this cannot be learned from; send another")
        return learn(self, batch)

    monkeypatch.setattr(Stream, "learn", fail)
    with gathered(service):
        futures = [service.engine.submit(Predict(stream=stream, images=[i])) for i in IMAGES[:10]]
    errors = [f.exception(60) for f in futures]
    assert [e is None for e in errors] == [True, True, False] + [True] * 7
    assert stream.clf.seen == stream.seq == 9
    service.close()


def test_a_disk_that_fails_stops_those_alone_who_teach(tmp_path, monkeypatch):
    """Questions in the same group are answered, and not by what was taken back."""
    service = Service(tmp_path, small(), workers=1)
    stream = made(service, "one")

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(service.writer.store, "keep_answer", full)
    teach = [Predict(stream=stream, images=[IMAGES[i]], key=f"k{i}") for i in range(5)]
    look = [Predict(stream=stream, images=[IMAGES[i]], learn=False, probs=True) for i in range(5)]
    with gathered(service):
        taught, looked = ([service.engine.submit(job) for job in some] for some in (teach, look))
        facts = service.engine.ask(lambda: service.writer.state(stream))
    assert [f.exception(60).code for f in taught] == ["storage"] * 5
    anew = classifier(service.model)
    for image, future in zip(IMAGES, looked, strict=False):
        found = future.result(60)
        assert (found["seen"], found["seq"], found["learned"]) == (0, 0, False)
        probs = anew.predict(image, learn=False).probs.tolist()
        assert found["predictions"][0]["probs"] == probs
    assert facts.result(60)["seen"] == 0
    service.close()


def test_images_gather_while_the_device_is_busy(tmp_path, monkeypatch):
    """As on a GPU: two passes are under way at most, and later ones are larger."""
    service = Service(tmp_path, small(), workers=2, window=0)
    stream, passes, through = made(service, "one"), [], service.engine._through
    service.engine.group = 4
    service.engine._through = lambda ready: (passes.append(len(ready)), through(ready))
    done, clf = threading.Event(), classifier(service.model)
    monkeypatch.setattr(engines, "_sent", lambda f: (f, lambda: done.wait(300)))
    futures = []
    for image in IMAGES:
        futures.append(service.engine.submit(Predict(stream=stream, images=[image], probs=True)))
        while not passes:
            time.sleep(0.005)
    while len(passes) < 2 or service.engine._order.qsize() < 4:
        time.sleep(0.005)
    assert len(passes) == 2
    done.set()
    for future, image in zip(futures, IMAGES, strict=True):
        probs = torch.tensor(future.result(300)["predictions"][0]["probs"])
        torch.testing.assert_close(probs, clf.predict(image).probs, rtol=1e-3, atol=1e-4)
    service.close()
    assert sum(passes) == len(IMAGES)
    assert figure(service, "group_size_sum") == len(IMAGES)
    assert figure(service, "group_size_count") == len(passes)
    assert passes[0] == 1
    assert max(passes) == 4


def test_nobody_is_hurried_to_a_device_that_is_busy(tmp_path):
    """What it was told takes half a minute more: the first waits until a pass is full."""
    service = Service(tmp_path, small(), workers=2, window=0)
    stream, engine = made(service, "one"), service.engine
    passes, through = [], engine._through
    engine.group, engine._latest, engine._takes = 4, (time.perf_counter(), 4), {4: 30.0}
    engine._through = lambda ready: (passes.append(len(ready)), through(ready))
    futures = []
    for image in IMAGES[:4]:
        time.sleep(0.05)
        assert not passes
        futures.append(engine.submit(Predict(stream=stream, images=[image])))
    assert [f.result(60)["seen"] for f in futures] == [1, 2, 3, 4]
    assert passes == [4]
    assert engine._latest is None  # that pass is done: the tower is idle
    assert engine.submit(Predict(stream=stream, images=[IMAGES[0]])).result(60)["seen"] == 5
    service.close()


def test_few_rows_of_a_pass_are_in_vain(tmp_path):
    """Nine would be sixteen rows; eight go first, and the ninth is the first of the next pass."""
    service = Service(tmp_path, small(), workers=1, window=0)
    stream, engine = made(service, "one"), service.engine
    engine.group, sizes = 16, []
    job = Predict(stream=stream, images=IMAGES[:1])
    items = [engines._Item(job, IMAGES[0], None, i, True) for i in range(17)]
    for count in range(1, 18):
        held = deque(items[1:count])
        group = engine._company(items[0], held)
        assert [*group, *held] == items[:count]
        sizes.append(len(group))
    assert sizes == [1, 2, 3, 4, 4, 6, 7, 8, 8, 8, 8, 12, 13, 14, 15, 16, 16]
    held = deque([items[1], job, items[2]])
    assert engine._company(items[0], held) == items[:2]  # a change of a stream is in between
    assert len(held) == 2
    service.close()


def test_a_stream_that_cannot_go_back_stops_no_other(tmp_path, monkeypatch):
    """The thread that writes died of it, and every request waited for ever."""
    service = Service(tmp_path, small(), workers=1)
    one, two = made(service, "one"), made(service, "two")

    def broken(*_):
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "note", broken)
        patch.setattr(Stream, "back_to", broken)
        asked = service.engine.submit(Predict(stream=one, images=[IMAGES[0]]))
        assert isinstance(asked.exception(30), ValueError)
    assert "could not be taken back" in one.damaged
    good = service.engine.submit(Predict(stream=two, images=[IMAGES[0]])).result(30)
    assert good["seen"] == 1
    assert service.engine.alive
    service.close()


def test_a_device_that_fails_late_is_told_to_those_who_wait(tmp_path, monkeypatch):
    service = Service(tmp_path, small(), workers=1)
    stream = made(service, "one")

    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr(engines, "_sent", lambda f: (f, broken))
        for _ in range(3):  # more than may be under way at a time
            failed = service.engine.submit(Predict(stream=stream, images=[IMAGES[0]]))
            assert isinstance(failed.exception(30), RuntimeError)
    good = service.engine.submit(Predict(stream=stream, images=[IMAGES[0]])).result(30)
    assert good["seen"] == 1
    service.close()


@pytest.mark.parametrize("protocol", ["online", "episodic"])
def test_answers_that_are_refused_leave_a_stream_as_it_was(protocol, tmp_path, monkeypatch):
    """Nothing is taken in that no event of the log will do again."""
    service = Service(tmp_path, small(), workers=1)
    plan = Settings.of({**ASKED, "method": "tilt", "protocol": protocol}, service.limits)
    stream = Stream.make("s", plan, service.model, "now", None, service.limits)
    service.engine.ask(lambda: service.writer.create(stream)).result(60)
    service.engine.submit(Predict(stream=stream, images=[IMAGES[0]])).result(60)
    learned, fetch = stream.clf.method.state_dict(), stream.clf.start
    (batch,) = stream.clf.encode([(str(i), image) for i, image in enumerate(IMAGES[:3])], 3)

    def start(batch, learn=True):  # as on a GPU, where it is seen when answers are fetched
        fetch(batch, learn)()
        raise InputError("method 'tilt' gave no probabilities")

    monkeypatch.setattr(stream.clf, "start", start)
    with pytest.raises(InputError, match="no probabilities"):
        stream.learn(batch)
    assert stream.clf.seen == 1
    for name, value in stream.clf.method.state_dict().items():
        assert torch.equal(value, learned[name])
    service.close()
