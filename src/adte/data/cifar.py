"""CIFAR-10 and -100 from the python archives."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adte.core.errors import InputError
from adte.data.base import Dataset
from adte.data.cards import CARDS
from adte.data.files import first
from adte.data.registry import Found, Reader, register_dataset

__all__ = ["CIFAR10", "CIFAR10_NAMES", "CIFAR100", "CIFAR100_NAMES"]

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                 "truck")  # fmt: skip
CIFAR100_NAMES = tuple(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm""".split()  # noqa: SIM905
)


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


@dataclass(frozen=True, kw_only=True)
class CIFAR(Reader):
    """The test batch, in the order of the file."""

    folder: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    keys: ClassVar[tuple[str, str, str, str]]  # files of images and names, keys of both

    def find(self, root: Path) -> Found | None:
        batch, meta = self.keys[:2]
        folder = first(root, ("", self.folder),
                       lambda p: (p / batch).is_file() and (p / meta).is_file())  # fmt: skip
        return Found(folder, f"{self.folder}/{batch}", self.info.images) if folder else None

    def read(self, root: Path, found: Found) -> Dataset:
        batch, meta, label_key, name_key = self.keys
        names = _unpickle(found.folder / meta).get(name_key)
        if names is None or tuple(names) != self.names:
            raise InputError(
                f"{str(found.folder / meta)!r} does not name the classes of {self.info.title} in "
                "their order; unpack the python archive again"
            )
        data = _unpickle(found.folder / batch)
        try:
            pixels = np.asarray(data["data"], np.uint8).reshape(-1, 3, 32, 32)
            labels = np.array(data[label_key], dtype=np.int64)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{str(found.folder / batch)!r} is not the test batch of {self.info.title} "
                f"({error}); unpack the python archive again"
            ) from error
        return Dataset(
            name=self.info.name, classes=self.names, class_ids=self.names,
            sources=np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)),  # type: ignore[arg-type]
            labels=labels, ids=[f"test/{i:05d}" for i in range(len(labels))],
            split=found.layout, root=root, templates=self.info.templates,
        )  # fmt: skip


@register_dataset(CARDS["cifar10"])
@dataclass(frozen=True, kw_only=True)
class CIFAR10(CIFAR):
    """CIFAR-10 test."""

    folder = "cifar-10-batches-py"
    names = CIFAR10_NAMES
    keys = ("test_batch", "batches.meta", "labels", "label_names")


@register_dataset(CARDS["cifar100"])
@dataclass(frozen=True, kw_only=True)
class CIFAR100(CIFAR):
    """CIFAR-100 test with the fine labels."""

    folder = "cifar-100-python"
    names = CIFAR100_NAMES
    keys = ("test", "meta", "fine_labels", "fine_label_names")
