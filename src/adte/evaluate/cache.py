"""The view-feature cache: encode once, replay everything.

A folder with `recipe.json` (model, data, views, classes: all that decides the numbers), shards of a
fixed number of images, and class weights for each prompt set. A shard is one safetensors file,
written whole, with the digest of its content in its header. So an interrupted extraction goes on at
the first missing shard, and never leaves half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from adte.data.reading import Skipped
from adte.errors import InputError, StateError
from adte.evaluate.features import Encoded, FeatureStream, Live
from adte.methods import Sample
from adte.models.base import Model
from adte.state import load_state, save_state, write_whole

__all__ = ["Cache", "extract"]

SHARD = 256  # images; 64 views of 512 features make 16 MiB
DECIDING = ("model", "fingerprint", "preprocess", "views", "data", "classes", "shard")


def _digest(tensors: dict[str, Tensor], ids: list[str]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    digest.update("\n".join(ids).encode())
    return digest.hexdigest()


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def _write_json(path: Path, data: Any) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, lambda name: Path(name).write_text(text, "utf-8"))


def extract(
    live: Live,
    folder: str | os.PathLike[str],
    prompt_set: str = "default",
    facts: dict[str, Any] | None = None,
    shard: int = SHARD,
    tick: Callable[[int], None] = lambda images: None,
) -> Cache:
    """Write the features of a live stream to a folder, or go on where an earlier call stopped.

    `facts` are added to the recipe (for instance how often the model saw each class in training).
    `tick` is told how many images are done, those found on disk included.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {"format": 1, **live.facts, "shard": shard, **(facts or {})}
    recipe.pop("prompts", None)
    if (folder / "recipe.json").exists():
        _check_recipe(folder, recipe)
    else:
        _write_json(folder / "recipe.json", recipe)
    save_state(
        folder / f"weights-{prompt_set}.safetensors",
        {"class_weights": live.class_weights},
        {"prompts": live.prompts, "classes": live.classes},
    )
    total = len(live)
    skipped: list[Skipped] = []
    for number, start in enumerate(range(0, total, shard)):
        stop = min(start + shard, total)
        path = _shard(folder, number)
        if path.exists():
            _load_shard(path)  # raises if it is damaged
        else:
            part = replace(live, part=range(start, stop))
            _write_shard(path, list(_counted(part, tick)), part)
            skipped += part.skipped
            continue
        tick(stop - start)
    live.skipped = skipped
    return Cache(folder, prompt_set)


def _counted(part: Live, tick: Callable[[int], None]) -> Iterator[Encoded]:
    for e in part.encoded():
        yield e
        tick(1)


def _write_shard(path: Path, items: list[Encoded], live: Live) -> None:
    v, d = live.views.count, live.model.dim
    tensors = {
        "features": torch.stack([e.features for e in items])
        if items
        else torch.zeros(0, v, d).half(),
        "labels": torch.tensor([e.label for e in items], dtype=torch.int32),
        "groups": torch.tensor([e.group for e in items], dtype=torch.int32),
    }
    ids = [e.id for e in items]
    save_state(path, tensors, {
        "ids": ids,
        "domains": [e.domain for e in items],
        "digest": _digest(tensors, ids),
        "skipped": [asdict(s) for s in live.skipped],
    })  # fmt: skip


def _load_shard(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    mend = f"delete {path.name!r} and run extract again; only its images are encoded anew"
    try:
        tensors, header = load_state(path)
    except StateError as error:
        raise StateError(f"shard {str(path)!r} is damaged; {mend}") from error
    if _digest(tensors, header["ids"]) != header["digest"]:
        raise StateError(f"shard {str(path)!r} was altered: its checksum does not fit; {mend}")
    return tensors, header


def _check_recipe(folder: Path, wanted: dict[str, Any]) -> None:
    there = _read_recipe(folder)
    for key in DECIDING:
        if there.get(key) != json.loads(json.dumps(wanted[key])):
            a, b = str(there.get(key))[:80], str(wanted[key])[:80]
            raise StateError(
                f"the cache {str(folder)!r} was made with another {key}: {a} there, {b} asked for; "
                "choose another folder, or ask for what it holds"
            )


def _read_recipe(folder: Path) -> dict[str, Any]:
    path = folder / "recipe.json"
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} is not a cache: it holds no recipe.json; make one with `adte extract`"
        )
    recipe: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if recipe.get("format") != 1:
        raise StateError(
            f"the cache {str(folder)!r} has format {recipe.get('format')}, this version reads 1; "
            "make it again with `adte extract`"
        )
    return recipe


