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
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

from adte.data.base import Dataset
from adte.errors import AdteError, InputError, brief
from adte.options import build, check, describe, option, parse
from adte.registry import Registry
from adte.templates import SINGLE

__all__ = [
    "DatasetInfo",
    "Download",
    "Found",
    "Reader",
    "create_reader",
    "dataset_info",
    "list_datasets",
    "load_dataset",
    "looks_like",
    "reader",
    "register_dataset",
]

R = TypeVar("R", bound="type[Reader]")
PART = "read a part: put ?complete=false behind the path"  # the same in Python and in a terminal


@dataclass(frozen=True)
class Download:
    """One file of a set.

    Attributes:
        file: its name; url: where it lies, None where it cannot be had without a person.
        bytes: its size, None where unknown.
        checksum: "md5:…" or "sha256:…", empty where none is published.
        into: folder to unpack into, below the target; inner: archives inside it to unpack too.
    """

    file: str
    url: str | None = None
    bytes: int | None = None
    checksum: str = ""
    into: str = ""
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is on disk.

    Attributes:
        images, classes: the published counts; None where the user's data decide.
        zero_shot: accuracy (fraction) to expect of OpenAI CLIP by model, see `zero_shot_source`.
        how: how to get it, in one sentence; terms: of use; downloads: its files.
        layouts: the trees that the reader accepts; column: the paper's name for the set.
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
        """The facts that `adte datasets --json` prints; `usage` is what `--data` takes."""
        options = describe(_READERS[self.name]) if self.name in _READERS else []
        usage = f"{self.name}:PATH or {self.name}:PATH?option=value&option=value"
        facts = {"usage": usage, "zero_shot": dict(self.zero_shot), "options": options}
        return {**asdict(self), **facts}


@dataclass(frozen=True)
class Found:
    """Where a reader found its set, in which layout, and how many images it must then hold."""

    folder: Path
    layout: str
    images: int | None = None
    split: Path | None = None  # the split file or list that names the images
    gaps: bool = False  # classes without images are part of this split


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Reads one data set. Options are the fields; `load` probes, reads and asserts the counts."""

    info: ClassVar[DatasetInfo]
    # reads anybody's data, not one published set: classes may be without images
    generic: ClassVar[bool] = False
    mend: ClassVar[str] = "unpack the set again or check the path"  # where it is not found

    complete: bool = option(
        True,
        "assert the counts of a published set and an image for each of its classes; false reads a "
        "part",
    )

    def __post_init__(self) -> None:
        check(self, f"data set {self.info.name!r}")

    @abstractmethod
    def find(self, root: Path) -> Found | None:
        """The set below root in one of its layouts; cheap."""

    @abstractmethod
    def read(self, root: Path, found: Found) -> Dataset:
        """The set as it lies there."""

    def recognise(self, root: Path) -> bool:
        """Whether root looks like this set and no other; used to name what was given instead."""
        return self.find(root) is not None

    def load(self, path: str | os.PathLike[str] | None) -> Dataset:
        """Find and read the set below a path."""
        if path is None:
            raise InputError(
                f"data set {self.info.name!r} needs a path; write it as {self.info.name}:PATH"
            )
        root = Path(os.path.expanduser(path))
        if not os.path.exists(root):
            raise InputError(
                f"{str(root)!r}, given for data set {self.info.name!r}, does not exist; "
                f"check the path (how to get the set: {self.info.how or 'it is your own'})"
            )
        found = self.find(root)
        if found is None:
            raise InputError(
                f"{str(root)!r} does not hold {self.info.title} in a layout that adte knows "
                f"({'; '.join(self.info.layouts)}){self._hint(root)}"
            )
        try:
            data = self.read(root, found)
        except AdteError:
            raise
        except (ValueError, LookupError, OSError) as error:  # of a list or table that is damaged
            raise InputError(
                f"{self.info.title} in {str(root)!r} ({found.layout}) cannot be read "
                f"({type(error).__name__}: {error}); {self.mend}"
            ) from error
        self._assert(data, root, found)
        return data

    def _assert(self, data: Dataset, root: Path, found: Found) -> None:
        where = f"{self.info.title} in {str(root)!r} ({found.layout})"
        if not len(data):
            raise InputError(f"{where} has no images{self._hint(root)}")
        if not self.complete:
            return
        counts = data.counts
        if (counts == 0).any() and not (found.gaps or self.generic):
            i = int((counts == 0).argmax())
            raise InputError(
                f"{where} has no image for {int((counts == 0).sum())} of {len(counts)} classes, "
                f"the first being {i} {data.classes[i]!r} ({data.class_ids[i]})"
                f"{self._hint(root)}, or {PART}"
            )
        if found.images is not None and len(data) != found.images:
            raise InputError(
                f"{where} has {len(data)} images instead of {found.images}{self._hint(root)}, or "
                f"{PART}"
            )

    def _hint(self, root: Path) -> str:
        other = looks_like(root, but=self.info.name)
        if other is None:
            return f"; {self.mend}"
        return f"; it looks like {other}: read it as {other}:PATH"


_READERS: Registry[type[Reader]] = Registry("data set")


def register_dataset(info: DatasetInfo) -> Callable[[R], R]:
    """Class decorator: make a reader known under the name of its card."""
    if not isinstance(info, DatasetInfo):
        raise InputError(
            f"{brief(info)} is no card of a data set; write @register_dataset(DatasetInfo(…))"
        )

    def add(cls: R) -> R:
        if not isinstance(cls, type) or not issubclass(cls, Reader):
            raise InputError(f"{brief(cls)} is no class of readers; derive it from Reader")
        cls.info = info
        _READERS.add(info.name, cls)
        return cls

    return add


def list_datasets() -> list[str]:
    """The names of all data sets, those of plug-ins too, in the order of registration."""
    return list(_READERS)


def reader(name: str) -> type[Reader]:
    """The reader of a set; its fields are the set's options."""
    return _READERS[name]


