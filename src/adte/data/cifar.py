"""CIFAR-10 and -100 from the python archives, and their corrupted versions from the .npy arrays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.data.base import Dataset, Lazy
from adte.data.cards import published, row
from adte.data.corrupted import CorruptedReader
from adte.data.corruptions import CORRUPTIONS
from adte.data.files import first
from adte.data.registry import Location, Reader

__all__ = ["CIFAR", "CIFARC"]

_NAMES = {  # of modules, too, for each is imported
    "numpy.ndarray", "numpy.dtype", "_codecs.encode",
    *(f"numpy.{core}.{name}" for core in ("core", "_core")
      for name in ("multiarray._reconstruct", "numeric._frombuffer")),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    """Reads arrays and plain values only: a pickle from elsewhere could otherwise run anything."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _NAMES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        data = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        return {str(k): v for k, v in data.items()}
    except Exception as error:
        raise InputError(
            f"{str(path)!r} is not a batch of CIFAR ({error}); unpack the python archive again"
        ) from error


@published("cifar10", "cifar100")
@dataclass(frozen=True, kw_only=True)
class CIFAR(Reader):
    """The test batch, in the order of the file; of CIFAR-100 with the fine labels."""

    folder: ClassVar[str]
    batch: ClassVar[tuple[str, str]]  # the file, and its key of labels
    meta: ClassVar[tuple[str, str]]  # the file, and its key of names
    names: ClassVar[tuple[str, ...]]

    def find(self, root: Path) -> Location | None:
        files = self.batch[0], self.meta[0]
        folder = first(root, ("", self.folder), lambda p: all((p / f).is_file() for f in files))
        return Location(folder, f"{self.folder}/{files[0]}", self.info.images) if folder else None

    def read(self, root: Path, location: Location) -> Dataset:
        (batch, label_key), (meta, name_key) = self.batch, self.meta
        if tuple(_unpickle(location.folder / meta).get(name_key) or ()) != self.names:
            raise InputError(
                f"{str(location.folder / meta)!r} does not name the classes of {self.info.title} "
                "in their order; unpack the python archive again"
            )
        data = _unpickle(location.folder / batch)
        try:
            pixels = np.asarray(data["data"], np.uint8).reshape(-1, 3, 32, 32)
            labels = np.array(data[label_key], dtype=np.int64)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{str(location.folder / batch)!r} is not the test batch of {self.info.title} "
                f"({error}); unpack the python archive again"
            ) from error
        images: Any = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
        return Dataset(
            name=self.info.name, classes=self.names, class_ids=self.names, sources=images,
            labels=labels, ids=_ids(len(labels)), split=location.layout, root=root,
            templates=self.info.templates,
        )  # fmt: skip


@published("cifar10-c", "cifar100-c")
@dataclass(frozen=True, kw_only=True)
class CIFARC(CorruptedReader):
    """A domain for each type and severity.

    An array holds the test images five times, severity s in rows n(s−1) to ns with n = 10,000; it
    is opened as a memory map and rows are read when asked for.
    """

    folder: ClassVar[str]
    clean: ClassVar[str]  # the set that was corrupted

    def find(self, root: Path) -> Location | None:
        folder = first(root, ("", self.folder), lambda p: (p / "labels.npy").is_file())
        if folder is None or not any((folder / f"{c}.npy").is_file() for c in CORRUPTIONS):
            return None
        if (int(_map(folder / "labels.npy").max()) < 10) != (self.info.classes == 10):
            return None
        count = (self.info.images or 0) * len(self.chosen)
        return Location(folder, f"published arrays, {self.words}", count)

    def read(self, root: Path, location: Location) -> Dataset:
        labels = np.array(_map(location.folder / "labels.npy"), dtype=np.int64)
        n = len(labels) // 5
        if len(labels) != 5 * n or (labels.reshape(5, n) != labels[:n]).any():
            raise InputError(
                f"labels.npy in {str(location.folder)!r} is not the test labels five times over; "
                "unpack the archive again"
            )
        runs = [(self._array(location.folder, c, 5 * n), n * (s - 1)) for c, s in self.chosen]
        names = row(self.clean)["names"]
        return Dataset(
            name=self.info.name, classes=names, class_ids=names,
            sources=Lazy(n * len(runs), partial(_pixels, runs, n)),
            labels=np.tile(labels[:n], len(runs)), ids=_ids(n) * len(runs),
            domains=[f"{c}/{s}" for c, s in self.chosen for _ in range(n)],
            split=location.layout, root=root, templates=self.info.templates,
        )  # fmt: skip

    def _array(self, folder: Path, corruption: str, rows: int) -> Path:
        """The file of a type, which is there and has the right shape."""
        path = folder / f"{corruption}.npy"
        if not path.is_file():
            here = [c for c in CORRUPTIONS if (folder / f"{c}.npy").is_file()]
            raise InputError(
                f"{str(folder)!r} has no {path.name}; unpack the archive again, or put "
                f"?corruption={','.join(here)} behind the path to take what is there"
            )
        array, shape = _map(path), (rows, 32, 32, 3)
        if array.shape != shape or array.dtype != np.uint8:
            raise InputError(
                f"{str(path)!r} holds {array.dtype} {array.shape} instead of uint8 {shape}; "
                "unpack the archive again"
            )
        return path


def _ids(count: int) -> list[str]:
    return [f"test/{i:05d}" for i in range(count)]


def _pixels(runs: Sequence[tuple[Path, int]], length: int, index: int) -> NDArray[Any]:
    """An image of the runs of `length`, each of which begins at a row of a file."""
    path, start = runs[index // length]
    return np.array(_opened(path)[start + index % length])


@lru_cache(maxsize=32)
def _opened(path: Path) -> NDArray[Any]:
    return _map(path)


def _map(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {str(path)!r} ({error}); unpack the archive again"
        ) from error
