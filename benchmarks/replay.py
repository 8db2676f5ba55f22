"""Replaying a cache: how long, how much memory, how large; and what ImageNet would take.

python benchmarks/replay.py [--images 1000] [--long 20000] [--shards 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adte import Views, create_method
from adte.data import Dataset, make_stream
from adte.evaluate import run as run_method
from adte.evaluate.features.cache import SHARD, Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.features.stream import Image
from adte.testing.small import SmallModel

IMAGENET = {"images": 50_000, "views": 64, "dim": 512, "classes": 1000}


class Made(Live):
    """Random unit features in place of encoded images; the writing is the real one."""

    def _read(self, places: np.ndarray) -> Iterator[Image]:
        self.skipped = []
        g = torch.Generator().manual_seed(int(places[0]))
        pool = torch.randn(8 + self.views.count, self.model.dim, generator=g)
        pool = torch.nn.functional.normalize(pool, dim=-1).half()
        for index in places.tolist():
            features = pool[index % 8 :][: self.views.count]
            yield Image(features, 0, *self.stream.identify(index), place=index)


def stream(kind: type[Live], images: int, views: int, dim: int, classes: int) -> Live:
    """Images of 16 pixels that all look the same, or features that were never images."""
    names = [f"class {i}" for i in range(classes)]
    data = Dataset(
        name="made",
        classes=tuple(names),
        class_ids=tuple(names),
        sources=[np.arange(768, dtype=np.uint8).reshape(16, 16, 3)] * images,
        labels=np.arange(images) % classes,
        ids=[f"n01440764/ILSVRC2012_val_{i:08d}.JPEG" for i in range(images)],
        split="made",
    )
    weights = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    return kind(
        SmallModel(dim=dim),
        torch.nn.functional.normalize(weights, dim=-1),
        make_stream(data, order="listed"),
        Views(count=views),
    )


def peak() -> float:
    """The most memory that was resident in this process so far, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def child(job: str, folder: str, images: int) -> None:
    """One job in a process of its own; prints its peak memory."""
    torch.set_num_threads(1)
    if job == "extract":
        extract(stream(Live, images, 4, 32, 20), folder, shard=64)
    else:
        done = run_method(create_method("tilt"), Cache(folder))
        assert len(done.labels) == images
    print(peak())


def measured(job: str, folders: dict[int, Path]) -> list[float]:
    """Peak memory for each number of images, each in a fresh process, all at once."""
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--job", job, "--folder", str(f), "--images", str(n)],
            stdout=subprocess.PIPE,
        )
        for n, f in folders.items()
    ]
    return [float(p.communicate()[0]) for p in started]


def memory(folder: Path, job: str, short: int, long: int) -> dict[str, Any]:
    """Peak memory of a short and a long stream; what one more image costs."""
    folders = {images: folder / f"{job}-{images}" for images in (short, long)}
    if job == "replay":
        for images, place in folders.items():
            extract(stream(Made, images, 8, 32, 20), place)
    few, many = measured(job, folders)
    return {
        "short": short, "long": long, "short_mb": few, "long_mb": many, "more_mb": many - few,
        "bytes_an_image": 1e6 * (many - few) / (long - short),
    }  # fmt: skip


def bundle(images: int, repeats: int) -> dict[str, Any]:
    """Seconds of `adte`, online, on the bundle that ships; opened and checked anew every time."""
    seconds = []
    for _ in range(repeats):
        start, spent = time.perf_counter(), time.process_time()
        done = run_method(create_method("tilt"), Cache().first(images))
        seconds.append((time.perf_counter() - start, time.process_time() - spent))
    return {
        "images": len(done.labels),
        "seconds": statistics.median(s for s, _ in seconds),
        "cpu_seconds": statistics.median(s for _, s in seconds),
    }


def imagenet(folder: Path, shards: int) -> dict[str, Any]:
    """Whole shards of ImageNet's size: written (with fsync), read from disk, replayed."""
    images, views, dim, classes = IMAGENET.values()
    some = SHARD * shards
    live = stream(Made, some, views, dim, classes)
    start = time.perf_counter()
    extract(live, folder)
    wrote = time.perf_counter() - start
    cache = Cache(folder)
    size = sum(p.stat().st_size for p in cache.paths)
    for path in cache.paths:  # out of the page cache, so that the disk is measured
        with path.open("rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    for _ in cache.images():
        pass
    read = time.perf_counter() - start
    start = time.perf_counter()
    run_method(create_method("tilt"), cache.first(64 * shards))
    replayed = (time.perf_counter() - start) / (64 * shards)
    # A shard is its header and its tensors; the last of ImageNet's is a smaller one.
    entries = views * dim * 2 + 2 * 4
    full, last = divmod(images, SHARD)
    head = size // shards - SHARD * entries
    rest = Cache(extract(stream(Made, last, views, dim, 2), folder / "last").folder).paths[0]
    return {
        **IMAGENET,
        "feature_bytes": images * views * dim * 2,
        "bytes": full * (SHARD * entries + head) + rest.stat().st_size,
        "write_mb_per_s": size / wrote / 1e6,
        "read_mb_per_s": size / read / 1e6,
        "write_s": wrote / some * images,
        "read_s": read / some * images,
        "replay_s": replayed * images,
    }


def run(
    images: int = 1000, long: int = 20_000, shards: int = 8, repeats: int = 3
) -> dict[str, Any]:
    """All of it. One thread: the tensors of an image are small, and threads get in the way."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return {
            "cores": os.cpu_count(),
            "replay": bundle(images, repeats),
            "replay_memory": memory(Path(folder), "replay", long // 20, long),
            "extract_memory": memory(Path(folder), "extract", long // 80, long // 10),
            "imagenet": imagenet(Path(folder) / "imagenet", shards),
        }


def show(r: dict[str, Any]) -> None:
    b, i = r["replay"], r["imagenet"]
    print(f"{b['images']} images of the bundle, adte online: {b['seconds']:.2f} s "
          f"({b['cpu_seconds']:.2f} s of processor time), {r['cores']} cores")  # fmt: skip
    for job in ("replay", "extract"):
        m = r[f"{job}_memory"]
        print(f"{job}, peak memory: {m['short_mb']:.1f} MB for {m['short']} images, "
              f"{m['long_mb']:.1f} MB for {m['long']}: {m['bytes_an_image']:.0f} bytes per image more")  # fmt: skip # noqa: E501
    print(f"ImageNet, {i['images']} × {i['views']} × {i['dim']} float16: {i['bytes']:,} bytes; "
          f"written at {i['write_mb_per_s']:.0f} MB/s in {i['write_s']:.0f} s, read and checked at "
          f"{i['read_mb_per_s']:.0f} MB/s in {i['read_s']:.0f} s, adte online in "
          f"{i['replay_s']:.0f} s")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    for name, default in (("images", 1000), ("long", 20_000), ("shards", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        child(args.job, args.folder, args.images)
    else:
        result = run(args.images, args.long, args.shards, args.repeats)
        show(result)
        if args.json:
            Path(args.json).write_text(json.dumps(result, indent=2) + "\n", "utf-8")
