"""The view-feature cache: encode once, replay everything.

A folder with `recipe.json` (model, data, views, classes: all that decides the numbers), shards of a
fixed number of images (`shards.py`), and class weights for each prompt set. A shard is written
whole, so an interrupted extraction goes on at the first missing one and never leaves half of one.
One process writes to a folder at a time; another one is refused.
It is checked when a `Cache` first touches it, in whatever order the images are asked for.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import replace
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from adte.core.errors import InputError, StateError
from adte.core.schema import before
from adte.data.base import Skipped
from adte.data.streams import other_images
from adte.evaluate.features import shards
from adte.evaluate.features.live import Live
from adte.evaluate.features.recipe import DECIDING, Recipe
from adte.evaluate.features.shards import Growing, Shard
from adte.evaluate.features.stream import FeatureStream, Image, Tick, silent
from adte.files import write_whole
from adte.files.claims import Lock, own_folder
from adte.files.states import KEY, load_state, save_state
from adte.files.whole import check_readable
from adte.images import Views
from adte.models.base import Model

__all__ = ["Cache", "begun", "bundle", "extract"]

SHARD = 256  # images; 64 views of 512 features make 16 MiB


def bundle(name: str = "replay") -> Path:
    """The folder of a cache that the package carries."""
    return Path(str(resources.files("adte") / "assets" / name))


def _weights(folder: Path, prompt_set: str) -> Path:
    if not prompt_set or {"/", "\\", "\0"} & {*prompt_set}:
        raise InputError(f"{prompt_set!r} is no name of a prompt set; use one without slashes")
    return folder / f"weights-{prompt_set}.safetensors"


# --------------------------------------------------------------------------- writing


def extract(
    live: Live,
    folder: str | os.PathLike[str],
    prompt_set: str = "default",
    frequency: tuple[float, ...] | None = None,
    shard: int = SHARD,
    tick: Tick = silent,
) -> Cache:
    """Write the features of a live stream to a folder, or go on where an earlier call stopped.

    `frequency` is how often the model saw each class in training, where that is known. `tick` is
    told how many images are done, those found on disk included. Images that an earlier call could
    not read are tried again; a shard is made anew where one of its own can be read by now.
    """
    if live.part is not None:
        raise InputError(
            "extract takes a whole stream, but this one is a part; limit it with "
            "make_stream(…, limit=…) instead"
        )
    folder = own_folder(folder, "recipe.json", "shard-*", "weights-*")
    recipe = replace(live.recipe, shard=shard, frequency=frequency)
    with ExitStack() as stack:
        if not (whole := _is_whole(folder, prompt_set, len(live), shard)):
            stack.enter_context(_alone(folder))
        lacking = _look(live, folder, prompt_set, recipe, tick)
        if whole and lacking.some:  # weights that are damaged, images that can be read by now
            stack.enter_context(_alone(folder))
            lacking = _look(live, folder, prompt_set, recipe)
        _complete(live, folder, prompt_set, recipe, lacking, tick)
    return Cache(folder, prompt_set)


class _Lacking(NamedTuple):
    """What a cache lacks, and images that could not be read."""

    recipe: Recipe | None
    weights: bool
    shards: list[tuple[Path, range]]
    skipped: list[Skipped]

    @property
    def some(self) -> bool:
        return self.recipe is not None or self.weights or bool(self.shards)


def _is_whole(folder: Path, prompt_set: str, images: int, shard: int) -> bool:
    """Whether all files are there, so that many may read them at once."""
    names = [folder / "recipe.json", _weights(folder, prompt_set)]
    names += [shards.place(folder, i) for i in range(-(-images // shard))]
    return all(path.exists() for path in names)


def _alone(folder: Path) -> AbstractContextManager[object]:
    """One writer at a time: two would do the same work, or mix what is made otherwise."""
    writable = os.access(folder, os.W_OK)  # else writing says why not
    return Lock(folder / "recipe.json", 0) if writable else nullcontext()


def _look(
    live: Live, folder: Path, prompt_set: str, recipe: Recipe, tick: Tick = silent
) -> _Lacking:
    """Check all that is there."""
    better = _better_recipe(folder, recipe)
    weighed = _has_weights(folder, prompt_set, live)
    todo, skipped, changed = [], list[Skipped](), 0
    for number, start in enumerate(range(0, len(live), recipe.shard)):
        stop = min(start + recipe.shard, len(live))
        if (path := shards.place(folder, number)).exists():
            tensors, header = shards.load(path)  # raises if it is damaged
            lost = [Skipped(**s) for s in header["skipped"]]
            read = sorted({*range(start, stop)} - {s.position for s in lost})
            there = [*zip(header["ids"], header["domains"], strict=True)]
            shape = tensors["features"].shape[1:]
            same = shape == (recipe.views.count, recipe.dim)
            same = same and header.get("recipe", recipe.digest) == recipe.digest
            if not same or there != [live.stream.identify(i) for i in read]:
                raise _stranger(path)
            if not any(live.readable(s.position) for s in lost):
                skipped += lost
                changed += live.changed(path.stat().st_mtime_ns, read)
                tick(stop - start)
                continue
        todo.append((path, range(start, stop)))
    if changed:
        warnings.warn(
            f"images are newer ({changed} of {len(live)}) than their features in "
            f"{str(folder)!r}, which stay as they are; extract into another folder if the images "
            "have changed",
            stacklevel=3,
        )
    return _Lacking(better, not weighed, todo, skipped)


def _complete(
    live: Live, folder: Path, prompt_set: str, recipe: Recipe, lacking: _Lacking, tick: Tick
) -> None:
    """Write what a cache lacks; nothing before all that lies there was looked at."""
    if lacking.recipe is not None:
        facts = lacking.recipe.to_json()
        facts["checksum"] = _checksum(facts)
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / "recipe.json", text)
    if lacking.weights:
        save_state(
            _weights(folder, prompt_set),
            {"class_weights": live.class_weights},
            {"prompts": live.prompts, "classes": list(live.classes)},
        )
    part = copy(live)  # not `replace`, which would describe the stream anew
    part.part = [i for _, places in lacking.shards for i in places]
    lost = _write(part, recipe.digest, lacking.shards, tick)
    live.skipped = sorted(lacking.skipped + lost, key=lambda s: s.position)
    if len(live.skipped) == len(live):
        raise InputError(
            f"none of the {len(live)} images could be read; the first: {live.skipped[0].reason}"
        )


def _write(part: Live, recipe: str, todo: list[tuple[Path, range]], tick: Tick) -> list[Skipped]:
    """One stream of images into all shards; those that cannot be read.

    A second thread fetches the features from the device and writes: a GPU waits for neither.
    """
    coming, model = part.numbered(), part.model
    ahead = next(coming, None)
    with ThreadPoolExecutor(1, "adte-shard") as writer:
        earlier: Future[None] | None = None
        for path, places in todo:
            shard = Growing(path, recipe, len(places), part.views.count, model.dim, model.device)
            work = []
            while ahead is not None and ahead[0] in places:
                work.append(writer.submit(shard.add, ahead[1]))
                tick(1)
                ahead = next(coming, None)
            lost = [s for s in part.skipped if s.position in places]
            if earlier is not None:  # two shards are in memory at most
                earlier.result()
            earlier = writer.submit(_finish, shard, work, lost)
        if earlier is not None:
            earlier.result()
    return part.skipped


def _finish(shard: Growing, work: list[Future[None]], lost: list[Skipped]) -> None:
    """Write a shard, unless one of its images did not get into it."""
    for done in work:
        done.result()
    shard.write(lost)


def _has_weights(folder: Path, prompt_set: str, live: Live) -> bool:
    """Whether the class weights are there; others under the same name are refused."""
    path = _weights(folder, prompt_set)
    try:
        tensors, header = load_state(path)
        there = tensors["class_weights"]
        same = _said(header["prompts"]) == _said(live.prompts)
        same = same and there.shape == live.class_weights.shape
        if same and torch.allclose(there, live.class_weights.cpu(), rtol=0, atol=1e-2):
            return True
    except (InputError, StateError, KeyError):  # missing or damaged
        return False
    raise StateError(
        f"the cache {str(folder)!r} has a prompt set {prompt_set!r} with other prompts: "
        f"{_difference(header['prompts'], live.prompts)}; give these a name of their own "
        "(--prompt-set)"
    )


def _said(prompts: Any) -> Any:
    """Prompts as JSON has them, whatever they are called."""
    plain = json.loads(json.dumps(prompts))
    return {k: v for k, v in plain.items() if k != "name"} if isinstance(plain, dict) else plain


def _stranger(path: Path) -> StateError:
    return StateError(
        f"shard {str(path)!r} holds other images or views, or was made otherwise than this cache; "
        "extract into another folder, or delete the shard and run extract again"
    )


# --------------------------------------------------------------------------- reading


def _better_recipe(folder: Path, wanted: Recipe) -> Recipe | None:
    """What recipe.json should say, if it does not; that of another stream is refused."""
    if not (folder / "recipe.json").exists():
        return wanted
    known = read_recipe(folder)
    there, asked = (json.loads(json.dumps(r.to_json())) for r in (known, wanted))
    for key in DECIDING:
        if there[key] != asked[key]:
            raise StateError(
                f"the cache {str(folder)!r} was made with another {key}: "
                f"{_difference(there[key], asked[key])}; choose another folder, or ask for what it "
                "holds"
            )
    if other_images(known.content, wanted.content):
        raise StateError(
            f"the cache {str(folder)!r} was made of other images of the same names; extract into "
            "another folder"
        )
    if len(known.content) != len(wanted.content):  # it does not know its images
        return None
    seen = tuple(a or b for a, b in zip(known.content, wanted.content, strict=True))
    return replace(known, content=seen) if seen != known.content else None  # one was mended


FOLLOW = ("changes", "digest")  # facts of a stream that follow from its images and their order
TOLD = 5  # differences that are named


def _difference(there: Any, asked: Any) -> str:
    """What differs, field by field.

    >>> _difference({"limit": None, "images": 24}, {"limit": 5, "images": 5})
    'limit: none there, 5 asked for; images: 24 there, 5 asked for'
    """
    every = dict(_fields(there, asked))
    found = [f"{name.replace('_', ' ')}: {said}" if name else said
             for name, said in every.items() if name not in FOLLOW]  # fmt: skip
    if not found:
        return "names or order of the images" if every else "the same words, other numbers"
    more = [f"and {len(found) - TOLD} more"] if len(found) > TOLD else []
    return "; ".join(found[:TOLD] + more)


def _fields(there: Any, asked: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Name and difference of every field that differs, those of fields within too."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in {**there, **asked}:
            yield from _fields(there.get(key), asked.get(key), f"{name} {key}".strip())
    elif isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        for i, (a, b) in enumerate(zip(there, asked, strict=True), 1):
            yield from _fields(a, b, f"{name} {i}".strip())
    elif there != asked:
        yield name, f"{_brief(there)} there, {_brief(asked)} asked for"


def _brief(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, dict)):
        return f"{len(value)} entries"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def begun(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Options of the views by which a cache that is there was begun, and has to be gone on with.

    They are those that came after a release, so that nobody could ask for them then; a folder
    without a cache has none.
    """
    if not (Path(folder) / "recipe.json").is_file():
        return {}
    views = read_recipe(Path(folder)).views
    return {name: getattr(views, name) for name in before(Views)}


