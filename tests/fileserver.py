"""A server of files on this machine, for tests of downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 9000  # more than two blocks


class Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    ranges: list[str | None]  # that were asked for
    cut: int | None = None  # drop the connection after so many bytes
    resumes = True
    etag = commit = ""  # what the hub says of a file

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        if self.path.lstrip("/") not in self.server.files:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("ETag", f'"{self.server.etag}"')
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", str(len(self.server.files[self.path.lstrip("/")])))
        self.end_headers()

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.lstrip("/"))
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if content is None:
            return self.send_error(404)
        start = int(asked[6:-1]) if asked and self.server.resumes else 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body if self.server.cut is None else body[: self.server.cut])

    def log_message(self, *args: object) -> None: ...


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """Within the block these files are there; they may be changed."""
    with Server(("127.0.0.1", 0), Handler) as server:
        server.files, server.ranges = files, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
