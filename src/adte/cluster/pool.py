"""Workers that take chunks of images and give their features back in order.

Chunks go to whoever has least to do. A bounded number is under way, those that wait for an earlier
one included: that holds back whoever reads the images, and bounds the memory. What a worker had
when it died, Ray gives to the one that comes in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from adte.cluster.connect import RETRIES, ClusterOptions, gave_up, places
from adte.cluster.worker import Chunk, Encoder, Work, unfit
from adte.core.errors import InputError
from adte.core.machine import head_device
from adte.pipeline import Encoded, Pipeline
from adte.pipeline.way import refused

__all__ = ["Pool", "Pooled"]

EACH = 2  # chunks that a worker has before it: one to do, one to go on with
WINDOW = 4  # chunks a worker that are under way, done ones that wait for their turn included


class Remote:
    """A worker; it says what is wrong rather than fail."""

    encoder: Encoder | None = None

    def encode(self, work: list[Any], items: list[tuple[int, Any]]) -> Chunk:
        """The features of a chunk. Each refers to the work: a worker may be one come anew."""
        import ray

        try:
            if self.encoder is None:
                self.encoder = Encoder(ray.get(work[0]))
            return self.encoder.encode(items)
        except Exception as error:
            return Chunk(fault=unfit(error))


class Pool:
    """Workers of a cluster, each with a model."""

    def __init__(self, ray: Any, work: Work, options: ClusterOptions) -> None:
        self.ray, self.size = ray, options.chunk
        self.by_key = work.sources is not None
        self._work = ray.put(work)
        made = ray.remote(
            num_cpus=0 if options.gpus else 1,
            num_gpus=options.gpus,
            max_restarts=-1,
            max_task_retries=RETRIES,
        )(Remote)
        self.workers = [made.remote() for _ in range(places(ray, options))]

    def __call__(self, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Key and features (V, D) of each image, in order; an `InputError` where it is unread."""
        source = iter(items)
        busy: list[list[Any]] = [[] for _ in self.workers]
        ahead: deque[Any] = deque()
        more = True
        while more or ahead:
            while more and len(ahead) < WINDOW * len(self.workers):
                free = self._free(busy)
                if free is None:
                    break
                chunk = list(islice(source, self.size))
                more = len(chunk) == self.size
                if chunk:
                    ref = self.workers[free].encode.remote([self._work], chunk)
                    busy[free].append(ref)
                    ahead.append(ref)
            if ahead:
                yield from self._get(ahead.popleft()).images()

    def _free(self, busy: list[list[Any]]) -> int | None:
        """The worker with least to do, if it has room for more."""
        for i, refs in enumerate(busy):
            if refs:
                busy[i] = self.ray.wait(refs, num_returns=len(refs), timeout=0)[1]
        least = min(range(len(busy)), key=lambda i: len(busy[i]))
        return least if len(busy[least]) < EACH else None

    def _get(self, ref: Any) -> Chunk:
        try:
            found: Chunk = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            raise gave_up(error) from error
        return found

    def close(self) -> None:
        """Let the workers go."""
        for worker in self.workers:
            self.ray.kill(worker)


@dataclass(eq=False)
class Pooled(Pipeline):
    """A pipeline whose towers are a pool's: images in, features out, in order, as ever.

    Where workers have the sources of all images, only keys travel to them.
    """

    pool: Any = None

    def __call__(
        self,
        items: Iterable[tuple[Any, Any]],
        failed: Callable[[Any, InputError], None] | None = None,
        at_once: int | None = None,
    ) -> Iterator[Encoded[Any]]:
        keys: dict[int, Any] = {}

        def numbered() -> Iterator[tuple[int, Any]]:
            for number, (key, source) in enumerate(items):
                keys[number] = key
                yield number, key if self.pool.by_key else source

        device = head_device(self.model.device)
        for number, found in self.pool(numbered()):
            key = keys.pop(number)
            if isinstance(found, InputError):
                refused(key, found, failed)
            else:
                yield Encoded(key, torch.tensor(found, device=device))  # a copy: Ray's is read-only
