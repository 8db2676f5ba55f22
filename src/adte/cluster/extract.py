"""A cache of features by Ray Data: the one that one machine writes with as many threads.

    chunks of keys ─→ decoders (CPU, 0 … n) ─→ encoders (a model each, 1 … n) ─→ driver ─→ shards

Both are pools of actors that Ray Data scales with the work and holds back where the next step is
slower. Results come in the order of the chunks, and the driver hands them to `features.extract`,
the same code that writes the shards of one machine: so there is one writer, a shard is written
whole, and an interrupted extraction goes on at the first missing one. Ray does again what a dead
worker or node had under way; as features follow from the pixels alone, the record is the same.
With another number of threads than a worker has, one machine's differ by float16's last bit.

Workers with a model open the pictures themselves unless there are decoders. On CPUs that is best:
the tower is the slow part, and decoded pixels need not travel. A GPU wants decoders beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.cluster.connect import ClusterOptions, connected, gave_up, import_ray, places
from adte.cluster.worker import Chunk, Decoder, Encoder, Tower, Work, pack, unfit, unpack
from adte.core.errors import AdteError, InputError
from adte.core.loading import Loading
from adte.data.streams import Stream
from adte.evaluate.features.cache import SHARD, Cache
from adte.evaluate.features.cache import extract as write_cache
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import Tick, silent
from adte.files.claims import claim_folder
from adte.pipeline import Encoded, Pipeline
from adte.pipeline.way import refused

__all__ = ["extract", "features"]

BLOCKS = 512  # tasks at least, where there are as many chunks
DEATHS = 100  # of workers on their way up, one after another, before Ray Data gives up
TASK = 16  # chunks a task at most: what is done again when a worker dies


def extract(
    live: Live,
    folder: str | os.PathLike[str],
    prompt_set: str = "default",
    frequency: tuple[float, ...] | None = None,
    shard: int = SHARD,
    tick: Tick = silent,
    *,
    tower: Tower | None = None,
    options: ClusterOptions | None = None,
) -> Cache:
    """Write the features of a live stream to a folder, or go on; see `features.extract`.

    `tower` says how workers get the model; by its name, unless told.
    """
    options = options or ClusterOptions()
    folder = claim_folder("--out", folder)
    work = Work(
        tower or Tower.of(live.model, Loading()),
        live.views,
        live.model.preprocess,
        live.group,
        Sources(live.stream),
        _roots(live.stream),
    )
    mine = copy(live)
    with connected(options) as ray:
        mine.pipeline = Fed(
            live.model, live.views, spread=lambda keys: features(ray, work, keys, options)
        )
        try:
            return write_cache(mine, folder, prompt_set, frequency, shard, tick)
        finally:
            mine.pipeline.close()
            live.skipped = mine.skipped


def _roots(stream: Stream) -> list[str]:
    """What a worker has to see: the files and folders that the sets were read from."""
    found = (d.root for d in stream.datasets)
    return [str(root.absolute()) for root in found if root is not None and root.exists()]


@dataclass(frozen=True)
class Sources:
    """The images of a stream by their place in it, read where they are decoded."""

    stream: Stream

    def __call__(self, key: int) -> Callable[[], Any]:
        return lambda: self.stream[key].source


@dataclass(eq=False)
class Fed(Pipeline):
    """A pipeline whose tower is elsewhere: what was asked for comes back encoded, in order.

    `spread` makes of the keys an iterator of (key, features or an error).
    """

    spread: Any = None
    feed: Any = field(default=None, init=False)

    def __call__(
        self, items: Any, failed: Any = None, at_once: int | None = None
    ) -> Iterator[Encoded[Any]]:
        keys = np.fromiter((key for key, _ in items), np.int64)
        self.feed = self.spread(keys)
        for key, (number, found) in zip(keys.tolist(), self.feed, strict=True):
            assert number == key, f"image {number} came in the place of {key}"
            if isinstance(found, InputError):
                refused(key, found, failed)
            else:
                yield Encoded(key, torch.from_numpy(found))

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()


# --------------------------------------------------------------------------- Ray Data


def features(
    ray: Any, work: Work, keys: NDArray[np.int64], options: ClusterOptions
) -> Iterator[tuple[int, Any]]:
    """Features (V, D) of images by key, in order; an `InputError` where one cannot be read."""
    if not len(keys):
        return
    number = -(-len(keys) // options.chunk)
    blocks = -(-number // min(TASK, -(-number // BLOCKS)))
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.max_consecutive_actor_init_deaths = DEATHS
    told = ray.put((work, keys, options.chunk))
    stages: dict[str, Any] = {
        "batch_size": 1,
        "batch_format": "numpy",
        "fn_constructor_args": (told,),
    }
    data = ray.data.from_items(list(range(number)), override_num_blocks=blocks)
    if options.decoders:
        pool = (1, options.decoders)
        data = data.map_batches(Decode, num_cpus=1, concurrency=pool, **stages)
    room = places(ray, options)
    data = data.map_batches(
        Encode,
        num_cpus=0 if options.gpus else 1,
        num_gpus=options.gpus or None,
        concurrency=(1, room),
        **stages,
    )
    try:
        for row in data.iter_rows():
            yield from unpack(row["data"]).images()
    except AdteError:
        raise
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise gave_up(error) from error


class _Stage:
    """A step, as an actor of Ray Data: a chunk in, a chunk out. It is told at its first chunk."""

    def __init__(self, told: Any) -> None:
        self.told = told
        self.work: Work | None = None

    def open(self) -> Work:
        if self.work is None:
            self.work, self.keys, self.size = import_ray().get(self.told)
        return self.work

    def items(self, batch: dict[str, Any]) -> list[tuple[int, Any]]:
        """The images of a chunk: as the step before left them, or by their keys."""
        if "data" in batch:
            found: list[tuple[int, Any]] = unpack(batch["data"][0])
            return found
        sources, first = self.open().sources, int(batch["item"][0]) * self.size
        assert sources is not None
        return [(int(k), sources(int(k))) for k in self.keys[first : first + self.size]]


class Decode(_Stage):
    """Opens pictures."""

    decoder: Decoder | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        try:
            if self.decoder is None:
                self.decoder = Decoder(self.open())
            return {"data": pack(self.decoder.decode(self.items(batch)))}
        except Exception as error:
            return {"data": pack(Chunk(fault=unfit(error)))}


class Encode(_Stage):
    """Renders and encodes."""

    encoder: Encoder | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        try:
            if self.encoder is None:
                self.encoder = Encoder(self.open())
            items = self.items(batch)
            chunk = items if isinstance(items, Chunk) else self.encoder.encode(items)
        except Exception as error:  # such as a data set of a package that is not installed there
            chunk = Chunk(fault=unfit(error))
        return {"data": pack(chunk)}
