"""The log: text for people, or one JSON object a line for a collector."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone

from adte.core.errors import AdteError

__all__ = ["FORMATS", "log", "logged", "request_id", "request_name", "requests"]

FORMATS = ("text", "json")
SAFE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")  # of a request's id that a stranger sent

log = logging.getLogger("adte.serve")
requests = logging.getLogger("adte.serve.requests")  # a line for each; JSON alone has them
# Of the request that is being answered.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def stamp(moment: datetime) -> str:
    """A moment of UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def request_name(sent: str | None) -> str:
    """The id that a request came with, if it is fit for a log, or a new one."""
    return sent if sent and SAFE.fullmatch(sent) else secrets.token_hex(8)


class JsonLines(logging.Formatter):
    """A record as one line of JSON; `facts` of a record are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": stamp(datetime.fromtimestamp(record.created, timezone.utc)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if (id := request_id.get()) is not None:
            line["request_id"] = id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def logged(form: str) -> Iterator[None]:
    """Within the block standard error has the log in this form, and as JSON nothing else."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("adte").setLevel(logging.INFO)
    requests.setLevel(logging.INFO if form == "json" else logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # senders get them, not we
    try:
        yield
    except Exception as error:
        if form != "json":
            raise
        if isinstance(error, AdteError):
            log.error("%s", error)
            sys.exit(2)
        log.exception("the service failed")
        sys.exit(1)
