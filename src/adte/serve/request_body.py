"""The body of a request, read within limits and never to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from adte.serve.limits import Entry, Gate, Limits, Refused, clipped

__all__ = ["kind_of", "read_body", "read_images", "size_of"]

T = TypeVar("T")


class _InMemory(MultiPartParser):
    spool_max_size = 1 << 62  # a file on the disk is made beyond it: never
    whole = False  # whether the form's last boundary has come

    def on_end(self) -> None:
        self.whole = True


def kind_of(request: Request) -> str:
    """The Content-Type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def size_of(request: Request, limits: Limits) -> int:
    """The bytes that a body may have: what it declares, or else as many as are allowed."""
    declared = request.headers.get("content-length", "")
    if not declared.isascii() or not declared.isdigit():
        return limits.max_bytes
    if len(declared) > 18 or int(declared) > limits.max_bytes:
        raise _too_large(limits)
    return int(declared)


def _too_large(limits: Limits) -> Refused:
    return Refused(413, "bytes", f"the body has more than the {limits.max_bytes:,} bytes that are "
                   "allowed; send less, or start the server with more --max-bytes")  # fmt: skip


async def _pieces(request: Request, entry: Entry) -> AsyncGenerator[bytes, None]:
    async for piece in request.stream():
        entry.take(0, len(piece))
        if entry.bytes > entry.gate.limits.max_bytes:
            raise _too_large(entry.gate.limits)
        yield piece


async def _in_time(work: Awaitable[T], gate: Gate) -> T:
    seconds = gate.limits.body_seconds
    try:
        with gate.read():
            return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise Refused(408, "slow", f"the body took more than {seconds:g} s; "
                      "send it faster") from None  # fmt: skip
    except ClientDisconnect:
        raise Refused(400, "request", "the connection ended within the body") from None


async def read_body(request: Request, entry: Entry) -> bytes:
    """The whole body."""

    async def whole() -> bytes:
        return b"".join([piece async for piece in _pieces(request, entry)])

    return await _in_time(whole(), entry.gate)


async def read_images(request: Request, entry: Entry) -> list[bytes]:
    """The images of a request: its body, or the files of a form."""
    kind = kind_of(request)
    if kind == "multipart/form-data":
        return await _in_time(_form(request, entry), entry.gate)
    if kind.startswith("image/") or kind in ("application/octet-stream", ""):
        return [await read_body(request, entry)]
    raise Refused(415, "format", "the Content-Type is no image's; send image/…, "
                  "application/octet-stream or multipart/form-data")  # fmt: skip


async def _form(request: Request, entry: Entry) -> list[bytes]:
    limits = entry.gate.limits

    async def pieces() -> AsyncGenerator[bytes, None]:
        async for piece in _pieces(request, entry):
            yield piece
        if not parser.whole:  # its last file would be left out
            raise MultiPartException("the last boundary is missing")

    parser = _InMemory(request.headers, pieces(), max_files=limits.max_images + 1, max_fields=8)
    malformed = Refused(400, "request", "the form is malformed or cut off; send "
                        "multipart/form-data with files named image")  # fmt: skip
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise (_too_many(limits) if "many files" in error.message else malformed) from None
    except (KeyError, ValueError, AttributeError, UnicodeError):  # a boundary that is none
        raise malformed from None
    images = []
    try:
        for name, value in form.multi_items():
            if name != "image":
                raise Refused(422, "request", f"the form's field {clipped(name)!r} is no file "
                              "named image; send only such files")  # fmt: skip
            if not isinstance(value, UploadFile):
                raise Refused(422, "request", "the form's field 'image' has no filename; send it "
                              "as a file")  # fmt: skip
            images.append(await value.read())
    finally:
        await form.close()
    if not images:
        raise Refused(422, "request", "the form has no file named image; send at least one")
    if len(images) > limits.max_images:
        raise _too_many(limits)
    return images


def _too_many(limits: Limits) -> Refused:
    return Refused(413, "images", f"more than {limits.max_images} images came in one request; "
                   "send fewer")  # fmt: skip
