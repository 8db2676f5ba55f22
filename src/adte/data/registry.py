"""Names for data sets: register a reader, load a set, list what there is.

A set is asked for as NAME:PATH, with options of its reader behind a question mark:

    folder:photos
    pets:~/data/pets?split=official
    imagenet-c:~/data/imagenet-c?corruption=fog,frost&severity=1-5&complete=false

`&`, `%` and `?` in a value are written %26, %25 and %3F. `adte datasets NAME` lists the options.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

from adte.core.errors import AdteError, InputError, brief
from adte.core.options import build, check, describe, option, parse
from adte.core.registry import Registry
from adte.core.templates import SINGLE
from adte.data.base import Dataset
from adte.data.files import missing
from adte.files.inputs import is_archive
from adte.files.whole import why_missing

__all__ = [
    "DatasetInfo", "Download", "Location", "Reader", "create_reader", "dataset_info",
    "list_datasets", "load_dataset", "looks_like", "reader", "register_dataset", "settings",
]  # fmt: skip

R = TypeVar("R", bound="type[Reader]")
PART = "read a part: put ?complete=false behind the path"  # the same in Python and in a terminal


@dataclass(frozen=True)
class Download:
    """One file that a data set is downloaded as.

    Attributes:
        file: name of the file.
        url: its address; None if a program cannot fetch it.
        bytes: its size; None if unknown.
        checksum: "md5:…" or "sha256:…"; empty if none is published.
        into: folder to unpack it into, below the target.
        inner: archives inside it that are unpacked, too.
    """

    file: str
    url: str | None = None
    bytes: int | None = None
    checksum: str = ""
    into: str = ""
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set.

    Attributes:
        name: name of the set, as in `adte datasets`.
        title: its full name.
        images, classes: published numbers of images and classes; None if the user's data decide.
        how: how to get the set, in one sentence.
        terms: terms of use.
        layouts: layouts on disk that the reader accepts.
        templates: prompt templates that the literature uses for the set.
        zero_shot: accuracy (as a fraction) to expect from OpenAI's CLIP, by model.
        zero_shot_source: where those accuracies come from.
        column: the paper's name for the set.
        downloads: the files that it is downloaded as.
    """

    name: str
    title: str
    images: int | None = None
    classes: int | None = None
    how: str = ""
    terms: str = ""
    layouts: tuple[str, ...] = ()
    templates: tuple[str, ...] = SINGLE
    zero_shot: Mapping[str, float] = field(default_factory=dict)
    zero_shot_source: str = ""
    column: str | None = None
    downloads: tuple[Download, ...] = ()

    def row(self) -> dict[str, Any]:
        """The facts as `adte datasets --json` prints them; `usage` is what `--data` takes."""
        options = describe(reader(self.name)) if self.name in _readers() else []
        usage = f"{self.name}:PATH or {self.name}:PATH?option=value&option=value"
        facts = {"usage": usage, "zero_shot": dict(self.zero_shot), "options": options}
        return {**asdict(self), **facts}


