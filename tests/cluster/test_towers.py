"""A tower elsewhere that dies or fails under an image; no cluster is needed for it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from adte.cluster import deploy
from adte.cluster.deploy import Owner, Spread, TowerReplica
from adte.cluster.worker import Tower
from adte.serve.client import ServiceError
from adte.testing import SmallModel
from serving import CLASSES, PATIENCE, classifier, figure, jpeg, made, running, small


class Failed(RayTaskError):
    def __init__(self) -> None:
        Exception.__init__(self, "the kernel failed")


def unavailable():
    from ray.serve.exceptions import DeploymentUnavailableError  # Ray warns of itself here

    return DeploymentUnavailableError("tower")


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A stream whose tower is a replica here, and what befalls the next images there."""
    monkeypatch.setattr("adte.cluster.deploy.time.sleep", lambda seconds: None)
    replica, ends = TowerReplica(Tower.itself(small())), []

    def remote(picture, views):
        def result():
            if ends:
                raise ends.pop()
            return replica.encode(picture, views)

        return SimpleNamespace(result=result)

    with running(tmp_path / "s", model=small()) as (client, service):
        handle = SimpleNamespace(encode=SimpleNamespace(remote=remote))
        service.engine = Spread(service.engine, handle)
        yield made(client), ends


def test_an_image_whose_replica_dies_goes_to_another(house):
    stream, ends = house
    ends += [ActorDiedError(), ActorUnavailableError("gone", None)]
    assert stream.predict(jpeg(0), probs=True).probs == classifier().predict(jpeg(0)).probs.tolist()
    assert not ends


@pytest.mark.parametrize("end", [ActorDiedError, unavailable])
def test_towers_that_keep_dying_are_no_fault_of_the_image(house, end):
    stream, ends = house
    ends += [end() for _ in range(3)]
    path = f"/v1/streams/{stream.id}/predict"
    answer = stream.client._send("POST", path, content=jpeg(0), timeout=60)
    assert (answer.status_code, answer.headers["retry-after"], ends) == (503, "5", [])
    assert answer.json()["error"]["code"] == "tower"
    assert stream.predict(jpeg(0)).seen == 1


def test_a_tower_that_fails_is_not_asked_again(house):
    stream, ends = house
    ends += [Failed(), Failed()]
    with pytest.raises(ServiceError, match="went wrong here; the log") as error:
        stream.predict(jpeg(0))
    assert (error.value.status, error.value.code, len(ends)) == (500, "server", 1)
    assert b"\nadte_errors_total 1" in stream.client.call("GET", "/metrics")


class Slow(SmallModel):
    """Takes its time for every pass."""

    def encode_image(self, pixels):
        time.sleep(0.05)
        return super().encode_image(pixels)


def test_a_pass_through_a_tower_elsewhere_is_timed_there(tmp_path):
    replica = TowerReplica(Tower.itself(Slow()))

    def remote(picture, views):
        return SimpleNamespace(result=lambda: replica.encode(picture, views))

    with running(tmp_path / "s", model=small(), workers=1) as (client, service):
        handle = SimpleNamespace(encode=SimpleNamespace(remote=remote))
        service.engine = Spread(service.engine, handle)
        service.engine._engine.second = 0.0
        made(client).predict_many([jpeg(i) for i in range(4)])
        assert figure(service, "encode_seconds_count") == 4
        assert figure(service, "encode_seconds_sum") > 4 * 0.05
        assert service.engine.second > 0.1 * 0.05  # from which Retry-After is told


# --------------------------------------------------------------------------- the owner


