"""Several labels per image: methods on real collages of two photographs.

    python benchmarks/multilabel.py FOLDER [--pairs 200] [--model tiny] [--json FILE]

FOLDER has one folder of photographs per class. Photographs of different classes are drawn two by
two, none twice, and set side by side; every method sees the views of the collage and scores all
classes. Reported is the mean average precision over classes, by probability and by the scores of
ML-TTA, how often the two most probable classes are the two labels, and how often the first is one
of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from adte import Sample, Views, create_method, load_model
from adte.core.batch import Context
from adte.core.errors import InputError
from adte.core.prediction import Prediction
from adte.data import Dataset, load_dataset
from adte.evaluate.running.figures import average_precision, average_precisions
from adte.images.decode import Pixels
from adte.methods import Method
from adte.methods.mltta import MLTTA
from adte.models import Model
from adte.models.prompts import Prompts, class_weights
from adte.pipeline import Pipeline

COLUMNS = ("mAP", "mAP, scaled", "both on top", "first is one")
Floats = NDArray[np.float64]
Row = tuple[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Pair:
    """A collage as a method sees it, and its two labels."""

    sample: Sample
    labels: tuple[int, int]


def draw_pairs(labels: Sequence[int], count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Images two by two, of different classes, none twice."""
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()
    out: list[tuple[int, int]] = []
    while order and len(out) < count:
        a = order.pop()
        b = next((i for i in reversed(order) if labels[i] != labels[a]), None)
        if b is not None:
            order.remove(b)
            out.append((a, b))
    return out


def side_by_side(left: Pixels, right: Pixels) -> Pixels:
    """Two images in one, at the height of the lower.  (H, W, 3), (H, W, 3) → (H, W, 3)"""
    height = min(len(left), len(right))
    parts = [
        np.asarray(Image.fromarray(p).resize((max(1, round(p.shape[1] * height / len(p))), height)))
        if len(p) > height
        else p
        for p in (left, right)
    ]
    return np.concatenate(parts, 1)


def collages(
    data: Dataset,
    model: Model,
    class_weights: Tensor,
    count: int,
    views: Views | None = None,
    seed: int = 0,
) -> Iterator[Pair]:
    """Real collages of a set's photographs through the model, one after the other.

    The base view is the whole collage squashed to a square, for the centre of it would cut both
    photographs; the crops are the usual ones.
    """
    whole = replace(model.preprocess, resize="squash", crop=1.0)
    pipeline = Pipeline(model, views or Views(seed=seed), whole)
    context = Context.of(model, class_weights, list(data.classes))
    pairs = draw_pairs(data.labels.tolist(), count, seed)

    def collage(a: int, b: int) -> Pixels:
        return side_by_side(pipeline.decode(data.sources[a]), pipeline.decode(data.sources[b]))

    items = ((f"{a} {b}", partial(collage, a, b)) for a, b in pairs)
    for (a, b), batch in zip(pairs, pipeline.batches(items, context), strict=True):
        yield Pair(Sample.of(batch), (int(data.labels[a]), int(data.labels[b])))


def _captioned(pairs: Sequence[Pair]) -> MLTTA:
    """ML-TTA with a bank of our own: "a photo of a {x}." and "a photo of a {x} and a {y}."."""
    shown = pairs[0].sample.batch
    names: Sequence[str] = shown.require("classes")
    said = [f"a photo of a {n}." for n in names]
    rng = np.random.default_rng(0)
    for _ in range(4 * len(names)):
        x, y = rng.choice(len(names), 2, replace=False).tolist()
        said.append(f"a photo of a {names[x]} and a {names[y]}.")
    counts = torch.tensor([1] * len(names) + [2] * (len(said) - len(names)))
    with torch.no_grad():
        features: Tensor = shown.require("model").encode_text(said)
    method = MLTTA()
    method.set_captions(features, counts)
    return method


