"""Saved state: tensors as safetensors, facts as JSON in its header, one file, written whole."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from adte.errors import InputError, StateError

__all__ = ["FORMAT", "load_state", "make_folder", "save_state", "write_whole"]

FORMAT = 1
_KEY = "adte"


def write_whole(
    path: str | os.PathLike[str], write: Callable[[str], object], size: int | None = None
) -> Path:
    """Let `write` fill a temporary file, then put it in place; on any error the old file stays.

    `size`, the bytes to come where known, is named if the disk is full. What a killed writer of
    the same file left behind goes away.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(
            f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not "
            "exist; make it first"
        )
    if path.is_dir():
        raise InputError(f"cannot write {str(path)!r}: it is a folder; give a file name")
    handle, temporary = -1, ""
    try:
        _sweep(path)
        handle, temporary = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
        if not _lock(handle):
            os.close(handle)
            handle = -1
        write(temporary)
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {_reason(error, size)}") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)  # gone if all went well
        if handle >= 0:
            os.close(handle)
    return path


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with its parents if it is not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"cannot make the folder {str(path)!r}: a file is in the way; give another name"
        ) from error
    except OSError as error:
        raise InputError(f"cannot make the folder {str(path)!r}: {_reason(error)}") from error
    return Path(path)


def _reason(error: OSError, size: int | None = None) -> str:
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
    said = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{said}; choose a folder that you may write to"
    return f"{said}; the old file, if any, is as it was"


def _lock(handle: int) -> bool:
    """Take the lock that a live writer holds on its temporary file; False if it cannot be had."""
    try:
        import fcntl  # POSIX

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove temporary files for `path` whose writers are dead: nobody holds their lock."""
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        with suppress(OSError), left.open("rb") as f:
            if _lock(f.fileno()):
                left.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_state(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Path:
    """Write tensors and facts to one file."""
    header = json.dumps({"format": FORMAT, **facts}, ensure_ascii=False)
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    data = save(plain, metadata={_KEY: header})  # not save_file, which hides the system's errors
    return write_whole(path, lambda name: Path(name).write_bytes(data), len(data))


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_state` wrote."""
    name = str(path)
    if not Path(path).is_file():
        raise InputError(f"state file {name!r} does not exist; check the path")
    try:
        with safe_open(name, framework="pt") as f:
            header = (f.metadata() or {}).get(_KEY)
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
    try:
        facts: dict[str, Any] = json.loads(header)
    except ValueError as error:
        raise StateError(f"the header of {name!r} is damaged ({error}); save it again") from error
    if facts.get("format") != FORMAT:
        raise StateError(
            f"{name!r} has state format {facts.get('format')}, this version of adte "
            f"reads format {FORMAT}; load it with the version that wrote it "
            f"({facts.get('version', 'unknown')})"
        )
    return tensors, facts