class House:
    """An owner whose tower lets images through once it is told to, asked as Ray asks it."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setattr(deploy, "LEAVE", 0.0)
        tower, self.go, self.asked = Tower.itself(small()), threading.Event(), 0
        self.replica = TowerReplica(tower)
        handle = SimpleNamespace(encode=SimpleNamespace(remote=self._remote))
        self.owner = Owner(handle, tower, str(folder), {"workers": 1})
        self.service, self.app = self.owner.service, self.owner.__serve_build_asgi_app__()

    def _remote(self, picture, views):
        self.asked += 1
        assert self.go.wait(PATIENCE)
        return SimpleNamespace(result=lambda: self.replica.encode(picture, views))

    async def ask(self, path: str, body: bytes, kind: str = "image/jpeg", more: bool = False):
        """The status, the headers and what was answered; with `more`, the body never ends."""
        head = [(b"host", b"localhost"), (b"content-type", kind.encode()),
                (b"content-length", b"%d" % len(body))]  # fmt: skip
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"",
                 "headers": head}  # fmt: skip
        sent, came = [], [{"type": "http.request", "body": body, "more_body": more}]

        async def receive():
            return came.pop() if came else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], headers, json.loads(sent[1]["body"])

    async def create(self):
        body = json.dumps({"id": "shop", "classes": CLASSES, "views": 6}).encode()
        assert (await self.ask("/v1/streams", body, "application/json"))[0] == 201

    def predict(self, seed: int) -> asyncio.Task:
        return asyncio.create_task(self.ask("/v1/streams/shop/predict", jpeg(seed)))


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def test_who_has_gone_keeps_the_place_of_the_image(tmp_path, monkeypatch):
    """Ray cancels a request whose sender has gone; the image is under way all the same."""
    house = House(tmp_path / "s", monkeypatch)

    async def leave() -> None:
        await house.create()
        gone = house.predict(0)
        await until(lambda: house.asked == 1)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled()
        assert house.service.gate.images == 1
        house.go.set()
        await until(lambda: not house.owner.requests)
        assert house.service.gate.images == 0
        await house.owner.finish(PATIENCE)

    asyncio.run(leave())
    said = house.service.metrics.text().decode()
    assert 'adte_requests_total{route="/v1/streams/{id}/predict",status="200"} 1.0\n' in said
    assert "adte_refused_total{" not in said  # none was `stopping`


def test_what_waits_is_refused_after_the_drain(tmp_path, monkeypatch):
    house = House(tmp_path / "s", monkeypatch)

    async def end() -> list:
        await house.create()
        waiting = [house.predict(i) for i in range(4)]
        await until(lambda: house.service.gate.images == 4 and house.asked == 1)
        ending = asyncio.create_task(house.owner.finish(0.3))
        await until(lambda: house.service.engine.stopping)
        new = await house.predict(4)
        await until(lambda: house.service.engine.cut)
        house.go.set()  # the one in the tower comes out
        answers = [await x for x in waiting]
        await ending
        house.owner.check_health()  # it ends by itself, and is not started again
        return [new, *answers]

    found = asyncio.run(end())
    assert [(status, body["error"]["code"]) for status, _, body in found] == [(503, "stopping")] * 5
    assert all(headers["retry-after"] == "5" for _, headers, _ in found)


def test_a_body_or_a_stream_that_is_not_there_yet_does_not_hold_up_the_end(tmp_path, monkeypatch):
    house = House(tmp_path / "s", monkeypatch)
    inside, go = threading.Event(), threading.Event()
    monkeypatch.setattr(house.service, "make", lambda *_: (inside.set(), go.wait(PATIENCE)))

    async def end() -> list:
        body, kind = json.dumps({"classes": CLASSES}).encode(), "application/json"
        asked = [
            asyncio.create_task(house.ask("/v1/streams", body, kind, more))
            for more in (False, True)
        ]
        await until(lambda: inside.is_set() and len(house.service.gate.reading) == 1)
        await house.owner.finish(PATIENCE)
        assert all(x.done() for x in asked)
        go.set()
        return [x.result() for x in asked]

    assert [(status, body["error"]["code"]) for status, _, body in asyncio.run(end())] == [
        (503, "stopping")
    ] * 2
