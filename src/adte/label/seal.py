"""What tells lines that this user's adte wrote from lines that came with a download: a seal.

It is a keyed digest. The key is `seal.key` in the user's own folder, and is made when it is first
needed. Without it, on another machine or where no file can be kept, no line has a seal.
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
from adte.files.written import user_folder

__all__ = ["is_sealed", "seal"]

SIZE = 32  # bytes of the key


def seal(texts: Sequence[str]) -> str:
    """The seal of a line; empty where there is no place for a key."""
    path = user_folder() / "seal.key"
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            write_new(path, _write_key)
    return _seal(texts)


def is_sealed(texts: Sequence[str], seal: str) -> bool:
    """Whether the seal of a line was made with this user's key."""
    ours = _seal(texts)
    return bool(ours) and secrets.compare_digest(ours.encode(), seal.encode())


def _write_key(name: str) -> None:
    os.chmod(name, 0o600)
    Path(name).write_bytes(secrets.token_bytes(SIZE))


def _seal(texts: Sequence[str]) -> str:
    with suppress(OSError):
        key = (user_folder() / "seal.key").read_bytes()
        if len(key) == SIZE:
            return blake2b(json.dumps([*texts]).encode(), key=key, digest_size=16).hexdigest()
    return ""