@dataclass(frozen=True)
class Location:
    """What `Reader.find` returns: where a data set is, and in which layout.

    Attributes:
        folder: folder that holds the images.
        layout: name of the layout, for messages.
        images: number of images that the set must then have; None if any number is right.
        split: file or list that names the images, if there is one.
    """

    folder: Path
    layout: str
    images: int | None = None
    split: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads a data set from disk. To add one of your own, derive a dataclass and define `find` and
    `read`.

    `load` calls both and checks the counts. Options of the reader are its fields.

    Attributes:
        info: facts about the set; `register_dataset` sets them.
        generic: whether it reads data of any kind, and not one published set; then classes may have
            no image.
        mend: what to do if the set is not found; by default to check the path, or to unpack again.
    """

    info: ClassVar[DatasetInfo]
    generic: ClassVar[bool] = False
    mend: ClassVar[str] = ""

    complete: bool = option(
        True,
        "check that a published set has all its images, and one for each class; false reads an "
        "incomplete set",
    )

    def __post_init__(self) -> None:
        check(self, f"data set {self.info.name!r}")

    @abstractmethod
    def find(self, root: Path) -> Location | None:
        """Find the set below a folder or file in one of its layouts, quickly; None if it is not."""

    @abstractmethod
    def read(self, root: Path, location: Location) -> Dataset:
        """Read the set that `find` located."""

    def dataset(
        self, root: Path, location: Location, files: list[tuple[str, int]],
        classes: tuple[str, ...], class_ids: tuple[str, ...],
    ) -> Dataset:  # fmt: skip
        """A set of image files, for `read`: pairs of a path below `location.folder` and a label.

        Where a list named them, those that do not exist are left out, and `split` says so.

        Raises:
            InputError: if one does not exist, and the set is to be complete.
        """
        layout = location.layout
        lost = list(missing(location.folder, (f for f, _ in files))) if location.split else []
        if lost and self.complete:
            raise InputError(
                f"{str(location.split)!r} names {lost[0]!r}, which is not in "
                f"{str(location.folder)!r} ({len(lost)} of {len(files)} are missing); unpack the "
                f"images again, or {PART}"
            )
        if lost:
            layout += f", less {len(lost)} of {len(files)} images that are not there: {lost[0]}, …"
            gone = set(lost)
            files = [(name, label) for name, label in files if name not in gone]
        return Dataset.of_files(
            self.info.name, location.folder, files, classes=classes, class_ids=class_ids,
            split=layout, root=root, templates=self.info.templates,
        )  # fmt: skip

    def recognise(self, root: Path) -> bool:
        """Whether a path looks like this set and no other, to suggest it in error messages."""
        return self.find(root) is not None

    def load(self, path: str | os.PathLike[str] | None) -> Dataset:
        """Find, read and check the set at a path.

        Raises:
            InputError: if it is not found, cannot be read or is not complete.
        """
        root = Path(os.path.expanduser(self._need(path)))
        if not os.path.exists(root):
            raise InputError(
                f"{str(root)!r}, given for data set {self.info.name!r}, {why_missing(root)} "
                f"(how to get the set: {self.info.how or 'it is your own'})"
            )
        location = self.find(root)
        if location is None:
            raise self._unknown_layout(root)
        try:
            data = self.read(root, location)
        except AdteError:
            raise
        except (ValueError, LookupError, OSError) as error:  # of a list or table that is damaged
            raise InputError(
                f"{self.info.title} in {str(root)!r} ({location.layout}) cannot be read "
                f"({type(error).__name__}: {error}); {self._mend()}"
            ) from error
        self._assert(data, root, location)
        return data

    def _need(self, path: str | os.PathLike[str] | None) -> str:
        if path is None:
            name = self.info.name
            raise InputError(f"data set {name!r} needs a path; write it as {name}:PATH")
        return os.fspath(path)

    def _unknown_layout(self, root: Path | str) -> InputError:
        return InputError(
            f"{str(root)!r} does not hold {self.info.title} in a layout that adte knows "
            f"({'; '.join(self.info.layouts)}){self._hint(Path(root))}"
        )

    def _assert(self, data: Dataset, root: Path, location: Location) -> None:
        where = f"{self.info.title} in {str(root)!r} ({location.layout})"
        if not len(data):
            raise InputError(f"{where} has no images{self._hint(root)}")
        lacks, labels = "", len(data.classes)
        empty = [i for i, count in enumerate(data.counts.tolist()) if not count]
        if location.images not in (None, len(data)):
            lacks = f"{len(data)} images instead of {location.images}"
        if self.info.classes not in (None, labels):
            lacks = f"{labels} classes instead of {self.info.classes}"
        if empty and not self.generic:
            first = f"{empty[0]} {data.classes[empty[0]]!r} ({data.class_ids[empty[0]]})"
            lacks = f"no image for {len(empty)} of {labels} classes, the first being {first}"
        if lacks and self.complete:
            raise InputError(f"{where} has {lacks}{self._hint(root)}, or {PART}")

    def _mend(self) -> str:
        usual = "check the path" if self.generic else "unpack the set again or check the path"
        return self.mend or usual

    def _hint(self, root: Path) -> str:
        other = looks_like(root, but=self.info.name)
        archive = is_archive(root) and root.is_file()
        if archive and (other is None or not self.generic):  # a tar looks like WebDataset's
            return "; it is an archive: unpack it, and give the folder"
        if other is None:
            return f"; {self._mend()}"
        return f"; it looks like {other}: read it as {other}:PATH"


_READERS: Registry[type[Reader]] = Registry("data set")


def _readers() -> Registry[type[Reader]]:
    """All of them: those of this package register themselves when they are first asked for."""
    import_module("adte.data.readers")
    return _READERS


def register_dataset(info: DatasetInfo) -> Callable[[R], R]:
    """Class decorator that registers a `Reader` under the name in its `DatasetInfo`.

    `load_dataset` and `--data NAME:PATH` then find it.

    Raises:
        InputError: if the name is taken, or the class does not derive from `Reader`.
    """
    if not isinstance(info, DatasetInfo):
        raise InputError(
            f"{brief(info)} is not a DatasetInfo; write @register_dataset(DatasetInfo(…))"
        )

    def add(cls: R) -> R:
        if not isinstance(cls, type) or not issubclass(cls, Reader):
            raise InputError(f"{brief(cls)} is no class of readers; derive it from Reader")
        cls.info = info
        known = _READERS if cls.__module__.startswith("adte.data.") else _readers()
        known.add(info.name, cls)
        return cls

    return add


def list_datasets() -> list[str]:
    """The names of all data sets, including those of plug-ins, in order of registration."""
    return list(_readers())


def reader(name: str) -> type[Reader]:
    """The reader of a set; its fields are the set's options."""
    return _readers()[name]


