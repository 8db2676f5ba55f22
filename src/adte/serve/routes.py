"""The routes of the service. Each reads a request, asks the engine and tells the answer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from adte._version import __version__
from adte.serve import schemas
from adte.serve.access import new_token
from adte.serve.bodies import kind_of, read_body, read_images, size_of
from adte.serve.jobs import Change, Predict
from adte.serve.keeper import Call, Keeper
from adte.serve.limits import Refused, clipped
from adte.serve.making import made, read_new
from adte.serve.packing import checksum
from adte.serve.service import Service
from adte.serve.settings import ONCE, Kind
from adte.serve.streams import Stream
from adte.serve.telling import repeated

__all__ = ["open_router", "router"]

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
    """What a route may refuse with, for OpenAPI."""
    return {code: {"model": schemas.Error} for code in (400, 401, 403, 404, *codes)}


# Where anybody may ask: another machine's name, a page of another site.
STRANGE: dict[int | str, dict[str, Any]] = {c: {"model": schemas.Error} for c in (400, 403)}


def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def tell(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


async def kept(future: Future[Any]) -> Any:
    """What was promised; it is done even if the one who asked has gone."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def again(service: Service, known: Future[Any]) -> Any:
    """The answer to a request that came before."""
    answer = repeated(await kept(known))
    service.metrics.count("repeated_total")
    return answer


def known_queries(request: Request, *names: str) -> None:
    """A mistyped option is an error, not a default."""
    for name in request.query_params:
        if name not in names:
            raise Refused(422, "request", f"the query has the unknown name {clipped(name)!r}; "
                          f"it may have: {', '.join(names) or 'none'}")  # fmt: skip


def stream_of(request: Request, id: str) -> Stream:
    service = service_of(request)
    return service.access.stream(request.headers, service.keeper.streams, id)


def for_admin(request: Request) -> Service:
    service = service_of(request)
    service.access.check_admin(request.headers, service.keeper.streams)
    return service


# --------------------------------------------------------------------------- the process


@open_router.head("/health", include_in_schema=False)  # as monitors ask
@open_router.get("/health", response_model=schemas.Health, responses=STRANGE)
async def health() -> Response:
    """The process lives."""
    return tell({"status": "ok", "version": __version__})


@open_router.head("/ready", include_in_schema=False)
@open_router.get(
    "/ready", response_model=schemas.Health, responses={**STRANGE, 503: {"model": schemas.Health}}
)
async def ready(request: Request) -> Response:
    """Streams are loaded and can be written."""
    service = service_of(request)
    if service.engine.alive and service.keeper.doubtful:
        with suppress(Refused):  # it cannot be written
            for size in service.keeper.trial:
                asks = partial(Keeper.probe, size=size)
                await kept(service.engine.ask(asks, alone=True))
    good = service.ready
    said = {"status": "ready" if good else "not ready", "version": __version__}
    return tell(said, 200 if good else 503)