METHODS: dict[str, Callable[[Sequence[Pair]], Method]] = {
    "zero-shot": lambda pairs: create_method("zero-shot"),
    "all views averaged": lambda pairs: create_method("average"),
    "SE": lambda pairs: create_method("se"),
    "tilt": lambda pairs: create_method("tilt"),
    "ML-TTA, one label bound": lambda pairs: create_method("mltta"),
    "ML-TTA, two labels bound": lambda pairs: create_method("mltta", labels_per_view=2),
    "ML-TTA, captions": _captioned,
}


def _scaled(probs: Tensor) -> Tensor:
    """Log-probabilities brought to [0, 1] over the classes of the image.  (L,)"""
    z = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
    low, high = z.aminmax()
    return (z - low) / torch.where(high > low, high - low, 1.0)


def _figures(said: Sequence[Prediction], targets: NDArray[np.bool_]) -> tuple[float, ...]:
    probs = torch.stack([p.probs for p in said]).cpu()
    scaled = torch.stack([_scaled(p.probs) if p.scores is None else p.scores for p in said]).cpu()
    top = np.take_along_axis(targets, probs.topk(2).indices.numpy(), 1)  # (N, 2)
    both, first = float(top.all(1).mean()), float(top[:, 0].mean())
    precision = [average_precision(s.float().numpy(), targets) for s in (probs, scaled)]
    return (*precision, both, first)


def _interval(ours: Floats, base: Floats, targets: NDArray[np.bool_]) -> tuple[float, float]:
    """95 % of mAP(ours) − mAP(base) over resampled images."""
    n = len(targets)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=1000).astype(float)
    gaps = average_precisions(ours, targets, drawn) - average_precisions(base, targets, drawn)
    low, high = np.quantile(gaps, [0.025, 0.975])
    return float(low), float(high)


def compare(
    pairs: Sequence[Pair], methods: Sequence[str] = tuple(METHODS)
) -> tuple[list[Row], list[str]]:
    """Every method on the pairs: rows of `COLUMNS`, and the intervals of the differences."""
    if not pairs:
        raise InputError("there are no pairs; give photographs of at least two classes")
    targets = np.zeros((len(pairs), pairs[0].sample.logits.shape[-1]), dtype=bool)
    for i, pair in enumerate(pairs):
        targets[i, list(pair.labels)] = True
    rows, scores = [], {}
    for name in methods:
        method, said = METHODS[name](pairs), []
        for pair in pairs:
            said.append(method.step(pair.sample))
        rows.append((name, _figures(said, targets)))
        scores[name] = torch.stack([p.probs for p in said]).double().cpu().numpy()
    base, *others = scores
    notes = []
    for name in others:
        low, high = _interval(scores[name], scores[base], targets)
        notes.append(f"{name} [{100 * low:+.1f}, {100 * high:+.1f}]")
    return rows, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the pairs and the views")
    parser.add_argument("--methods", help=f"names with ; between them, of: {'; '.join(METHODS)}")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, model = load_dataset(f"folder:{args.folder}"), load_model(args.model)
    weights = class_weights(model, data.classes, Prompts.of(data.templates))
    views = Views(count=args.views, seed=args.seed)
    pairs = list(collages(data, model, weights, args.pairs, views, args.seed))
    names = [n.strip() for n in args.methods.split(";")] if args.methods else list(METHODS)
    rows, gaps = compare(pairs, names)
    setting = (
        f"{len(pairs)} collages of {data.name}, {len(data.classes)} classes, {args.views} views, "
        f"model {args.model}"
    )
    print(f"{setting}; percent\n{'':26s}" + "".join(f"{c:>14s}" for c in COLUMNS))
    for name, cells in rows:
        print(f"{name:26s}" + "".join(f"{100 * c:14.1f}" for c in cells))
    print(f"mAP over {names[0]}, 95 % over resampled images, points: {'; '.join(gaps)}")
    if args.json:
        facts = {
            "setting": setting,
            "rows": [{"name": n, **dict(zip(COLUMNS, cells, strict=True))} for n, cells in rows],
            "gaps": gaps,
        }
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(facts, f, indent=2, ensure_ascii=False)
            f.write("\n")


if __name__ == "__main__":
    main()
