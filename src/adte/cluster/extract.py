"""A cache of features by a cluster: the one that one machine writes with as many threads.

    keys ─→ workers (a model each, 1 … n) read, render and encode ─→ driver ─→ shards

Features come in the order of the keys, and the driver hands them to `features.extract`, the same
code that writes the shards of one machine: so there is one writer, a shard is written whole, and an
interrupted extraction goes on at the first missing one. What a dead worker had under way is done
again by another; as features follow from the pixels alone, the record is the same. With another
number of threads than a worker has, one machine's differ by float16's last bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from adte.cluster.connect import ClusterOptions, connected
from adte.cluster.pool import Pool, Pooled
from adte.cluster.worker import Tower, Work
from adte.core.loading import Loading
from adte.data.streams import Stream
from adte.evaluate.features.cache import SHARD, Cache
from adte.evaluate.features.cache import extract as write_cache
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import Tick, silent
from adte.files.claims import claim_folder

__all__ = ["extract"]


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

    `tower` says how workers get the model; by default by its name.
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
        pool = Pool(ray, work, options)
        mine.pipeline = Pooled(live.model, live.views, pool=pool)
        try:
            return write_cache(mine, folder, prompt_set, frequency, shard, tick)
        finally:
            pool.close()
            live.skipped = mine.skipped


def _roots(stream: Stream) -> list[str]:
    """The files and folders that the sets were read from, which a worker has to see."""
    found = (d.root for d in stream.datasets)
    return [str(root.absolute()) for root in found if root is not None and root.exists()]


@dataclass(frozen=True)
class Sources:
    """The images of a stream by their place in it, read where they are decoded."""

    stream: Stream

    def __call__(self, key: int) -> Callable[[], Any]:
        return lambda: self.stream[key].source
