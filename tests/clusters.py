"""A Ray cluster on one machine, whose workers and nodes can be killed; and pictures for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adte import Views
from adte.cluster.connect import _quieten, import_ray
from adte.data import Dataset, make_stream
from adte.evaluate.features.live import Live
from adte.models.prompts import class_weights
from adte.testing import SmallModel

NAMES = ("cat", "dog", "car")


@dataclass(frozen=True)
class Pictures(Sequence[Any]):
    """Pictures that follow from their number; each takes a while to read, some cannot be."""

    images: int
    seconds: float = 0.0
    broken: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: Any) -> Any:
        time.sleep(self.seconds)
        if index in self.broken:
            raise OSError("the disk has a hole")
        return np.random.default_rng(int(index)).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def live(
    count: int = 50, seconds: float = 0.0, broken: tuple[int, ...] = (), views: int = 5
) -> Live:
    """A stream of made-up pictures and a model that travels."""
    model = SmallModel()
    data = Dataset(
        name="pictures",
        classes=NAMES,
        class_ids=("a", "b", "c"),
        sources=Pictures(count, seconds, broken),
        labels=np.arange(count) % 3,
        ids=[f"{i:05d}" for i in range(count)],
        split="made up",
    )
    stream = make_stream(data, order="listed")
    return Live(model, class_weights(model, NAMES), stream, Views(count=views))


def same_files(a: Path, b: Path) -> bool:
    """Two folders hold the same files, byte for byte."""
    names = sorted(p.name for p in a.iterdir())
    return names == sorted(p.name for p in b.iterdir()) and all(
        (a / n).read_bytes() == (b / n).read_bytes() for n in names
    )


def patiently(start: Callable[[], Any], times: int = 5) -> Any:
    """Ray gives a node 30 s to come up, which is not enough on a machine that is very busy."""
    for _ in range(times - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


class Nodes:
    """Ray nodes as processes: a head without a processor, and others with one each."""

    SIZE = 80 << 20  # bytes of each object store

    def __init__(self, count: int) -> None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # else others on the machine go first
        self.ray = import_ray()
        from ray import cloudpickle
        from ray.cluster_utils import Cluster

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker has this module

        head = {"num_cpus": 0, "object_store_memory": 120 << 20, "include_dashboard": False}
        self.cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = [self._node() for _ in range(count)]
        self.ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        _quieten()

    def _node(self) -> Any:
        return patiently(lambda: self.cluster.add_node(num_cpus=1, object_store_memory=self.SIZE))

    def workers(self, name: str) -> list[Any]:
        """The processes of these nodes that run an actor of this name."""
        import psutil  # Ray brings it

        found = []
        for node in [self.cluster.head_node, *self.nodes]:
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            for child in raylet.children(recursive=True):
                with suppress(psutil.Error):  # one that has just ended
                    found += [child] if name in " ".join(child.cmdline()) else []
        return found

    def kill_worker(self, name: str, rng: Any) -> bool:
        """Kill one of them, as a machine that runs out of memory does."""
        found = self.workers(name)
        if found:
            rng.choice(found).kill()
        return bool(found)

    def kill_node(self, rng: Any) -> None:
        """A machine goes, another one comes."""
        at = rng.randrange(len(self.nodes))
        self.cluster.remove_node(self.nodes[at], allow_graceful=False)
        self.nodes[at] = self._node()

    def close(self) -> None:
        self.ray.shutdown()
        self.cluster.shutdown()
