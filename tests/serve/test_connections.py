"""Connections that send half a request, or too many of them, keep nobody else out."""

from __future__ import annotations

import http.client
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from adte.serve import connections
from serving import free_port, wait_ready

HALF = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@contextmanager
def files(count: int) -> Iterator[None]:
    """Within the block this process may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and hard < count:
        pytest.skip(f"needs {count} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def port(forge, tmp_path) -> Iterator[int]:
    port = free_port()
    pid = forge.start(tmp_path / "s", port)
    wait_ready(port)
    yield port
    forge.end(pid)


def opened(stack: ExitStack, port: int, count: int, data: bytes) -> list[socket.socket]:
    """So many connections of 127.0.0.1, with the same beginning of a request in each."""
    lines = []
    for _ in range(count):
        line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        line.sendall(data)
        lines.append(line)
    return lines


def asked(port: int, source: str) -> tuple[int, float]:
    """The status of /health for a client of an address, and the seconds that it took."""
    start = time.monotonic()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(source, 0))
    line.request("GET", "/health")
    answer = line.getresponse()
    answer.read()
    line.close()
    return answer.status, time.monotonic() - start


def is_open(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return line.recv(1 << 16) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_1100_half_sent_requests_keep_nobody_out(port, source):
    with files(1400), ExitStack() as stack:
        lines = opened(stack, port, 1100, HALF)
        for _ in range(5):
            status, seconds = asked(port, source)
            assert status == 200
            assert seconds < 1
        assert sum(map(is_open, lines)) <= connections.CONNECTIONS // 2  # of one address


def test_a_request_under_way_is_not_closed_for_those_that_wait(port):
    """A hundred whose bodies come slowly are answered after a thousand others came."""
    body = b"x" * 20
    head = (b"POST /v1/streams HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 20\r\n\r\n")  # fmt: skip
    with files(1400), ExitStack() as stack:
        slow = opened(stack, port, 100, head + body[:10])
        assert asked(port, "127.0.0.2")[0] == 200  # they have been read
        opened(stack, port, 1000, HALF)
        assert asked(port, "127.0.0.2")[0] == 200
        for line in slow:
            line.sendall(body[10:])
            assert line.recv(20).startswith(b"HTTP/1.1 422")


def test_more_whole_requests_of_one_address_than_half_are_refused(port):
    head = b"POST /v1/streams HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    most = connections.CONNECTIONS // 2
    with files(1400), ExitStack() as stack:
        opened(stack, port, most, head + b"Content-Length: 20\r\n\r\n")
        assert asked(port, "127.0.0.2")[0] == 200
        assert asked(port, "127.0.0.1")[0] == 503
        assert asked(port, "127.0.0.2")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("first", [b"", HALF, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nG"])
def test_headers_that_do_not_come_end_the_connection(port, first):
    """Not even a letter a second keeps it open."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(first)
        start = time.monotonic()
        while is_open(line):
            assert time.monotonic() - start < connections.HEADERS + 8
            time.sleep(1)
            if first:
                with suppress(OSError):
                    line.sendall(b"x")


def test_few_files_leave_few_connections(monkeypatch):
    for soft, hard, left in ((300, 300, 16), (700, 700, 188), (100_000, 100_000, 1024)):
        allowed = [(soft, hard)]
        monkeypatch.setattr(resource, "getrlimit", lambda _, a=allowed: a[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _, new, a=allowed: a.append(new))
        assert connections.room() == left
    allowed.append((1024, 4096))
    assert connections.room() == 1024
    assert allowed[-1] == (1536, 4096)
