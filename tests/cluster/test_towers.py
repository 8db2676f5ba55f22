"""A tower elsewhere that dies or fails under an image; no cluster is needed for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from adte.cluster.deploy import Spread, TowerReplica
from adte.cluster.worker import Tower
from adte.serve.client import ServiceError
from serving import classifier, jpeg, made, running, small


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
    path, headers = f"/v1/streams/{stream.id}/predict", {"Content-Type": "image/jpeg"}
    status, found, data = stream.client._once("POST", path, jpeg(0), headers, 60)
    assert (status, found["retry-after"], ends) == (503, "5", [])
    assert b'"code": "tower"' in data
    assert stream.predict(jpeg(0)).seen == 1


def test_a_tower_that_fails_is_not_asked_again(house):
    stream, ends = house
    ends += [Failed(), Failed()]
    with pytest.raises(ServiceError, match="went wrong here; the log") as error:
        stream.predict(jpeg(0))
    assert (error.value.status, error.value.code, len(ends)) == (500, "server", 1)
    assert b"\nadte_errors_total 1" in stream.client.call("GET", "/metrics")
