"""Who may write a file: checked before any work."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from adte.core.errors import InputError
from adte.files.devices import StrPath, is_special, is_standard_output, standard_output
from adte.files.whole import check_readable, make_folder, reason, target_of
from adte.files.written import is_written

__all__ = ["Target", "claim", "claim_folder", "is_others", "own_folder"]

Kind = Literal["output", "state"]


class Target(NamedTuple):
    """A file that a command is going to write, and the option that names it."""

    option: str
    path: StrPath | None  # None is passed over; "-" is standard output
    kind: Kind = "output"
    ours: bool = False  # as a state says that knows its rows
    wanted: str = "an output of adte"


def claim(targets: Iterable[Target], inputs: Iterable[StrPath] = (), force: bool = False) -> None:
    """Refuse, before any work, outputs that cannot be written or would destroy something.

    Two outputs are two files, and none is an input. The folder of each takes new files. A file that
    is there already is ours (`is_others`), or `force` says that it may go; but nothing of another's
    making that lies in an input folder goes.
    """
    read = {_identity("/dev/stdin" if os.fspath(p) == "-" else p): os.fspath(p) for p in inputs}
    folders = [p for p in read.values() if os.path.isdir(p)]
    taken: dict[object, str] = {}
    for option, path, kind, ours, wanted in targets:
        if path is None:
            continue
        called = f"{option} {os.fspath(path)!r}"
        name = "/dev/stdout" if os.fspath(path) == "-" else os.fspath(path)
        streams = os.fspath(path) == "-" or is_special(name)
        if is_standard_output(name):
            standard_output()
        target = Path(name) if streams else target_of(name)
        who = _identity(name)
        if who in taken and not _is_sink(name):
            raise InputError(f"{called} and {taken[who]} are the same file; give two names")
        taken[who] = called
        if streams:
            continue
        if who in read:
            raise InputError(
                f"{called} is the input {read[who]!r}, and an input is never written over; give "
                "another name"
            )
        if not ours and is_others(target, kind):
            wanted = "a state file of adte" if kind == "state" else wanted
            _refuse(target, wanted, called, folders, force)
        _check_writable(target, called)


def claim_folder(option: str, path: StrPath) -> Path:
    """The folder that an option names, made if it is not there; it takes new files."""
    called = f"{option} {os.fspath(path)!r}"
    if not os.fspath(path):
        raise InputError(f"{called} is empty; give the name of a folder")
    try:
        folder = make_folder(path)
    except ValueError as error:  # a zero byte
        raise InputError(f"cannot write to {called}: {error}; give the name of a folder") from error
    try:
        with tempfile.TemporaryFile(prefix=".adte-", dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {called}: {reason(error)}") from error
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


def is_others(path: StrPath, kind: Kind = "output") -> bool:
    """Whether a file is there, not empty, and neither an output nor a state of ours."""
    try:
        if not os.stat(path).st_size:
            return False
    except (OSError, ValueError):  # whoever writes it says why it cannot
        return False
    if os.path.isdir(path):
        return True
    check_readable(path)
    if kind == "output":
        return not is_written(path)
    from adte.files.states import is_state  # with torch, which no name of an output needs

    return not is_state(path)


def _identity(path: StrPath) -> object:
    """Equal for two names of one file, through links too; of a file that is not there, its path."""
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino
    except (OSError, ValueError):
        return os.path.realpath(os.fspath(path).replace("\0", ""))


def _is_sink(path: str) -> bool:
    """A device such as /dev/null, which swallows what many write."""
    with suppress(OSError):
        return stat.S_ISCHR(os.stat(path).st_mode) and not os.path.samefile(path, "/dev/stdout")
    return False


def _refuse(target: Path, wanted: str, called: str, folders: list[str], force: bool) -> None:
    for folder in folders:
        if Path(os.path.realpath(folder)) in target.parents:
            raise InputError(
                f"{called} exists in the input folder {folder!r} and is not of our making; give "
                "another name"
            )
    if not force:
        raise InputError(
            f"{called} exists and is not {wanted}; give another name, or --force to write over it"
        )


def _check_writable(target: Path, called: str) -> None:
    try:
        if target.exists():
            with target.open("r+b"):
                pass
        with tempfile.TemporaryFile(prefix=".adte-", dir=target.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {called}: {reason(error)}") from error
