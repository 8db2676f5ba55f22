"""Images sorted into a folder per label: copied, linked or moved, with a list that undoes it.

Nothing is ever written over: a name that is taken gets a number. The list, `undo.csv` in the
folder, has a line per image before anything is done with it, and its digest; the same command does
what an interrupted one left undone. An image that has another label by now goes from its old folder
to the new one. Undoing takes away or moves back only what is still as it was put there. Who changes
a folder holds the lock of its list.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from unicodedata import normalize

from adte.core.errors import InputError, unknown
from adte.data.places import is_elsewhere
from adte.files.claims import claim_folder
from adte.files.devices import StrPath
from adte.files.inputs import Item, is_archive, is_pipe
from adte.files.whole import check_no_link, reason, write_new
from adte.label.back import (
    COLUMNS,
    LIST,
    WAYS,
    Entry,
    cells,
    digest_of,
    move,
    read_list,
    stays,
    take_back,
)
from adte.label.report import counted
from adte.label.seal import seal

__all__ = ["UNSURE", "Sorting", "folder_names"]

UNSURE = "unsure"  # the folder of images without a label
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # to the next image too


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
            for entry in read_list(self.path)[1]:
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
            digest = digest_of(source)
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
            take_back(entry._replace(way=way), target)
        except (OSError, InputError) as error:
            self.left.append(stays(target, error))
        with suppress(OSError):
            target.parent.rmdir()  # if it is empty

    def _note(self, entry: Entry) -> None:
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    lines.writerow(COLUMNS)
                lines.writerow(cells(entry))
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


def _do(way: str, source: Path | bytes, target: Path) -> None:
    """Put an image where nothing is; FileExistsError if something is after all."""
    if isinstance(source, bytes):
        write_new(target, lambda name: Path(name).write_bytes(source))
    elif way == "copy":
        write_new(target, lambda name: shutil.copy2(source, name))
    elif way == "link":
        os.symlink(os.path.abspath(source), target)
    else:
        move(source, target)


def _finish(origin: str, target: Path, digest: str) -> None:
    """Take away an image whose move was cut off: it is whole at its new place, and here still."""
    if target.is_symlink() == os.path.islink(origin) and digest_of(target) == digest:
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
