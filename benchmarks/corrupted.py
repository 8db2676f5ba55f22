"""Corrupted images among many names: a model that has lost its way calls much by few of them.

    python benchmarks/corrupted.py DATA … --corrupt clean,snow [--severity 4] [--model NAME]
        [--weights FILE] [--device cuda] [--streams …] [--methods …] [--json FILE]

DATA is a labelled set as `adte eval` takes it, such as folder:photographs. It is encoded under each
corruption (`clean` is none), then methods run on streams of it, online, once per seed: the whole
set, sorted by class, a quarter of its classes, and closed sets of 100 of its names. Gains are over
zero-shot and over SE, with a 95 % interval, clustered by image.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import default
from adte.images import Views
from adte.models import Model, load_model
from small import encoded

METHODS = ("zero-shot", "se", "se + la", "adte", "adte-released", "tilt, equal", "tilt")
STREAMS = ("full", "sorted", "1/4 shown", "closed 100")


def closed(source: default.Source, names: int, seed: int) -> default.Source:
    """The images of some classes, among the names of these alone."""
    kept = np.sort(np.random.default_rng(seed).permutation(np.unique(source.labels))[:names])
    rows = np.flatnonzero(np.isin(source.labels, kept))
    assert source.context.class_weights is not None
    context = replace(source.context, class_weights=source.context.class_weights[kept])
    labels = np.searchsorted(kept, source.labels[rows])
    return default.Source(source.name, source.features[rows], labels, context)


def rows_of(
    source: default.Source, kind: str, seeds: list[int], names: list[str]
) -> list[dict[str, Any]]:
    """One row per method, over all seeds."""
    methods = {name: default.METHODS[name] for name in names}
    if not kind.startswith("closed"):
        return default.figures(source, kind, seeds, methods)
    found = [
        default.figures(closed(source, int(kind.split()[1]), seed), "full", [seed], methods)
        for seed in seeds
    ]
    rows = []
    for same in zip(*found, strict=True):  # each seed has other names: their images are others
        row = {**same[0], "stream": kind, "images": round(np.mean([r["images"] for r in same]))}
        for key in ("accuracy", "ece", "ece_by_chance"):
            row[key] = float(np.mean([r[key] for r in same]))
        for key in ("gain_over_zero_shot", "gain_over_reference"):
            if key in row:
                mean, half = zip(*(r[key] for r in same), strict=True)
                row[key] = float(np.mean(mean)), float(np.linalg.norm(half) / len(half))
        row.pop("shares", None)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", metavar="DATA")
    parser.add_argument("--corrupt", default="clean,gaussian_noise,defocus_blur,snow,pixelate")
    parser.add_argument("--severity", default="4")
    parser.add_argument("--model", default="tiny-longtail")
    parser.add_argument("--weights", help="a checkpoint file, for models that have none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--streams", nargs="+", default=STREAMS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=default.METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    model: Model = load_model(args.model, weights=args.weights).to(args.device)
    rows: list[dict[str, Any]] = []
    for spec in args.data:
        for kind in args.corrupt.split(","):
            how = {} if kind == "clean" else {
                "corrupt": kind, "severity": args.severity, "clean": False,
            }  # fmt: skip
            title = f"{Path(spec.partition(':')[2].partition('?')[0]).name}, {kind}"
            source = encoded(spec, model, Views(args.views), title, **how)
            torch.set_num_threads(1)
            for stream in args.streams:
                found = rows_of(source, stream, args.seeds, args.methods)
                head = f"{title}, {stream}: {found[0]['images']} images"
                print(f"{head}, {found[0]['classes']} classes", *map(default.said, found), sep="\n",
                      flush=True)  # fmt: skip
                rows += [{"model": args.model, **row} for row in found]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
