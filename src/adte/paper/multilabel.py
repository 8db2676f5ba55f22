"""Several labels per image: pairs of photographs, from features or from pixels.

Two photographs side by side are an image with two labels, and which they are is known. From the
bundle's features the collage is a stand-in: a crop of it would mostly show one photograph or the
other, so its views are crops of both, and its base view is the normalised mean of the two base
views. From pixels (`collages`) it is a real one: two photographs in one image, views and base view
cut from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from adte.core.batch import Context, Sample
from adte.core.errors import InputError
from adte.core.prediction import Prediction
from adte.data.base import Dataset
from adte.evaluate.features.stream import FeatureStream, Held, Narrowed, Tick, silent
from adte.evaluate.running.figures import average_precision, average_precisions
from adte.images import Views
from adte.images.decode import Pixels
from adte.methods import Method, create_method
from adte.methods.mltta import MLTTA
from adte.models import Model
from adte.paper.lab import OURS, Lab
from adte.paper.study import Finding, Row, study
from adte.pipeline import Pipeline

__all__ = ["Pair", "collages", "compare", "draw_pairs", "multilabel", "paired", "side_by_side"]

CLASSES, PAIRS = 30, 60
COLUMNS = ("mAP", "mAP, scaled", "both on top", "first is one")

Floats = NDArray[np.float64]


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


# --------------------------------------------------------------------------- features


def paired(stream: FeatureStream, count: int) -> list[Pair]:
    """Stand-ins for collages: half the crops of each photograph, and the mean base view."""
    out, images, context = [], list(stream.images()), stream.context
    device = stream.class_weights.device
    for a, b in draw_pairs([i.label for i in images], count):
        f, g = images[a].features, images[b].features  # (V, D)
        half = len(f) // 2
        base = torch.nn.functional.normalize(f[:1].float() + g[:1].float(), dim=-1).to(f)
        features = torch.cat([base, f[1 : half + 1], g[1 : len(f) - half]])  # (V, D)
        batch = context.batch(features[None].to(device))
        out.append(Pair(Sample.of(batch), (images[a].label, images[b].label)))
    return out


def _few(lab: Lab) -> Held:
    """Photographs of thirty classes from all over the label space, in a space of those alone."""
    stream = lab.with_tower(lab.bundle("replay") if lab.small else lab.main())
    classes = np.unique(np.linspace(0, len(stream.classes) - 1, CLASSES).astype(int)).tolist()
    return Held.of(Narrowed(stream, classes, f"{len(classes)} classes").first(4 * PAIRS))


# --------------------------------------------------------------------------- pixels


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


# --------------------------------------------------------------------------- figures


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
    OURS: lambda pairs: create_method(OURS),
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
    pairs: Sequence[Pair],
    methods: Sequence[str] = tuple(METHODS),
    tick: Tick = silent,
) -> tuple[list[Row], list[str]]:
    """Every method on the pairs: rows of `COLUMNS`, and what is sure about the differences."""
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
            tick(1)
        rows.append(Row(name, _figures(said, targets)))
        scores[name] = torch.stack([p.probs for p in said]).double().cpu().numpy()
    base, *others = scores
    notes = []
    for name in others:
        low, high = _interval(scores[name], scores[base], targets)
        notes.append(f"{name} [{100 * low:+.1f}, {100 * high:+.1f}]")
    return rows, notes


@study("multilabel", "Several labels per image: ML-TTA against zero-shot", ours=True)
def multilabel(lab: Lab) -> Finding:
    """Pairs of photographs as one image with two labels, from the features of their views."""
    pairs = paired(_few(lab), PAIRS if lab.preset.images is None else lab.preset.images // 10)
    rows, gaps = compare(pairs, tick=lab.tick)
    sample = pairs[0].sample
    return Finding(
        setting=f"{len(pairs)} pairs of photographs, {sample.logits.shape[1]} classes, "
        f"{len(sample.logits)} views",
        columns=COLUMNS,
        rows=rows,
        notes=(
            "A stand-in for collages: crops of both photographs, and the mean of the two base "
            "views for the whole. benchmarks/multilabel.py makes real collages of photographs.",
            "mAP ranks images by probability; scaled, by the logits brought to [0, 1] in each "
            "image, which are ML-TTA's scores.",
            "The authors' captions are not public; ours are made of the class names.",
            f"mAP over {rows[0].name}, 95 % over resampled images, points: {'; '.join(gaps)}.",
        ),
    )
