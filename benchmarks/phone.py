"""Photographs as a phone takes them: 12 megapixels to 64 views, ours beside the usual way.

    python benchmarks/phone.py [PHOTOGRAPHS] [--count 200] [--json FILE]

PHOTOGRAPHS is a folder; its images are scaled up to 12 megapixels and saved as JPEGs. Without a
folder one is made up. The usual way is Pillow: decode all pixels, then crop and resize view by
view. One thread. Out come seconds of the processor and their ratio; the difference in grey levels,
at 224 and 64 pixels, on all views; and how many labels of the model `tiny` differ,
each way with a stream of its own. Two labels tie if their probabilities differ by less than 0.01.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from adte import Classifier
from adte.bench.rate import photo, usual
from adte.bench.timing import conditions
from adte.core.machine import threads
from adte.images import Crop, Preprocess, Views, load_picture
from adte.images.decode import find_images

PHOTOGRAPHS = Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"
PIXELS = 12e6
TIE = 0.01
SHARP = "tiles"  # the photographs side by side: detail in every pixel


def scaled(image: Image.Image) -> bytes:
    """The image with 12 megapixels, as a JPEG."""
    by = math.sqrt(PIXELS / (image.width * image.height))
    size = round(image.width * by), round(image.height * by)
    return _jpeg(image.resize(size, Image.Resampling.LANCZOS))


def tiled(images: list[Image.Image]) -> bytes:
    """A JPEG of 4000 × 3000 full of images at their own size: sharper than any lens."""
    out, places = Image.new("RGB", (4000, 3000)), 0
    for top in range(0, 3000, 300):
        for left in range(0, 4000, 400):
            out.paste(images[places % len(images)].crop((0, 0, 400, 300)), (left, top))
            places += 1
    return _jpeg(out)


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92)
    return file.getvalue()


def the_usual_way(file: bytes, crops: list[Crop], preprocess: Preprocess) -> Tensor:
    """Decoded whole, then Pillow's crop and resize for each view (V, 3, S, S)."""
    image, side = Image.open(io.BytesIO(file)).convert("RGB"), preprocess.size
    views = usual(image, crops, preprocess)
    if preprocess.crop < 1:  # the base view shows less
        full, short = preprocess.whole, min(image.size)
        base = image.resize([int(full * n / short) for n in image.size], Image.Resampling.BICUBIC)
        left, top = (round((n - side) / 2) for n in base.size)
        levels = np.array(base.crop((left, top, left + side, top + side)), np.float32)
        views[0] = preprocess.normalise(torch.from_numpy(levels).permute(2, 0, 1))
    return views


