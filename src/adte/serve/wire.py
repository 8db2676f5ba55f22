"""Requests to a service, sent again where that is safe."""

from __future__ import annotations

import os
import secrets
import ssl
import time
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from adte.core.errors import AdteError, InputError, MissingExtra

try:
    import httpx
except ImportError as error:
    raise MissingExtra(error.name or "httpx", "serve", "a client of the service") from error

__all__ = ["ServiceError", "Wire"]

OPENING = 15.0  # seconds at most that a refused connection is taken for a service that starts


class ServiceError(AdteError):
    """The service refused a request, or did not answer.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        code: what is wrong, in one word for programs.
        key: idempotency key that was sent, if any. A request that is sent again with the same key
            counts once.
        request_id: id of the request in the log of the service.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        key: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.key, self.request_id = status, code, key, request_id

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:  # it may cross processes
        return type(self), (self.status, self.code, str(self), self.key, self.request_id)


class Wire:
    """Connections to one service; see `Client`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8017",
        token: str | None = None,
        *,
        retries: int = 5,
        timeout: float | None = 60.0,
    ) -> None:
        try:
            parts = httpx.URL(url)
            port = 80 if parts.port is None else parts.port
            good = parts.scheme in ("http", "https") and parts.host and 0 < port < 1 << 16
        except httpx.InvalidURL:
            good = False
        if not good:
            raise InputError(f"{url!r} is no address of a service; write it as http://host:8017")
        if retries < 0:
            raise InputError(f"retries={retries} is negative; give 0 or more")
        if timeout is not None and timeout <= 0:
            raise InputError(f"timeout={timeout:g} leaves no time; give more than 0 seconds")
        self._url, self.token, self.retries, self.timeout = url, token, retries, timeout
        self._http, self._process = _opened(), os.getpid()

    @property
    def url(self) -> str:
        """Address of the service; it cannot be changed."""
        return self._url

    def __reduce__(self) -> tuple[Any, ...]:  # without the connections
        make = partial(type(self), retries=self.retries, timeout=self.timeout)
        return make, (self.url, self.token)

    def call(
        self,
        verb: str,
        path: str,
        body: bytes | None = None,
        kind: str = "application/octet-stream",
        *,
        key: str | None = None,
        token: str | None = None,
        timeout: float | None = None,
        params: Any = None,
        files: Any = None,
    ) -> Any:
        """Send a request of any kind, again if needed, and return JSON, bytes or None.

        Args:
            verb: HTTP method, such as "GET".
            path: path on the service, such as "/v1/info".
            body: body of the request.
            kind: content type of the body.
            key: idempotency key.
            token: token; by default that of the client.
            timeout: seconds to wait; by default those of the client.
            params, files: query and form of the request, as in httpx.

        Raises:
            ServiceError: if the service refuses the request, or does not answer.
        """
        id = secrets.token_hex(8)  # one for all tries
        headers = {"Accept": "application/json", "X-Request-ID": id}
        if body is not None:
            headers["Content-Type"] = kind
        if key is not None:
            headers["Idempotency-Key"] = key
        if token or self.token:
            headers["Authorization"] = f"Bearer {token or self.token}"
        seconds = self.timeout if timeout is None else timeout
        patience = float("inf") if seconds is None else seconds
        retried, start = 0, time.monotonic()
        for turn in count():
            pause, waited = min(2.0, 0.1 * 2**turn), time.monotonic() - start
            more = retried < self.retries
            try:
                answer = self._send(verb, path, headers=headers, content=body, params=params,
                                    files=files, timeout=seconds)  # fmt: skip
            except (httpx.LocalProtocolError, ValueError) as error:
                raise InputError(f"the request cannot be sent ({error}); check the token and the "
                                 "key") from error  # fmt: skip
            except httpx.TransportError as error:
                starting = isinstance(error, httpx.ConnectError)  # so nothing was sent
                starting = starting and self.retries > 0 and waited < min(OPENING, patience)
                if not (more or starting):
                    raise self._silent(error, seconds, key, id) from error
            else:
                id = answer.headers.get("x-request-id", id)  # a proxy may give it another
                status, problem = answer.status_code, _problem(answer)
                starting = problem.get("code") == "loading" and self.retries > 0
                starting = starting and waited < patience
                # A proxy got no answer: ours says nothing above 503, and of a 500 what it is.
                lost = status >= 500 and not (status == 500 and problem)
                if not (lost or status == 429) or not (more or starting):
                    return self._result(answer, key, id)
                after = answer.headers.get("retry-after", "")
                pause = min(30, int(after)) if after.isdecimal() else 1
            retried += not starting
            time.sleep(pause)

    def _send(self, verb: str, path: str, **request: Any) -> httpx.Response:
        """Send a request once, over the connections of this process."""
        if self._process != os.getpid():  # a fork: the connections are its parent's
            self._http, self._process = _opened(), os.getpid()
        return self._http.request(verb, self.url.rstrip("/") + path, **request)

    def _silent(
        self, error: Exception, seconds: float | None, key: str | None, id: str
    ) -> ServiceError:
        """The error where no answer came."""
        if not isinstance(error, httpx.TimeoutException):
            why = f"({str(error) or type(error).__name__}); check that it is running"
        elif key is None:
            why = f"within {seconds:g} s; try again, or give the client a longer timeout"
        else:
            why = f"within {seconds:g} s, and it may have been done"
        return _refused(0, "connection", f"no answer from {self.url} {why}", key, id)

    def _result(self, answer: httpx.Response, key: str | None, id: str) -> Any:
        """The content of an answer, or its refusal."""
        status, kind = answer.status_code, answer.headers.get("content-type", "")
        if status >= 400:
            problem = _problem(answer)  # a proxy has words of its own
            why = problem.get("message", f"the service answered {status}; see its log")
            raise _refused(status, problem.get("code", "server"), why, key, id)
        mend = "give the client the address that the service itself has"
        if status >= 300:  # what is sent elsewhere may lose its body and its token
            where = answer.headers.get("location", "another address")
            raise _refused(status, "address", f"{self.url} leads to {where}; {mend}", key, id)
        if kind.startswith("text/html"):
            raise _refused(status, "address", f"a web page came in the place of an answer; {mend}",
                           key, id)  # fmt: skip
        if kind.startswith("application/json"):
            try:
                return answer.json()
            except ValueError:
                raise _refused(status, "server", f"the service answered {status}, but no JSON "
                               "that can be read; see its log", key, id) from None  # fmt: skip
        return answer.content or None

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        if self._process == os.getpid():
            self._http.close()
        self._http = _opened()


def _opened() -> httpx.Client:
    """Connections that trust the certificates of the system, and follow no proxy settings."""
    return httpx.Client(
        verify=ssl.create_default_context(),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    )


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """The error that the service itself describes."""
    with suppress(ValueError, LookupError, TypeError):
        problem = answer.json()["error"]
        if answer.status_code >= 400 and isinstance(problem, dict):
            return problem
    return {}


def _refused(status: int, code: str, why: str, key: str | None, id: str) -> ServiceError:
    """An error that names the request, and the key where what was asked may have been done."""
    if key is not None and (status == 0 or status >= 500):
        why = f"{why}; send it again with key={key!r}, so that it counts once"
    return ServiceError(status, code, f"{why} (request {id})", key, id)
