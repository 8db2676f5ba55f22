"""The routes of the service. Each reads a request, asks the engine and sends the answer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from adte._version import __version__
from adte.serve import schemas
from adte.serve.access import new_token
from adte.serve.jobs import Call, Change, Predict
from adte.serve.limits import Refused, clipped
from adte.serve.packing import checksum
from adte.serve.request_body import kind_of, read_body, read_images, size_of
from adte.serve.responses import repeated
from adte.serve.service import Service
from adte.serve.settings import ONCE, Kind
from adte.serve.streams import Stream
from adte.serve.writer import PROBES

__all__ = ["as_json", "health", "open_router", "router"]

router, open_router = APIRouter(prefix="/v1"), APIRouter()

Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x20-\x7e]+$"),
]
BINARY = {"schema": {"type": "string", "format": "binary"}}
NEW = schemas.New.model_json_schema(ref_template="#/components/schemas/{model}")
FORM = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {"image": {"type": "array", "minItems": 1,
                             "items": {"type": "string", "format": "binary"}}},
}  # fmt: skip
IMAGES = {
    "required": True,
    "content": {"image/*": BINARY, "application/octet-stream": BINARY,
                "multipart/form-data": {"schema": FORM}},
}  # fmt: skip


def refused(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for OpenAPI."""
    return {code: {"model": schemas.Error} for code in (400, 401, 403, 404, *codes)}


# Where anybody may ask: another machine's name, a page of another site.
STRANGE: dict[int | str, dict[str, Any]] = {c: {"model": schemas.Error} for c in (400, 403)}


def as_json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


async def kept(future: Future[Any]) -> Any:
    """The result of a promise; it is done even if the one who asked has gone."""
    return await asyncio.shield(asyncio.wrap_future(future))


# --------------------------------------------------------------------------- who asks for what


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def check_query(request: Request) -> None:
    """Refuse names that the route does not have: a mistyped option is an error, not a default."""
    names = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in names:
            raise Refused(422, "request", f"the query has the unknown name {clipped(name)!r}; "
                          f"it may have: {', '.join(names) or 'none'}")  # fmt: skip


Served = Annotated[Service, Depends(service_of)]


async def for_admin(request: Request, service: Served) -> Service:
    service.access.check_admin(request.headers, service.writer.streams)
    return service


async def stream_of(request: Request, service: Served, id: str) -> Stream:
    stream = service.access.stream(request.headers, service.writer.streams, id)
    check_query(request)
    return stream


ForAdmin = Annotated[Service, Depends(for_admin)]
OfStream = Annotated[Stream, Depends(stream_of)]


# --------------------------------------------------------------------------- the process


@open_router.head("/health", include_in_schema=False)  # as monitors ask
@open_router.get("/health", response_model=schemas.Health, responses=STRANGE)
async def health() -> Response:
    """The process lives."""
    return as_json({"status": "ok", "version": __version__})


@open_router.head("/ready", include_in_schema=False)
@open_router.get(
    "/ready", response_model=schemas.Health, responses={**STRANGE, 503: {"model": schemas.Health}}
)
async def ready(service: Served) -> Response:
    """Streams are loaded and can be written."""
    if service.engine.alive and service.writer.doubtful:
        with suppress(Refused):  # it cannot be written
            for size in PROBES:
                await kept(service.engine.ask(partial(service.writer.probe, size), alone=True))
    good = service.ready
    status = {"status": "ready" if good else "not ready", "version": __version__}
    return as_json(status, 200 if good else 503)


