"""Keys that are known cost nothing: no place in the queue, no allowance, no pass of the tower."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from adte.serve.client import RemoteStream, ServiceError
from adte.serve.jobs import Predict
from adte.serve.limits import Limits, Refused
from adte.serve.service import Service
from serving import PATIENCE, jpeg, made, running


class Held:
    """The tower of a service: what has gone through it, and what it waits for."""

    def __init__(self, service: Service) -> None:
        self.passes, self.joined, self.go = 0, 0, threading.Event()
        self.go.set()
        engine = service.engine
        through, known = engine._through, engine.known

        def slow(ready):
            self.passes += 1
            assert self.go.wait(PATIENCE)
            through(ready)

        def counted(job):
            found = known(job)
            self.joined += found is not None
            return found

        engine._through, engine.known = slow, counted

    @contextmanager
    def closed(self):
        self.go.clear()
        try:
            yield
        finally:
            self.go.set()


def until(true) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def sent(stream: RemoteStream, image: bytes, **options):
    """A prediction, in a thread that ends with it."""
    try:
        return stream.predict(image, **options)
    finally:
        stream.client.close()


@pytest.fixture
def held(tmp_path):
    """A service where one image may wait, threads that ask it, and its tower."""
    with running(tmp_path, limits=Limits(queue=1), workers=1) as (client, service):
        tower = Held(service)
        with ThreadPoolExecutor(8) as pool:
            yield made(client), service, pool, tower
            tower.go.set()


def test_an_answered_key_waits_for_nobody(held):
    stream, service, pool, tower = held
    first = stream.predict(jpeg(1), key="k", probs=True)
    frozen = stream.freeze(key="f")
    with tower.closed():
        other = pool.submit(sent, stream, jpeg(2))
        until(lambda: tower.passes == 2 and service.gate.images == 1)
        with pytest.raises(ServiceError, match="more may not wait"):
            stream.predict(jpeg(3))
        again = stream.predict(jpeg(1), key="k", probs=True)
        assert (again.repeated, again.probs, again.seq) == (True, first.probs, first.seq)
        assert stream.freeze(key="f") == {**frozen, "repeated": True}
        for bad in (lambda: stream.predict(jpeg(3), key="k"), lambda: stream.reset(key="k")):
            with pytest.raises(ServiceError, match="used for another request") as error:
                bad()
            assert error.value.code == "key"
        assert not other.done()
    other.result(PATIENCE)
    assert tower.passes == 2
    assert service.metrics.value("repeated_total") == 2
    assert service.gate.images == service.gate.bytes == 0


def test_an_answered_key_spends_no_allowance(tmp_path):
    with running(tmp_path, limits=Limits(rate=0.001)) as (client, _):
        stream = made(client)
        stream.predict(jpeg(1), key="k")
        assert stream.predict(jpeg(1), key="k").repeated
        with pytest.raises(ServiceError, match="images per second"):
            stream.predict(jpeg(2))


def test_a_key_that_is_under_way_is_waited_for(held):
    stream, service, pool, tower = held
    with tower.closed():
        some = [pool.submit(sent, stream, jpeg(1), key="k", explain=True) for _ in range(6)]
        until(lambda: tower.joined == 5)
        assert service.gate.images == 1
        assert service.gate.bytes == len(jpeg(1))
    found = [f.result(PATIENCE) for f in some]
    assert sorted(p.repeated for p in found) == [False] + [True] * 5
    assert all((p.explain is None) == p.repeated for p in found)
    assert {(p.seq, p.seen, p.label) for p in found} == {(1, 1, found[0].label)}
    assert tower.passes == 1
    assert service.metrics.value("repeated_total") == 5
    assert not service.engine._under_way


def test_an_answer_that_nobody_waited_for_is_told_to_the_next(held):
    stream, _, _, tower = held
    with tower.closed():
        line = http.client.HTTPConnection("127.0.0.1", stream.client._parts.port)
        line.request("POST", "/v1/streams/shop/predict", jpeg(1), {"Idempotency-Key": "k"})
        until(lambda: tower.passes == 1)
        line.close()
    assert stream.predict(jpeg(1), key="k").repeated
    assert stream.facts()["seen"] == tower.passes == 1


@pytest.mark.parametrize("bad", [False, True], ids=["done", "failed"])
def test_a_key_that_is_under_way_with_another_image(tmp_path, bad):
    """It is refused if the first one was learned; if that was not, the key is free."""
    first = jpeg(1)[:300] if bad else jpeg(1)
    with running(tmp_path, workers=1) as (client, service), ThreadPoolExecutor(3) as pool:
        stream, go, view = made(client), threading.Event(), service.engine._view
        service.engine._view = lambda item: (go.wait(PATIENCE), view(item))[1]
        one = pool.submit(sent, stream, first, key="k")
        until(lambda: service.engine._under_way)
        same = pool.submit(sent, stream, first, key="k")
        other = pool.submit(sent, stream, jpeg(2), key="k")
        until(lambda: service.gate.images == 2)
        go.set()
        if bad:
            for failed in (one, same):
                assert failed.exception(PATIENCE).code == "image"
            assert not other.result(PATIENCE).repeated
        else:
            assert one.result(PATIENCE).seen == same.result(PATIENCE).seen == 1
            assert other.exception(PATIENCE).code == "key"
        assert stream.facts()["seen"] == 1


def test_keys_outlast_a_restart(tmp_path):
    with running(tmp_path) as (client, _):
        first = made(client).predict(jpeg(1), key="k", probs=True)
    with running(tmp_path, limits=Limits(queue=1)) as (client, service):
        tower, stream = Held(service), client.stream("shop")
        again = stream.predict(jpeg(1), key="k", probs=True)
        assert (again.repeated, again.probs) == (True, first.probs)
        with pytest.raises(ServiceError, match="used for another request"):
            stream.predict(jpeg(2), key="k")
        assert tower.passes == 0


def test_the_end_refuses_no_key_that_is_known(held):
    stream, service, pool, tower = held
    stream.predict(jpeg(1), key="old")
    known = service.keeper.streams["shop"]
    with tower.closed():
        other = pool.submit(sent, stream, jpeg(2), key="now")
        until(lambda: tower.passes == 2)
        service.engine.cut_off()
        same = pool.submit(sent, stream, jpeg(2), key="now")
        until(lambda: tower.joined == 1)
        assert stream.predict(jpeg(1), key="old").repeated
    assert [f.result(PATIENCE).repeated for f in (other, same)] == [False, True]
    service.close()
    job = Predict(stream=known, images=[], key="old")
    assert service.engine.known(job) is None  # nobody can tell any more
    with pytest.raises(Refused, match="the server is ending"):
        service.engine.submit(job)


def test_the_same_image_is_learned_once_whoever_sends_it(tmp_path):
    """By its content, without a key; until the stream forgets; not what was only looked at."""
    ask = "/v1/streams/shop/predict?once=true"

    with running(tmp_path) as (client, _):
        stream = made(client)

        def once(seed: int, more: str = "") -> dict[str, object]:
            return client.call("POST", ask + more, jpeg(seed), "image/jpeg")

        stream.freeze()
        assert not once(0)["learned"]
        stream.unfreeze()
        first = once(0)
        assert (first["learned"], first["repeated"], first["seen"]) == (True, False, 1)
        again = once(0, "&label=dog")  # what is said of it does not make it another
        assert (again["repeated"], again["seen"]) == (True, 1)
        assert again["predictions"] == first["predictions"]
        assert once(1)["seen"] == 2
        assert stream.predict(jpeg(0)).seen == 3  # who does not ask for it teaches as ever
        stream.reset()
        assert (once(0)["repeated"], once(0)["repeated"]) == (False, True)
        with pytest.raises(ServiceError, match="once makes a key"):
            client.call("POST", ask, jpeg(0), "image/jpeg", key="mine")
