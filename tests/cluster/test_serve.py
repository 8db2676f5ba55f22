"""The service on Ray Serve: the same API and answers, and what was acknowledged survives a kill."""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import adte

pytest.importorskip("ray")
pytest.importorskip("fastapi")

from adte import InputError
from adte.cluster.deploy import application, deployed
from adte.cluster.worker import Tower
from serving import PATIENCE, classifier, free_port, jpeg, made, small, wait_together

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


def test_a_request_has_one_name(open_house):
    """Ray's proxy gives it back, and ours does not do so again."""
    line = http.client.HTTPConnection(open_house[0].url.removeprefix("http://"), timeout=PATIENCE)
    line.request("GET", "/v1/streams/none", headers={"X-Request-ID": "mine"})
    answer = line.getresponse()
    assert answer.headers.get_all("x-request-id") == ["mine"]
    assert json.loads(answer.read())["error"]["request_id"] == "mine"
    line.close()


def test_an_owner_that_is_killed_goes_on(open_house, nodes):
    client, _, _ = open_house
    images = [jpeg(i) for i in range(20)]
    stream = made(client, "kept", method="tda")
    expected = [p.label for p in classifier(method="tda").predict(images)]
    patient = adte.Client(client.url, retries=100).stream("kept")
    with ThreadPoolExecutor(1) as asking:
        found = [asking.submit(lambda x: patient.predict(x).label, image) for image in images]
        found[9].result()
        assert nodes.kill_worker("ServeReplica:adte:owner", random.Random(0))
        assert [x.result() for x in found] == expected
        asking.submit(patient.client.close)
    assert stream.facts()["seen"] == len(images)


def test_a_tower_that_is_killed_takes_no_image_with_it(open_house, nodes):
    client, _, _ = open_house
    images, killed = [jpeg(i) for i in range(4)], threading.Event()
    clf = classifier(views=256)  # which keep a tower busy
    clf.freeze()
    expected = [p.label for p in clf.predict(images)]
    stream = made(adte.Client(client.url), "towers", views=256)

    def ask():
        """Before one is killed, meanwhile, and once more."""
        ended = False
        while not ended:
            ended = killed.is_set()
            assert [stream.predict(x, learn=False).label for x in images] == expected

    with ThreadPoolExecutor(4) as asking:
        asked = [asking.submit(ask) for _ in range(4)]
        try:
            wait_together(client, 4)
            assert nodes.kill_worker("ServeReplica:adte:tower", random.Random(0))
        finally:
            killed.set()
        for done in asked:
            done.result()
    stream.client.close()


def test_a_cluster_that_serves_others_is_left_alone(open_house, tmp_path):
    client, _, _ = open_house
    told = pytest.raises(InputError, match=r"already, .* applications: adte; .* `serve ")
    with told, deployed(application(Tower.itself(small()), tmp_path), port=free_port()):
        pass
    assert client.info()  # as before
