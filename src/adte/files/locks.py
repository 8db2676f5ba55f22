"""Locks of open files, which end with the process that holds them."""

from __future__ import annotations

import os
import sys

__all__ = ["try_lock", "unlock"]

if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool | None:
        """Take the lock of an open file; False if another holds it, None if there are no locks."""
        try:
            os.lseek(handle, 1 << 30, os.SEEK_SET)  # a locked byte cannot be read by others
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(handle: int) -> None:
        """Give the lock back."""
        os.lseek(handle, 1 << 30, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def try_lock(handle: int) -> bool | None:
        """Take the lock of an open file; False if another holds it, None if there are no locks."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # some network file systems
            return None
        return True

    def unlock(handle: int) -> None:
        """Give the lock back, also where a forked child still has the file open."""
        fcntl.flock(handle, fcntl.LOCK_UN)