def speed(file: bytes, repeats: int) -> dict[str, Any]:
    """Seconds of the parts, and of the whole beside the usual way."""
    views, preprocess = Views(), Preprocess()
    picture, crops = load_picture(file, preprocess, views), views.plan(file, preprocess)
    calls: dict[str, Callable[[], object]] = {
        "decode": lambda: load_picture(file, preprocess, views),
        "key": lambda: views.placed(picture, preprocess),
        "views": lambda: views(picture, preprocess),
        "total": lambda: views(file, preprocess),
        "usual": lambda: the_usual_way(file, crops, preprocess),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()  # whoever else works on the machine
            call()
            times[name].append(time.process_time() - start)
    parts = {name: statistics.median(t[1:]) for name, t in times.items()}
    ratio = parts["usual"] / parts["total"]
    return {**parts, "ratio": ratio, "reduced_by": picture.step, "megabytes": len(file) / 1e6}


def grey_levels(file: bytes, preprocess: Preprocess) -> dict[str, float]:
    """How far our views are from those of the usual way."""
    views = Views()
    theirs = the_usual_way(file, views.plan(file, preprocess), preprocess)
    apart = (views(file, preprocess) - theirs).abs() * 255
    apart *= torch.tensor(preprocess.std).view(3, 1, 1)
    worst = apart.flatten(1).amax(1)  # (V,)
    return {
        "mean": float(apart.mean()),
        "max": float(apart.max()),
        "max_of_median_view": float(worst.median()),
        "above_2": float((apart > 2.001).float().mean()),
    }


def labels(sources: list[tuple[str, Image.Image]]) -> dict[str, Any]:
    """Both ways through one model, each with a state of its own."""
    names = sorted({name for name, _ in sources})
    ours, theirs = (Classifier("tiny", names) for _ in range(2))
    size = ours.model.preprocess
    rows, apart = [], []
    for i, (name, image) in enumerate(sources, 1):
        file = scaled(image)
        pixels = the_usual_way(file, theirs.views.plan(file, size), size)
        found = [
            clf.step(clf.context.batch(clf.pipeline.encode(made[None]), None, (name,)))[0]
            for clf, made in ((ours, ours.views(file, size)), (theirs, pixels))
        ]
        apart.append(float((found[0].probs - found[1].probs).abs().max()))
        if found[0].index != found[1].index:
            gap = float(found[1].probs[found[1].index] - found[1].probs[found[0].index])
            rows.append({"image": name, "ours": found[0].label, "theirs": found[1].label,
                         "gap": gap})  # fmt: skip
        if i % 20 == 0:
            print(f"{i} of {len(sources)}: {len(rows)} labels changed", file=sys.stderr, flush=True)
    return {
        "images": len(sources),
        "size": size.size,
        "changed": len(rows),
        "changed_not_tied": sum(r["gap"] >= TIE for r in rows),
        "probability_apart": {"mean": float(np.mean(apart)), "max": max(apart)},
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=200, help="photographs for the labels")
    parser.add_argument("--grey", type=int, default=10, help="photographs for the grey levels")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    folder = args.photographs or (PHOTOGRAPHS if PHOTOGRAPHS.is_dir() else None)
    if folder is None:
        sources = [("made up", Image.fromarray(photo(seed=i))) for i in range(2)]
    else:
        paths = find_images(folder)[: args.count]
        sources = [(_name(p), Image.open(p).convert("RGB")) for p in paths]
    images = [image for _, image in sources]
    out: dict[str, Any] = {"conditions": conditions(threads=1), "speed": {}, "grey": {}}
    with threads(1):
        shown = {"scaled up": scaled(images[0]), SHARP: tiled(images)}
        for kind, file in shown.items():
            out["speed"][kind] = row = speed(file, args.repeats)
            print(f"{kind:10s} {row['megabytes']:.1f} MB at 1/{row['reduced_by']}: "
                  + ", ".join(f"{k} {1e3 * row[k]:.0f} ms"
                              for k in ("decode", "key", "views", "total", "usual"))
                  + f"; {row['ratio']:.1f} × the usual way", flush=True)  # fmt: skip
        few = {"scaled up": [scaled(i) for i in images[: args.grey]], SHARP: [shown[SHARP]]}
        for size in (224, 64):
            for kind, files in few.items():
                made = [grey_levels(file, Preprocess(size=size)) for file in files]
                row = {k: float(np.mean([m[k] for m in made])) for k in made[0]}
                row |= {"max": max(m["max"] for m in made), "images": len(files)}
                out["grey"][f"{kind}, {size} px"] = row
                print(f"{kind:10s} {len(files)} at {size} px: {row['mean']:.2f} grey levels apart, "
                      f"at most {row['max']:.0f}, above 2: {100 * row['above_2']:.2f} %",
                      flush=True)  # fmt: skip
        if folder is not None:
            out["labels"] = row = labels(sources)
            apart = row["probability_apart"]
            print(f"labels of {row['images']} images at {row['size']} px: {row['changed']} "
                  f"changed, {row['changed_not_tied']} of them not tied; probabilities "
                  f"{apart['mean']:.4f} apart, at most {apart['max']:.4f}")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps(out, indent=2) + "\n", encoding="utf-8")


def _name(path: Path) -> str:
    """The class: "tench" of n01440764_tench.jpg."""
    return path.stem.split("_", 1)[-1].replace("_", " ")


if __name__ == "__main__":
    main()
