"""Who may write a file: checked before any work, and locked while it is used."""

from __future__ import annotations

import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from adte.core.errors import InputError, LockedError
from adte.files.devices import StrPath, is_special, is_standard_output, standard_output
from adte.files.locks import try_lock, unlock
from adte.files.rows import head_of, is_facts, is_rows
from adte.files.whole import check_no_link, make_folder, reason, short, target_of

__all__ = ["Lock", "Target", "claim", "claim_folder", "kind_of", "own_folder"]


class Lock:
    """An exclusive lock of a file, for as long as the `with` block or the process lives.

    It is advisory: those who take it keep each other out, threads as well as processes. The lock is
    on the file `.NAME.lock`, beside the file that links lead to. It goes with the lock, and one
    that a killed process left behind stops nobody.

    Args:
        path: the file; it need not exist.
        timeout: seconds to wait for another process.
    """

    def __init__(self, path: StrPath, timeout: float = 5.0) -> None:
        self.path, self.timeout = os.fspath(path), timeout
        target = target_of(path)
        self._beside = target.with_name(f".{short(target.name)}.lock")
        self._file: BinaryIO | None = None

    def acquire(self) -> Lock:
        """Take the lock, or say in one sentence that another process has it."""
        if self._file is not None:
            raise InputError(f"this lock of {self.path!r} is taken already; release it first")
        until, pause = time.monotonic() + self.timeout, 0.01
        while (file := self._try()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise LockedError(
                    f"{self.path!r} is used by another process{self._who()}; wait until it is "
                    "done, or give another file"
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.1)
        self._file = file
        return self

    def _try(self) -> BinaryIO | None:
        file: BinaryIO | None = None
        try:
            check_no_link(self._beside.parent, self._beside.name)  # it is emptied
            file = open(self._beside, "a+b", 0, opener=_no_link)  # noqa: SIM115  # closed by release
            got = try_lock(file.fileno())
            if got is None:
                warnings.warn(
                    f"the file system of {self.path!r} has no locks; let no other process use it",
                    stacklevel=4,
                )
            if got is not False and self._is_there(file):
                with suppress(OSError):  # on a full disk it is a lock that does not say whose
                    file.truncate(0)
                    file.write(b"%d\n" % os.getpid())
                return file
        except OSError as error:
            if file is not None:
                file.close()
            if os.name == "nt" and isinstance(error, PermissionError) and self._beside.exists():
                return None  # the one who had it is about to remove it
            raise InputError(f"cannot lock {self.path!r}: {reason(error)}") from error
        file.close()
        return None

    def _is_there(self, file: BinaryIO) -> bool:
        """The lock file is the one in the folder, not one that its last holder has removed."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._beside.stat())
        except FileNotFoundError:
            return False

    def _who(self) -> str:
        with suppress(OSError, ValueError):
            return f" ({int(self._beside.read_bytes()[:20])})"
        return ""

    def release(self) -> None:
        """Let others have it."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            if os.name != "nt":  # Windows removes no open file
                with suppress(OSError):
                    self._beside.unlink()
            with suppress(OSError):
                unlock(file.fileno())
        if os.name == "nt":
            with suppress(OSError):
                self._beside.unlink()

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


# --------------------------------------------------------------------------- outputs and inputs


class Target(NamedTuple):
    """A file that a command is going to write, and the option that names it."""

    option: str
    path: StrPath | None  # None is passed over; "-" is standard output
    kind: Literal["rows", "facts", "state"] = "rows"


def claim(targets: Iterable[Target], inputs: Iterable[StrPath] = (), force: bool = False) -> None:
    """Refuse, before any work, outputs that cannot be written or would destroy something.

    Two outputs are two files, and none is an input. The folder of each takes new files. What is
    there already is of our making and of the same kind, or `force` says that it may go; but nothing
    of another's making that lies in an input folder goes.
    """
    read = {_identity("/dev/stdin" if os.fspath(p) == "-" else p): os.fspath(p) for p in inputs}
    folders = [p for p in read.values() if os.path.isdir(p)]
    taken: dict[object, str] = {}
    for option, path, kind in targets:
        if path is None:
            continue
        said = f"{option} {os.fspath(path)!r}"
        name = "/dev/stdout" if os.fspath(path) == "-" else os.fspath(path)
        streams = os.fspath(path) == "-" or is_special(name)
        if is_standard_output(name):
            standard_output()
        target = Path(name) if streams else target_of(name)
        who = _identity(name)
        if who in taken and not _is_sink(name):
            raise InputError(f"{said} and {taken[who]} are the same file; give two names")
        taken[who] = said
        if streams:
            continue
        if who in read:
            raise InputError(
                f"{said} is the input {read[who]!r}, and an input is never written over; give "
                "another name"
            )
        _check_ours(target, kind, said, folders, force)
        _check_writable(target, said)


def claim_folder(option: str, path: StrPath) -> Path:
    """The folder that an option names, made if it is not there; it takes new files."""
    said = f"{option} {os.fspath(path)!r}"
    if not os.fspath(path):
        raise InputError(f"{said} is empty; give the name of a folder")
    try:
        folder = make_folder(path)
        with tempfile.TemporaryFile(prefix=".adte-", dir=folder):
            pass
    except InputError:
        raise
    except ValueError as error:  # a zero byte
        raise InputError(f"cannot write to {said}: {error}; give the name of a folder") from error
    except OSError as error:
        raise InputError(f"cannot write to {said}: {reason(error)}") from error
    return folder


def own_folder(path: StrPath, mark: str, *names: str) -> Path:
    """A folder for files of ours, made if it is not there: it has `mark`, or `names` at most.

    One that holds something else, such as photographs, is refused; hidden files do not count, nor
    does what a new disk has.
    """
    folder, names = make_folder(path), (*names, "lost+found")
    for name in [] if (folder / mark).exists() else sorted(os.listdir(folder)):
        if not name.startswith(".") and not any(fnmatchcase(name, n) for n in names):
            raise InputError(
                f"the folder {os.fspath(path)!r} holds other files, such as {name!r}; give a new "
                "or an empty one"
            )
    return folder


def _identity(path: StrPath) -> object:
    """Equal for two names of one file, through links too; of a file that is not there, its path."""
    try:
        found = os.stat(path)
        return found.st_dev, found.st_ino
    except (OSError, ValueError):
        return os.path.realpath(os.fspath(path).replace("\0", ""))


def _is_sink(path: str) -> bool:
    """A device such as /dev/null, which swallows what many write."""
    with suppress(OSError):
        return stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, "/dev/stdout")
    return False


