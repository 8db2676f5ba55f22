"""Special files: pipes, devices and standard output, which are written through, never replaced."""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import BinaryIO, TextIO

from adte.core.errors import InputError

__all__ = ["StrPath", "is_special", "is_standard_output", "open_through", "standard_output"]

StrPath = str | os.PathLike[str]


def is_special(path: StrPath) -> bool:
    """Whether a path is written through, never replaced: a FIFO, a device, /dev/stdout."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        kind = "a disk" if stat.S_ISBLK(mode) else "a socket"
        raise InputError(f"cannot write {os.fspath(path)!r}: it is {kind}; give a file name")
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _descriptor(path: StrPath) -> int | None:
    """The number of the open file that /dev/stdout, /dev/fd/3 and links to them stand for."""
    name = os.path.abspath(os.fspath(path))
    for _ in range(40):
        if match := re.fullmatch(rf"/(?:dev|proc/self|proc/{os.getpid()})/fd/(\d{{1,9}})", name):
            return int(match[1])
        try:
            name = os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(name)))
        except (OSError, ValueError):
            return None
    return None


def is_standard_output(path: StrPath) -> bool:
    """Whether a path is standard output, by any of its names."""
    return os.fspath(path) == "-" or _descriptor(path) == 1


def standard_output() -> TextIO:
    """Standard output, unless it was closed before the start (`>&-`)."""
    if sys.stdout is None:
        raise InputError("standard output is closed; leave it open, or give a file name")
    return sys.stdout


def open_through(path: StrPath) -> BinaryIO:
    """A special file, to write to without a buffer."""
    number = _descriptor(path)
    if number is None:
        handle = os.open(path, os.O_WRONLY)  # neither made nor cut
    else:
        if number == 1 and sys.stdout is not None:
            sys.stdout.flush()
        handle = os.dup(number)  # opened again, a redirected file would start at its beginning
    return os.fdopen(handle, "wb", buffering=0)
