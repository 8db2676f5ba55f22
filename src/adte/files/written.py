"""The reports, tables and JSON that this user's adte wrote: they may be written over.

A digest of each is kept in the user's own folder, `adte/written` in XDG_STATE_HOME or
`~/.local/state`. So a file that was moved or copied is ours still, and one that was changed is not.
(Of rows and states nothing is kept: a state file says whose they are, see `adte.files.journal`.)
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

__all__ = ["is_written", "note_written", "user_folder"]


def user_folder() -> Path:
    """Where files lie that one user's adte keeps on one machine; it may not be there."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # others are to be passed over, says the standard
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "adte")


def note_written(data: bytes) -> None:
    """Note what was written; where no note can be kept, it is not ours."""
    with suppress(OSError):
        user_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(user_folder() / "written", "ab", buffering=0) as notes:
            notes.write(_digest(data) + b"\n")  # one step, whoever else writes


def is_written(path: str | os.PathLike[str]) -> bool:
    """Whether a file is as we wrote it."""
    with suppress(OSError):
        notes = (user_folder() / "written").read_bytes()
        return _digest(Path(path).read_bytes()) in notes.split()
    return False


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).hexdigest().encode()
