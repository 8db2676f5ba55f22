"""Who may do what: tokens, hosts and origins."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from hashlib import sha256

from starlette.datastructures import Headers

from adte.core.errors import InputError
from adte.serve.limits import Refused
from adte.serve.streams import Stream

__all__ = ["Access", "is_loopback", "new_token"]

LOCAL = ("localhost", "127.0.0.1", "[::1]")
SHORTEST = 16  # letters of the administrator's token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> tuple[str, bytes]:
    """A token to be shown once, and what is kept of it."""
    token = secrets.token_urlsafe(32)
    return token, digest(token)


def digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


class Access:
    """Decides on requests.

    Args:
        admin: the administrator's token.
        required: whether tokens are asked for. Without them only requests to this machine by its
            own names are taken, and none from pages of other sites.
        hosts: further names of this machine.
    """

    def __init__(self, admin: str | None, required: bool, hosts: tuple[str, ...] = ()) -> None:
        if required and not admin:
            raise InputError(
                "tokens are required here, but there is no administrator's; set ADTE_ADMIN_TOKEN "
                "or give --token-file FILE"
            )
        if admin is not None and len(admin) < SHORTEST:
            raise InputError(
                f"the administrator's token has {len(admin)} letters; give it at least {SHORTEST}"
            )
        if admin is not None and not (admin.isascii() and admin.isprintable()):
            raise InputError(
                "the administrator's token has letters that a header cannot hold; use one line of "
                "plain letters and digits"
            )
        self.required = required
        self._admin = None if admin is None else digest(admin)
        self._hosts = {*LOCAL, *(h.lower() for h in hosts)}

    def check_origin(self, headers: Headers) -> None:
        """Without tokens, a browser must not be led here by somebody else's page."""
        if self.required:
            return
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if not name:  # HTTP/1.0, as some monitors have it
            raise Refused(400, "request", "there is no Host header; send one")
        if name not in self._hosts:
            raise Refused(400, "request", "the Host header names another machine; use the address "
                          "that the server listens on, or start it with --allow-host")  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise Refused(403, "origin", "pages of other sites may not use this service")
        if headers.get("sec-fetch-site") == "cross-site":
            raise Refused(403, "origin", "pages of other sites may not use this service")

    def check_admin(self, headers: Headers, streams: Mapping[str, Stream]) -> None:
        """Refuse all but the administrator."""
        if not self.required or self._is_admin(token := _bearer(headers)):
            return
        if _is_known(token, streams):
            raise Refused(403, "token", "this is for the administrator's token alone")
        raise _unknown()

    def stream(self, headers: Headers, streams: Mapping[str, Stream], id: str) -> Stream:
        """The stream, for those who may see it; others learn nothing of it."""
        found = streams.get(id)
        if self.required:
            token = _bearer(headers)
            if not self._is_admin(token):
                if not _is_known(token, streams):
                    raise _unknown()
                if found is None or not _same(found.token, token):
                    found = None
        if found is None:
            raise Refused(404, "stream", "there is no such stream, or not for this token; "
                          "check the id")  # fmt: skip
        return found

    def _is_admin(self, token: bytes) -> bool:
        return _same(self._admin, token)


def _same(known: bytes | None, token: bytes) -> bool:
    return known is not None and hmac.compare_digest(known, token)


def _is_known(token: bytes, streams: Mapping[str, Stream]) -> bool:
    """Whether it is the token of any stream."""
    return any(_same(s.token, token) for s in list(streams.values()))


def _bearer(headers: Headers) -> bytes:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Refused(401, "token", "a token is needed; send Authorization: Bearer TOKEN")
    return digest(token.strip())


def _unknown() -> Refused:
    return Refused(401, "token", "this token is not known, it may have been replaced; send the "
                   "one that is valid now")  # fmt: skip
