"""JSON files with a checksum: written whole, and refused where they were damaged or altered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from adte.core.errors import StateError
from adte.files import write_whole
from adte.files.whole import check_readable

__all__ = ["digest_of", "read_json", "write_json"]


def digest_of(facts: Any) -> str:
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(facts))
    plain["checksum"] = digest_of(plain)
    write_whole(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, formats: Sequence[int], mend: str) -> dict[str, Any]:
    """The facts of a file; `mend` says what to do where they are not what was written."""
    check_readable(path)
    try:
        facts: dict[str, Any] = dict(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError, OSError, RecursionError) as error:
        raise StateError(f"{str(path)!r} is damaged ({error}); {mend}") from error
    if (form := facts.get("format")) not in formats:
        known = " and ".join(map(str, formats))
        raise StateError(f"{str(path)!r} has format {form}, this version reads {known}; {mend}")
    checksum = facts.pop("checksum", None)  # files of 0.1 have none
    if checksum is not None and checksum != digest_of(facts):
        raise StateError(f"{str(path)!r} was altered: its checksum does not fit; {mend}")
    return facts
