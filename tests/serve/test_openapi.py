"""OpenAPI tells the truth: schemathesis sends whatever it allows, and some that it does not."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from serving import figure, jpeg, made, running, small

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running(tmp_path_factory.mktemp("openapi") / "s", model=small()) as (client, service):
        made(client, "shop").predict(jpeg(1))
        yield client, service


@pytest.fixture(scope="module")
def document(served):
    client, _ = served
    return schemathesis.openapi.from_url(client.url + "/openapi.json")


def test_the_document_has_every_route(served):
    client, _ = served
    paths = client.call("GET", "/openapi.json")["paths"]
    assert {f"{verb} {path}" for path, verbs in paths.items() for verb in verbs} == {
        "get /health", "get /ready", "get /metrics", "get /v1/info", "get /v1/streams",
        "post /v1/streams", "get /v1/streams/{id}", "delete /v1/streams/{id}",
        "post /v1/streams/{id}/token", "post /v1/streams/{id}/predict",
        "get /v1/streams/{id}/state", "get /v1/streams/{id}/history",
        "get /v1/streams/{id}/export", "post /v1/streams/{id}/freeze",
        "post /v1/streams/{id}/unfreeze", "post /v1/streams/{id}/reset",
        "post /v1/streams/{id}/import", "post /v1/streams/{id}/temperature",
    }  # fmt: skip


def test_the_document_names_no_answer_that_never_comes(served):
    client, _ = served
    document = client.call("GET", "/openapi.json")
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path in ("/health", "/ready"):  # another host's name, a page of another site
        assert {"200", "400", "403"} <= document["paths"][path]["get"]["responses"].keys()


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


NO_HTTP = b"Invalid HTTP request received."  # uvicorn's answer to bytes that are no request

GENTLY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def sender(operation, mode, checks, sent: list[object]):
    """Sends what the document allows or forbids; with the stream's own id for most."""

    @GENTLY
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        sent.append(case)
        if "id" in (case.path_parameters or {}) and operation.method != "delete":
            case.path_parameters["id"] = "shop" if len(sent) % 4 else "nobody"
        response = case.call()
        if response.status_code == 400 and response.content == NO_HTTP:
            return  # the server's parser refused it; the application never saw it
        case.validate_response(response, checks=checks)

    return send


@pytest.mark.slow
def test_no_request_is_too_odd(served, document):
    client, service = served
    schemathesis.checks.load_all_checks()
    checks = [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]
    sent: list[object] = []
    routes = 0
    for found in document.get_all_operations():
        routes += 1
        for mode in schemathesis.GenerationMode:
            with suppress(Unsatisfiable):  # nothing is forbidden where nothing is taken
                sender(found.ok(), mode, checks, sent)()
    assert routes == 18
    assert len(sent) > 300
    assert figure(service, "errors_total") == 0
    assert client.stream("shop").predict(jpeg(2)).label
