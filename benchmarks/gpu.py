"""From JPEG to label on a GPU, beside the tower by itself, the limit, and the usual way.

    python benchmarks/gpu.py --out benchmarks/results/gpu                     # about three minutes
    python benchmarks/gpu.py --model ViT-L-14 --out benchmarks/results/gpu
    python benchmarks/gpu.py --fast --out benchmarks/results/gpu              # the faster forward
    python benchmarks/gpu.py --model tiny --device cpu --images 4 --views 8   # does it run at all

All in one process, so that ratios mean something. Random weights, made-up photographs of 500×375
pixels as JPEG files in a folder.

  limit        operations of the tower over the measured rate of matrix products
  tower        the tower alone, 16 images a pass; as many images as are extracted, for a GPU slows
               down within a second under full load
  extract      a folder to features on disk, as `adte extract`
  predict      a folder to rows with labels by `adte`, as `adte predict`
  usual way    Pillow's crops in worker processes, float32 weights under autocast, an image a pass
  views        the kernel that makes the views of 16 images, and its upload
  head         methods over the same features, 1,000 and 20,000 classes; to labels on the host too
  stream       files to predictions with these methods; the tower works on the next group meanwhile
  memory       peak of the device, one image at a time
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from adte import Classifier, Views, create_method
from adte.bench import timing
from adte.bench.rate import ahead, class_names, limit, noise, photographs, usual
from adte.core.batch import Context
from adte.data import make_stream
from adte.data.registry import load_dataset
from adte.evaluate.features.cache import extract
from adte.evaluate.features.live import Live
from adte.files.inputs import expand
from adte.images import Preprocess
from adte.images.render import pack, render
from adte.images.table import show
from adte.label import Listener
from adte.label.run import Run
from adte.models import load_model
from adte.models.base import Model
from adte.models.prompts import class_weights
from adte.pipeline.way import GROUP, Pipeline

DISTINCT = 64  # photographs that are made; more are copies of them
METHODS = ("zero-shot", "zero", "tilt")


def files(folder: Path, count: int) -> list[Path]:
    """JPEGs in two folders, one per class."""
    made = photographs(min(count, DISTINCT))
    paths = []
    for i in range(count):
        place = folder / ("cat", "dog")[i % 2]
        place.mkdir(exist_ok=True)
        paths.append(place / f"{i:05d}.jpg")
        paths[-1].write_bytes(made[i % len(made)])
    return paths


class Usual(Dataset[torch.Tensor]):
    """The views of an image as a worker of a DataLoader makes them."""

    def __init__(self, paths: list[Path], views: Views, preprocess: Preprocess) -> None:
        self.paths, self.views, self.preprocess = paths, views, preprocess

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        torch.set_num_threads(1)
        image = Image.open(self.paths[i]).convert("RGB")
        crops = self.views.boxes(image.height, image.width, self.preprocess, i)
        return usual(image, crops, self.preprocess)


def in_processes(data: Usual, workers: int) -> bool:
    """Whether the memory that processes share holds what they make ahead."""
    need = 4 * workers * data.views.count * 3 * data.preprocess.size**2 * 4
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return True
    return there.f_bavail * there.f_frsize > need


def loaded(data: Usual, workers: int, device: torch.device) -> Iterator[torch.Tensor]:
    """The views of each image, made ahead."""
    if in_processes(data, workers):
        pinned = device.type == "cuda"
        yield from DataLoader(data, batch_size=None, num_workers=workers, pin_memory=pinned)
        return
    yield from ahead(data.__getitem__, range(len(data)), workers)


class Bench:
    """Rows of (name, milliseconds an image, images a second, what it is)."""

    def __init__(self, model: Model, views: int, out: str | None, facts: dict[str, Any]) -> None:
        self.model, self.views, self.out, self.facts = model, Views(count=views), out, facts
        self.rows: list[dict[str, Any]] = []
        self.begin = time.perf_counter()

    def row(self, name: str, seconds: float, note: str = "") -> None:
        rate = round(1 / seconds, 2) if seconds else ""
        self.rows.append({"name": name, "ms_per_image": round(1000 * seconds, 4),
                          "images_per_s": rate, "note": note})  # fmt: skip
        at = time.perf_counter() - self.begin
        print(
            f"{at:6.1f} s  {name:34} {1000 * seconds:10.3f} ms  {rate!s:>9} /s  {note}", flush=True
        )

    def rate(self, name: str) -> float:
        return next(1000 / r["ms_per_image"] for r in self.rows if r["name"] == name)

    def finish(self) -> None:
        """The ratios that are asked for, and the files."""
        rates = {r["name"]: self.rate(r["name"]) for r in self.rows if r["images_per_s"] != ""}
        tower, plain = rates["tower, 16 images a pass"], rates["usual way"]
        ratios = {
            f"{way} over {name}": round(rates[way] / other, 4)
            for way in ("extract", "predict")
            for name, other in (("tower", tower), ("usual way", plain), ("limit", rates["limit"]))
        } | {"tower over limit": round(tower / rates["limit"], 4)}
        for r in self.rows:
            if r["name"].startswith("head, "):
                ratios[f"{r['name']}, share of the tower"] = round(
                    r["ms_per_image"] * tower / 1000, 4
                )
        for name, value in [*ratios.items(), *self.facts.items()]:
            if "over" not in name and "share" not in name:
                continue
            print(f"          {name:60} {value:.4f}")
        seconds = time.perf_counter() - self.begin
        print(f"all of it took {seconds:.0f} s")
        if self.out is None:
            return
        folder = Path(self.out)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self.model.name.partition('/')[0]}{'-fast' if self.facts['fast'] else ''}"
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
        with (folder / f"{stem}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)
        said = {**self.facts, "seconds": round(seconds, 1), "ratios": ratios, "rows": self.rows}
        (folder / f"{stem}.json").write_text(json.dumps(said, indent=1) + "\n", "utf-8")

    # ------------------------------------------------------------------ what is measured

    def memory(self, clf: Classifier, path: Path) -> None:
        device = self.model.device
        clf.predict(path)
        if device.type != "cuda":
            self.facts["peak_gib_one_image"] = None
            return
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        took = min(timing.seconds(lambda: clf.predict(path), device) for _ in range(5))
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        self.facts["peak_gib_one_image"] = round(peak, 3)
        self.row("one image at a time", took, f"peak {peak:.3f} GiB, weights included")

    def tower(self, images: int, repeats: int) -> None:
        device, found = self.model.device, limit(self.model, self.views.count)
        self.facts |= {k: found[k] for k in ("flops_per_view", "matrix_rate")}
        self.row("limit", found["seconds"], f"{found['matrix_rate'] / 1e12:.0f} TFLOP/s")
        pipeline = Pipeline(self.model, self.views)
        for size in (1, GROUP):
            pixels = noise(self.model, self.views.count, size)
            passes = -(-images // GROUP)

            def work(pixels: torch.Tensor = pixels, size: int = size, passes: int = passes) -> None:
                for _ in range(passes):
                    pipeline.encode(pixels, size)

            took = timing.medians({"": work}, repeats, device)[""] / (passes * size)
            self.row(f"tower, {size} image{'s' * (size > 1)} a pass", took, f"{passes} passes")
            del pixels

    def kernel(self, paths: list[Path], repeats: int) -> None:
        model = self.model
        pipeline = Pipeline(model, self.views)
        pictures = [pipeline.picture(p) for p in (paths * GROUP)[:GROUP]]
        shown = [
            show(p, self.views.placed(p, model.preprocess), model.preprocess) for p in pictures
        ]
        cuda = model.device.type == "cuda"
        host = pack(shown, pinned=cuda)
        there, side = host.to(model.device), model.preprocess.size
        shape = GROUP * self.views.count, 3, side, side
        out = torch.empty(shape, device=model.device, dtype=model.dtype)
        took = timing.medians(
            {
                "pack": lambda: pack(shown, pinned=cuda),
                "upload": lambda: host.to(model.device, non_blocking=True),
                "views": lambda: render(there, out, model.preprocess),
            },
            repeats,
            model.device,
        )
        for name, seconds in took.items():
            self.row(f"{name}, 16 images", seconds / GROUP, "views of an image" * (name == "views"))

    def ours(self, folder: Path, clf: Classifier, workers: int, repeats: int) -> None:
        device = self.model.device
        data = load_dataset(f"folder:{folder}")
        stream = make_stream(data, order="listed")
        live = Live(self.model, class_weights(self.model, data.classes), stream, self.views,
                    workers=workers)  # fmt: skip

        def encode() -> None:
            for _ in live.pipeline(enumerate(paths_of(folder))):
                pass

        def keep() -> None:
            with tempfile.TemporaryDirectory() as place:
                extract(live, place)

        def label() -> None:
            clf.reset()
            run = Run(clf)
            run.go(expand([str(folder)]), Listener(), None, workers)
            assert run.report.labelled == len(stream)

        rng = np.random.default_rng(0)
        small = list(rng.integers(0, 256, (len(stream), 32, 32, 3), dtype=np.uint8))

        def thumbnails() -> None:
            for _ in live.pipeline(enumerate(small)):
                pass

        calls = {
            "extract": keep,
            "features, without the disk": encode,
            "features of 32 x 32 pixels": thumbnails,
            "predict": label,
        }
        said = {
            "extract": f"{workers} threads decode",
            "features of 32 x 32 pixels": "views that are the same are encoded once",
            "predict": f"adte, {len(clf.classes)} classes, rows with top 5",
        }
        for name, took in timing.medians(calls, repeats, device).items():
            self.row(name, took / len(stream), said.get(name, ""))

    def heads(self, classes: tuple[int, ...], batches: int) -> None:
        model, device, size = self.model, self.model.device, GROUP
        g = torch.Generator().manual_seed(0)
        for count in classes:
            text = torch.randn(count, model.dim, generator=g)
            text = torch.nn.functional.normalize(text, dim=-1).to(device)
            context = Context(text, float(model.logit_scale))
            some = [torch.randn(size, self.views.count, model.dim, generator=g) for _ in range(2)]
            features = [torch.nn.functional.normalize(x, dim=-1).to(device).half() for x in some]

            def plain(context: Context = context, features: list[torch.Tensor] = features) -> None:
                for i in range(batches):
                    context.batch(features[i % 2])

            calls: dict[str, Any] = {"logits alone": plain}
            for name in METHODS:
                for labels in (False, True):

                    def work(
                        name: str = name, labels: bool = labels, context: Context = context,
                        features: list[torch.Tensor] = features,
                    ) -> None:  # fmt: skip
                        method = create_method(name)
                        for i in range(batches):
                            said = method.step(context.batch(features[i % 2]))
                            if labels:
                                [(p.index, p.confidence, p.top(5)) for p in said]

                    calls[f"{name}{', to labels' * labels}"] = work
            took = timing.medians(calls, 3, device)
            for name, seconds in took.items():
                self.row(f"head, {name}, {count} classes", seconds / (batches * size))
            del text, context, features
            if device.type == "cuda":
                torch.cuda.empty_cache()

    def streams(
        self, paths: list[Path], classes: tuple[int, ...], workers: int, repeats: int
    ) -> None:
        """Whole streams, beside the same without a method."""
        model, g = self.model, torch.Generator().manual_seed(0)
        pipeline = Pipeline(model, self.views, workers=workers)
        items = [(str(p), p) for p in paths]

        def plain() -> None:
            for _ in pipeline(items):
                pass

        for count in classes:
            text = torch.nn.functional.normalize(torch.randn(count, model.dim, generator=g), dim=-1)
            context = Context(text.to(model.device), float(model.logit_scale))
            calls: dict[str, Any] = {"features alone": plain}
            for name in METHODS:

                def work(name: str = name, context: Context = context) -> None:
                    method = create_method(name)
                    for batch in pipeline.batches(items, context, GROUP):
                        method.step(batch)

                calls[name] = work
            for name, took in timing.medians(calls, 2 * repeats - 1, model.device).items():
                self.row(f"stream, {name}, {count} classes", took / len(items))
            alone = f"stream, features alone, {count} classes"
            for name in METHODS:
                over = self.rate(alone) / self.rate(f"stream, {name}, {count} classes") - 1
                self.facts[f"{name} over features alone, {count} classes"] = round(over, 4)

    def usual(self, paths: list[Path], workers: int) -> None:
        device, model = self.model.device, copy.deepcopy(self.model).float()
        model.runner = None  # the library's own forward
        data = Usual(paths, self.views, model.preprocess)
        kind = torch.bfloat16
        found, first = [], 0.0
        for i, pixels in enumerate(loaded(data, workers, device)):
            with torch.no_grad(), torch.autocast(device.type, kind):
                found.append(model.encode_image(pixels.to(device, non_blocking=True)))
            if i == min(2 * workers, len(paths) // 2):  # the workers have begun, the rest counts
                timing.finish(device)
                first, begun = time.perf_counter(), i + 1
        timing.finish(device)
        took = (time.perf_counter() - first) / (len(paths) - begun)
        said = "processes" if in_processes(data, workers) else "threads"
        self.row("usual way", took, f"Pillow in {workers} {said}, float32 under autocast")


def paths_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT-B-16", help="of open_clip, or tiny")
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--fast", action="store_true", help="the faster forward of the tower")
    parser.add_argument("--images", type=int, default=1536)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--classes", type=int, nargs="+", default=(1000, 20000))
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--usual", type=int, default=96, help="images of the usual way")
    parser.add_argument("--stream", type=int, default=320, help="images of the streams")
    parser.add_argument("--out", help="folder for the CSV and the JSON")
    o = parser.parse_args()
    weights = None if o.model == "tiny" else "random"
    runtime = "fast" if o.fast else "torch"
    model = load_model(o.model, weights=weights, device=o.device, dtype=o.dtype, runtime=runtime)
    small = model.device.type != "cuda"
    facts = {"model": model.name, "views": o.views, "images": o.images, "workers": o.workers,
             "fast": o.fast, **timing.conditions(model.device, model.dtype)}  # fmt: skip
    print(json.dumps(facts, indent=1))
    bench = Bench(model, o.views, o.out, facts)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = files(folder, o.images)
        names = class_names(20 if small else o.classes[0])
        clf = Classifier(model, names, "tilt", views=bench.views)
        facts["kernel"] = clf.pipeline.kernel
        bench.memory(clf, paths[0])
        repeats = 1 if small else 3
        bench.tower(o.images, repeats)
        bench.kernel(paths, 2 if small else 20)
        bench.ours(folder, clf, o.workers, repeats)
        bench.heads((10, 50) if small else tuple(o.classes), 1 if small else 4)
        bench.streams(paths[: o.stream], (10,) if small else tuple(o.classes), o.workers,
                      repeats)  # fmt: skip
        bench.usual(paths[: o.usual], o.workers)
    bench.finish()


if __name__ == "__main__":
    main()
