"""The API over a real socket: what it says, what it refuses, whom it lets in."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load, load_file, save

import adte
from adte import StateError
from adte.serve import schemas
from adte.serve.access import Access, is_loopback
from adte.serve.client import Client, ServiceError
from adte.serve.limits import Limits
from adte.serve.service import Service
from adte.serve.streams import Stream
from serving import CLASSES, PATIENCE, classifier, figure, form, jpeg, made, running, small

ADMIN = "the-administrator's-token"


def at(client: Client) -> tuple[str, int]:
    url = httpx.URL(client.url)
    return url.host, url.port


def raw(client: Client, verb: str, path: str, body: bytes | None = None, **headers: str):
    """Status, headers and JSON of a request that the client would not send."""
    line = http.client.HTTPConnection(*at(client), timeout=20)
    line.request(verb, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = line.getresponse()
    data = answer.read()
    line.close()
    return answer.status, answer.headers, json.loads(data) if data[:1] == b"{" else data


@pytest.fixture(scope="module")
def open_house(tmp_path_factory):
    """A service without tokens, and a stream."""
    with running(tmp_path_factory.mktemp("open") / "s", model=small()) as (client, service):
        yield client, service, made(client, "shop")


def refused(client: Client, status: int, code: str, verb: str, path: str, body=None, **headers):
    found, _, said = raw(client, verb, path, body, **headers)
    assert (found, said["error"]["code"]) == (status, code), said
    assert said["error"]["message"]
    return said["error"]["message"]


# --------------------------------------------------------------------------- what it says


def test_health_ready_metrics_and_page(open_house):
    client, _, _ = open_house
    assert client.call("GET", "/health") == {"status": "ok", "version": adte.__version__}
    assert client.call("GET", "/ready")["status"] == "ready"
    for path in ("/health", "/ready"):  # as some monitors ask
        assert raw(client, "HEAD", path)[::2] == (200, b"")
    text = client.call("GET", "/metrics").decode()
    assert "# TYPE adte_commit_seconds histogram" in text
    assert "adte_writable 1" in text
    status, headers, page = raw(client, "GET", "/")
    assert status == 200
    assert b"<!doctype html>" in page.lower()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert b"fetch(`.${path}" in raw(client, "GET", "/api.js")[2]  # behind a proxy's prefix, too
    assert headers["x-content-type-options"] == "nosniff"


def test_info_lists_what_there_is(open_house, monkeypatch):
    client, _, _ = open_house
    info = client.info()
    monkeypatch.setattr("adte.serve.service.create_method", None)  # for all others wait meanwhile
    assert client.info() == info
    names = [m["name"] for m in info["methods"]]
    assert {"tilt", "adte", "se", "zero-shot", "tda"} <= set(names)
    assert info["model"] == "small"
    assert info["formats"] == ["jpeg", "png", "webp", "gif", "bmp"]
    assert info["limits"]["max_images"] == 16
    assert not info["tokens"]


def test_state_and_history(open_house):
    client, _, _ = open_house
    stream = made(client, "watched", method="adte")
    assert stream.state()["prior"] is None
    labels = ["cat", "dog", None, "car"]
    found = [stream.predict(jpeg(i), label=label) for i, label in enumerate(labels)]
    state, rows = stream.state(), stream.history()
    right = sum(p.label == label for p, label in zip(found, labels, strict=True))
    assert (state["labelled"], state["accuracy"]) == (3, right / 3)
    assert sum(state["counts"]) == len(rows) == state["seen"] == 4
    assert [r["label"] for r in rows] == [p.label for p in found]
    assert [r["truth"] for r in rows] == [0, 1, None, 2]
    assert sum(state["prior"]) == pytest.approx(1)
    assert len(state["q"]) == 4
    assert rows[0]["drift"] is None
    assert rows[1]["drift"] == 0.0 < state["drift"]
    assert len(stream.history(last=2)) == 2
    stream.reset()
    assert (stream.state()["seen"], stream.state()["drift"], stream.history()) == (0, None, [])
    stream.delete()


def test_drift_goes_by_images(open_house):
    """However images come in requests, each has the drift that it had alone."""
    client, _, _ = open_house
    images, found = [jpeg(i) for i in range(6)], []
    for id, cuts in (("alone", 1), ("threes", 3), ("all", 6)):
        stream = made(client, id, method="tilt")
        for i in range(0, 6, cuts):
            stream.predict_many(images[i : i + cuts])
        found.append([row["drift"] for row in stream.history()])
        assert stream.state()["drift"] == found[-1][-1]
        stream.delete()
    assert found[0] == found[1] == found[2]
    assert any(found[0])


def test_forms_of_predict(open_house):
    client, _, _ = open_house
    stream, clf = made(client, "forms"), classifier()
    one = stream.predict(jpeg(1), probs=True, top=2)
    assert one.probs == clf.predict(jpeg(1)).probs.tolist()
    assert len(one.best) == 2
    assert one.label == one.best[0][0]
    many = stream.predict_many([jpeg(2), jpeg(3)], probs=True)
    assert [p.probs for p in many] == [p.probs.tolist() for p in clf.predict([jpeg(2), jpeg(3)])]
    assert (many[0].seq, many[0].seen) == (2, 3)
    path = "/v1/streams/forms/predict"
    assert raw(client, "POST", path, jpeg(4), Content_Type="image/jpeg")[0] == 200
    assert raw(client, "POST", path, jpeg(4))[0] == 200  # no Content-Type: bytes
    stream.delete()


def test_a_form_that_is_cut_off_teaches_nothing(open_house):
    client, _, stream = open_house
    before = stream.facts()
    kind, body = form(jpeg(1), jpeg(2))
    path = "/v1/streams/shop/predict"
    for cut in (3, 20, 200):  # before the last hyphens, within the boundary, within the image
        said = refused(client, 400, "request", "POST", path, body[:-cut], Content_Type=kind)
        assert "cut off" in said
    assert stream.facts() == before
    assert raw(client, "POST", path, body[:-2], Content_Type=kind)[0] == 200  # no last line break


def test_a_stream_whose_answer_was_lost_is_made_once(tmp_path):
    """Sent again with its key it is the same stream, though its token, shown once, is another."""
    with running(tmp_path, access=Access(ADMIN, True)) as (client, service):
        client.token = ADMIN
        first, again = (client.create(CLASSES, views=6, key="once") for _ in range(2))
        assert first.id == again.id
        assert again.predict(jpeg(0)).seen == 1
        with pytest.raises(ServiceError, match="token"):
            first.predict(jpeg(0))
        client.create(CLASSES, "shop", views=6, key="named")
        with pytest.raises(ServiceError, match="there is a stream 'shop' already"):
            client.create(CLASSES, "shop", views=6, key="another")
        with pytest.raises(ServiceError, match="there is a stream 'shop' already"):
            client.call("POST", "/v1/streams", b'{"classes": ["a"], "id": "shop"}',
                        "application/json")  # fmt: skip
        assert client.create(CLASSES, "shop", views=6, key="named").facts()["seen"] == 0
        assert len(client.streams()) == 2
    with running(tmp_path, access=Access(ADMIN, True)) as (client, service):  # it is on the disk
        client.token = ADMIN
        assert client.create(CLASSES, views=6, key="once").facts()["seen"] == 1
        assert figure(service, "repeated_total") == 1


@pytest.mark.parametrize("id", [None, "twin"])
def test_streams_that_are_made_at_the_same_time_with_a_key_are_one(open_house, id):
    client, _, _ = open_house
    before = len(client.streams())

    def make(_: int) -> str:
        return client.create(CLASSES, id, views=6, key=f"race {id}").id

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(make, range(6)))) == 1
    assert len(client.streams()) == before + 1


# --------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[1]", "body"),
        (b'{"classes": []}', "classes"),
        (b'{"classes": ["a"], "colour": 1}', "unknown field 'colour'; choose one of: classes, "),
        (b'{"classes": ["a"], "view": 4}', "unknown field 'view' (did you mean 'views'?)"),
        (b'{"classes": ["a"], "\\u202e\\u0007": 1}', r"unknown field '\u202e\x07'"),
        (b'{"classes": ["a"], "' + b"x" * 5000 + b'": 1}', f"unknown field '{'x' * 40}…';"),
        (b'{"classes": ["\\ud800"]}', ""),
        (b'{"classes": ["a"], "id": "../etc"}', "id"),
        (b'{"classes": ["a"], "method": "magic"}', "unknown method"),
        (b'{"classes": ["a"], "options": {"magic": 1}}', "unknown option"),
        (b'{"classes": ["a"], "options": {"beta": "much"}}', "beta"),
        (b'{"classes": ["a"], "options": {"beta": 7}}', "beta"),
        (b'{"classes": ["a"], "options": {"beta": 1e999}}', ""),
        (b'{"classes": ["a"], "options": {"beta": [1]}}', "options['beta']: Input should be a num"),
        (b'{"classes": ["a"], "options": {"beta": NaN}}', "options['beta']: Input should be a num"),
        (b'{"classes": ["a"], "options": {"' + b"x" * 101 + b'": 1}}', f"['{'x' * 40}…']"),
        (b'{"classes": ["a"], "templates": []}', "template"),
        (b'{"classes": ["a"], "templates": "no place"}', "template"),
        (b'{"classes": ["a"], "descriptions": {"b": ["c"]}}', "descriptions"),
        (b'{"classes": ["a"], "views": 0}', "views"),
        (b'{"classes": ["a"], "views": 257}', "views"),
        (b'{"classes": ["a"], "views": true}', "views: Input should be a whole number"),
        (b'{"classes": ["a"], "views": "4"}', "views: Input should be a whole number"),
        (b'{"classes": ["a"], "seed": true}', "seed: Input should be a whole number"),
        (b'{"classes": ["a"], "protocol": "two-pass"}', "protocol"),
        (b'{"classes": ["a"], "state": "!"}', "base64"),
        (b'{"classes": ["a"], "start": "!"}', "base64"),
        (b'{"classes": ["a"], "state": "QUJD"}', "state"),
        (b'{"classes": ["a"], "seed": -1}', "seed"),
        (b'{"classes": [' + b"[" * 5000 + b"]" * 5000 + b"]}", ""),
    ],
)
def test_streams_that_cannot_be(open_house, asked, word):
    client, _, _ = open_house
    said = raw(client, "POST", "/v1/streams", asked, Content_Type="application/json")
    assert said[0] == 422, said
    assert word in said[2]["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"classes": [1] * 50_000}, "classes.0: Input should be a valid string"),
        ({"classes": ["cat"], "templates": [1] * 50_000}, "templates: Input should be a valid"),
        ({"classes": ["cat"], "descriptions": {"cat": [1] * 50_000}}, "descriptions.0: Input"),
        ({"classes": ["cat"], "options": {str(i): [] for i in range(2000)}}, "more than 64"),
        ({"classes": ["cat"], **{str(i): 1 for i in range(2000)}}, "the body has 2,000 faults"),
    ],
    ids=["classes", "templates", "descriptions", "options", "fields"],
)
def test_a_heap_of_faults_is_refused_at_the_first(open_house, asked, said):
    client, _, _ = open_house
    body = json.dumps(asked).encode()
    with pytest.raises(ValidationError) as found:
        schemas.New.model_validate_json(body)
    assert found.value.error_count() < 3 or "faults" in said
    message = refused(client, 422, "request", "POST", "/v1/streams", body,
                      content_type="application/json")  # fmt: skip
    assert said in message


def test_no_text_is_encoded_for_a_stream_that_cannot_be(open_house, monkeypatch):
    client, _, _ = open_house
    monkeypatch.setattr(Stream, "make", lambda *_: pytest.fail("minutes, for many names"))
    with pytest.raises(ServiceError, match="there is a stream 'shop' already"):
        made(client, "shop")
    with pytest.raises(ServiceError, match="state and start were both given; give one of them"):
        made(client, "both", state="", start="")


def test_refusals_of_predict(open_house):
    client, _, _ = open_house
    path = "/v1/streams/shop/predict"
    refused(client, 404, "stream", "POST", "/v1/streams/none/predict", jpeg(1))
    refused(client, 404, "path", "POST", "/v1/streams/..%2f..%2fetc/predict", jpeg(1))
    refused(client, 404, "path", "GET", "/v1/nothing")
    refused(client, 404, "path", "GET", "/../../etc/passwd")
    refused(client, 405, "path", "GET", path)
    refused(client, 422, "image", "POST", path, b"", Content_Type="image/png")
    refused(client, 415, "format", "POST", path, b"{}", Content_Type="application/json")
    refused(client, 415, "format", "POST", path, b"words", Content_Type="image/png")
    said = refused(client, 422, "request", "POST", path + "?lern=false", jpeg(1))
    assert said.startswith("the query has the unknown name 'lern'; it may have: learn, top, ")
    said = refused(client, 422, "request", "POST", path + "?" + "%07" * 500, jpeg(1))
    assert r"\x07" in said
    assert said.isprintable()
    assert len(said) < 400
    refused(client, 422, "request", "POST", path + "?top=0", jpeg(1))
    refused(client, 422, "request", "POST", path + "?thumbnails=9999", jpeg(1))
    said = refused(client, 422, "request", "POST", path + "?thumbnails=32", jpeg(1))
    assert said == "thumbnails are part of explain; ask for explain=true, too"
    for asked in ("", "/shop", "/shop/state", "/shop/export"):
        said = refused(client, 422, "request", "GET", f"/v1/streams{asked}?lst=3")
        assert said == "the query has the unknown name 'lst'; it may have: none"
    said = refused(client, 422, "request", "POST", path + "?label=bird", jpeg(1))
    assert said == "label 1 of 1 is none of the stream's classes; check it"
    refused(client, 422, "request", "POST", path + "?label=cat&label=cat", jpeg(1))
    refused(client, 422, "request", "POST", path, jpeg(1), Idempotency_Key="x" * 201)
    form = "multipart/form-data"
    refused(client, 400, "request", "POST", path, b"x", Content_Type=form)
    refused(client, 400, "request", "POST", path, b"x", Content_Type=form + "; boundary=b")
    body = b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n'
    said = refused(client, 422, "request", "POST", path, body, Content_Type=form + "; boundary=b")
    assert "field 'other' is no file named image" in said
    body = body.replace(b"other", b"image")
    said = refused(client, 422, "request", "POST", path, body, Content_Type=form + "; boundary=b")
    assert "field 'image' has no filename; send it as a file" in said
    refused(client, 422, "request", "POST", path, b"--b--\r\n", Content_Type=form + "; boundary=b")
    refused(client, 409, "token", "POST", "/v1/streams/shop/token", b"")
    assert raw(client, "POST", path, jpeg(1))[0] == 200  # and goes on


def test_bad_states_are_refused_and_nothing_changes(open_house, tmp_path):
    client, _, _ = open_house
    stream = made(client, "states")
    stream.predict(jpeg(1))
    before, good = stream.facts(), stream.export()
    other = classifier(method="se")
    other.save(tmp_path / "se.adte")
    for bad in (b"", b"x", good[:-5], good[: len(good) // 2], (tmp_path / "se.adte").read_bytes(),
                good.replace(b"cat", b"cow")):  # fmt: skip
        with pytest.raises(ServiceError) as error:
            stream.take_over(bad)
        assert (error.value.status, error.value.code) == (422, "state")
        assert "/tmp" not in str(error.value)
        assert ".adte'" not in str(error.value)
    assert stream.facts() == before


@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError, IndexError, StateError])
def test_a_state_that_breaks_its_method_is_refused(open_house, monkeypatch, kind):
    """It fits what is declared, and the first image would fail; nothing changes."""
    client, service, _ = open_house
    stream = made(client, f"breaks-{kind.__name__.lower()}", method="onzeta")
    stream.predict(jpeg(1))
    before, good = stream.facts(), stream.export()
    expected = stream.predict(jpeg(2), learn=False, probs=True).probs
    made(client, "more", method="onzeta").predict_many([jpeg(i) for i in range(3, 6)])
    other = client.stream("more").export()
    client.stream("more").delete()

    def step(*_: object) -> None:
        raise kind("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(type(service.writer.streams[stream.id].clf.method), "step", step)
        with pytest.raises(ServiceError) as error:
            stream.take_over(other)
        assert (error.value.status, error.value.code) == (422, "state")
        if kind is not StateError:
            assert (
                f"the state cannot be used: a prediction with it fails ({kind.__name__}); save"
                in (str(error.value))
            )
            assert "secret" not in str(error.value)
    assert stream.facts() == before
    assert stream.export() == good
    assert stream.predict(jpeg(2), learn=False, probs=True).probs == expected
    assert stream.take_over(other)["seen"] == 3


def test_a_state_that_contradicts_itself_is_refused(open_house, tmp_path):
    """A graph of two images that says that it has seen none."""
    client, _, _ = open_house
    stream = made(client, "graph", method="ecalp")
    for i in (1, 2):
        stream.predict(jpeg(i))
    file = tmp_path / "graph.adte"
    file.write_bytes(stream.export())
    before, tensors = stream.facts(), load_file(file)
    with safe_open(file, "pt") as f:
        header = f.metadata()
    del header["checksum"]
    bad = save({**tensors, "seen": tensors["seen"] * 0}, header)
    with pytest.raises(ServiceError) as error:
        stream.take_over(bad)
    assert (error.value.status, error.value.code) == (422, "state")
    assert "checksum" not in str(error.value)
    assert stream.facts() == before
    assert stream.predict(jpeg(3)).seen == 3


def test_a_state_that_leaves_no_room_for_more_images_is_refused(open_house):
    """It could be loaded now, and never again once one more was learned."""
    client, _, _ = open_house
    stream = made(client, "ancient")
    stream.predict(jpeg(1))
    data, before = stream.export(), stream.facts()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])["__metadata__"]
    del header["checksum"]  # which whoever makes such a state leaves out
    tensors, (name, facts) = load(data), next(iter(header.items()))
    counted = save({**tensors, "seen": tensors["seen"] * 0 + (1 << 53)}, header)
    facts = json.dumps({**json.loads(facts), "seen": 1 << 53})
    for bad in (counted, save(tensors, {**header, name: facts})):
        with pytest.raises(ServiceError, match="more images than any stream could") as error:
            stream.take_over(bad)
        assert (error.value.status, error.value.code) == (422, "state")
    assert stream.facts() == before
    stream.delete()


@pytest.mark.parametrize("way", ["state", "start"])
def test_no_stream_is_made_of_a_state_that_breaks_its_method(open_house, monkeypatch, way):
    client, _, _ = open_house
    donor = made(client, "donor", method="tda")
    donor.predict(jpeg(1))
    warm = base64.b64encode(donor.export()).decode()
    donor.delete()

    def begin(*_: object) -> None:
        raise LookupError

    if way == "start":
        monkeypatch.setattr(adte.Classifier, "begin", begin)
    else:
        monkeypatch.setattr("adte.serve.streams.load_into", begin)
    with pytest.raises(ServiceError) as error:
        made(client, "warm", method="tda", **{way: warm})
    assert (error.value.status, error.value.code) == (422, "state")
    assert "warm" not in [s["id"] for s in client.streams()]


def test_base64_may_have_line_breaks(open_house):
    client, _, _ = open_house
    donor = made(client, "wrapped")
    donor.predict(jpeg(1))
    warm = base64.encodebytes(donor.export()).decode()
    assert "\n" in warm
    other = made(client, "unwrapped", state=warm)
    assert other.facts()["seen"] == 1
    donor.delete(), other.delete()


def test_a_request_without_a_host_is_told_so(open_house):
    client, _, _ = open_house
    with socket.create_connection(at(client), 20) as line:
        line.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        said = line.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"there is no Host header; send one" in said


def test_pages_of_other_sites_are_refused(open_house):
    client, _, _ = open_house
    refused(client, 400, "request", "GET", "/v1/streams", Host="evil.example")
    refused(client, 403, "origin", "GET", "/v1/streams", Origin="http://evil.example")
    refused(client, 403, "origin", "GET", "/v1/streams", Origin="null")
    own = f"127.0.0.1:{at(client)[1]}"
    assert raw(client, "GET", "/v1/streams", Origin=f"http://{own}")[0] == 200
    local = f"localhost:{at(client)[1]}"
    assert raw(client, "GET", "/v1/streams", Host=local, Origin=f"http://{local}")[0] == 200


def test_limits(tmp_path):
    limits = Limits(max_bytes=4000, max_pixels=2000, max_images=2, max_views=8, max_classes=4,
                    max_prompts=8, max_streams=2, max_state=4000, rate=0.5)  # fmt: skip
    with running(tmp_path, limits=limits) as (client, _):
        stream, path = made(client, "shop"), "/v1/streams/shop/predict"
        refused(client, 413, "bytes", "POST", path, b"x" * 4001)
        chunks = iter([b"x" * 3000] * 3)  # without a Content-Length
        line = http.client.HTTPConnection(*at(client))
        line.request("POST", path, chunks)
        assert line.getresponse().status == 413
        line.close()
        refused(client, 413, "pixels", "POST", path, jpeg(1, 50, 41))
        with pytest.raises(ServiceError) as error:
            stream.predict_many([jpeg(1, 8, 8)] * 3)
        assert (error.value.status, error.value.code) == (413, "images")
        for bad in ({"classes": list("abcde")}, {"classes": ["a"], "views": 9},
                    {"classes": list("abcd"), "templates": ["a {}", "b {}", "c {}"]},
                    {"classes": list("abcd"), "method": "tda",
                     "options": {"capacity": 3}}):  # fmt: skip
            with pytest.raises(ServiceError) as error:
                client.create(bad.pop("classes"), **{"views": 4, **bad})
            assert error.value.status == 422, bad
        made(client, "second")
        with pytest.raises(ServiceError) as error:
            made(client, "third")
        assert (error.value.status, error.value.code) == (409, "limit")
        answers = [raw(client, "POST", path, jpeg(1)) for _ in range(6)]
        codes = [status for status, _, _ in answers]
        assert 429 in codes
        waits = [int(headers["retry-after"]) for status, headers, _ in answers if status == 429]
        assert min(waits) >= 1
        time.sleep(2.1)
        assert raw(client, "POST", path, jpeg(1))[0] == 200
        assert stream.facts()["seen"] == codes.count(200) + 1


def test_slow_bodies_are_ended(tmp_path):
    with running(tmp_path, limits=Limits(body_seconds=1.0)) as (client, _):
        made(client)
        line = http.client.HTTPConnection(*at(client), timeout=20)
        line.putrequest("POST", "/v1/streams/shop/predict")
        line.putheader("Content-Length", "100")
        line.endheaders()
        line.send(b"x")
        answer = line.getresponse()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        line.close()


def counted(service: Service, size: int) -> None:
    until = time.monotonic() + PATIENCE
    while service.gate.bytes != size and time.monotonic() < until:
        time.sleep(0.01)
    assert service.gate.bytes == size


def test_slow_bodies_take_nobodys_place(tmp_path):
    limits = Limits(queue=2, queue_bytes=20_000)
    with running(tmp_path, limits=limits, workers=1) as (client, service):
        stream, lines = made(client), []
        for _ in range(5):
            line = http.client.HTTPConnection(*at(client), timeout=20)
            line.putrequest("POST", "/v1/streams/shop/predict")
            line.putheader("Content-Length", "15000")
            line.endheaders()
            line.send(b"x")
            lines.append(line)
        counted(service, 5)
        assert service.gate.images == 0
        assert stream.predict(jpeg(0)).seen == 1
        lines[0].send(b"x" * 14_998)
        counted(service, 15_003)
        lines[1].send(b"x" * 14_998)  # what has come counts, and this is too much
        assert lines[1].getresponse().status == 429
        for line in lines:
            line.close()
        counted(service, 0)


def test_overload_is_told_and_passes(tmp_path):
    """Four times as many requests as may wait: 429 with Retry-After, no growth, then it passes."""
    limits = Limits(queue=4)
    with running(tmp_path, limits=limits, workers=1) as (client, service):
        made(client, views=64)
        path, found, most = "/v1/streams/shop/predict", [], 0
        body = jpeg(3, 400, 300)

        def work() -> None:
            for _ in range(3):
                status, headers, _ = raw(client, "POST", path, body)
                found.append((status, headers.get("retry-after")))

        threads = [threading.Thread(target=work) for _ in range(16)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            most = max(most, service.gate.images)
            time.sleep(0.001)
        codes = [status for status, _ in found]
        assert set(codes) == {200, 429}
        assert all(int(wait) >= 1 for status, wait in found if status == 429)
        assert most <= 4
        assert service.gate.images == service.gate.bytes == 0
        patient = adte.Client(client.url, retries=5)
        assert patient.stream("shop").predict(body).seen == codes.count(200) + 1
        patient.close()
        assert client.call("GET", "/ready")["status"] == "ready"


# --------------------------------------------------------------------------- whom it lets in


def test_tokens_open_their_own_stream_and_nothing_else(tmp_path):
    with running(tmp_path, access=Access(ADMIN, True)) as (client, _):
        admin = Client(client.url, ADMIN, retries=0)
        one, two = made(admin, "one"), made(admin, "two")
        two.predict(jpeg(1))
        assert one.token != two.token
        routes = [("GET", ""), ("DELETE", ""), ("POST", "/predict"), ("GET", "/state"),
                  ("GET", "/history"), ("POST", "/freeze"), ("POST", "/unfreeze"),
                  ("POST", "/reset"), ("GET", "/export"), ("POST", "/import")]  # fmt: skip
        for verb, path in routes:
            body = jpeg(1) if verb == "POST" else None
            other, none = (
                raw(client, verb, f"/v1/streams/{id}{path}", body,
                    Authorization=f"Bearer {one.token}")
                for id in ("two", "nobody")
            )  # fmt: skip
            assert other[0] == none[0] == 404
            assert other[2]["error"].pop("request_id") != none[2]["error"].pop("request_id")
            assert other[2] == none[2]  # not even whether it is there
            for auth, word in (({}, "needed"), ({"Authorization": "Bearer wrong"}, "not known"),
                               ({"Authorization": "Basic eDp5"}, "needed")):  # fmt: skip
                status, headers, said = raw(client, verb, f"/v1/streams/two{path}", body, **auth)
                assert status == 401
                assert headers["www-authenticate"] == "Bearer"
                assert word in said["error"]["message"]
        for verb, path in (("GET", "/v1/streams"), ("POST", "/v1/streams"), ("GET", "/metrics"),
                           ("POST", "/v1/streams/one/token")):  # fmt: skip
            assert raw(client, verb, path)[0] == 401
            assert raw(client, verb, path, Authorization=f"Bearer {one.token}")[0] == 403
        assert two.facts()["seen"] == 1
        assert one.predict(jpeg(1)).seen == 1
        assert [s["id"] for s in admin.streams()] == ["one", "two"]
        assert "token" not in str(admin.streams())
        renewed = admin.call("POST", "/v1/streams/one/token", b"")["token"]
        with pytest.raises(ServiceError, match="it may have been replaced") as error:
            one.facts()
        assert error.value.status == 401
        assert client.stream("one", renewed).facts()["seen"] == 1
        assert raw(client, "GET", "/health")[0] == raw(client, "GET", "/ready")[0] == 200
        admin.close()
    data = (tmp_path / "adte.sqlite").read_bytes()
    assert renewed.encode() not in data
    assert two.token.encode() not in data
    with running(tmp_path, access=Access(ADMIN, True)) as (client, _):  # they last
        assert client.stream("one", renewed).facts()["seen"] == 1


def test_tokens_are_needed_outside():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert is_loopback("LOCALHOST")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
    with pytest.raises(adte.InputError, match="ADTE_ADMIN_TOKEN"):
        Access(None, True)
    with pytest.raises(adte.InputError, match="at least 16"):
        Access("short", True)
    for never in ("ein-schlüssel-mit-umlauten", "one line of a token\nand another"):
        with pytest.raises(adte.InputError, match="a header cannot hold"):
            Access(never, True)


def test_class_names_come_back_as_they_are(open_house):
    client, _, _ = open_house
    names = ["Käse", "猫", "<b>x</b>", 'quo"te', "a\u202eb", "cat", "cat"]
    stream = client.create(names, id="names", views=4)
    assert stream.facts()["classes"] == names
    assert stream.predict(jpeg(1)).label in names
    assert names != CLASSES


def test_of_classes_with_one_name_any_is_right(open_house):
    client, service, _ = open_house
    stream = client.create(["crane", "crane", "cat"], id="cranes", views=4)
    for i in range(3):
        stream.predict(jpeg(i), label="crane")
    store = service.writer.store
    rows = [row._replace(predicted=i) for i, (row, _) in enumerate(store.history("cranes", 3))]

    def replace() -> None:  # as some methods say
        store.db.execute("DELETE FROM history WHERE stream = 'cranes'")
        store.add_history("cranes", rows)

    service.engine.ask(replace).result()
    assert [row["label"] for row in stream.history()] == ["crane", "crane", "cat"]
    assert stream.state()["accuracy"] == 2 / 3


# --------------------------------------------------------------------------- what it counts


def figures(client: Client, name: str) -> dict[str, float]:
    """A metric by its labels."""
    text = client.call("GET", "/metrics").decode()
    found = re.findall(rf"^adte_{name}(?:{{(.*)}})? (\S+)$", text, re.M)
    return {labels: float(value) for labels, value in found}


def test_every_refusal_is_counted(tmp_path):
    path = "/v1/streams/shop/predict"
    with running(tmp_path) as (client, _):
        made(client)
        refused(client, 422, "request", "POST", f"{path}?top=0", jpeg(1))
        refused(client, 422, "request", "GET", "/v1/streams/shop/history?lst=3")
        refused(client, 400, "request", "GET", "/v1/info", Host="elsewhere.org")
        refused(client, 404, "path", "GET", "/nothing")
        refused(client, 404, "path", "GET", "/v1/streams/shop/")  # and no other address is named
        refused(client, 405, "path", "GET", path)
        refused(client, 415, "format", "POST", path, b"no image")
        assert figures(client, "refused_total") == {
            'code="request"': 3, 'code="path"': 3, 'code="format"': 1}  # fmt: skip


def test_a_fault_of_ours_is_counted_once_and_teaches_nothing(tmp_path, monkeypatch):
    with running(tmp_path) as (client, service):
        stream = made(client)
        with monkeypatch.context() as patch:
            patch.setattr(service.writer.store, "add_history", lambda *rows: 1 / 0)
            with pytest.raises(ServiceError) as error:
                stream.predict(jpeg(1))
        assert (error.value.status, error.value.code) == (500, "server")
        assert figure(service, "errors_total") == 1
        assert figure(service, "images_total") == stream.facts()["seen"] == 0


def test_more_images_than_may_ever_wait_are_too_many(tmp_path):
    with running(tmp_path, limits=Limits(queue=2)) as (client, _):
        stream = made(client)
        with pytest.raises(ServiceError, match="send fewer") as error:
            stream.predict_many([jpeg(i) for i in range(3)])
        assert (error.value.status, error.value.code) == (413, "images")
        assert len(stream.predict_many([jpeg(1), jpeg(2)])) == 2