@open_router.get("/metrics", responses={**refused(503), 200: {"content": {"text/plain": {}}}})
async def metrics(service: ForAdmin) -> Response:
    """Figures for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/info", response_model=schemas.Info, responses=refused(422, 503))
async def info(request: Request, service: Served) -> Response:
    """What there is: model, methods, template sets, formats, limits."""
    check_query(request)
    return as_json(service.info)


# --------------------------------------------------------------------------- streams


@router.post(
    "/streams",
    status_code=201,
    response_model=schemas.Made,
    responses=refused(408, 409, 413, 415, 422, 429, 503),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": NEW}}}
    },
)
async def make_stream(request: Request, service: ForAdmin, key: Key = None) -> Response:
    """Make a stream. Its token is shown once; repeated with its key, the stream has a new one."""
    check_query(request)
    if kind_of(request) != "application/json":
        raise Refused(415, "format", "the Content-Type is not application/json; send JSON")
    with service.gate.entered(size_of(request, service.limits)) as entry:
        body = await read_body(request, entry)
        entry.take(1, 0)
        asked = await run_in_threadpool(service.read_new, body)
        token, hashed = new_token() if service.access.required else (None, None)
        id = asked["id"] or secrets.token_hex(8)
        sender = request.headers.get("authorization", "")
        made = None if key is None else checksum("new", key, sender, body)
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(service.maker, service.make, id, asked, hashed, made)
        service.awaited.add(making)
        making.add_done_callback(service.awaited.discard)
        facts = await kept(service.engine.submit(await making))
    return as_json({**facts, "token": token}, 201)


@router.get("/streams", response_model=schemas.Streams, responses=refused(422, 503))
async def all_streams(request: Request, service: ForAdmin) -> Response:
    """All streams."""
    check_query(request)
    streams = service.writer.streams
    facts = await kept(service.engine.ask(lambda: [s.facts() for s in streams.values()]))
    return as_json({"streams": facts})


@router.get("/streams/{id}", response_model=schemas.Facts, responses=refused(422, 503))
async def one_stream(service: Served, stream: OfStream) -> Response:
    """The facts of a stream."""
    return as_json(await kept(service.engine.ask(stream.facts)))


@router.delete("/streams/{id}", status_code=204, response_model=None, responses=refused(422, 503))
async def delete_stream(service: Served, stream: OfStream) -> Response:
    """Delete a stream and its state."""
    call = Call(call=partial(service.writer.delete, stream), alone=True)
    await kept(service.engine.submit(call))
    return Response(status_code=204)


@router.post("/streams/{id}/token", response_model=schemas.Token, responses=refused(409, 422, 503))
async def new_stream_token(service: ForAdmin, stream: OfStream) -> Response:
    """A new token for a stream; the old one ends."""
    if not service.access.required:
        raise Refused(409, "token", "this server asks for no tokens; start it with --tokens")
    token, hashed = new_token()
    call = Call(call=partial(service.writer.set_token, stream, hashed), alone=True)
    await kept(service.engine.submit(call))
    return as_json({"id": stream.id, "token": token})


# --------------------------------------------------------------------------- predicting


async def done(service: Service, job: Change | Predict) -> dict[str, Any]:
    """The answer to a job, or to the one with its key that is under way."""
    future = service.engine.submit(job)
    answer: dict[str, Any] = await kept(future)
    if future is not job.future:
        service.metrics.repeated.inc()
        return repeated(answer)
    return answer


@router.post(
    "/streams/{id}/predict",
    response_model=schemas.Answer,
    responses=refused(408, 409, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": IMAGES},
)
async def predict(
    request: Request,
    service: Served,
    stream: OfStream,
    learn: bool = True,
    top: Annotated[int, Query(ge=1, le=1000)] = 5,
    probs: bool = False,
    label: Annotated[list[str] | None, Query(max_length=1000)] = None,
    explain: bool = False,
    thumbnails: Annotated[int, Query(ge=0, le=96)] = 0,
    once: bool = False,
    key: Key = None,
) -> Response:
    """Labels for one image or several."""
    start = time.perf_counter()
    if thumbnails and not explain:
        raise Refused(422, "request", "thumbnails are part of explain; ask for explain=true, too")
    if once and key is not None:
        raise Refused(422, "request", "once makes a key of the images; send no Idempotency-Key "
                      "with it")  # fmt: skip
    service.gate.second = service.engine.second
    with service.gate.entered(size_of(request, service.limits)) as entry:
        images = await read_images(request, entry)
        if explain and len(images) > 1:
            raise Refused(422, "request", "explain takes one image a request; send one")
        truths = _truths(stream, label, len(images))
        digest = checksum("predict", *images, json.dumps(None if once else truths))
        if once:
            key = ONCE + digest.hex()
        job = Predict(
            stream=stream,
            key=key if learn else None,
            digest=digest,
            images=images,
            learn=learn,
            top=top,
            probs=probs,
            truths=truths,
            explain=explain,
            thumbnails=thumbnails,
        )
        entry.take(len(images), 0)
        service.gate.spend(stream, len(images))
        answer = await done(service, job)
    service.metrics.request_seconds.observe(time.perf_counter() - start)
    return as_json(answer)


def _truths(stream: Stream, labels: list[str] | None, images: int) -> list[int] | None:
    if not labels:
        return None
    if len(labels) != images:
        raise Refused(422, "request", f"{len(labels)} labels came for {images} images; send one "
                      "for each")  # fmt: skip
    for i, name in enumerate(labels, 1):
        if name not in stream.clf.classes:
            raise Refused(422, "request", f"label {i} of {len(labels)} is none of the stream's "
                          "classes; check it")  # fmt: skip
    return [stream.clf.classes.index(name) for name in labels]


# --------------------------------------------------------------------------- state


@router.get("/streams/{id}/state", response_model=schemas.State, responses=refused(422, 503))
async def state(service: Served, stream: OfStream) -> Response:
    """What a stream has learned."""
    return as_json(await kept(service.engine.ask(partial(service.writer.state, stream))))


@router.get("/streams/{id}/history", response_model=schemas.History, responses=refused(422, 503))
async def history(
    service: Served, stream: OfStream, last: Annotated[int, Query(ge=1, le=1000)] = 200
) -> Response:
    """The last predictions that counted."""
    return as_json(await kept(service.engine.ask(partial(service.writer.history, stream, last))))


@router.get(
    "/streams/{id}/export",
    response_class=Response,
    responses={**refused(409, 422, 503), 200: {"content": {"application/octet-stream": BINARY}}},
)
async def export(service: Served, stream: OfStream) -> Response:
    """The state as a file that `Classifier.load` reads."""
    data = await kept(service.engine.ask(partial(service.writer.export, stream)))
    name = {"Content-Disposition": f'attachment; filename="{stream.id}.adte"'}
    return Response(data, media_type="application/octet-stream", headers=name)


async def _change(
    service: Service,
    stream: Stream,
    kind: Kind,
    key: str | None,
    data: bytes = b"",
    request: Request | None = None,
) -> Response:
    """Change a stream, by the body of the request if there is one."""
    size = 0 if request is None else size_of(request, service.limits)
    with service.gate.entered(size) as entry:
        if request is not None:
            data = await read_body(request, entry)
        entry.take(1, 0)
        job = Change(stream=stream, kind=kind, data=data, key=key, digest=checksum(kind, data))
        return as_json(await done(service, job))


CHANGES = refused(409, 422, 429, 503)


@router.post("/streams/{id}/freeze", response_model=schemas.Changed, responses=CHANGES)
async def freeze(service: Served, stream: OfStream, key: Key = None) -> Response:
    """Stop learning."""
    return await _change(service, stream, "freeze", key)


@router.post("/streams/{id}/unfreeze", response_model=schemas.Changed, responses=CHANGES)
async def unfreeze(service: Served, stream: OfStream, key: Key = None) -> Response:
    """Learn again."""
    return await _change(service, stream, "unfreeze", key)


@router.post("/streams/{id}/reset", response_model=schemas.Changed, responses=CHANGES)
async def reset(service: Served, stream: OfStream, key: Key = None) -> Response:
    """Forget what was learned."""
    return await _change(service, stream, "reset", key)


@router.post("/streams/{id}/temperature", response_model=schemas.Changed, responses=CHANGES)
async def set_temperature(
    service: Served,
    stream: OfStream,
    value: Annotated[float, Query(ge=1e-3, le=1e3)],
    key: Key = None,
) -> Response:
    """Change confidence: probabilities to the power of 1/value, made to sum to one."""
    return await _change(service, stream, "temperature", key, repr(value).encode())


@router.post(
    "/streams/{id}/import",
    response_model=schemas.Changed,
    responses={**CHANGES, **refused(408, 413)},
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}
    },
)
async def take_over(
    request: Request, service: Served, stream: OfStream, key: Key = None
) -> Response:
    """Take over a state that was exported from a stream of the same kind."""
    return await _change(service, stream, "state", key, request=request)