def read_recipe(folder: Path) -> Recipe:
    """What a cache says it holds."""
    path = folder / "recipe.json"
    check_readable(path)
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} is not a cache: it holds no recipe.json; make one with `adte extract`"
        )
    try:
        facts: dict[str, Any] = dict(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{str(path)!r} is damaged ({error}); delete it and run the same `adte extract` again, "
            "finished shards stay"
        ) from error
    checksum = facts.pop("checksum", None)  # early ones have none
    recipe = Recipe.from_json(facts, repr(str(folder)))
    if checksum is not None and checksum != _checksum(facts):
        raise StateError(
            f"{str(path)!r} was altered: its checksum does not fit; delete it and run the same "
            "`adte extract` again, finished shards stay"
        )
    return recipe


def _checksum(facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Cache(FeatureStream):
    """Features on disk, as a re-iterable stream; one image's features are in memory at a time.

    Without a folder it is the bundle that the package carries. A cache knows its model by name and
    fingerprint; the model itself is given only where a method needs a tower, and must be the one
    that made the features.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        prompt_set: str = "default",
        model: Model | None = None,
    ) -> None:
        self.folder = bundle() if folder is None else Path(folder)
        self.recipe = read_recipe(self.folder)
        self.model = model
        self._read_weights(prompt_set)
        expected = -(-self.recipe.data["images"] // self.recipe.shard)
        self.shards = [shards.place(self.folder, n) for n in range(expected)]
        if missing := [p.name for p in self.shards if not p.is_file()]:
            raise StateError(
                f"the cache {str(self.folder)!r} holds {expected - len(missing)} of {expected} "
                f"shards ({missing[0]!r} is missing); run the same `adte extract` again to "
                "complete it"
            )
        self._starts = np.cumsum([0, *(shards.count_of(p) for p in self.shards)])
        self._opened: dict[int, Shard] = {}  # checked; shared by the copies in other orders
        self.order: NDArray[np.int64] | None = None  # all of it, as it lies

    def _read_weights(self, prompt_set: str) -> None:
        path = _weights(self.folder, prompt_set)
        if not path.exists():
            sets = sorted(p.stem.removeprefix("weights-") for p in self.folder.glob("weights-*"))
            raise InputError(
                f"the cache {str(self.folder)!r} has no prompt set {prompt_set!r}; it has: "
                f"{', '.join(sets) or 'none'}"
            )
        check_readable(path)
        try:
            tensors, header = load_state(path)
            self.class_weights = tensors["class_weights"]
            if self.class_weights.shape != (len(self.recipe.classes), self.recipe.dim):
                raise ValueError("they are of other classes")
            self.recipe = replace(self.recipe, prompts=dict(header["prompts"]))
        except (StateError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{str(path)!r} is damaged, or another cache's; delete it and run the same `adte "
                "extract` again, features stay"
            ) from error

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
        there = self.recipe.prompts
        if _said(there) != _said(prompts):
            raise StateError(
                f"the cache {str(self.folder)!r} was made with another prompt set: "
                f"{_difference(there, prompts)}; leave the option out to use what it holds, or "
                "extract what you need"
            )

    def __len__(self) -> int:
        return int(self._starts[-1]) if self.order is None else len(self.order)

    @property
    def skipped(self) -> list[Skipped]:  # type: ignore[override]
        """The images that could not be read when the features were made."""
        return [Skipped(**s) for s in self._told("skipped")]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The true classes, in the order of the stream."""
        every = []
        for path in self.shards:
            with safe_open(str(path), framework="pt") as f:
                every.append(f.get_tensor("labels").numpy().data)
        labels = np.concatenate(every).astype(np.int64) if every else np.zeros(0, np.int64)
        return labels if self.order is None else labels[self.order]

    @property
    def domains(self) -> list[str]:
        """The domain of each image, in the order of the stream."""
        every = self._told("domains")
        return every if self.order is None else [every[i] for i in self.order.tolist()]

    def _told(self, name: str) -> list[Any]:
        """What the headers of all shards list under a name; no features are read."""
        every: list[Any] = []
        for path in self.shards:
            with safe_open(str(path), framework="pt") as f:
                every += json.loads(f.metadata()[KEY])[name]
        return every

    def ordered(self, order: NDArray[np.int64]) -> Cache:
        """The same images in another order, or some of them."""
        base = np.arange(len(self)) if self.order is None else self.order
        other = copy(self)
        other.order = base[order]
        return other

    def _shard(self, number: int) -> Shard:
        path = self.shards[number]
        if shards.count_of(path) != self._starts[number + 1] - self._starts[number]:
            raise StateError(f"{str(path)!r} was replaced while it was read; open the cache again")
        shard, r = Shard.open(path), self.recipe
        strange = max(shard.labels, default=-1) >= len(r.classes)
        strange = strange or shard.header.get("recipe", r.digest) != r.digest
        if strange or shard.shape != (r.views.count, r.dim):
            raise _stranger(path)
        return shard

    def images(self) -> Iterator[Image]:
        order = np.arange(len(self)) if self.order is None else self.order
        where = np.searchsorted(self._starts, order, side="right") - 1
        for s, index in zip(where.tolist(), order.tolist(), strict=True):
            if s not in self._opened:
                self._opened[s] = self._shard(s)
            yield self._opened[s][index - int(self._starts[s])]