def create_reader(name: str, **options: Any) -> Reader:
    """The reader of a set with these options."""
    return build(reader(name), options, f"option of data set {name!r}")


def dataset_info(name: str) -> DatasetInfo:
    """The facts about a data set, by name."""
    return reader(name).info


def looks_like(root: Path, but: str = "") -> str | None:
    """The name of the data set that a path looks like, or None; published sets come first.

    Args:
        root: folder or file.
        but: name of a set to leave out.
    """
    for generic in (False, True):
        for name in _readers():
            cls = _READERS[name]
            if name == but or cls.generic != generic:
                continue
            try:
                known = cls().recognise(root)
            except InputError:  # it is this set, with something amiss
                known = True
            except (ValueError, LookupError, OSError):  # some file of a like name
                known = False
            if known:
                return name
    return None


def load_dataset(spec: str, **options: Any) -> Dataset:
    """Load a data set by "NAME:PATH".

    Args:
        spec: such as "imagenet-a:~/data/imagenet-a", "folder:photos", "csv:test.csv",
            "webdataset:shards/test-{000..009}.tar" or "hf:saved". Options of the reader can follow,
            as in "folder:photos?complete=false&classes=names.txt".
        options: options of the reader, which override those in `spec`. `adte datasets NAME` lists
            them.

    Returns:
        The data set; its images are decoded only when they are used.

    Raises:
        InputError: if the name or an option is unknown (the message lists what exists), or the set
            is not found at the path or not complete.
    """
    if not isinstance(spec, str):
        raise InputError(f"{brief(spec)} names no data set; write NAME:PATH, as in 'folder:photos'")
    name, colon, path = spec.partition(":")
    if not colon and name not in _readers() and _exists(spec):
        raise _path_alone(spec)
    path, given = settings(name, path)
    return create_reader(name, **{**given, **options}).load(path or None)


def settings(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """The path, and the reader's options behind it, of what follows "name:"; a question mark in a
    path or pattern stays one.
    """
    cls, spec = reader(name), f"{name}:{path}"
    head, _, tail = path.rpartition("?")
    if not ("=" in tail or tail.isidentifier()) or "?" not in path or _exists(path):
        return path, {}
    texts: dict[str, str] = {}
    for pair in tail.split("&"):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise InputError(
                f"{pair!r} in the data {spec!r} is no option; write NAME:PATH?option=value&…"
            )
        if key in texts:
            raise InputError(f"option {key!r} is given twice in the data {spec!r}; give it once")
        texts[key] = unquote(value)
    try:
        return head, parse(cls, texts)
    except InputError as error:
        raise InputError(f"in the data {spec!r}: {error}") from error


def _exists(path: str) -> bool:
    return os.path.exists(os.path.expanduser(path))


def _path_alone(spec: str) -> InputError:
    """The error for a path without a name."""
    root = Path(os.path.expanduser(spec))
    if root.is_dir():
        return InputError(f"{spec!r} is a path; write NAME:PATH, or folder:{spec} for any folder")
    mend = "NAME:PATH, as in csv:FILE for a table of images"
    if root.suffix.lower() == ".npz":
        mend = f"npz:{spec} for features, which compare, eval and sweep take"
    elif name := looks_like(root):
        mend = f"{name}:{spec}"
    return InputError(f"{spec!r} is a file; write {mend}")
