"""Ctrl-C while the command line is still being imported, which takes seconds.

The package imports this before anything else. Nothing is written by then, so the process ends at
once with a word, not with a traceback; `adte.cli` takes over from there. For who imports the
package, nothing changes.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["done"]


def _is_command() -> bool:
    """Whether this process is `adte` or `python -m adte`, and not a child of it."""
    words = sys.orig_argv
    if sys.argv[:1] == ["-m"]:
        module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
        return module in (["adte"], ["adte.cli"])
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return os.path.splitext(name)[0] == "adte" and sys.argv[0] in words


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def done() -> None:
    """An interrupt is an exception again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
