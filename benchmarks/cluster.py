"""Extraction on Ray against the plain path, on one machine: time by workers, memory of the driver.

    python benchmarks/cluster.py [--images 2000] [--views 8] [--rounds 2] [--json FILE]
    python benchmarks/cluster.py --kills 10        # workers and nodes killed at random points

Times are those of a whole extraction on a cluster that is up: workers start, load the model, encode
and end. The ways take turns, so that a busy machine hurts all alike; ratios are of their medians.
The plain path has one thread and decodes in it, as a worker does. The memory of the driver is its
peak beyond what it has when connected, of extractions of 2,000 and 50,000 simulated images, each in
a process of its own: pictures made up where they are decoded, a small model and two views.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adte import Views, __version__
from adte.cluster.connect import ClusterOptions, connected
from adte.cluster.extract import extract
from adte.cluster.worker import Tower
from adte.data import Dataset, make_stream
from adte.evaluate.features.cache import extract as plain
from adte.evaluate.features.live import Live
from adte.models import load_model
from adte.models.prompts import class_weights
from adte.testing import SmallModel

NAMES = ("cat", "dog", "car")


@dataclass(frozen=True)
class Pictures(Sequence[Any]):
    """Pictures that follow from their number."""

    images: int
    side: int

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: Any) -> Any:
        shape = self.side, self.side * 4 // 3, 3
        return np.random.default_rng(int(index)).integers(0, 256, shape, dtype=np.uint8)


def live(model: Any, images: int, views: int, side: int = 96) -> Live:
    data = Dataset(
        name="pictures",
        classes=NAMES,
        class_ids=NAMES,
        sources=Pictures(images, side),
        labels=np.arange(images) % 3,
        ids=[f"{i:07d}" for i in range(images)],
        split="made up",
    )
    stream = make_stream(data, order="listed")
    return Live(model, class_weights(model, NAMES), stream, Views(count=views))


def travelling() -> None:
    """No worker has this module: what is defined here goes by value."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def times(images: int, views: int, rounds: int) -> dict[str, Any]:
    """Seconds of an extraction by each way, in turn."""
    torch.set_num_threads(1)
    model, found = load_model("tiny"), {"plain": [], "1 worker": [], "2 workers": []}
    load = []
    begin = time.perf_counter()
    with connected(ClusterOptions()):
        up = time.perf_counter() - begin
        travelling()
        for _ in range(rounds):
            for name, seconds in found.items():
                with tempfile.TemporaryDirectory() as folder:
                    stream, begin = live(model, images, views), time.perf_counter()
                    load.append(os.getloadavg()[0])
                    if name == "plain":
                        plain(stream, folder)
                    else:
                        extract(stream, folder, options=ClusterOptions(workers=int(name[0])))
                    seconds.append(time.perf_counter() - begin)
                print(name, f"{seconds[-1]:.1f} s", file=sys.stderr)
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {
        "images": images,
        "views": views,
        "seconds": found,
        "cluster_up_seconds": up,
        "one_worker_over_plain": middle["1 worker"] / middle["plain"],
        "two_workers_speed": middle["1 worker"] / middle["2 workers"],
        "load_before": [round(x, 1) for x in load],
    }


def memory(images: int) -> dict[str, Any]:
    """Peak memory of the driver over an extraction of simulated images."""
    torch.set_num_threads(1)
    model = SmallModel()
    with connected(ClusterOptions()), tempfile.TemporaryDirectory() as folder:
        travelling()
        options = ClusterOptions(workers=1, chunk=32)
        tower = Tower.itself(model)
        extract(live(model, 64, 2, 16), Path(folder) / "warm", tower=tower, options=options)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        extract(live(model, images, 2, 16), Path(folder) / "c", tower=tower, options=options)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.perf_counter() - begin
    return {
        "images": images,
        "peak_mb": peak / 1024,
        "gained_mb": (peak - before) / 1024,
        "seconds": seconds,
    }


def alone(*words: str) -> Any:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def main() -> None:
    os.environ.setdefault("RAY_worker_niceness", "0")  # else others on the machine go first
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--simulated", type=int, nargs="*", default=[2000, 50000])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", default="benchmarks/results/ray.json")
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(memory(asked.only)))
        return
    if asked.kills:
        root = Path(__file__).resolve().parents[1]
        test = "tests/cluster/test_extract.py::test_killed_workers_and_nodes_cost_nothing"
        raise SystemExit(
            subprocess.call(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
                env={**os.environ, "ADTE_KILLS": str(asked.kills)},
                cwd=root,
            )
        )
    facts: dict[str, Any] = {
        "adte": __version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    if asked.simulated:
        facts["driver"] = [alone("--only", str(n)) for n in asked.simulated]
    if asked.rounds:
        facts["times"] = times(asked.images, asked.views, asked.rounds)
    text = json.dumps(facts, indent=1) + "\n"
    Path(asked.json).write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
