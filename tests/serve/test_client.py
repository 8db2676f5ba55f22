"""What `adte.Client` takes as an image, and how it names one that cannot be sent."""

from __future__ import annotations

import copy
import io
import os
import pickle
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from adte import InputError
from adte.images.decode import load_image
from adte.serve.client import Client, ServiceError
from serving import Limits, classifier, jpeg, made, running, small


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    with running(tmp_path_factory.mktemp("client") / "s", model=small()) as (client, _):
        yield made(client, "shop")


def test_the_image_that_cannot_be_read_is_named(stream, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(jpeg(1))
    (tmp_path / "names.txt").write_text("cat, dog, car")
    before = stream.facts()
    files = [tmp_path / "photo.jpg", tmp_path / "names.txt"]
    with pytest.raises(ServiceError, match=r"^image 2 of 2: these 13 bytes are no image") as error:
        stream.predict_many(files)
    for problem in (error.value, pickle.loads(pickle.dumps(error.value))):
        assert (problem.status, problem.code) == (415, "format")
    with pytest.raises(ServiceError, match=r"^image 1 of 3: the image"):
        stream.predict_many([b"", jpeg(1), b""])
    with pytest.raises(ServiceError, match=r"^these 13 bytes"):  # of one there is no doubt
        stream.predict(files[1])
    with pytest.raises(InputError, match=r"cannot read '.*gone\.jpg'"):
        stream.predict_many([files[0], tmp_path / "gone.jpg"])
    assert stream.facts() == before


@pytest.mark.parametrize(
    "one",
    ["photo.jpg", jpeg(1), memoryview(jpeg(1)), Image.new("RGB", (4, 4)),
     np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8)],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_one_image_is_not_many(stream, one):
    before = stream.facts()
    with pytest.raises(InputError, match=r"takes a list of images, and .* is one; give it to pred"):
        stream.predict_many(one)
    assert stream.facts() == before


def test_pixels_are_answered_as_a_classifier_does(stream):
    stream = made(stream.client, "pixels")  # others teach the one that is shared
    pixels = load_image(jpeg(5))
    turned = Image.fromarray(pixels)
    turned.getexif()[0x0112] = 6
    images = [pixels, torch.from_numpy(pixels), Image.open(io.BytesIO(jpeg(5))), turned,
              Image.fromarray(pixels).convert("CMYK"), pixels[..., 0]]  # fmt: skip
    clf = classifier()
    clf.freeze()
    for image in images:
        found = stream.predict(image, probs=True, learn=False).probs
        assert found == clf.predict(image).probs.tolist()
    many = stream.predict_many(np.stack([pixels, pixels[::-1]]), learn=False)
    assert len(many) == 2


def test_what_is_no_image_is_refused_with_the_mend(stream):
    with pytest.raises(InputError, match="give a path, bytes, a Pillow image or uint8 pixels"):
        stream.predict(None)
    with pytest.raises(InputError, match="give uint8"):
        stream.predict(np.zeros((4, 4, 3)))
    with pytest.raises(InputError, match="cannot read 'None'"):
        stream.take_over(None)


def test_what_a_stream_is_made_of(stream, tmp_path):
    client = stream.client
    stream = made(client, "parts")
    with pytest.raises(InputError, match="is one text; pass a list of names"):
        client.create("cat")
    stream.predict(jpeg(0))
    (tmp_path / "warm.adte").write_bytes(stream.export())
    facts = stream.facts()
    like = {k: facts[k] for k in ("views", "templates", "method", "options", "seed")}
    for i, warm in enumerate(
        (tmp_path / "warm.adte", str(tmp_path / "warm.adte"), stream.export())
    ):
        assert (
            client.create(facts["classes"], id=f"go-{i}", state=warm, **like).facts()["seen"] == 1
        )
        assert (
            client.create(facts["classes"], id=f"new-{i}", start=warm, **like).facts()["seen"] == 0
        )


def test_a_stream_says_whether_it_was_given_descriptions(stream):
    said = {"cat": ["a pet that purrs"], "dog": ["a pet that barks"]}
    told = stream.client.create(list(said), id="told", descriptions=said, views=2)
    assert told.facts()["described"]
    assert not stream.facts()["described"]
    told.delete()


def test_what_cannot_be_sent_is_refused_with_the_mend(stream):
    for url in ("http://host:port", "http://host:99999", "http://[::1", "host:8017"):
        with pytest.raises(InputError, match="is no address of a service"):
            Client(url)
    for token in ("two\nlines", "猫猫"):
        with pytest.raises(InputError, match="check the token"):
            Client(stream.client.url, token).info()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(stream):
    client = stream.client
    client.info()
    http = client._http
    child = os.fork()
    if child == 0:
        found = 1
        try:
            client.info()
            found = int(client._http is http)
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.info()
    assert client._http is http  # the child has left them as they were


def test_a_client_stays_with_its_service():
    with pytest.raises(AttributeError, match="url"):
        Client("http://127.0.0.1:1").url = "http://127.0.0.1:2"


def test_a_client_crosses_processes(stream):
    given = Client(stream.client.url, "a token", retries=2, timeout=7.0)
    given.info()
    for found in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given)):
        assert (found.url, found.token) == (given.url, given.token)
        assert (found.retries, found.timeout) == (2, 7.0)
    given.close()
    found = pickle.loads(pickle.dumps(stream))
    assert found.facts() == stream.facts()
    found.client.close()


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"timeout": 0}, {"timeout": -1.0}])
def test_what_no_client_can_wait_for_is_refused(wrong):
    with pytest.raises(InputError, match=r"(retries|timeout)=.*; give "):
        Client(**wrong)


