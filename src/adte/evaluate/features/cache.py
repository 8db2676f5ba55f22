"""The view-feature cache: encode once, replay everything.

A folder with

    recipe.json                 all that decides the numbers
    shard-00000.safetensors …   features of `shard` images each, their labels, ids and domains
    weights-NAME.safetensors    class weights of a prompt set

Every file is written whole and has a checksum, so an interrupted extraction continues at the first
missing shard and never leaves half of one. One process writes to a folder at a time; another one is
refused. A `Cache` checks a shard when it first reads from it, in whatever order images are asked
for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from adte.core.errors import InputError, LockedError, StateError
from adte.core.schema import before
from adte.data.base import Skipped
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import (
    FILE,
    Recipe,
    check_same,
    difference,
    read_recipe,
    write_recipe,
)
from adte.evaluate.features.stream import FeatureStream, Image, Ints, Tick, silent
from adte.files.claims import own_folder
from adte.files.locks import Lock
from adte.files.states import KEY, load_state, save_state
from adte.files.whole import check_readable
from adte.images import Views
from adte.models.base import Model

__all__ = ["Cache", "begun", "bundle", "extract"]

SHARD = 256  # images; 64 views of 512 features make 16 MiB


def bundle(name: str = "replay") -> Path:
    """The folder of a cache that the package carries."""
    return Path(str(resources.files("adte") / "assets" / name))


def begun(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Options of the views that an existing cache was made with, and has to be continued with.

    They are those that came after a release, so that nobody could ask for them then; a folder
    without a cache has none.
    """
    if not (Path(folder) / FILE).is_file():
        return {}
    views = read_recipe(Path(folder)).views
    return {name: getattr(views, name) for name in before(Views)}


# --------------------------------------------------------------------------- files of a cache


