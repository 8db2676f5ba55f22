"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from glob import escape
from hashlib import blake2b
from pathlib import Path

from adte.core.errors import InputError
from adte.files.devices import StrPath, is_special, open_through
from adte.files.written import note_written

LEFT = 3600.0  # seconds after which a temporary file that nobody has touched is a dead writer's

__all__ = [
    "check_no_link", "check_readable", "make_folder", "reason", "short", "sweep", "target_of",
    "why_missing", "write_new", "write_whole",
]  # fmt: skip


def write_whole(
    path: StrPath, content: str | Callable[[str], object], size: int | None = None
) -> Path:
    """Fill a temporary file, then put it in place; on any error the old file stays.

    The content is a text, which may be written over from then on (`is_written`), or what writes it
    to the file whose name it gets. A link stays a link: its target is replaced. A FIFO, a device or
    /dev/stdout is written to. `size`, the bytes to come where known, is named if the disk is full.
    What a killed writer of the same file left behind goes away, an hour later.
    """
    name = os.fspath(path)
    if isinstance(content, str):  # a file name in it need not be UTF-8: caf\udce9
        data = content.encode("utf-8", "backslashreplace")
        write: Callable[[str], object] = partial(_put, data)
    else:
        write = content
    try:
        if is_special(name):
            _write_through(name, write)
            return Path(name)
        target = target_of(name)
        if isinstance(content, str):  # first: what is ours is known for ours, whenever it is killed
            note_written(data)
        _replace(target, write)
    except OSError as error:
        raise InputError(f"cannot write {name!r}: {reason(error, size)}") from error
    return Path(name)


def _put(data: bytes, name: str) -> None:
    Path(name).write_bytes(data)


def write_new(target: Path, write: Callable[[str], object]) -> None:
    """The same for a file that is not there: FileExistsError, and nothing else, where one is."""
    _replace(target, write, _name)


def _name(temporary: Path, target: Path) -> None:
    """Rename where nothing is written over."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links: take the name first
        target.open("xb").close()
        os.replace(temporary, target)


def _write_through(path: str, write: Callable[[str], object]) -> None:
    handle, temporary = tempfile.mkstemp(".part", "adte-")
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as whole, open_through(path) as out:
            shutil.copyfileobj(whole, out)
    finally:
        os.unlink(temporary)


def target_of(path: StrPath) -> Path:
    """The file that a path stands for, links followed; folders and places not there are refused."""
    name = os.fspath(path)
    if not name:
        raise InputError("an output has an empty name; give a file name")
    try:
        target = Path(os.path.realpath(name))
    except ValueError as error:  # a zero byte
        raise InputError(f"cannot write {name!r}: {error}; give a file name") from error
    try:
        circle = target.is_symlink()
    except OSError as error:  # a name that is too long
        raise InputError(f"cannot write {name!r}: {error.strerror}; give another name") from error
    if circle:
        raise InputError(f"cannot write {name!r}: its links lead in a circle; give another name")
    if target.is_dir():
        raise InputError(f"cannot write {name!r}: it is a folder; give a file name")
    if not target.parent.is_dir():
        folder = str(target.parent if Path(name).is_symlink() else Path(name).parent)
        raise InputError(
            f"cannot write {name!r}: the folder {folder!r} does not exist; make it first"
        )
    return target


def _replace(
    target: Path,
    write: Callable[[str], object],
    put: Callable[[Path, Path], object] = os.replace,
) -> None:
    sweep(target)
    temporary = target.with_name(f".{short(target.name)}.{secrets.token_hex(4)}.part")
    try:
        temporary.open("xb").close()  # with the permissions that any new file gets
        write(str(temporary))
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        with suppress(FileNotFoundError):  # an old file keeps its own permissions
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        put(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()  # gone if all went well


def short(name: str) -> str:
    """A name that leaves room for more letters: 255 bytes are the limit of most file systems."""
    long = len(os.fsencode(name)) > 200
    return blake2b(os.fsencode(name), digest_size=16).hexdigest() if long else name


def sweep(path: Path, older: float = LEFT) -> None:
    """Remove temporary files for `path` that killed writers left, untouched for some seconds."""
    for left in path.parent.glob(f".{escape(short(path.name))}.*.part"):
        with suppress(OSError):
            if time.time() - left.stat().st_ctime >= older:
                left.unlink()


def make_folder(path: StrPath) -> Path:
    """The folder, made with its parents if it is not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(path)!r}: {reason(error)}") from error
    return Path(path)


def check_no_link(folder: StrPath, *names: str) -> None:
    """Refuse names below a folder that lead out of it by a link, one that is in the folder."""
    for name in names:
        path = Path(folder)
        for part in Path(name).parts:
            path /= part
            if path.is_symlink():
                raise InputError(
                    f"{str(path)!r} is a link, which is not followed; take it away, or give "
                    "another folder"
                )


def check_readable(path: StrPath) -> None:
    """Refuse a file that may not be read: a library that fails to open it calls it damaged."""
    try:
        open(path, "rb").close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"cannot read {os.fspath(path)!r}: {error.strerror}; check the path and its permissions"
        ) from error


def why_missing(path: StrPath) -> str:
    """Why a path cannot be opened: it may lie in a closed folder."""
    try:
        os.stat(path)
    except PermissionError as error:
        return f"cannot be reached ({error.strerror}); check the path and its permissions"
    except (OSError, ValueError):
        pass
    return "does not exist; check the path"


def reason(error: OSError, size: int | None = None) -> str:
    """The words of the system, and the mend."""
    needed = f" ({size / 1e6:,.1f} MB are needed)" if size and size >= 1e5 else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full{needed}; free some space and run the same command again, "
            "what is finished stays"
        )
    if error.errno == errno.EFBIG:
        return (
            f"the system does not allow so large a file{needed}; raise the limit (ulimit -f) and "
            "run the same command again, what is finished stays"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "a file is in the way; give another name"
    message = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{message}; choose a folder that you may write to"
    return f"{message}; the old file, if any, is as it was"