class Cache(FeatureStream):
    """Features on disk, as a re-iterable stream; one shard is in memory at a time.

    Without a folder it is the bundle that the package carries.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        prompt_set: str = "default",
        model: Model | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        if folder is None:
            folder = Path(str(resources.files("adte") / "assets" / "replay"))
        self.folder = Path(folder)
        self.facts = _read_recipe(self.folder)
        self.model = model
        weights = self.folder / f"weights-{prompt_set}.safetensors"
        if not weights.exists():
            sets = sorted(p.stem.removeprefix("weights-") for p in self.folder.glob("weights-*"))
            raise InputError(
                f"the cache {str(self.folder)!r} has no prompt set {prompt_set!r}; it has: "
                f"{', '.join(sets) or 'none'}"
            )
        tensors, header = load_state(weights)
        self.class_weights = tensors["class_weights"]
        self.facts["prompts"] = header["prompts"]
        self.shards = sorted(self.folder.glob("shard-*.safetensors"))
        expected = -(-self.facts["data"]["images"] // self.facts["shard"])
        if len(self.shards) != expected:
            raise StateError(
                f"the cache {str(self.folder)!r} holds {len(self.shards)} of {expected} shards; "
                "run the same `adte extract` again to complete it"
            )
        self._starts = np.cumsum([0, *(self._size(p) for p in self.shards)])
        self.order = order

    @staticmethod
    def _size(path: Path) -> int:
        try:
            with safe_open(str(path), framework="pt") as f:
                return int(f.get_slice("labels").get_shape()[0])
        except Exception as error:
            raise StateError(
                f"shard {str(path)!r} is damaged ({error}); delete it and run extract again"
            ) from error

    def __len__(self) -> int:
        return int(self._starts[-1]) if self.order is None else len(self.order)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true classes, in the order of the stream."""
        every = []
        for path in self.shards:
            with safe_open(str(path), framework="pt") as f:
                every.append(f.get_tensor("labels").numpy())
        labels = np.concatenate(every).astype(np.int64) if every else np.zeros(0, np.int64)
        return labels if self.order is None else labels[self.order]

    def ordered(self, order: NDArray[np.int64]) -> Cache:
        """The same images in another order, or some of them."""
        base = np.arange(len(self)) if self.order is None else self.order
        copy = object.__new__(Cache)
        copy.__dict__.update(self.__dict__, order=base[order])
        return copy

    def at(self, index: int) -> tuple[Sample, int]:
        """One image of the stream."""
        return next(iter(self.ordered(np.array([index]))))

    def first(self, count: int | None) -> Cache:
        """The first images alone; all of them for None."""
        if count is None:
            return self
        if count < 1:
            raise InputError(f"limit={count} leaves no image; give at least 1")
        return self.ordered(np.arange(min(count, len(self))))

    def encoded(self) -> Iterator[Encoded]:
        if self.order is None:
            for path in self.shards:
                tensors, header = _load_shard(path)
                for i in range(len(header["ids"])):
                    yield self._item(tensors, header, i)
            return
        yield from self._random_access(self.order)

    def _random_access(self, order: NDArray[np.int64]) -> Iterator[Encoded]:
        """Any order, through memory maps: each image is read when its turn comes."""
        files = [safe_open(str(p), framework="pt") for p in self.shards]
        headers = [_header(f) for f in files]
        where = np.searchsorted(self._starts, order, side="right") - 1
        for s, index in zip(where.tolist(), order.tolist(), strict=True):
            i = index - int(self._starts[s])
            part = {k: files[s].get_slice(k)[i : i + 1] for k in ("features", "labels", "groups")}
            yield self._item(part, headers[s], 0, i)

    def _item(
        self, tensors: dict[str, Tensor], header: dict[str, Any], i: int, named: int | None = None
    ) -> Encoded:
        name = i if named is None else named
        return Encoded(
            tensors["features"][i],
            int(tensors["labels"][i]),
            header["ids"][name],
            header["domains"][name],
            int(tensors["groups"][i]),
        )


def _header(file: Any) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(file.metadata()["adte"])
    return header