def reply(status: int, code: str = "", message: str = "", **headers: str) -> httpx.Response:
    """An answer that did not come from the service of these tests."""
    said = {"error": {"code": code, "message": message}} if code else None
    return httpx.Response(status, json=said, headers=headers)


class Line:
    """What a client gets in the place of the first answers: errors, or others' answers."""

    def __init__(self, client: Client, monkeypatch, *first, then=None) -> None:
        self.sent, self.waited = 0, []
        send, first, then = client._send, list(first), then

        def sent(*request, **more):
            self.sent += 1
            found = first.pop(0) if first else then
            if isinstance(found, Exception):
                raise found
            return send(*request, **more) if found is None else found

        monkeypatch.setattr(client, "_send", sent)
        monkeypatch.setattr("time.sleep", self.waited.append)


NONE = httpx.ConnectError("Connection refused")
LOADING = reply(503, "loading", "it loads", **{"retry-after": "1"})
LATE = {"retry-after": "Mon, 16 Nov 2026 12:00:00 GMT"}  # a date may stand there, too


def test_an_answer_that_a_proxy_lost_is_asked_for_again(stream, monkeypatch):
    client = Client(stream.client.url, retries=4)
    before, streams = stream.facts()["seen"], len(client.streams())
    send, lost = client._send, [502, 504, 503, 500]

    def through_a_proxy(*request, **more):
        answer = send(*request, **more)
        return reply(lost.pop(), **LATE) if lost else answer

    monkeypatch.setattr(client, "_send", through_a_proxy)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    found = client.stream(stream.id).predict(jpeg(5))
    assert (found.repeated, found.seen, lost) == (True, before + 1, [])
    lost = [502]
    made = client.create(["cat"], views=2)
    assert (made.facts()["seen"], lost, len(client.streams())) == (0, [], streams + 1)
    client.close()


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("first", [NONE, LOADING], ids=["process", "model"])
def test_a_service_that_starts_is_waited_for(stream, monkeypatch, first, timeout):
    client = Client(stream.client.url, retries=1, timeout=timeout)
    line = Line(client, monkeypatch, *[first] * 20)
    assert client.stream(stream.id).facts()["id"] == stream.id
    assert (line.sent, len(line.waited)) == (21, 20)
    client.close()


@pytest.mark.parametrize(
    ("answer", "retries", "timeout", "tries"),
    [(LOADING, 0, 60.0, 1), (LOADING, 2, 5.0, 7), (NONE, 0, 60.0, 1), (NONE, 2, 60.0, 17),
     (NONE, 2, 5.0, 7), (NONE, 2, None, 17)],
)  # fmt: skip
def test_but_not_for_ever_nor_without_retries(monkeypatch, answer, retries, timeout, tries):
    client, now = Client(retries=retries, timeout=timeout), [-1.0]
    line = Line(client, monkeypatch, then=answer)
    monkeypatch.setattr("time.monotonic", lambda: now.append(now[-1] + 1) or now[-1])
    with pytest.raises(ServiceError, match=r"check that it is running|it loads"):
        client.info()
    assert line.sent == tries


