"""The application: routes, the page, safe headers, and errors that leak nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adte._version import __version__
from adte.serve.access import Access
from adte.serve.limits import Refused, clipped, stopping
from adte.serve.log import log, request_id, request_name, requests
from adte.serve.metrics import Metrics
from adte.serve.routes import as_json, health, open_router, router
from adte.serve.service import Service

__all__ = ["Door", "make_app"]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
POLICY = "default-src 'none'; frame-ancestors 'none'"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
PROBES = ("/health", "/ready", "/metrics")
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


def make_app(service: Service, named: bool = True) -> FastAPI:
    """The application around a service, which ends with it.

    Answers carry the request's id; not `named`, a proxy adds it to them.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="adte",
        version=__version__,
        summary="Vision-language classifiers that get better while they are used.",
        docs_url=None,  # both would load scripts of other hosts
        redoc_url=None,
        redirect_slashes=False,  # it would name http:// behind a proxy with TLS
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(open_router)
    app.include_router(router)
    _add_page(app)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_values)
    app.add_middleware(Shell, access=service.access, metrics=service.metrics, named=named)
    return app


# --------------------------------------------------------------------------- errors


def error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    reason = {"code": code, "message": message, "request_id": request_id.get()}
    text = json.dumps({"error": reason}, ensure_ascii=False)
    data = text.encode("utf-8", "backslashreplace")
    return Response(data, status, headers, media_type="application/json")


def refuse(metrics: Metrics, refusal: Refused) -> Response:
    """The answer of a refusal; every one is counted here."""
    if refusal.status == 500:  # a fault of our own, on another machine
        metrics.errors.inc()
    else:
        metrics.refused.labels(code=refusal.code).inc()
    headers = dict(refusal.headers)
    if refusal.retry_after:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.status == 408:  # the rest may come for ever
        headers["Connection"] = "close"
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error(refusal.status, refusal.code, str(refusal), headers)


def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code, text = {404: ("path", "there is nothing here; see /openapi.json"),
                  405: ("path", "this path takes other verbs; see /openapi.json")}.get(
        problem.status_code, ("request", "the request cannot be read; check it"))  # fmt: skip
    refusal = Refused(problem.status_code, code, text)
    refusal.headers = dict(problem.headers or {})
    raise refusal


def _refuse_values(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(x) for x in first["loc"][:2])
    raise Refused(422, "request", f"{where}: {first['msg']}")


# --------------------------------------------------------------------------- around everything


class Shell:
    """Names a request and checks where it comes from, adds safe headers, counts, writes its line of
    the log, and hides what went wrong.
    """

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, named: bool = True) -> None:
        self.app, self.access, self.metrics, self.named = app, access, metrics, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start, sent = 0, time.perf_counter(), Headers(scope=scope)
        id = request_name(sent.get("x-request-id"))
        request_id.set(id)

        async def add_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", POLICY)
                headers.setdefault("Cache-Control", "no-store")
                if self.named:
                    headers["X-Request-ID"] = id
            await send(message)

        try:
            self.access.check_origin(sent)
            await self.app(scope, receive, add_headers)
        except Refused as refusal:
            await refuse(self.metrics, refusal)(scope, receive, add_headers)
        except asyncio.CancelledError:  # the end does not wait for it
            if status:
                raise
            await refuse(self.metrics, stopping())(scope, receive, add_headers)
        except Exception:
            log.exception("request %s failed", id)
            self.metrics.errors.inc()
            if status:
                raise
            text = "something went wrong here; the log of the server has it"
            await error(500, "server", text)(scope, receive, add_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route=route, status=status).inc()
            _log_request(scope, status, time.perf_counter() - start)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """Its line of the log; probes have one only if something is wrong."""
    method, path = scope.get("method", ""), scope.get("path", "")
    if not requests.isEnabledFor(logging.INFO) or (path in PROBES and status == 200):
        return
    facts = {
        "method": method,
        "path": clipped(path, 200),
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
        "stream": clipped(scope.get("path_params", {}).get("id", "")) or None,
        "client": clipped((scope.get("client") or [""])[0], 64) or None,
    }
    requests.info("%s %s %d", method, facts["path"], status, extra={"facts": facts})


class Door:
    """Open from the first moment: says that the service is being loaded, until `app` is its own."""

    def __init__(self, access: Access) -> None:
        self.app: ASGIApp = Shell(_loading, access, Metrics())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def _loading(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/health":
        answer = await health()
    elif scope["path"] == "/ready":
        answer = as_json({"status": "loading", "version": __version__}, 503)
    else:
        why = "the model and the streams are being loaded; try again soon"
        raise Refused(503, "loading", why, retry_after=1)
    await answer(scope, receive, send)


# --------------------------------------------------------------------------- the page


def _page() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their paths; read once, so that no request reaches the disk."""
    found = {}
    for file in resources.files("adte.serve").joinpath("page").iterdir():
        if not file.is_file() or file.name.startswith((".", "_")):
            continue
        suffix = "." + file.name.rpartition(".")[2]
        kind = TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        found[f"/{file.name}"] = file.read_bytes(), kind
    if "/index.html" in found:
        found["/"] = found["/index.html"]
    return found


def _add_page(app: FastAPI) -> None:
    for path, (data, kind) in _page().items():

        async def file(request: Request, data: bytes = data, kind: str = kind) -> Response:
            headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
            return Response(data, headers=headers, media_type=kind)

        app.add_route(path, file, methods=["GET"], include_in_schema=False)
