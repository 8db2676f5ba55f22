"""Files written whole, and saved state: tensors as safetensors, facts as JSON in its header."""

from __future__ import annotations

import errno
import json
import os
import re
import reprlib
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from adte.errors import InputError, StateError

__all__ = [
    "FORMAT",
    "is_special",
    "is_standard_output",
    "load_state",
    "make_folder",
    "open_through",
    "save_state",
    "standard_output",
    "write_new",
    "write_whole",
]

FORMAT = 2  # of state files; 1 was written by adte 0.1 and has neither fingerprint nor seen
StrPath = str | os.PathLike[str]

KEY = "adte"  # of the facts in the header

# The types that are written, by safetensors' names and in the order of its files
TYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


# --------------------------------------------------------------------------- whole or not at all


def write_whole(path: StrPath, write: Callable[[str], object], size: int | None = None) -> Path:
    """Let `write` fill a temporary file, then put it in place; on any error the old file stays.

    A link stays a link: its target is replaced. A FIFO, a device or /dev/stdout is written to.
    `size`, the bytes to come where known, is named if the disk is full. What a killed writer of
    the same file left behind goes away.
    """
    name = os.fspath(path)
    try:
        if is_special(name):
            _write_through(name, write)
        else:
            _replace(target_of(name), write)
    except OSError as error:
        raise InputError(f"cannot write {name!r}: {reason(error, size)}") from error
    return Path(name)


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
    _sweep(target)
    temporary = target.with_name(f".{short(target.name)}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as f:  # with the permissions that any new file gets
            if not try_lock(f.fileno()):  # held until the file is in place: nobody sweeps it
                f.close()
            write(str(temporary))
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            with suppress(FileNotFoundError):  # an old file keeps its own permissions
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            if os.name == "nt":  # which does not rename open files
                f.close()
            put(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()  # gone if all went well


def short(name: str) -> str:
    """A name that leaves room for more letters: 255 bytes are the limit of most file systems."""
    long = len(os.fsencode(name)) > 200
    return blake2b(os.fsencode(name), digest_size=16).hexdigest() if long else name


def _sweep(path: Path) -> None:
    """Remove temporary files for `path` whose writers are dead: nobody holds their lock."""
    for left in path.parent.glob(f".{escape(short(path.name))}.*.part"):
        with suppress(OSError), left.open("rb") as f:
            if try_lock(f.fileno()):
                left.unlink()


def make_folder(path: StrPath) -> Path:
    """The folder, made with its parents if it is not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {str(path)!r}: {reason(error)}") from error
    return Path(path)


def reason(error: OSError, size: int | None = None) -> str:
    """What the system said, and the mend."""
    needed = "" if size is None else f" ({size / 1e6:,.1f} MB are needed)"
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
    said = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{said}; choose a folder that you may write to"
    return f"{said}; the old file, if any, is as it was"


# --------------------------------------------------------------------------- special files


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
        if found := re.fullmatch(rf"/(?:dev|proc/self|proc/{os.getpid()})/fd/(\d{{1,9}})", name):
            return int(found[1])
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


def _write_through(path: str, write: Callable[[str], object]) -> None:
    handle, temporary = tempfile.mkstemp(".part", "adte-")
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as whole, open_through(path) as out:
            shutil.copyfileobj(whole, out)
    finally:
        os.unlink(temporary)


# --------------------------------------------------------------------------- locks

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


# --------------------------------------------------------------------------- state


def save_state(path: StrPath, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """Write tensors and facts to one file."""
    header = json.dumps({**facts, "format": FORMAT}, ensure_ascii=False)
    header = header.encode("utf-8", "backslashreplace").decode()  # of names that are not UTF-8
    parts = _safetensors(tensors, {KEY: header})

    def write(name: str) -> None:
        with open(name, "wb") as f:
            f.writelines(parts)

    return write_whole(path, write, sum(len(p) for p in parts))


def _safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> list[bytes]:
    """A file's bytes in parts, those of tensors where they lie: nothing is copied.

    They are what `safetensors.torch.save` gives. That copies all of them twice and holds Python's
    lock meanwhile, as a GPU waits; `save_file` replaces the file, be it a device or locked.
    """
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    rank = list(TYPES)
    order = sorted(plain, key=lambda k: (rank.index(plain[k].dtype), k))
    head: dict[str, Any] = {"__metadata__": metadata}
    parts: list[Any] = []
    end = 0
    for name in order:
        x = plain[name]
        start, end = end, end + x.nbytes
        head[name] = {"dtype": TYPES[x.dtype], "shape": x.shape, "data_offsets": (start, end)}
        parts.append(x.reshape(-1).view(torch.uint8).numpy().data)
    first = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    first += b" " * (-len(first) % 8)
    return [len(first).to_bytes(8, "little"), first, *parts]


def load_state(path: StrPath) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_state` wrote, in this format or an older one: `facts["format"]` says which.

    The facts are as they were found; `adte.facts.read_facts` checks them.
    """
    name = str(path)
    if not os.path.isfile(path):  # nor where the name is too long
        if os.path.exists(path):
            raise InputError(f"state file {name!r} is not a file; check the path")
        raise InputError(f"state file {name!r} does not exist; check the path")
    try:
        open(path, "rb").close()  # safetensors calls any failure to open it a file that is missing
    except OSError as error:
        raise InputError(
            f"state file {name!r} cannot be read ({error.strerror}); check its permissions"
        ) from error
    try:
        with nameable(path) as there, safe_open(there, framework="pt") as f:
            header = (f.metadata() or {}).get(KEY)
            tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StateError(
            f"{name!r} is not a state file of adte or is damaged ({error}); save it again"
        ) from error
    if header is None:
        raise StateError(
            f"{name!r} is a safetensors file, but not a state of adte; "
            "give a file that Classifier.save wrote"
        )
    return tensors, _read_header(header, name)


@contextmanager
def nameable(path: StrPath) -> Iterator[str]:
    """A name of a file that is UTF-8, which safetensors wants, whatever the file is called."""
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        with open(path, "rb") as file:
            yield f"/dev/fd/{file.fileno()}"
        return
    yield name


def _read_header(header: str, name: str) -> dict[str, Any]:
    try:
        facts = json.loads(header)
        if not isinstance(facts, dict):
            raise ValueError("it is not a table of facts")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise StateError(f"the header of {name!r} is damaged ({reason}); save it again") from error
    form, version = facts.get("format"), facts.get("version", "unknown")
    if not isinstance(form, int) or isinstance(form, bool) or form < 1:
        raise StateError(
            f"the header of {name!r} is damaged (format is {brief(form)}); save it again"
        )
    if form > FORMAT:
        raise StateError(
            f"{name!r} has state format {form}, this version of adte reads formats up to {FORMAT}; "
            f"load it with the version that wrote it ({brief(version)})"
        )
    return facts


def brief(value: object) -> str:
    """A value as it is shown in an error: short, whatever it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)
