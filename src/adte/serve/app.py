"""The application: routes, the page, safe headers, and errors that leak nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adte._version import __version__
from adte.serve.limits import Refused, stopping
from adte.serve.routes import open_router, router
from adte.serve.service import Service

__all__ = ["make_app"]

log = logging.getLogger("adte.serve")

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
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


def make_app(service: Service) -> FastAPI:
    """The application around a service, which ends with it."""

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
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _other)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Shell, service=service)
    return app


# --------------------------------------------------------------------------- errors


def error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False)
    data = text.encode("utf-8", "backslashreplace")
    return Response(data, status, headers, media_type="application/json")


def refuse(service: Service, refusal: Refused, headers: dict[str, str] | None = None) -> Response:
    """Every refusal is told and counted here."""
    if refusal.status == 500:  # a fault of our own, on another machine
        service.metrics.count("errors_total")
    else:
        service.metrics.count("refused_total", code=refusal.code)
    headers = dict(headers or {})
    if refusal.retry_after:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.status == 408:  # the rest may come for ever
        headers["Connection"] = "close"
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error(refusal.status, refusal.code, str(refusal), headers)


def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Refused)
    return refuse(request.app.state.service, problem)


def _other(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code, said = {404: ("path", "there is nothing here; see /openapi.json"),
                  405: ("path", "this path takes other verbs; see /openapi.json")}.get(
        problem.status_code, ("request", "the request cannot be read; check it"))  # fmt: skip
    refusal = Refused(problem.status_code, code, said)
    return refuse(request.app.state.service, refusal, dict(problem.headers or {}))


def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(x) for x in first["loc"][:2])
    return refuse(request.app.state.service, Refused(422, "request", f"{where}: {first['msg']}"))


# --------------------------------------------------------------------------- around everything


class Shell:
    """Checks where a request comes from, adds safe headers, counts, and hides what went wrong."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def add_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", POLICY)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self.service.access.check_origin(Headers(scope=scope))
            await self.app(scope, receive, add_headers)
        except Refused as refusal:
            await refuse(self.service, refusal)(scope, receive, add_headers)
        except asyncio.CancelledError:  # the end does not wait for it
            if status:
                raise
            await refuse(self.service, stopping())(scope, receive, add_headers)
        except Exception:
            log.exception("a request failed")
            self.service.metrics.count("errors_total")
            if status:
                raise
            said = "something went wrong here; the log of the server has it"
            await error(500, "server", said)(scope, receive, add_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.count("requests_total", route=route, status=status)


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


def openapi(service: Service) -> dict[str, Any]:
    """What `/openapi.json` says."""
    return make_app(service).openapi()