def _shard_paths(folder: Path, images: int, shard: int) -> list[Path]:
    return [folder / f"shard-{i:05d}.safetensors" for i in range(-(-images // shard))]


def _weights_path(folder: Path, prompt_set: str) -> Path:
    if not prompt_set or {"/", "\\", "\0"} & {*prompt_set}:
        raise InputError(f"{prompt_set!r} is no name of a prompt set; use one without slashes")
    return folder / f"weights-{prompt_set}.safetensors"


def _save_shard(path: Path, recipe: Recipe, images: list[Image], lost: list[Skipped]) -> None:
    features = torch.empty(len(images), recipe.views.count, recipe.dim, dtype=torch.float16)
    for row, image in zip(features, images, strict=True):
        row.copy_(image.features)
    tensors = {
        "features": features,
        "labels": torch.tensor([i.label for i in images], dtype=torch.int32),
        "groups": torch.tensor([i.group for i in images], dtype=torch.int32),
    }
    facts = {
        "ids": [i.id for i in images],
        "domains": [i.domain for i in images],
        "skipped": [asdict(s) for s in lost],
        "recipe": recipe.digest,
        "file": path.name,
    }
    save_state(path, tensors, facts)


def _load_shard(path: Path, recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a shard of this recipe, checked."""
    mend = f"delete {path.name!r} and run extract again; only its images are encoded anew"
    check_readable(path)
    try:
        tensors, facts = load_state(path)
        altered = "digest" in facts and facts["digest"] != _old_digest(tensors, facts["ids"])
        features = tensors["features"]
    except (InputError, StateError, LookupError, TypeError) as error:
        raise StateError(f"shard {str(path)!r} is damaged ({error}); {mend}") from error
    if altered:
        raise StateError(f"shard {str(path)!r} was altered: its checksum does not fit; {mend}")
    if (name := facts.get("file", path.name)) != path.name:
        raise StateError(f"shard {str(path)!r} was written as {name!r}; {mend}")
    same = facts.get("recipe", recipe.digest) == recipe.digest  # shards of 0.1 have none
    same = same and features.shape[1:] == (recipe.views.count, recipe.dim)
    if not same or features.dtype != torch.float16:
        raise _stranger(path)
    return tensors, facts


def _old_digest(tensors: dict[str, Tensor], ids: list[str]) -> str:
    """The checksum of shards that were made by adte 0.1."""
    digest = blake2b(digest_size=16)
    for name in ("features", *sorted(tensors.keys() - {"features"})):
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    digest.update("\n".join(ids).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_head(path: Path, classes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Labels and groups of a shard, and its facts; its features are not read, nor checked."""
    check_readable(path)
    try:
        with safe_open(str(path), framework="np") as f:
            arrays = {name: f.get_tensor(name) for name in ("labels", "groups")}
            header = json.loads(f.metadata()[KEY])
            facts = {name: list(header[name]) for name in ("ids", "domains", "skipped")}
        if len({len(facts["ids"]), len(facts["domains"]), *map(len, arrays.values())}) > 1:
            raise ValueError("it has more names than images")
    except Exception as error:  # whatever safetensors makes of a damaged file
        raise StateError(
            f"shard {str(path)!r} is damaged ({error}); delete it and run extract again"
        ) from error
    if not all(0 <= label < classes for label in arrays["labels"].tolist()):
        raise _stranger(path)
    return arrays, facts


def _read_weights(folder: Path, prompt_set: str, recipe: Recipe) -> tuple[Tensor, dict[str, Any]]:
    """The class weights of a prompt set, and its texts."""
    path = _weights_path(folder, prompt_set)
    if not path.exists():
        sets = sorted(p.stem.removeprefix("weights-") for p in folder.glob("weights-*"))
        raise InputError(
            f"the cache {str(folder)!r} has no prompt set {prompt_set!r}; it has: "
            f"{', '.join(sets) or 'none'}"
        )
    check_readable(path)
    try:
        tensors, facts = load_state(path)
        weights = tensors["class_weights"]
        if weights.shape != (len(recipe.classes), recipe.dim):
            raise ValueError("they are of other classes")
        return weights, dict(facts["prompts"])
    except (StateError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{str(path)!r} is damaged, or another cache's; delete it and run the same `adte "
            "extract` again, features stay"
        ) from error


def _stranger(path: Path) -> StateError:
    return StateError(
        f"shard {str(path)!r} holds other images or views, or was made otherwise than this cache; "
        "extract into another folder, or delete the shard and run extract again"
    )


# --------------------------------------------------------------------------- writing


def extract(
    live: Live,
    folder: str | os.PathLike[str],
    prompt_set: str = "default",
    frequency: tuple[float, ...] | None = None,
    shard: int = SHARD,
    tick: Tick = silent,
) -> Cache:
    """Write the features of a live stream to a folder, or continue where an earlier call stopped.

    `frequency` is how often the model saw each class in training, where that is known. `tick` is
    called with the number of images just done, those on the disk included. Images that an earlier
    call could not read are tried again; a shard is made anew where one of its own can be read now.
    """
    if live.is_part:
        raise InputError(
            "extract takes a whole stream, but this one is a part; limit it with "
            "make_stream(…, limit=…) instead"
        )
    folder = own_folder(folder, FILE, "shard-*", "weights-*")
    recipe = replace(live.recipe, shard=shard, frequency=frequency)
    paths = _shard_paths(folder, len(live), shard)
    files = [folder / FILE, _weights_path(folder, prompt_set), *paths]
    with ExitStack() as stack:
        busy: LockedError | None = None
        try:
            if os.access(folder, os.W_OK):  # else writing says why not
                stack.enter_context(Lock(folder / FILE, 0))
        except LockedError as error:  # many may read a cache that lacks nothing
            busy = error
        if busy is not None and not all(path.exists() for path in files):
            raise busy
        lacking = _look(live, folder, prompt_set, recipe, paths, tick)
        if busy is not None and (lacking.recipe or lacking.weights or lacking.shards):
            raise busy
        _complete(live, folder, prompt_set, recipe, lacking, tick)
    return Cache(folder, prompt_set)


@dataclass
class _Lacking:
    """The missing parts of a cache; `skipped` are unreadable images of the shards that stay."""

    recipe: bool
    weights: bool
    shards: list[tuple[Path, range]]
    skipped: list[Skipped]


def _look(
    live: Live, folder: Path, prompt_set: str, recipe: Recipe, paths: list[Path], tick: Tick
) -> _Lacking:
    """Check all that the folder holds."""
    known = (folder / FILE).exists()
    if known:
        check_same(folder, read_recipe(folder), recipe)
    out = _Lacking(not known, not _has_weights(folder, prompt_set, live), [], [])
    kept = []
    for number, path in enumerate(paths):
        places = range(len(live))[number * recipe.shard :][: recipe.shard]
        if path.exists():
            _, facts = _load_shard(path, recipe)
            lost = [Skipped(**s) for s in facts["skipped"]]
            read = sorted({*places} - {s.position for s in lost})
            names = [*zip(facts["ids"], facts["domains"], strict=True)]
            if names != [live.stream.identify(i) for i in read]:
                raise _stranger(path)
            if not any(live.readable(s.position) for s in lost):
                out.skipped += lost
                kept.append((path, read))
                tick(len(places))
                continue
        out.shards.append((path, places))
    live.note_newer(kept, f"features in {str(folder)!r}", "extract into another folder")
    return out


def _has_weights(folder: Path, prompt_set: str, live: Live) -> bool:
    """Whether the cache has the class weights; others under the same name are refused."""
    prompts = live.recipe.prompts
    try:
        weights, texts = _read_weights(folder, prompt_set, live.recipe)
    except (InputError, StateError):  # missing or damaged
        return False
    close = torch.allclose(weights, live.class_weights.cpu(), rtol=0, atol=1e-2)
    if _content(texts) != _content(prompts) or not close:
        raise StateError(
            f"the cache {str(folder)!r} has a prompt set {prompt_set!r} with other prompts: "
            f"{difference(texts, prompts)}; give these a name of their own (--prompt-set)"
        )
    return True


def _content(prompts: Any) -> Any:
    """Prompts as JSON has them, whatever they are called."""
    plain = json.loads(json.dumps(prompts))
    return {k: v for k, v in plain.items() if k != "name"} if isinstance(plain, dict) else plain


def _complete(
    live: Live, folder: Path, prompt_set: str, recipe: Recipe, lacking: _Lacking, tick: Tick
) -> None:
    """Write what a cache lacks; nothing before all that the folder holds was looked at."""
    if lacking.recipe:
        write_recipe(folder, recipe)
    if lacking.weights:
        save_state(
            _weights_path(folder, prompt_set),
            {"class_weights": live.class_weights},
            {"prompts": recipe.prompts, "classes": list(live.classes)},
        )
    part = copy(live)
    part.order = np.array([i for _, places in lacking.shards for i in places], dtype=np.int64)
    lost = _write(part, recipe, lacking.shards, tick)
    live.skipped = sorted(lacking.skipped + lost, key=lambda s: s.position)
    if len(live.skipped) == len(live):
        raise InputError(
            f"none of the {len(live)} images could be read; the first: {live.skipped[0].reason}"
        )


def _write(
    part: Live, recipe: Recipe, shards: list[tuple[Path, range]], tick: Tick
) -> list[Skipped]:
    """One stream of images into all shards; those that cannot be read.

    A second thread fetches the features from the device and writes: a GPU waits for neither.
    """
    device = part.pipeline.model.device
    kernels = torch.cuda.current_stream(device) if device.type == "cuda" else None
    coming = part.images()
    ahead = next(coming, None)

    def save(path: Path, images: list[Image], lost: list[Skipped]) -> None:
        if kernels is not None:  # a copy that waits would hold up whoever launches kernels
            kernels.synchronize()
        _save_shard(path, recipe, images, lost)

    with ThreadPoolExecutor(1, "adte-shard") as writer:
        earlier: Future[None] | None = None
        for path, places in shards:
            images: list[Image] = []
            while ahead is not None and ahead.place in places:
                images.append(ahead)
                tick(1)
                ahead = next(coming, None)
            lost = [s for s in part.skipped if s.position in places]
            if earlier is not None:  # two shards are in memory at most
                earlier.result()
            earlier = writer.submit(save, path, images, lost)
        if earlier is not None:
            earlier.result()
    return part.skipped


# --------------------------------------------------------------------------- reading


class Cache(FeatureStream):
    """Features on disk, as a re-iterable stream; one image's features are in memory at a time.

    Without a folder it is the bundle that the package carries. A cache knows its model by name and
    fingerprint; the model itself is needed only where a method needs a tower, and must be the one
    that made the features.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        prompt_set: str = "default",
        model: Model | None = None,
    ) -> None:
        self.folder = bundle() if folder is None else Path(folder)
        recipe = read_recipe(self.folder)
        weights, prompts = _read_weights(self.folder, prompt_set, recipe)
        self.paths = _shard_paths(self.folder, recipe.data["images"], recipe.shard)
        if missing := [p.name for p in self.paths if not p.is_file()]:
            raise StateError(
                f"the cache {str(self.folder)!r} holds {len(self.paths) - len(missing)} of "
                f"{len(self.paths)} shards ({missing[0]!r} is missing); run the same "
                "`adte extract` again to complete it"
            )
        heads = [_read_head(path, len(recipe.classes)) for path in self.paths]
        labels, groups = (
            np.concatenate([head[0][name] for head in heads] or [np.zeros(0)]).astype(np.int64)
            for name in ("labels", "groups")
        )
        facts = {name: [x for _, head in heads for x in head[name]]
                 for name in ("ids", "domains", "skipped")}  # fmt: skip
        self._starts = np.cumsum([0, *(len(head["ids"]) for _, head in heads)])
        self._ids, self._groups = facts["ids"], groups
        self._opened: dict[int, int] = {}  # checked shards: the byte of their first feature
        super().__init__(
            replace(recipe, prompts=prompts), weights, labels, facts["domains"], model,
            [Skipped(**s) for s in facts["skipped"]],
        )  # fmt: skip

    @property
    def model(self) -> Model | None:
        """The model behind the features, or None."""
        return self._model

    @model.setter
    def model(self, model: Model | None) -> None:
        made = self.recipe.fingerprint
        if model is not None and model.fingerprint != made:
            raise StateError(
                f"the cache {str(self.folder)!r} holds features of model {self.recipe.model!r} "
                f"(fingerprint {made}), not of {model.name!r} ({model.fingerprint}); "
                "give the model that made it, or extract anew"
            )
        self._model = model

    def expect(self, prompts: dict[str, Any]) -> None:
        """Refuse to stand in for other prompts than it holds."""
        mine = self.recipe.prompts
        if _content(mine) != _content(prompts):
            raise StateError(
                f"the cache {str(self.folder)!r} was made with another prompt set: "
                f"{difference(mine, prompts)}; leave the option out to use what it holds, or "
                "extract what you need"
            )

    def _open(self, number: int) -> int:
        """Check a shard as a whole; the byte of its first feature."""
        path = self.paths[number]
        _, facts = _load_shard(path, self.recipe)
        if facts["ids"] != self._ids[self._starts[number] : self._starts[number + 1]]:
            raise StateError(f"{str(path)!r} was replaced while it was read; open the cache again")
        with path.open("rb") as f:  # eight bytes for the header's length, the header, the tensors
            length = int.from_bytes(f.read(8), "little")
            return 8 + length + int(json.loads(f.read(length))["features"]["data_offsets"][0])

    def _read(self, places: Ints) -> Iterator[Image]:
        shape = self.recipe.views.count, self.recipe.dim
        count = shape[0] * shape[1]
        shards = np.searchsorted(self._starts, places, side="right") - 1
        for s, place in zip(shards.tolist(), places.tolist(), strict=True):
            if s not in self._opened:
                self._opened[s] = self._open(s)
            path, row = self.paths[s], place - int(self._starts[s])
            try:
                values = np.fromfile(path, "<f2", count, offset=self._opened[s] + 2 * count * row)
            except OSError as error:
                raise StateError(
                    f"shard {str(path)!r} cannot be read any more ({error}); check the disk, or "
                    "run extract again"
                ) from error
            if values.size != count:
                raise StateError(
                    f"shard {str(path)!r} was cut off while it was read; delete it and run "
                    "extract again"
                )
            yield Image(
                torch.from_numpy(values.reshape(shape)),
                0,
                self._ids[place],
                self._domains[place],
                int(self._groups[place]),
                place=place,
            )