@open_router.get("/metrics", responses={**refused(503), 200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(for_admin(request).metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/info", response_model=schemas.Info, responses=refused(422, 503))
async def info(request: Request) -> Response:
    """What there is: model, methods, template sets, formats, limits."""
    service = service_of(request)
    known_queries(request)
    return tell(service.info)


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
async def make_stream(request: Request, key: Key = None) -> Response:
    """Make a stream. Its token is shown once; repeated with its key, the stream has a new one."""
    service = for_admin(request)
    known_queries(request)
    if kind_of(request) != "application/json":
        raise Refused(415, "format", "the Content-Type is not application/json; send JSON")
    with service.gate.entered(size_of(request, service.limits)) as entry:
        body = await read_body(request, entry)
        entry.take(1, 0)
        asked = await run_in_threadpool(read_new, body)
        token, hashed = new_token() if service.access.required else (None, None)
        id = asked["id"] or secrets.token_hex(8)
        digest = checksum("new", request.headers.get("authorization", ""), body)

        async def known() -> Any:
            asks = service.engine.ask(lambda k: k.created(key, digest, hashed), alone=True)
            return await kept(asks)

        facts = None if key is None else await known()
        if facts is None:
            loop = asyncio.get_running_loop()
            asks = (service, id, asked, hashed, key, digest)
            making = loop.run_in_executor(service.maker, made, *asks)
            service.awaited.add(making)
            making.add_done_callback(service.awaited.discard)
            try:
                facts = await kept(service.engine.submit(await making))
            except Refused as error:  # it may have been made meanwhile, by the same request
                if key is None or error.code != "exists" or (facts := await known()) is None:
                    raise
    return tell({**facts, "token": token}, 201)


@router.get("/streams", response_model=schemas.Streams, responses=refused(422, 503))
async def all_streams(request: Request) -> Response:
    """All streams."""
    service = for_admin(request)
    known_queries(request)
    facts = await kept(service.engine.ask(lambda k: [s.facts() for s in k.streams.values()]))
    return tell({"streams": facts})


@router.get("/streams/{id}", response_model=schemas.Facts, responses=refused(422, 503))
async def one_stream(request: Request, id: str) -> Response:
    """The facts of a stream."""
    stream = stream_of(request, id)
    known_queries(request)
    return tell(await kept(service_of(request).engine.ask(lambda keeper: stream.facts())))


@router.delete(
    "/streams/{id}", status_code=204, response_model=None, responses=refused(409, 422, 503)
)
async def delete_stream(request: Request, id: str, key: Key = None) -> Response:
    """Delete a stream and its state."""
    service = service_of(request)
    known_queries(request)
    digest = checksum("delete", request.headers.get("authorization", ""))
    if key is not None and await kept(service.engine.ask(lambda k: k.deleted(id, key, digest))):
        try:
            stream_of(request, id)
        except Refused:  # there is none, or it is another's
            return Response(status_code=204)
        raise Refused(409, "key", "this Idempotency-Key has deleted an earlier stream of this "
                      "name; use a new one for this one")  # fmt: skip
    stream = stream_of(request, id)
    call = Call(call=lambda keeper: keeper.delete(stream, key, digest), alone=True)
    await kept(service.engine.submit(call))
    service.gate.forget(id)
    return Response(status_code=204)


@router.post("/streams/{id}/token", response_model=schemas.Token, responses=refused(409, 422, 503))
async def new_stream_token(request: Request, id: str) -> Response:
    """A new token for a stream; the old one ends."""
    service = for_admin(request)
    stream = stream_of(request, id)
    known_queries(request)
    if not service.access.required:
        raise Refused(409, "token", "this server asks for no tokens; start it with --tokens")
    token, hashed = new_token()
    call = Call(call=lambda keeper: keeper.set_token(stream, hashed), alone=True)
    await kept(service.engine.submit(call))
    return tell({"id": id, "token": token})


# --------------------------------------------------------------------------- predicting


@router.post(
    "/streams/{id}/predict",
    response_model=schemas.Answer,
    responses=refused(408, 409, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": IMAGES},
)
async def predict(
    request: Request,
    id: str,
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
    stream, service = stream_of(request, id), service_of(request)
    known_queries(request, "learn", "top", "probs", "label", "explain", "thumbnails",
                  "once")  # fmt: skip
    if thumbnails and not explain:
        raise Refused(422, "request", "thumbnails are part of explain; ask for explain=true, too")
    if once and key is not None:
        raise Refused(422, "request", "once makes a key of the images; send no Idempotency-Key "
                      "with it")  # fmt: skip
    service.gate.second = service.engine.second
    size, new = size_of(request, service.limits), not service.engine.knows(stream, key)
    with service.gate.entered(size, int(new)) as entry:
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
        if (known := service.engine.known(job)) is None:
            entry.take(len(images), 0)
            service.gate.spend(id, len(images))
            answer = await kept(service.engine.submit(job))
        else:
            images.clear()  # nobody looks at them
            entry.leave()
            answer = await again(service, known)
    service.metrics.see("request_seconds", time.perf_counter() - start)
    return tell(answer)


def _truths(stream: Stream, labels: list[str] | None, images: int) -> list[int] | None:
    if not labels:
        return None
    if len(labels) != images:
        raise Refused(422, "request", f"{len(labels)} labels came for {images} images; send one "
                      "for each")  # fmt: skip
    found = []
    for i, name in enumerate(labels, 1):
        if name not in stream.clf.classes:
            raise Refused(422, "request", f"label {i} of {len(labels)} is none of the stream's "
                          "classes; check it")  # fmt: skip
        found.append(stream.clf.classes.index(name))
    return found


# --------------------------------------------------------------------------- state


@router.get("/streams/{id}/state", response_model=schemas.State, responses=refused(422, 503))
async def state(request: Request, id: str) -> Response:
    """What a stream has learned."""
    stream = stream_of(request, id)
    known_queries(request)
    return tell(await kept(service_of(request).engine.ask(lambda k: k.state(stream))))


@router.get("/streams/{id}/history", response_model=schemas.History, responses=refused(422, 503))
async def history(
    request: Request, id: str, last: Annotated[int, Query(ge=1, le=1000)] = 200
) -> Response:
    """The last predictions that counted."""
    stream = stream_of(request, id)
    known_queries(request, "last")
    return tell(await kept(service_of(request).engine.ask(lambda k: k.history(stream, last))))


@router.get(
    "/streams/{id}/export",
    response_class=Response,
    responses={**refused(409, 422, 503), 200: {"content": {"application/octet-stream": BINARY}}},
)
async def export(request: Request, id: str) -> Response:
    """The state as a file that `Classifier.load` reads."""
    stream = stream_of(request, id)
    known_queries(request)
    data = await kept(service_of(request).engine.ask(lambda k: k.export(stream)))
    name = {"Content-Disposition": f'attachment; filename="{stream.id}.adte"'}
    return Response(data, media_type="application/octet-stream", headers=name)


async def _change(
    request: Request, id: str, kind: Kind, key: str | None, data: bytes = b""
) -> Response:
    stream, service = stream_of(request, id), service_of(request)
    known_queries(request, *(["value"] if data else []))
    size = size_of(request, service.limits) if kind == "state" else 0
    with service.gate.entered(size, int(not service.engine.knows(stream, key))) as entry:
        if kind == "state":
            data = await read_body(request, entry)
        job = Change(stream=stream, kind=kind, data=data, key=key, digest=checksum(kind, data))
        if (known := service.engine.known(job)) is not None:
            return tell(await again(service, known))
        entry.take(1, 0)
        return tell(await kept(service.engine.submit(job)))


CHANGES = refused(409, 422, 429, 503)


@router.post("/streams/{id}/freeze", response_model=schemas.Changed, responses=CHANGES)
async def freeze(request: Request, id: str, key: Key = None) -> Response:
    """Stop learning."""
    return await _change(request, id, "freeze", key)


@router.post("/streams/{id}/unfreeze", response_model=schemas.Changed, responses=CHANGES)
async def unfreeze(request: Request, id: str, key: Key = None) -> Response:
    """Learn again."""
    return await _change(request, id, "unfreeze", key)


@router.post("/streams/{id}/reset", response_model=schemas.Changed, responses=CHANGES)
async def reset(request: Request, id: str, key: Key = None) -> Response:
    """Forget what was learned."""
    return await _change(request, id, "reset", key)


@router.post("/streams/{id}/temperature", response_model=schemas.Changed, responses=CHANGES)
async def set_temperature(
    request: Request, id: str, value: Annotated[float, Query(ge=1e-3, le=1e3)], key: Key = None
) -> Response:
    """Change confidence: probabilities to the power of 1/value, made to sum to one."""
    return await _change(request, id, "temperature", key, repr(value).encode())


@router.post(
    "/streams/{id}/import",
    response_model=schemas.Changed,
    responses={**CHANGES, **refused(408, 413)},
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}
    },
)
async def take_over(request: Request, id: str, key: Key = None) -> Response:
    """Take over a state that was exported from a stream of the same kind."""
    return await _change(request, id, "state", key)
