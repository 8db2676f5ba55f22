"""Images smaller than the model's input: what their views gain over those as published.

    python benchmarks/small.py DATA … --sides 28 40 56 [--model tiny] [--views 64] [--json FILE]

DATA is a labelled set as `adte eval` takes it, such as folder:photographs. A seeded sample of it is
reduced to each short side, as a smaller camera would have seen it; `own` leaves the images as they
are. Then both kinds of views are encoded, those of `Views()` and those of `Views(enlarge=0)`, which
crop any image alike, and methods run on both, online, once per seed. A gain comes with a 95 %
interval, clustered by image.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

import default
from adte import create_method
from adte.data import Dataset, load_dataset
from adte.evaluate.source import Source
from adte.images import Views
from adte.images.decode import load_image
from adte.models import Model, load_model

METHODS = {name: (name, {}) for name in ("zero-shot", "se", "tilt")}
STREAMS = ("full", "with the bias 50:1", "1/4 shown")


def reduced(data: Dataset, rows: default.Ints, side: str, out: Path) -> str:
    """Write images of a set as a folder, none with a short side above this; its name for --data."""
    for i in rows.tolist():
        image = Image.fromarray(load_image(data.sources[i]))
        short = min(image.size)
        if side != "own" and short > int(side):
            size = [max(1, round(n * int(side) / short)) for n in image.size]
            image = image.resize(size, Image.Resampling.BICUBIC)
        folder = out / data.class_ids[data.labels[i]]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{i:06d}.png")
    names = dict(zip(data.class_ids, data.classes, strict=True))  # of classes not drawn, too
    (out / "classes.json").write_text(json.dumps(names), "utf-8")
    return f"folder:{out}"


def encoded(spec: str, model: Model, views: Views, name: str, **how: Any) -> default.Source:
    """The images behind the tower, in the order of their files."""
    live = Source(data=[spec], model=model, views=views, stream={"order": "listed"}, **how).open()
    x = torch.stack([image.features for image in live.images()]).float().cpu()
    if model.unit:
        x = torch.nn.functional.normalize(x, dim=-1)
    assert live.context.class_weights is not None
    context = replace(live.context, class_weights=live.context.class_weights.cpu())
    return default.Source(name, x, np.asarray(live.labels), context)


def gains(
    spec: str, model: Model, title: str, views: int, seeds: list[int]
) -> list[dict[str, Any]]:
    """Rows of both kinds of views, the second with its gain over the first."""
    kinds = {"as published": Views(views, enlarge=0.0), "default": Views(views)}
    sources = {kind: encoded(spec, model, how, title) for kind, how in kinds.items()}
    rows: list[dict[str, Any]] = []
    for kind in STREAMS:
        drawn = [default.draw(sources["as published"], kind, seed) for seed in seeds]
        for name, (method, options) in METHODS.items():
            right = {
                how: np.concatenate(
                    [default.run(s, order, create_method(method, **options))[0] for order in drawn]
                )
                for how, s in sources.items()
            }
            gain = default.difference(
                right["default"] - right["as published"], np.concatenate(drawn)
            )
            row = {"source": title, "stream": kind, "images": len(drawn[0]), "method": name}
            row |= {how: float(r.mean()) for how, r in right.items()}
            rows.append({**row, "gain": gain})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", metavar="DATA")
    parser.add_argument("--sides", nargs="+", default=["own"], metavar="N|own")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--weights", help="a checkpoint file, for models that have none")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--limit", type=int, default=400, help="images of a set")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model, weights=args.weights)
    rows: list[dict[str, Any]] = []
    for spec in args.data:
        data = load_dataset(spec)
        sample = np.random.default_rng(0).permutation(len(data))[: args.limit]
        for side in args.sides:
            with TemporaryDirectory() as work:
                title = f"{Path(spec.partition(':')[2].partition('?')[0]).name}, {side}"
                small = reduced(data, sample, side, Path(work))
                found = gains(small, model, title, args.views, args.seeds)
            for r in found:
                print(
                    f"{title}, {r['stream']}, {r['method']}: {100 * r['as published']:.1f} to "
                    f"{100 * r['default']:.1f} %, {100 * r['gain'][0]:+.1f} ± "
                    f"{100 * r['gain'][1]:.1f}",
                    flush=True,
                )
            rows += [{"model": args.model, **r} for r in found]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
