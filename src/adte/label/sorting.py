"""Images sorted into a folder per label: copied, linked or moved, with a list that undoes it.

Nothing is ever written over: a name that is taken gets a number. The list, `undo.csv` in the
folder, has a line per image before anything is done with it, and its digest; the same command does
what an interrupted one left undone. An image that has another label by now goes from its old folder
to the new one. Undoing takes away or moves back only what is still as it was put there. Who changes
a folder holds the lock of its list.

A list may have come with a folder from elsewhere, so it is not trusted. Links in the folder are not
followed. Images are moved back only to where this user's adte moved them from, which the seal of
the line shows, or below a folder that the user names.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from adte.core.errors import InputError, unknown
from adte.data.places import is_elsewhere
from adte.files.claims import claim_folder
from adte.files.devices import StrPath
from adte.files.inputs import Item, is_archive, is_pipe
from adte.files.locks import Lock
from adte.files.rows import escape_cell, escape_name, unescape_cell, unescape_name
from adte.files.whole import check_no_link, make_folder, reason, sweep, write_new, write_whole
from adte.label.report import counted
from adte.label.seal import is_sealed, seal

__all__ = ["UNSURE", "Sorting", "Undone", "undo"]

UNSURE = "unsure"  # the folder of images without a label
LIST = "undo.csv"
WAYS = {"copy": "copied", "link": "linked", "move": "moved"}
COLUMNS = ("way", "from", "to", "digest", "seal")
OLD = COLUMNS[:4]  # as versions before the seal wrote it
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # to the next image too


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


class Ended(InputError):
    """The disk or the list takes no more, so that no other image can be sorted."""


class Sorting:
    """A folder that images are sorted into. Making it checks all that can be checked before.

    Args:
        folder: is made if needed.
        way: "copy", "link" (a symbolic link) or "move".
        inputs: where the images come from; the folder must not lie in one of them.

    Attributes:
        left: of the images that could not be sorted, the reasons.
        count: how many `fill` has sorted by now.
    """

    def __init__(self, folder: StrPath, way: str, inputs: Sequence[str]) -> None:
        if way not in WAYS:
            raise unknown("way to sort", way, WAYS)
        self.way, self.left, self.count = way, list[str](), 0
        here = Path(os.path.realpath(os.fspath(folder).replace("\0", "")))
        for name in inputs:
            _check_input(name, here, way)
        self.folder = claim_folder("--sort-into", folder)
        self.path = self.folder / LIST
        self._sorted()

    def _sorted(self) -> dict[str, list[Entry]]:
        """The images that lie in the folder, by source."""
        check_no_link(self.folder, LIST)
        there: dict[str, list[Entry]] = {}
        if self.path.exists() and self.path.stat().st_size:
            for entry in _read(self.path)[1]:
                if os.path.lexists(self.folder / entry.to):  # else it came no further than the list
                    there.setdefault(entry.source, []).append(entry)
        return there

    def check(self, classes: Sequence[str]) -> None:
        """Refuse a folder of a label that is a link to elsewhere."""
        check_no_link(self.folder, UNSURE, *folder_names(classes).values())

    def fill(
        self,
        items: Iterable[Item],
        labels: Mapping[str, Sequence[str | None]],
        classes: Sequence[str],
    ) -> int:
        """Sort images by label, each once; None is unsure. Their `count`; `left` has the others.

        An archive may hold several images of one name, so a name has labels, in order. Images that
        are there already, from an interrupted run, are passed over. The caller holds the lock of
        `path`.
        """
        self.check(classes)
        there, folders = self._sorted(), folder_names(classes)
        data = self.path.read_bytes() if self.path.exists() else b""
        if data and not data.endswith(b"\n"):  # a line that a full disk has torn makes room
            os.truncate(self.path, data.rfind(b"\n") + 1)
        left, self.count = {name: [*some] for name, some in labels.items()}, 0
        came = set(there)
        for name, source in items:
            if not left.get(name) or isinstance(source, InputError):
                continue
            label = left[name].pop(0)
            place = self.folder / (UNSURE if label is None else folders[label])
            came.add(origin := os.path.abspath(name))
            try:
                self.count += self._sort(origin, source, place, there.get(origin, []))
            except Ended:
                raise
            except InputError as error:
                self.left.append(str(error))
        # Else it was moved by another name that it has, or by another run.
        if gone := [name for name in left if left[name] and os.path.abspath(name) not in came]:
            self.left.append(
                f"{counted(len(gone), 'labelled image')} could not be found again to be sorted, "
                f"such as {gone[0]!r}; put back what was moved, and run the same command again"
            )
        return self.count

    def _sort(self, origin: str, source: Path | bytes, place: Path, there: list[Entry]) -> bool:
        """Put an image where it belongs; False if it is there. `there` loses what is its own."""
        made = not place.exists()
        try:
            digest = _digest(source)
            same = [e for e in there if _is_of(e, source, digest, self.folder / e.to)]
            same.sort(key=lambda e: (self.folder / e.to).parent != place)
            for entry in same[:1]:
                there.remove(entry)
                target = self.folder / entry.to
                if target.parent == place:
                    if entry.way == self.way == "move":
                        _finish(origin, target, digest)
                    return False
                self._withdraw(entry, target)
            place.mkdir(exist_ok=True)
            for target in _free(place, Path(origin).name):
                line = (self.way, origin, f"{place.name}/{target.name}", digest)
                self._note(Entry(*line, seal(line)))
                with suppress(FileExistsError):  # somebody took the name meanwhile
                    _do(self.way, source, target)
                    break
        except (OSError, InputError) as error:
            if made:
                with suppress(OSError):
                    place.rmdir()  # if it is empty
            if isinstance(error, InputError):
                raise
            kind = Ended if error.errno in FATAL else InputError
            raise kind(
                f"cannot {self.way} {origin!r} into {str(place)!r}: {reason(error)}"
            ) from error
        return True

    def _withdraw(self, entry: Entry, target: Path) -> None:
        """Take an image, which is at its source still, from the folder of another label."""
        way = "link" if entry.way == "link" else "copy"  # a move that was cut off has left a copy
        try:
            _take_back(entry._replace(way=way), target)
        except (OSError, InputError) as error:
            self.left.append(_stays(target, error))
        with suppress(OSError):
            target.parent.rmdir()  # if it is empty

    def _note(self, entry: Entry) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    lines.writerow(COLUMNS)
                lines.writerow(_cells(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # the line may be torn, and must be the last one
            raise Ended(f"cannot write the list {str(self.path)!r}: {reason(error)}") from error


def _check_input(name: str, folder: Path, way: str) -> None:
    place = Path(os.path.realpath(name.replace("\0", "")))
    if is_pipe(name):
        raise InputError(f"{name!r} is read once and cannot be sorted; give files or folders")
    if is_elsewhere(name):
        raise InputError(f"the images of {name!r} are no files here; leave --sort-into out")
    if is_archive(name) and place.is_file() and way != "copy":
        raise InputError(f"images in the archive {name!r} cannot be {WAYS[way]}; use --sort copy")
    if place.is_dir() and folder.is_relative_to(place):
        raise InputError(
            f"the folder to sort into, {str(folder)!r}, lies in the input {name!r}, and would be "
            "labelled too; give a folder outside of it"
        )


def folder_names(classes: Iterable[str]) -> dict[str, str]:
    """A folder name per label, each of its own on any file system.

    >>> folder_names(["cat", "Cat", "black/white", ".."])
    {'cat': 'cat', 'Cat': 'Cat-2', 'black/white': 'black_white', '..': '_'}
    """
    names: dict[str, str] = {}
    taken = {UNSURE, LIST}
    for label in classes:
        if label in names:
            continue
        plain = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*\ud800-\udfff]', "_", label).strip(" .")
        while len(plain.encode()) > 200:
            plain = plain[:-1]
        name, number = plain or "_", 1
        while (same := normalize("NFC", name).casefold()) in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(same)
        names[label] = name
    return names


def _free(place: Path, name: str) -> Iterator[Path]:
    """Names that nobody has: photo.jpg, photo-2.jpg, …"""
    stem, suffix = os.path.splitext(name)
    number = 1
    while True:
        target = place / (name if number == 1 else f"{stem}-{number}{suffix}")
        if not os.path.lexists(target):
            yield target
        number += 1


def _digest(source: Path | bytes) -> str:
    digest = blake2b(source if isinstance(source, bytes) else b"", digest_size=16)
    if isinstance(source, Path):
        with source.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _do(way: str, source: Path | bytes, target: Path) -> None:
    """Put an image where nothing is; FileExistsError if something is after all."""
    if isinstance(source, bytes):
        write_new(target, lambda name: Path(name).write_bytes(source))
    elif way == "copy":
        write_new(target, lambda name: shutil.copy2(source, name))
    elif way == "link":
        os.symlink(os.path.abspath(source), target)
    else:
        _move(source, target)


def _move(source: Path, target: Path) -> None:
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
            _do("copy", source, target)  # another disk, or one without hard links
    try:
        source.unlink()
    except OSError as error:
        target.unlink()
        raise InputError(
            f"{str(source)!r} cannot be taken from its folder: {error.strerror}; allow it there, "
            "or copy instead"
        ) from error


def _finish(origin: str, target: Path, digest: str) -> None:
    """Take away an image whose move was cut off: it is whole at its new place, and here still."""
    if target.is_symlink() == os.path.islink(origin) and _digest(target) == digest:
        os.unlink(origin)


def _is_of(entry: Entry, source: Path | bytes, digest: str, target: Path) -> bool:
    """Whether an image is the one that was sorted, and no other one that has its name by now.

    A link at the source that leads to the sorted image is another one: that image is nowhere else.
    """
    if entry.way == "link":
        return True
    if isinstance(source, Path) and os.path.realpath(source) == os.path.realpath(target):
        return False
    return entry.digest == digest


# --------------------------------------------------------------------------- back again


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
    _read(Path(path))  # what is no list is not locked
    kept: list[Entry] = []
    reasons: list[str] = []
    count = 0
    with Lock(path):
        where, entries = _read(Path(path))
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
                _take_back(entry, target)
                count += 1
            except (OSError, InputError) as error:
                kept.append(entry)
                reasons.append(_stays(target, error))
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


def _stays(target: Path, error: Exception) -> str:
    why = reason(error) if isinstance(error, OSError) else str(error)
    return f"{str(target)!r} stays: {why}"


def _take_back(entry: Entry, target: Path) -> None:
    if entry.way == "link":
        if not target.is_symlink() or os.readlink(target) != entry.source:
            raise InputError("it is another file by now")
        target.unlink()
        return
    if target.is_symlink() and not (entry.way == "move" and entry.is_ours):
        raise InputError("it is a link, which was not sorted so")
    if _digest(target) != entry.digest:
        raise InputError("it was changed since it was sorted")
    if entry.way == "move":
        if os.path.lexists(entry.source):
            raise InputError(f"{entry.source!r} is there again")
        make_folder(Path(entry.source).parent)  # emptied by the move, it may be gone
        _move(target, Path(entry.source))
    elif not _is_there(entry.source):
        raise InputError(f"it is the only copy, {entry.source!r} is gone")
    else:
        target.unlink()


def _is_there(source: str) -> bool:
    """Whether an image, or the archive that it came from, still exists."""
    return os.path.lexists(source) or any(p.is_file() for p in Path(source).parents)


def _read(path: Path) -> tuple[Path, list[Entry]]:
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
            lines.writerows([COLUMNS, *map(_cells, entries)])

    write_whole(path, write)


def _cells(entry: Entry) -> list[str]:
    return [escape_cell(escape_name(text)) for text in entry]