def test_a_fault_that_the_service_tells_of_is_not_asked_for_again(stream, monkeypatch):
    client = Client(stream.client.url)
    line = Line(client, monkeypatch, then=reply(500, "server", "a fault"))
    with pytest.raises(ServiceError, match=r"^a fault; send it again with key='") as error:
        client.stream(stream.id).reset()
    assert (error.value.status, error.value.code, line.sent) == (500, "server", 1)


@pytest.mark.parametrize(
    "answer", [httpx.ReadTimeout("timed out"), reply(500)], ids=["none", "500"]
)
def test_an_error_names_the_key_with_which_nothing_counts_twice(stream, monkeypatch, answer):
    client = Client(stream.client.url, retries=0)
    send, there = client._send, client.stream(stream.id)

    def lost(*request, **more):
        send(*request, **more)
        if isinstance(answer, Exception):
            raise answer
        return answer

    before = stream.facts()["seen"]
    with monkeypatch.context() as patch:
        patch.setattr(client, "_send", lost)
        with pytest.raises(ServiceError, match="send it again with key=") as error:
            there.predict(jpeg(6))
    told = pickle.loads(pickle.dumps(error.value))
    assert f"key={told.key!r}" in str(told)
    assert "running" not in str(told)  # it is
    found = there.predict(jpeg(6), key=told.key)
    assert (found.repeated, found.seen) == (True, before + 1)
    with pytest.raises(ServiceError, match=r"^these 3 bytes") as error:
        there.predict(b"abc", key="mine")
    assert error.value.key == "mine"
    client.close()


def test_a_stream_may_take_longer_to_make_than_an_answer(monkeypatch):
    body = b'{"id": "shop", "token": null}'
    head = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    def late():
        line, _ = where.accept()
        time.sleep(0.4)  # longer than the client waits for other answers
        line.sendall(head % len(body) + body)
        return line

    with socket.create_server(("127.0.0.1", 0)) as where, ThreadPoolExecutor(1) as other:
        answered = other.submit(late)
        client = Client(f"http://127.0.0.1:{where.getsockname()[1]}", retries=0, timeout=0.2)
        assert client.create(["cat", "dog"]).id == "shop"
        with pytest.raises(ServiceError, match=r"within 0\.2 s; try again, or give"):
            client.info()  # on the same line
        monkeypatch.setattr("adte.serve.client.MAKING", 0)
        with pytest.raises(ServiceError, match=r"within 0\.2 s, and it may have been done; send"):
            client.create(["cat", "dog"])
        answered.result().close()


@pytest.mark.parametrize("limits", [{"queue": 3}, {"max_bytes": 4000}], ids=str)
def test_images_to_calibrate_with_go_in_requests_that_are_allowed(tmp_path, limits):
    images, labels = [jpeg(i) for i in range(8)], ["cat", "dog"] * 4
    assert sum(map(len, images)) > 4000 > 2 * max(map(len, images))
    clf = classifier()
    clf.freeze()
    expected = clf.calibrate(images, labels).temperature
    with running(tmp_path / "s", model=small(), limits=Limits(**limits)) as (client, _):
        found = made(client).calibrate(iter(images), labels)
        assert found.temperature == pytest.approx(expected)


def test_an_address_that_leads_elsewhere_is_no_success(stream, monkeypatch):
    """As of a proxy that wants https: a deletion would seem done, and a page a state."""
    client = Client(stream.client.url)
    there = client.stream(stream.id)
    for answer, said in (
        (reply(301, location="https://elsewhere/v1"), "leads to https://elsewhere/v1; give"),
        (reply(308), "leads to another address; give"),
        (httpx.Response(200, html="<html>"), "a web page came"),
    ):
        Line(client, monkeypatch, then=answer)
        for ask in (client.info, there.facts, there.export, there.delete):
            with pytest.raises(ServiceError, match=said) as error:
                ask()
            assert (error.value.status, error.value.code) == (answer.status_code, "address")
