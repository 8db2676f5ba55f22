"""A lock of a file, kept by `filelock` in a file beside it."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress

from filelock import FileLock, Timeout

from adte.core.errors import InputError, LockedError
from adte.files.devices import StrPath
from adte.files.whole import check_no_link, reason, short, target_of

__all__ = ["Lock"]


class Lock:
    """An exclusive lock of a file, for as long as the `with` block or the process lives.

    It is advisory: those who take it keep each other out, threads as well as processes. The lock
    file is `.NAME.lock`, beside the file that links lead to, and goes with the lock. One that a
    killed process left behind stops nobody.

    Args:
        path: the file; it need not exist.
        timeout: seconds to wait for another process.
    """

    def __init__(self, path: StrPath, timeout: float = 5.0) -> None:
        self.path = os.fspath(path)
        target = target_of(path)
        self._file = target.with_name(f".{short(target.name)}.lock")
        self._lock = FileLock(self._file, timeout, thread_local=False)

    def acquire(self) -> Lock:
        """Take the lock, or name the process that has it."""
        if self._lock.is_locked:
            raise InputError(f"this lock of {self.path!r} is taken already; release it first")
        check_no_link(self._file.parent, self._file.name)  # it is written to
        try:
            self._lock.acquire()
        except Timeout:
            raise LockedError(
                f"{self.path!r} is used by another process{self._holder()}; wait until it is "
                "done, or give another file"
            ) from None
        except NotImplementedError:
            warnings.warn(
                f"the file system of {self.path!r} has no locks; let no other process use it",
                stacklevel=3,
            )
        except OSError as error:
            raise InputError(f"cannot lock {self.path!r}: {reason(error)}") from error
        with suppress(OSError):  # on a full disk the lock names no process
            self._file.write_text(f"{os.getpid()}\n")
        return self

    def _holder(self) -> str:
        with suppress(OSError, ValueError):
            return f" ({int(self._file.read_bytes()[:20])})"
        return ""

    def release(self) -> None:
        """Let others have it."""
        if self._lock.is_locked:
            with suppress(OSError):  # a waiter sees that it is gone; Windows removes no open file
                self._file.unlink()
            self._lock.release()

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
