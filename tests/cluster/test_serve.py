"""The service on Ray Serve: the same API and answers, and what was acknowledged survives a kill."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

import adte

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from adte import InputError
from adte.cluster.deploy import application, deployed
from adte.cluster.worker import Tower
from adte.serve.client import ServiceError
from serving import classifier, free_port, jpeg, made, small

sys.path.append(str(Path(__file__).parents[1] / "serve"))
from test_http import (  # noqa: F401  # the same tests, of another house
    test_health_ready_metrics_and_page,
    test_info_lists_what_there_is,
    test_state_and_history,
)

sys.path.pop()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def open_house(nodes, tmp_path_factory):
    """A service with two replicas of the tower, and a stream; as the tests of one process have."""
    port, folder = free_port(), tmp_path_factory.mktemp("ray") / "state"
    with deployed(application(Tower.itself(small()), folder, replicas=2), port=port):
        client = adte.Client(f"http://127.0.0.1:{port}", retries=0)
        yield client, None, made(client, "shop")
        client.close()


def test_answers_are_those_of_a_classifier(open_house):
    client, _, _ = open_house
    images = [jpeg(i) for i in range(12)]
    stream = made(client, "same")
    found = [stream.predict(image, probs=True) for image in images]
    expected = classifier().predict(images)
    assert [p.label for p in found] == [p.label for p in expected]
    assert [p.probs for p in found] == [p.probs.tolist() for p in expected]
    assert stream.predict(images[0], explain=True, thumbnails=8, learn=False).label


def test_an_owner_that_is_killed_goes_on(open_house, nodes):
    client, _, _ = open_house
    images = [jpeg(i) for i in range(20)]
    stream = made(client, "kept", method="tda")
    expected = [p.label for p in classifier(method="tda").predict(images)]
    found = [stream.predict(image).label for image in images[:10]]
    assert nodes.kill_worker("ServeReplica:adte:owner", random.Random(0))
    until = time.monotonic() + 600
    while len(found) < len(images) and time.monotonic() < until:
        number = len(found)
        try:
            found.append(stream.predict(images[number], key=f"image {number}").label)
        except (ServiceError, OSError):
            time.sleep(0.5)
    assert found == expected


def test_a_cluster_that_serves_others_is_left_alone(open_house, tmp_path):
    client, _, _ = open_house
    told = pytest.raises(InputError, match=r"already, .* applications: adte; .* `serve shutdown`")
    with told, deployed(application(Tower.itself(small()), tmp_path), port=free_port()):
        pass
    assert client.info()  # as before
