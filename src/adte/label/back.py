"""The list of sorted images, `undo.csv`, and the way back.

A list may have come with a folder from elsewhere, so it is not trusted. Links in the folder are not
followed. Images are moved back only to where this user's adte moved them from, which the seal of
the line shows, or below a folder that the user names.
"""

from __future__ import annotations

import csv
import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.locks import Lock
from adte.files.rows import escape_cell, escape_name, unescape_cell, unescape_name
from adte.files.whole import check_no_link, make_folder, reason, sweep, write_new, write_whole
from adte.label.seal import is_sealed

__all__ = [
    "COLUMNS", "LIST", "WAYS", "Entry", "Undone", "cells", "digest_of", "move", "read_list",
    "stays", "take_back", "undo",
]  # fmt: skip

LIST = "undo.csv"
WAYS = {"copy": "copied", "link": "linked", "move": "moved"}
COLUMNS = ("way", "from", "to", "digest", "seal")
OLD = COLUMNS[:4]  # as versions before the seal wrote it


class Entry(NamedTuple):
    """A line of the list: what was done with an image; `to` is below the folder."""

    way: str
    source: str
    to: str
    digest: str
    seal: str = ""

    @property
    def is_ours(self) -> bool:
        return is_sealed(self[:4], self.seal)


class Undone(NamedTuple):
    """The result of `undo`.

    Attributes:
        images: number of images that were put back, or whose copy or link was removed.
        left: for each image that was left as it is, the reason.
    """

    images: int
    left: list[str]


def undo(path: StrPath, root: StrPath | None = None) -> Undone:
    """Undo a sorting, from the list `undo.csv` that it wrote, the last image first.

    What cannot be undone is left as it is, and stays in the list.

    Args:
        path: the list.
        root: folder below which images may be moved back to, though the list does not show that it
            was written by this user on this machine.
    """
    read_list(Path(path))  # what is no list is not locked
    kept: list[Entry] = []
    reasons: list[str] = []
    count = 0
    with Lock(path):
        where, entries = read_list(Path(path))
        for entry in entries:
            if entry.way == "move" and os.path.lexists(where / entry.to):
                _check_origin(entry, path, root)
        for entry in reversed(entries):
            target = where / entry.to
            if not os.path.lexists(target):  # it was never put there, or is gone
                if entry.way == "move" and not os.path.lexists(entry.source):
                    kept.append(entry)  # nothing else knows where it came from
                    reasons.append(
                        f"{str(target)!r} is not where it was moved to, nor at {entry.source!r}; "
                        "put it back there, and undo again"
                    )
                continue
            try:
                take_back(entry, target)
                count += 1
            except (OSError, InputError) as error:
                kept.append(entry)
                reasons.append(stays(target, error))
        for entry in entries[-1:]:
            sweep(where / entry.to, 0)  # what is left of it, if who copied it was killed
        for name in {Path(e.to).parent for e in entries}:
            with suppress(OSError):
                (where / name).rmdir()  # if it is empty
        _write(Path(path), list(reversed(kept)))
    with suppress(OSError):
        where.rmdir()
    return Undone(count, reasons)


def _check_origin(entry: Entry, path: StrPath, root: StrPath | None) -> None:
    """Refuse to move an image back to a place that neither the seal nor the user vouches for."""
    if entry.is_ours:
        return
    called = f"the list {os.fspath(path)!r} would move an image to {entry.source!r}"
    if root is None:
        raise InputError(
            f"{called}, and it cannot be seen that you moved it from there on this machine; to "
            "allow that, name a folder above, as in --root FOLDER"
        )
    if not Path(os.path.realpath(Path(entry.source).parent)).is_relative_to(os.path.realpath(root)):
        raise InputError(
            f"{called}, which does not lie below --root {os.fspath(root)!r}; give the folder that "
            "the images came from"
        )


def stays(target: Path, error: Exception) -> str:
    why = reason(error) if isinstance(error, OSError) else str(error)
    return f"{str(target)!r} stays: {why}"


def take_back(entry: Entry, target: Path) -> None:
    if entry.way == "link":
        if not target.is_symlink() or os.readlink(target) != entry.source:
            raise InputError("it is another file by now")
        target.unlink()
        return
    if target.is_symlink() and not (entry.way == "move" and entry.is_ours):
        raise InputError("it is a link, which was not sorted so")
    if digest_of(target) != entry.digest:
        raise InputError("it was changed since it was sorted")
    if entry.way == "move":
        if os.path.lexists(entry.source):
            raise InputError(f"{entry.source!r} is there again")
        make_folder(Path(entry.source).parent)  # emptied by the move, it may be gone
        move(target, Path(entry.source))
    elif not _is_there(entry.source):
        raise InputError(f"it is the only copy, {entry.source!r} is gone")
    else:
        target.unlink()


def _is_there(source: str) -> bool:
    """Whether an image, or the archive that it came from, still exists."""
    return os.path.lexists(source) or any(p.is_file() for p in Path(source).parents)


def read_list(path: Path) -> tuple[Path, list[Entry]]:
    """The folder of a list and its lines, checked: no copy, link or moved image of them lies
    outside the folder, links followed.
    """
    called = f"the list {str(path)!r}"
    if path.is_symlink():
        raise InputError(f"{called} is a link, which is not followed; give the list itself")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read {called} ({why}); give undo.csv of a sorted folder"
        ) from error
    if not lines or tuple(lines[0]) not in (COLUMNS, OLD):
        raise InputError(f"{called} is not undo.csv of a sorted folder; give that file")
    entries: dict[str, Entry] = {}
    for number, cells in enumerate(lines[1:], 2):
        whole = len(cells) in (len(OLD), len(COLUMNS))
        if not whole and number == len(lines):
            break  # torn by a crash, before anything was done
        entry = Entry(*(unescape_name(unescape_cell(c)) for c in cells)) if whole else None
        to = Path(entry.to if entry else "")
        below = len(to.parts) == 2 and not to.anchor and ".." not in to.parts
        if entry is None or entry.way not in WAYS or not below:
            raise InputError(f"line {number} of {called} is damaged; mend or remove it")
        entries.pop(entry.to, None)  # a name that was free again has another image
        entries[entry.to] = entry
    check_no_link(path.parent, *{Path(to).parent.name for to in entries})
    return path.absolute().parent, list(entries.values())


def _write(path: Path, entries: Sequence[Entry]) -> None:
    if not entries:
        with suppress(OSError):
            path.unlink()
        return

    def write(name: str) -> None:
        with open(name, "w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerows([COLUMNS, *map(cells, entries)])

    write_whole(path, write)


def cells(entry: Entry) -> list[str]:
    return [escape_cell(escape_name(text)) for text in entry]


def digest_of(source: Path | bytes) -> str:
    digest = blake2b(source if isinstance(source, bytes) else b"", digest_size=16)
    if isinstance(source, Path):
        with source.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def move(source: Path, target: Path) -> None:
    """A rename that writes over nothing."""
    if source.is_symlink():  # a relative link would lead elsewhere from its new place
        os.symlink(os.path.join(os.path.abspath(source.parent), os.readlink(source)), target)
    else:
        try:
            os.link(source, target)
        except OSError as error:
            if isinstance(error, FileExistsError | FileNotFoundError):
                raise
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            # another disk, or one without hard links
            write_new(target, lambda name: shutil.copy2(source, name))
    try:
        source.unlink()
    except OSError as error:
        target.unlink()
        raise InputError(
            f"{str(source)!r} cannot be taken from its folder: {error.strerror}; allow it there, "
            "or copy instead"
        ) from error
