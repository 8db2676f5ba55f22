"""CIFAR-10-C and -100-C from the published arrays.

An array holds the test images five times, severity s in rows n(s−1) to ns with n = 10,000; it is
opened as a memory map and rows are read when asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.cifar import CIFAR10_NAMES, CIFAR100_NAMES
from adte.data.corrupted import corruption_list, severity_list
from adte.data.corruptions import CORRUPTIONS
from adte.data.files import first
from adte.data.registry import Found, Reader, register_dataset

__all__ = ["CIFAR10C", "CIFAR100C", "Rows"]


@dataclass
class Rows(Sequence[Any]):
    """Rows of .npy files, memory-mapped; the maps are opened when needed and never pickled."""

    parts: list[tuple[Path, int]]  # file and first row of each run of `length`
    length: int
    _maps: dict[Path, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.parts) * self.length

    def __getitem__(self, index: Any) -> Any:
        path, start = self.parts[index // self.length]
        if path not in self._maps:
            self._maps[path] = _map(path)
        return np.array(self._maps[path][start + index % self.length])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}


def _map(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {str(path)!r} ({error}); unpack the archive again"
        ) from error


@dataclass(frozen=True, kw_only=True)
class CIFARC(Reader):
    """A domain for each type and severity."""

    folder: ClassVar[str]
    names: ClassVar[tuple[str, ...]]

    corruption: str = option(
        "common", "types of corruption, separated by commas; common is 15, all 19"
    )
    severity: str | int = option("5", "severity, 1 to 5, or several as in 1,3 or 1-5")

    def find(self, root: Path) -> Found | None:
        folder = first(root, ("", self.folder), lambda p: (p / "labels.npy").is_file())
        if folder is None or not any((folder / f"{c}.npy").is_file() for c in CORRUPTIONS):
            return None
        if (int(_map(folder / "labels.npy").max()) < 10) != (len(self.names) == 10):
            return None
        types, severities = corruption_list(self.corruption), severity_list(self.severity)
        words = f"published arrays, severity {self.severity}: {', '.join(types)}"
        each = self.info.images or 0
        return Found(folder, words, each * len(types) * len(severities))

    def read(self, root: Path, found: Found) -> Dataset:
        labels = np.array(_map(found.folder / "labels.npy"), dtype=np.int64)
        n = len(labels) // 5
        if len(labels) != 5 * n or (labels.reshape(5, n) != labels[:n]).any():
            raise InputError(
                f"labels.npy in {str(found.folder)!r} is not the test labels five times over; "
                "unpack the archive again"
            )
        runs = []
        for c in corruption_list(self.corruption):
            path = found.folder / f"{c}.npy"
            if not path.is_file():
                here = [c for c in CORRUPTIONS if (found.folder / f"{c}.npy").is_file()]
                raise InputError(
                    f"{str(found.folder)!r} has no {c}.npy; unpack the archive again, or put "
                    f"?corruption={','.join(here)} behind the path to take what is there"
                )
            if _map(path).shape != (5 * n, 32, 32, 3) or _map(path).dtype != np.uint8:
                raise InputError(
                    f"{str(path)!r} holds {_map(path).dtype} {_map(path).shape} instead of uint8 "
                    f"{(5 * n, 32, 32, 3)}; unpack the archive again"
                )
            runs += [(c, s, path) for s in severity_list(self.severity)]
        return Dataset(
            name=self.info.name, classes=self.names, class_ids=self.names,
            sources=Rows([(path, n * (s - 1)) for _, s, path in runs], n),
            labels=np.tile(labels[:n], len(runs)),
            ids=[f"test/{i:05d}" for i in range(n)] * len(runs),
            domains=[d for c, s, _ in runs for d in [f"{c}/{s}"] * n],
            split=found.layout, root=root, templates=self.info.templates,
        )  # fmt: skip


@register_dataset(CARDS["cifar10-c"])
@dataclass(frozen=True, kw_only=True)
class CIFAR10C(CIFARC):
    """CIFAR-10-C."""

    folder = "CIFAR-10-C"
    names = CIFAR10_NAMES


@register_dataset(CARDS["cifar100-c"])
@dataclass(frozen=True, kw_only=True)
class CIFAR100C(CIFARC):
    """CIFAR-100-C."""

    folder = "CIFAR-100-C"
    names = CIFAR100_NAMES
