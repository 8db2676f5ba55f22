"""A shard of a cache: the features of some hundred images in one safetensors file.

It is written whole, with the digest of its content in its header, and checked against it when it is
opened. While it grows, features come to the host and into the digest one image at a time, so that
little is left to do when it is full.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from adte.core.errors import InputError, StateError
from adte.data.base import Skipped
from adte.evaluate.features.stream import Image
from adte.files.states import load_state, save_state
from adte.files.whole import check_readable

__all__ = ["Growing", "Shard", "count_of", "load", "place"]


def place(folder: Path, number: int) -> Path:
    """Where a shard of a cache lies."""
    return folder / f"shard-{number:05d}.safetensors"


def _bytes(x: Tensor) -> memoryview:
    return x.contiguous().view(torch.uint8).numpy().data


def _digest(features: blake2b, tensors: dict[str, Tensor], ids: list[str]) -> str:
    """Of the features, which it has already, the other tensors by name, and the ids."""
    for name in sorted(tensors.keys() - {"features"}):
        features.update(_bytes(tensors[name]))
    features.update("\n".join(ids).encode("utf-8", "surrogateescape"))
    return features.hexdigest()


def _names_digest(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    """Of all that `_digest` leaves out."""
    shapes = [[name, str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())]
    later = [key for key in ("recipe", "file") if key in header]  # that early shards lack
    keys = ("ids", "domains", "skipped", *later)
    names = json.dumps([shapes, *(header[key] for key in keys)])
    return blake2b(names.encode(), digest_size=16).hexdigest()


# --------------------------------------------------------------------------- writing


class Growing:
    """A shard of at most `size` images (V, D), not yet written; it may grow in another thread.

    `recipe` is the digest of what the features are made of. The shard is made where those are:
    their stream of `device` is the one it waits for.
    """

    def __init__(
        self, path: Path, recipe: str, size: int, views: int, dim: int, device: torch.device
    ) -> None:
        self.path, self.recipe = path, recipe
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.features = torch.empty(size, views, dim, dtype=torch.float16)
        self.images: list[Image] = []
        self._features = blake2b(digest_size=16)

    def add(self, image: Image) -> None:
        """The next image; waits for the device that computes its features."""
        here = self.features[len(self.images)]
        if self._stream is not None:  # a copy that waits would hold up whoever launches kernels
            self._stream.synchronize()
        here.copy_(image.features)
        self._features.update(_bytes(here))
        self.images.append(image._replace(features=here, pixels=None))

    def write(self, skipped: Sequence[Skipped]) -> None:
        """All of it to the disk, with those of its images that could not be read."""
        images = self.images
        tensors = {
            "features": self.features[: len(images)],
            "labels": torch.tensor([e.label for e in images], dtype=torch.int32),
            "groups": torch.tensor([e.group for e in images], dtype=torch.int32),
        }
        names: dict[str, Any] = {
            "ids": [e.id for e in images],
            "domains": [e.domain for e in images],
            "skipped": [asdict(s) for s in skipped],
            "recipe": self.recipe,
            "file": self.path.name,
        }
        digests = {
            "digest": _digest(self._features, tensors, names["ids"]),
            "names": _names_digest(tensors, names),
        }
        save_state(self.path, tensors, {**names, **digests}, checksum=False)


# --------------------------------------------------------------------------- reading


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a shard, checked against its digests."""
    mend = f"delete {path.name!r} and run extract again; only its images are encoded anew"
    check_readable(path)
    try:
        tensors, header = load_state(path)
        features = blake2b(_bytes(tensors["features"]), digest_size=16)
        same = header["digest"] == _digest(features, tensors, header["ids"])
        names = _names_digest(tensors, header)
        same = same and header.get("names", names) == names  # early shards have no such entry
    except (InputError, StateError, LookupError, TypeError) as error:
        raise StateError(f"shard {str(path)!r} is damaged; {mend}") from error
    if not same:
        raise StateError(f"shard {str(path)!r} was altered: its checksum does not fit; {mend}")
    if (name := header.get("file", path.name)) != path.name:
        raise StateError(f"shard {str(path)!r} was written as {name!r}; {mend}")
    return tensors, header


def count_of(path: Path) -> int:
    """How many images a shard holds; its features are not read."""
    check_readable(path)
    try:
        with safe_open(str(path), framework="pt") as f:
            return int(f.get_slice("labels").get_shape()[0])
    except Exception as error:
        raise StateError(
            f"shard {str(path)!r} is damaged ({error}); delete it and run extract again"
        ) from error


@dataclass(frozen=True, eq=False)
class Shard:
    """What is held of a shard: all but the features, and where those lie in the file."""

    path: Path
    header: dict[str, Any]
    labels: list[int]
    groups: list[int]
    start: int  # byte of the first feature
    shape: tuple[int, ...]  # (V, D)
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Checked against its digest: all of the file is read once."""
        tensors, header = load(path)
        with path.open("rb") as f:  # eight bytes for the header's length, the header, the tensors
            length = int.from_bytes(f.read(8), "little")
            start = 8 + length + json.loads(f.read(length))["features"]["data_offsets"][0]
        features = tensors["features"].numpy()
        labels, groups = tensors["labels"].tolist(), tensors["groups"].tolist()
        return cls(path, header, labels, groups, start, features.shape[1:], features.dtype)

    def __getitem__(self, i: int) -> Image:
        """One image, read from the file: no more is ever in memory."""
        count = self.shape[0] * self.shape[1]
        offset = self.start + i * count * self.dtype.itemsize
        try:
            features = np.fromfile(self.path, self.dtype, count, offset=offset)
        except OSError as error:
            raise StateError(
                f"shard {str(self.path)!r} cannot be read any more ({error}); check the disk, or "
                "run extract again"
            ) from error
        if features.size != count:
            raise StateError(
                f"shard {str(self.path)!r} was cut off while it was read; delete it and run "
                "extract again"
            )
        return Image(
            torch.from_numpy(features.reshape(self.shape)),
            self.labels[i],
            self.header["ids"][i],
            self.header["domains"][i],
            self.groups[i],
        )