def create_reader(name: str, **options: Any) -> Reader:
    """The reader of a set with these options."""
    return build(reader(name), options, f"option of data set {name!r}")


def dataset_info(name: str) -> DatasetInfo:
    """The card of a set."""
    return reader(name).info


def looks_like(root: Path, but: str = "") -> str | None:
    """The name of the set whose layout lies at root; a published set before a generic one."""
    for generic in (False, True):
        for name in _READERS:
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
    """A data set by "name:PATH". An unknown name or option is an error that lists what exists.

    Args:
        spec: such as "imagenet-a:~/data/imagenet-a", "folder:photos", "csv:test.csv",
            "webdataset:shards/test-{000..009}.tar", "hf:saved"; with options of the reader as in
            "folder:photos?complete=false&classes=names.txt".
        options: of the reader, see `dataset_info(name).row()["options"]`; these win.
    """
    if not isinstance(spec, str):
        raise InputError(f"{brief(spec)} names no data set; write NAME:PATH, as in 'folder:photos'")
    name, colon, path = spec.partition(":")
    if not colon and name not in _READERS and os.path.exists(os.path.expanduser(spec)):
        raise InputError(_path_alone(spec))
    path, given = settings(name, path)
    return create_reader(name, **{**given, **options}).load(path or None)


def settings(name: str, path: str) -> tuple[str, dict[str, Any]]:
    """The path, and the reader's options behind it, of what follows "name:"."""
    cls, spec = reader(name), f"{name}:{path}"
    path, texts = _split(spec, path)
    try:
        return path, parse(cls, texts)
    except InputError as error:
        raise InputError(f"in the data {spec!r}: {error}") from error


def _path_alone(spec: str) -> str:
    """What is said of a path without a name."""
    root = Path(os.path.expanduser(spec))
    if root.is_dir():
        return f"{spec!r} is a path; write NAME:PATH, or folder:{spec} for any folder"
    if root.suffix.lower() == ".npz":
        return f"{spec!r} is a file; write npz:{spec} for features, which compare, eval and " \
               "sweep take"  # fmt: skip
    name = looks_like(root)
    mend = "NAME:PATH, as in csv:FILE for a table of images" if name is None else f"{name}:{spec}"
    return f"{spec!r} is a file; write {mend}"


def _split(spec: str, path: str) -> tuple[str, dict[str, str]]:
    """Path and options of what follows "name:"; a question mark in a path or pattern stays one."""
    head, mark, tail = path.rpartition("?")
    settings = mark and ("=" in tail or tail.isidentifier())
    if not settings or os.path.exists(os.path.expanduser(path)):
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
    return head, texts