def _check_ours(target: Path, kind: str, said: str, folders: list[str], force: bool) -> None:
    there = kind_of(target)
    if there in (None, kind):
        return
    for folder in folders:
        if there == "other" and Path(os.path.realpath(folder)) in target.parents:
            raise InputError(
                f"{said} exists in the input folder {folder!r} and is not of our making; give "
                "another name"
            )
    if not force:
        wanted = {"state": "a state file of adte"}.get(kind, "an output of adte")
        if there in ("rows", "facts"):
            wanted = {"rows": "rows of adte", "facts": "facts of adte"}.get(kind, wanted)
        raise InputError(
            f"{said} exists and is not {wanted}; give another name, or --force to write over it"
        )


def _check_writable(target: Path, said: str) -> None:
    try:
        if target.exists():
            with target.open("r+b"):
                pass
        with tempfile.TemporaryFile(prefix=".adte-", dir=target.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {said}: {reason(error)}") from error


def kind_of(path: StrPath) -> Literal["rows", "facts", "state", "other"] | None:
    """What a file holds: rows of ours, facts, a state of a classifier, or something else.

    None if it is empty or not there.
    """
    try:
        with open(path, "rb") as f:
            head = head_of(f)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, ValueError):
        return "other"
    except OSError as error:
        raise InputError(
            f"cannot read {os.fspath(path)!r}: {error.strerror}; check its permissions, or give "
            "another name"
        ) from error
    if not head:
        return None
    if is_rows(head):
        return "rows"
    if is_facts(head):
        return "facts"
    from adte.files.states import is_state  # with torch, which no name of an output needs

    return "state" if is_state(path) else "other"
