"""Labelled images as data: an `Example` is one image, a `Dataset` a sequence of them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.core.templates import SINGLE

__all__ = ["Dataset", "Example", "Examples", "Files", "Lazy", "Skipped"]


@dataclass(frozen=True)
class Example:
    """One labelled image, not yet decoded.

    Attributes:
        source: the image, as `adte.load_image` takes it: a path, encoded bytes or an array.
        label: index of its class in the data set.
        id: name of the image within its domain, the same on every machine.
        domain: the data set, or the corruption and severity, that it comes from.
        group: group of the image, for accuracy by group, if the set defines groups.
    """

    source: Any
    label: int
    id: str
    domain: str = ""
    group: int | None = None


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read: where it was in the stream, and why."""

    position: int
    id: str
    domain: str
    reason: str


@dataclass(frozen=True)
class Files(Sequence[Any]):
    """Paths below one folder, kept as relative texts."""

    folder: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self.folder / self.names[index]


@dataclass(frozen=True)
class Lazy(Sequence[Any]):
    """Images that are read or made when asked for, by a function of their index."""

    length: int
    read: Callable[[int], Any]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.read(range(self.length)[index])


class Examples(Sequence[Example]):
    """A sequence of labelled images: an index gives one, a slice a list."""

    @abstractmethod
    def example(self, index: int) -> Example:
        """One image; indices are not negative."""

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        place = range(len(self))[index]
        return self.example(place) if isinstance(place, int) else [self.example(i) for i in place]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Examples):
    """A sequence of labelled images (`Example`) in a fixed order.

    Images are decoded only when they are used. A label is an index into `classes` and `class_ids`.
    Names may repeat (ImageNet has two "missile" and two "sunglasses"); ids may not.

    Attributes:
        name: name of the set, as in `list_datasets`.
        classes: name of each class; underscores become spaces when a prompt is made.
        class_ids: stable id of each class, such as a WordNet id or the name of a folder.
        sources: the images, as in `Example`; they may be read on demand.
        labels: label of each image (N,).
        ids: id of each image.
        split: which split was read and in which layout it was found, in words.
        root: the folder or file that was read.
        templates: prompt templates that the literature uses for the set.
        domains: domain of each image; None means the set's name for all.
        groups: group of each image (N,), or None.
        clean: the set before it was corrupted on the fly, or None.

    Raises:
        InputError: if the numbers of images, labels, ids and names do not agree.
    """

    name: str
    classes: tuple[str, ...]
    class_ids: tuple[str, ...]
    sources: Sequence[Any]
    labels: NDArray[np.int64]
    ids: Sequence[str]
    split: str = ""
    root: Path | None = None
    templates: tuple[str, ...] = SINGLE
    domains: Sequence[str] | None = None
    groups: NDArray[np.int64] | None = None
    clean: Dataset | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.sources), len(self.labels), len(self.ids)}
        lengths |= {len(x) for x in (self.domains, self.groups) if x is not None}
        if len(lengths) > 1 or len(self.classes) != len(self.class_ids):
            raise InputError(
                f"data set {self.name!r} has {len(self.sources)} images, {len(self.labels)} "
                f"labels, {len(self.ids)} ids, {len(self.classes)} names and "
                f"{len(self.class_ids)} class ids; give one label and id an image, one id a name"
            )
        if len(set(self.class_ids)) < len(self.class_ids):
            twice = next(c for c in self.class_ids if self.class_ids.count(c) > 1)
            raise InputError(
                f"class id {twice!r} of data set {self.name!r} occurs twice; ids must be distinct"
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            bad = self.labels.min() if self.labels.min() < 0 else self.labels.max()
            raise InputError(
                f"label {bad} of data set {self.name!r} has no class name; labels must lie in "
                f"0…{len(self.classes) - 1}, the first class being 0"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def example(self, index: int) -> Example:
        group = None if self.groups is None else int(self.groups[index])
        return Example(self.sources[index], int(self.labels[index]), *self.identify(index), group)

    def identify(self, index: int) -> tuple[str, str]:
        """Id and domain of an image, without reading it."""
        return self.ids[index], self.name if self.domains is None else self.domains[index]

    @property
    def originals(self) -> Sequence[Any]:
        """The images before they are corrupted on the fly."""
        return self.sources if self.clean is None else self.clean.originals

    def file(self, index: int) -> Path | None:
        """Path of an image, if it is a file; for a corrupted image, that of the original."""
        return self.originals[index] if isinstance(self.originals, Files) else None

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.name}: {len(self)} images, {len(self.classes)} classes, {self.split}>"
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of images of each class (L,)."""
        return np.bincount(self.labels, minlength=len(self.classes))

    @property
    def gaps(self) -> list[str]:
        """Names of the classes that have no image; one that others share has its index with it."""
        often = Counter(self.classes)
        none = ((int(i), self.classes[i]) for i in np.flatnonzero(self.counts == 0))
        return [name if often[name] == 1 else f"{name} (class {i})" for i, name in none]

    @classmethod
    def of_files(
        cls, name: str, folder: Path, files: Iterable[tuple[str, int]], **facts: Any
    ) -> Dataset:
        """Make a data set of image files.

        Args:
            name: name of the set.
            folder: folder that holds the files.
            files: pairs of a path relative to `folder` and a label.
            facts: the other attributes, such as `classes` and `class_ids`.
        """
        pairs = list(files)
        names = [p for p, _ in pairs]
        labels = np.array([y for _, y in pairs], dtype=np.int64)
        return cls(name=name, sources=Files(folder, names), labels=labels, ids=names, **facts)
