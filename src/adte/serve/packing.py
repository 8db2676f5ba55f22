"""Tensors and states as bytes: what the log and the snapshots hold, and what is sent."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from adte.classifier import Classifier
from adte.classifier.fit import read_learned
from adte.core.errors import AdteError, StateError
from adte.files.states import as_bytes

__all__ = ["checksum", "dump", "learned_in", "load_into", "pack", "unpack"]


def checksum(*parts: object) -> bytes:
    """16 bytes that tell whether any of the parts has changed."""
    h = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.digest()


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    return save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})


def unpack(data: bytes) -> dict[str, Tensor]:
    try:
        return load(data)
    except SafetensorError as error:
        raise StateError(f"the saved tensors are damaged ({error}); use a backup") from error


def dump(clf: Classifier) -> bytes:
    """The bytes that `Classifier.checkpoint` would write."""
    return b"".join(as_bytes(clf.method.state_dict(), clf.facts))


def load_into(clf: Classifier, data: bytes) -> None:
    """Take over a state that a stranger sent, with all the checks of `Classifier.load_state`."""
    with _as_file(data) as path:
        clf.load_state(path)


def learned_in(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state, and the facts of its header."""
    with _as_file(data) as path:
        return read_learned(path)


@contextmanager
def _as_file(data: bytes) -> Iterator[Path]:
    with ExitStack() as stack:
        if sys.platform == "linux":  # in memory, whatever room the disk has
            file = stack.enter_context(os.fdopen(os.memfd_create("adte"), "wb"))
            path = Path(f"/proc/self/fd/{file.fileno()}")
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="adte-"))
            path = Path(folder) / "state.adte"
        path.write_bytes(data)
        try:
            yield path
        except AdteError as error:  # where it lay for a moment is nobody's business
            raise StateError(str(error).replace(repr(str(path)), "the state")) from None
