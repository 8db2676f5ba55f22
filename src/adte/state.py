"""Saved state: tensors as safetensors, facts as JSON in its header, one file, written whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adte.errors import InputError, StateError

__all__ = ["FORMAT", "load_state", "save_state", "write_whole"]

FORMAT = 1
_KEY = "adte"


def write_whole(path: str | os.PathLike[str], write: Callable[[str], object]) -> Path:
    """Let `write` fill a temporary file, then put it in place; on any error the old file stays."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(
            f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not "
            "exist; make it first"
        )
    if path.is_dir():
        raise InputError(f"cannot write {str(path)!r}: it is a folder; give a file name")
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; "
            "the old file, if any, is as it was"
        ) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return path


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
    return write_whole(path, lambda name: save_file(plain, name, metadata={_KEY: header}))


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
    facts: dict[str, Any] = json.loads(header)
    if facts.get("format") != FORMAT:
        raise StateError(
            f"{name!r} has state format {facts.get('format')}, this version of adte "
            f"reads format {FORMAT}; load it with the version that wrote it "
            f"({facts.get('version', 'unknown')})"
        )
    return tensors, facts
