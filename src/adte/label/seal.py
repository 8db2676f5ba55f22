"""What tells lines that this user's adte wrote from lines that came with a download: a seal.

It is a keyed digest. The key lies in the user's own folder, `adte/seal.key` in XDG_STATE_HOME or
`~/.local/state`, and is made when it is first needed. Without it, on another machine or where no
file can be kept, no line has a seal.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from adte.files.whole import write_new

__all__ = ["is_sealed", "sealed"]

SIZE = 32  # bytes of the key


def sealed(texts: Sequence[str]) -> str:
    """The seal of a line; empty where there is no place for a key."""
    path = _place()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            if not path.exists():
                write_new(path, _write_key)
    key = _key()
    return _seal(texts, key) if key else ""


def is_sealed(texts: Sequence[str], seal: str) -> bool:
    """Whether the seal of a line was made with this user's key."""
    key = _key()
    return bool(key) and secrets.compare_digest(_seal(texts, key).encode(), seal.encode())


def _place() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # others are to be passed over, says the standard
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "adte", "seal.key")


def _write_key(name: str) -> None:
    os.chmod(name, 0o600)
    Path(name).write_bytes(secrets.token_bytes(SIZE))


def _key() -> bytes:
    with suppress(OSError):
        key = _place().read_bytes()
        return key if len(key) == SIZE else b""
    return b""


def _seal(texts: Sequence[str], key: bytes) -> str:
    return blake2b(json.dumps([*texts]).encode(), key=key, digest_size=16).hexdigest()
