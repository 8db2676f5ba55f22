"""Labelled images as data: an `Example` is one image, a `Dataset` a sequence of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from adte.errors import InputError
from adte.templates import SINGLE

__all__ = ["Dataset", "Example", "Files", "Skipped"]


@dataclass(frozen=True)
class Example:
    """One labelled image, not yet decoded.

    Attributes:
        source: what `adte.images.load_image` takes: a path, encoded bytes or an array (H, W, 3).
        label: index into the class names of its data set.
        id: names the image within its domain, the same on every machine.
        domain: the data set, or the corruption and severity, that it comes from.
        group: a group for group-wise accuracy, where the set defines groups.
    """

    source: Any
    label: int
    id: str
    domain: str = ""
    group: int | None = None


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read."""

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


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Sequence[Example]):
    """Labelled images in a fixed order. Nothing is decoded before an image is asked for.

    A label is an index into `classes`, and `class_ids` runs parallel to it. Names may repeat
    (ImageNet has two "missile" and two "sunglasses"); ids may not.

    Attributes:
        name: of the set, as in `list_datasets`.
        classes: prompt names by label; underscores become spaces only when a prompt is made.
        class_ids: stable ids by label: WordNet ids, folder names.
        sources: of each image, see `Example`; may read on demand.
        labels: (N,) of each image.
        ids: of each image.
        split: which split was read and in which layout it was found, in words.
        root: the folder or file that was read.
        templates: prompt templates that the literature uses for the set.
        domains: of each image; None stands for the set's name.
        groups: (N,) of each image, or None.
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

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        group = None if self.groups is None else int(self.groups[i])
        return Example(self.sources[i], int(self.labels[i]), *self.identify(i), group)

    def identify(self, index: int) -> tuple[str, str]:
        """Id and domain of an image, without touching its source."""
        return self.ids[index], self.name if self.domains is None else self.domains[index]

    def file(self, index: int) -> Path | None:
        """Where an image lies, if that is a file of its own; a corrupted one is made of it."""
        sources = getattr(self.sources, "sources", self.sources)
        return sources[index] if isinstance(sources, Files) else None

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.name}: {len(self)} images, {len(self.classes)} classes, {self.split}>"
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each class (L,)."""
        return np.bincount(self.labels, minlength=len(self.classes))

    @property
    def gaps(self) -> list[str]:
        """Names of the classes that no image is of."""
        return [self.classes[i] for i in np.flatnonzero(self.counts == 0)]

    @classmethod
    def of_files(
        cls, name: str, folder: Path, files: Iterable[tuple[str, int]], **facts: Any
    ) -> Dataset:
        """A set of image files: pairs of a path relative to `folder` and a label."""
        pairs = list(files)
        names = [p for p, _ in pairs]
        labels = np.array([y for _, y in pairs], dtype=np.int64)
        return cls(name=name, sources=Files(folder, names), labels=labels, ids=names, **facts)
