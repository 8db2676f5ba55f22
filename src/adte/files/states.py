"""Saved state: tensors as safetensors, facts as JSON in its header."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from adte.core.errors import InputError, StateError, brief
from adte.files.devices import StrPath
from adte.files.whole import check_readable, why_missing, write_whole

__all__ = [
    "FORMAT", "KEY", "as_bytes", "check_path", "digest_of", "is_state", "load_state", "save_state",
]  # fmt: skip

FORMAT = 2  # of state files; 1 was written by adte 0.1 and has neither fingerprint nor seen
KEY = "adte"  # of the facts in the header
CHECKSUM = "checksum"  # its key in the header; files of earlier versions have none

# The types that are written, by safetensors' names and in the order of its files
TYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def check_path(path: object) -> None:
    """Refuse what is no name of a state file."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{brief(path)} is no path of a state file; give one, as in 'shop.adte'")


def save_state(
    path: StrPath, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], checksum: bool = True
) -> Path:
    """Write tensors and facts to one file, with a checksum unless the facts have their own."""
    parts = as_bytes(tensors, facts, checksum)

    def write(name: str) -> None:
        with open(name, "wb") as f:
            f.writelines(parts)

    return write_whole(path, write, sum(len(p) for p in parts))


def as_bytes(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], checksum: bool = True
) -> list[bytes]:
    """What `save_state` writes, in parts."""
    header = json.dumps({**facts, "format": FORMAT}, ensure_ascii=False)
    header = header.encode("utf-8", "backslashreplace").decode()  # of names that are not UTF-8
    metadata = {KEY: header}
    if checksum:
        metadata[CHECKSUM] = digest_of(tensors, header)
    return _safetensors(tensors, metadata)


def digest_of(tensors: Mapping[str, Tensor], header: str = "") -> str:
    """What tells a state from any other: tensors with their names, types and shapes."""
    digest = blake2b(header.encode(), digest_size=16)
    for name, x in sorted(tensors.items()):
        digest.update(f"\n{name} {x.dtype} {list(x.shape)}\n".encode())
        digest.update(_raw(x))
    return digest.hexdigest()


def _raw(x: Tensor) -> Any:
    """Its bytes, where they lie if they lie in order."""
    return x.detach().cpu().reshape(-1).view(torch.uint8).numpy().data


def _safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> list[bytes]:
    """A file's bytes in parts, those of tensors where they lie: nothing is copied.

    They are what `safetensors.torch.save` gives. That copies all of them twice and holds Python's
    lock meanwhile, as a GPU waits; `save_file` replaces the file, be it a device or locked.
    """
    rank = list(TYPES)
    order = sorted(tensors, key=lambda k: (rank.index(tensors[k].dtype), k))
    head: dict[str, Any] = {"__metadata__": metadata}
    parts: list[Any] = []
    end = 0
    for name in order:
        x = tensors[name]
        start, end = end, end + x.nbytes
        head[name] = {"dtype": TYPES[x.dtype], "shape": x.shape, "data_offsets": (start, end)}
        parts.append(_raw(x))
    first = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    first += b" " * (-len(first) % 8)
    return [len(first).to_bytes(8, "little"), first, *parts]


def load_state(path: StrPath) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_state` wrote, in this format or an older one: `facts["format"]` says which.

    The facts are as they were written; `adte.classifier.facts.read_state` checks them.
    """
    check_path(path)
    name = str(path)
    if not os.path.isfile(path):  # nor where the name is too long
        if os.path.exists(path):
            raise InputError(f"state file {name!r} is not a file; check the path")
        raise InputError(f"state file {name!r} {why_missing(path)}")
    check_readable(path)
    try:
        with _nameable(path) as there, safe_open(there, framework="pt") as f:
            metadata = f.metadata() or {}
            tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StateError(
            f"{name!r} is not a state file of adte or is damaged ({error}); save it again"
        ) from error
    if (header := metadata.get(KEY)) is None:
        raise StateError(
            f"{name!r} is a safetensors file, but not a state of adte; "
            "give a file that Classifier.save wrote"
        )
    if CHECKSUM in metadata and metadata[CHECKSUM] != digest_of(tensors, header):
        raise StateError(
            f"{name!r} was altered: its checksum does not fit; use a copy, or save it again"
        )
    return tensors, _read_header(header, name)


def is_state(path: StrPath) -> bool:
    """Whether a file, whatever it is, is a state of a classifier."""
    try:
        with _nameable(path) as there, safe_open(there, framework="pt") as f:
            facts = json.loads((f.metadata() or {}).get(KEY, "null"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and "method" in facts and "classes" in facts


@contextmanager
def _nameable(path: StrPath) -> Iterator[str]:
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
