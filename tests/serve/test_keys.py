"""Keys: a request that is sent again is learned once, whatever came of it."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from adte.serve.client import ServiceError
from serving import PATIENCE, figure, jpeg, made, running


def until(true) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Tower:
    """The tower of a service, which works on once it may go on."""

    def __init__(self, service) -> None:
        self.passes, self.joined, self.go = 0, 0, threading.Event()
        through, submit = service.engine._through, service.engine.submit

        def slowly(ready):
            self.passes += 1
            assert self.go.wait(PATIENCE)
            through(ready)

        def counted(job):
            future = submit(job)
            self.joined += future is not job.future
            return future

        service.engine._through, service.engine.submit = slowly, counted


@pytest.fixture
def slow(tmp_path):
    """A stream of a service whose tower waits, and threads that ask it."""
    with running(tmp_path, workers=1) as (client, service), ThreadPoolExecutor(8) as pool:
        tower = Tower(service)
        yield made(client), service, pool, tower
        tower.go.set()


def test_a_key_that_is_under_way_is_waited_for(slow):
    stream, service, pool, tower = slow
    some = [pool.submit(stream.predict, jpeg(1), key="k", explain=True) for _ in range(6)]
    until(lambda: tower.joined == 5)
    tower.go.set()
    answers = [f.result(PATIENCE) for f in some]
    assert sorted(p.repeated for p in answers) == [False] + [True] * 5
    assert all((p.explain is None) == p.repeated for p in answers)
    assert {(p.seq, p.seen, p.label) for p in answers} == {(1, 1, answers[0].label)}
    assert tower.passes == 1
    assert figure(service, "repeated_total") == 5
    assert not service.engine._under_way
    assert service.gate.images == service.gate.bytes == 0


def test_an_answer_that_nobody_waited_for_goes_to_the_next(slow):
    stream, _, _, tower = slow
    line = http.client.HTTPConnection(stream.client.url.removeprefix("http://"))
    line.request("POST", "/v1/streams/shop/predict", jpeg(1), {"Idempotency-Key": "k"})
    until(lambda: tower.passes == 1)
    line.close()
    tower.go.set()
    assert stream.predict(jpeg(1), key="k").repeated
    assert stream.facts()["seen"] == 1


@pytest.mark.parametrize("bad", [False, True], ids=["done", "failed"])
def test_a_key_that_is_under_way_with_another_image(slow, bad):
    """It is refused if the first one was learned; if that was not, the key is free."""
    stream, service, pool, tower = slow
    go, view = threading.Event(), service.engine._view
    service.engine._view = lambda item: (go.wait(PATIENCE), view(item))[1]
    tower.go.set()
    first = jpeg(1)[:300] if bad else jpeg(1)
    one = pool.submit(stream.predict, first, key="k")
    until(lambda: service.engine._under_way)
    same = pool.submit(stream.predict, first, key="k")
    until(lambda: tower.joined == 1)
    other = pool.submit(stream.predict, jpeg(2), key="k")
    until(lambda: service.gate.images == 3)
    go.set()
    if bad:
        assert {f.exception(PATIENCE).code for f in (one, same)} == {"image"}
        assert not other.result(PATIENCE).repeated
    else:
        assert one.result(PATIENCE).seen == same.result(PATIENCE).seen == 1
        assert other.exception(PATIENCE).code == "key"
    assert stream.facts()["seen"] == 1


def test_keys_are_of_one_stream_and_of_one_request(tmp_path):
    with running(tmp_path) as (client, _):
        stream = made(client)
        stream.predict(jpeg(1), key="k1")
        for other in (lambda: stream.predict(jpeg(2), key="k1"), lambda: stream.reset(key="k1")):
            with pytest.raises(ServiceError, match="another request") as error:
                other()
            assert (error.value.status, error.value.code) == (409, "key")
        stream.freeze(key="k2")
        stream.unfreeze(key="k3")
        again = stream.freeze(key="k2")  # which has been done; the answer is the stream as it is
        assert (again["repeated"], again["frozen"]) == (True, False)
        assert made(client, "other").predict(jpeg(2), key="k1").seen == 1
        stream.delete()
        assert not made(client).predict(jpeg(9), key="k1").repeated


def test_keys_outlast_a_restart(tmp_path):
    with running(tmp_path) as (client, _):
        first = made(client).predict(jpeg(1), key="k", probs=True)
    with running(tmp_path) as (client, _):
        stream = client.stream("shop")
        again = stream.predict(jpeg(1), key="k", probs=True)
        assert (again.repeated, again.probs) == (True, first.probs)
        with pytest.raises(ServiceError, match="used for another request"):
            stream.predict(jpeg(2), key="k")


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
