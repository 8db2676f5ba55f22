"""The reports, tables and JSON that this user's adte wrote: they may be written over.

A note of each, its size and time, lies in the user's own folder, `adte/written` in XDG_STATE_HOME
or `~/.local/state`. A file that was changed since is not ours any more. (Of rows and states no note
is needed: a state file says whose they are, see `adte.files.journal`.)
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.whole import make_folder, write_whole

__all__ = ["is_written", "note_written", "user_folder"]


def user_folder() -> Path:
    """Where files lie that one user's adte keeps on one machine; it may not be there."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # others are to be passed over, says the standard
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "adte")


def note_written(path: StrPath) -> None:
    """Note that a file is ours as it is now; where no note can be kept, it is not."""
    with suppress(OSError, InputError):
        note = _note(path)
        make_folder(note.parent)
        write_whole(note, json.dumps(_facts(path)))


def is_written(path: StrPath) -> bool:
    """Whether a file is as we wrote it."""
    with suppress(OSError, ValueError):
        return bool(json.loads(_note(path).read_bytes()) == _facts(path))
    return False


def _note(path: StrPath) -> Path:
    place = os.fsencode(os.path.realpath(path))
    return user_folder() / "written" / blake2b(place, digest_size=16).hexdigest()


def _facts(path: StrPath) -> list[object]:
    stat = os.stat(path)
    return [os.path.realpath(path), stat.st_size, stat.st_mtime_ns]
