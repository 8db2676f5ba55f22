"""The default, `tilt`, on many streams: what it gains over others.

    python benchmarks/default.py SOURCE … [--streams all] [--seeds 1-3] [--json FILE]
    python benchmarks/default.py SOURCE … --every   # all methods that features suffice for

SOURCE is a cache (a folder that `adte extract` wrote), a bundle by name (replay, shifts, second),
or FEATURES.npz with `image` (N, D), `label` (N,) and `text` (L, D). An .npz with `shown`, the
classes that occur, makes two sources: its whole vocabulary, and the classes shown alone.

Classes of a stream are drawn at random. `--streams "1/4 together" "in order"` shows neighbours in
the list of classes, seed 1 the first quarter of them, or all classes in the order of the list: in
ImageNet's list neighbours are of one kind.

Every stream is run online, once per seed, which draws its classes, its images and their order. A
difference comes with a 95 % interval, clustered by image. With `--warm N` methods first learn from
N images, without labels, that each seed draws from the source before its stream, and begin another
stream (`begin`); `tilt, cold` begins that stream with nothing. Rows are compared with `se`, or with
`zero-shot` where images have one view. Beside it stand ECE, what of it chance would make in so few
images, and for `tilt` the error of the shares: half the L1 distance from the truth, of the estimate
and of counting its labels. With `--every` the last lines say on how many streams the default is
best of all, or within 0.3 points of the best, and what could be had by choosing a method for each
source in hindsight.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adte import create_method
from adte.core.batch import Batch, Context
from adte.evaluate.features.cache import Cache, bundle
from adte.evaluate.running.figures import ece
from adte.methods import Method, list_methods

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Methods = dict[str, tuple[str, dict[str, Any]]]  # by title: a method's name and its options

METHODS: Methods = {
    "zero-shot": ("zero-shot", {}),
    "se": ("se", {}),
    "se + la": ("se", {"adjust": "before"}),
    "adte": ("adte", {}),
    "adte-released": ("adte-released", {}),
    "tda": ("tda", {}),
    "tilt, equal": ("tilt", {"frequencies": "equal"}),
    "tilt, as they come": ("tilt", {"frequencies": "as-they-come"}),
    "tilt, no likeness": ("tilt", {"likeness": 0.0}),
    "tilt": ("tilt", {}),
}
ASIDE = ("tilt, equal", "tilt, as they come", "tilt, no likeness")  # settings: rivals of none
COLD = {"tilt, cold": METHODS["tilt"]}  # beside methods that begin warm
SLOW = ("frolic-released",)  # learns its proxies anew in 2,000 steps
SUFFICE = {"logits", "features", "class weights"}  # what a method may need to run on features
STREAMS = (
    "full", "sorted", "first 50", "first 200", "with the bias 10:1", "with the bias 50:1",
    "against the bias 10:1", "1/20 shown", "1/4 shown", "1/2 shown",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Labelled images behind a tower, in memory."""

    name: str
    features: torch.Tensor  # (N, V, D)
    labels: Ints
    context: Context
    open: bool = False  # shows few of its classes already

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of features.  (B, V, D) → (B, V, L)"""
        assert self.context.class_weights is not None
        return self.context.scale * x @ self.context.class_weights.T

    def logits(self, rows: Ints) -> torch.Tensor:
        return self.scores(self.features[rows])

    def of(self, rows: Ints) -> Source:
        """These images alone."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])

    def favoured(self) -> Floats:
        """Mean prediction of each class: whom the model favours."""
        parts = np.array_split(np.arange(len(self.labels)), max(1, len(self.labels) // 500))
        total = sum(self.logits(rows)[:, 0].softmax(-1).sum(0) for rows in parts)
        return np.asarray(total, dtype=np.float64)


def sources(where: str) -> Iterator[Source]:
    """What a path or a bundle's name stands for."""
    if not where.endswith(".npz"):
        cache = Cache(Path(where) if Path(where).is_dir() else bundle(where))
        x = torch.stack([i.features for i in cache.images()]).float()
        x = torch.nn.functional.normalize(x, dim=-1)
        yield Source(Path(where).name, x, cache.labels, cache.context)
        return
    data = np.load(where)
    x, text = (torch.from_numpy(data[k]).float() for k in ("image", "text"))
    x, text = (torch.nn.functional.normalize(t, dim=-1) for t in (x, text))
    label = data["label"].astype(np.int64)
    name = Path(where).stem
    shown = data.get("shown")
    if shown is not None:
        new = np.full(len(text), -1)
        new[shown] = np.arange(len(shown))
        yield Source(f"{name}, closed", x[:, None], new[label], Context(text[shown], 100.0))
    yield Source(name, x[:, None], label, Context(text, 100.0), open=shown is not None)


def parted(source: Source, first: int, seed: int) -> tuple[Ints, Ints]:
    """Some images to learn from beforehand, and the others."""
    rows = np.random.default_rng(seed).permutation(len(source.labels))
    return rows[:first], np.sort(rows[first:])


def draw(source: Source, kind: str, seed: int) -> Ints:
    """The images of a stream, in order."""
    rng, y = np.random.default_rng(seed), source.labels
    rows, classes = np.arange(len(y)), np.unique(y)
    part = float(np.divide(*map(int, kind.split()[0].split("/")))) if "/" in kind else 1.0
    if kind.startswith(("in order", "kin")):  # neighbours in the list of classes
        rows = rng.permutation(rows)
        rows = rows[np.argsort(y[rows], kind="stable")]
        if kind[-1].isdigit():
            rows = np.roll(rows, -(seed % 5) * (len(rows) // 5))[: int(kind.split()[-1])]
        return rng.permutation(rows) if kind.startswith("kin") else rows
    if kind.endswith("shown"):
        rows = rows[np.isin(y, rng.permutation(classes)[: max(2, round(part * len(classes)))])]
    elif kind.endswith("together"):  # neighbours, too
        number = round(part * len(classes))
        rows = rows[np.isin(y, np.roll(classes, -(seed % 7) * number)[:number])]
    elif kind == "one class":  # of those that have the most images, or eight
        counts = np.bincount(y)
        rows = rows[y == rng.permutation(np.flatnonzero(counts >= min(8, counts.max())))[0]]
    elif "bias" in kind:
        favour = source.favoured()[classes] * (1 if kind.startswith("with") else -1)
        rank, ratio = np.argsort(np.argsort(-favour)), float(kind.split()[-1].split(":")[0])
        want = np.bincount(y).max() * ratio ** (-rank / max(1, len(classes) - 1))
        picked = [
            rng.permutation(np.flatnonzero(y == c))[: max(1, round(n))]
            for c, n in zip(classes, want, strict=True)
        ]
        rows = np.concatenate(picked)
    rows = rng.permutation(rows)
    if kind == "sorted":
        rows = rows[np.argsort(rng.permutation(int(y.max()) + 1)[y[rows]], kind="stable")]
    return rows[: int(kind.split()[1])] if kind.startswith("first") else rows


def every() -> Methods:
    """The rows of `METHODS`, and every other registered method as it comes, but for `SLOW`."""
    rest = (n for n in list_methods() if set(create_method(n).needs) <= SUFFICE)
    return METHODS | {n: (n, {}) for n in rest if n not in METHODS and n not in SLOW}


def probabilities(source: Source, rows: Ints, method: Method) -> torch.Tensor:
    """What a method says of the images of a stream, online.  → (N, L)"""
    out = []
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        batch = Batch(source.logits(part), source.features[part], None, source.context)
        out.append(method.step(batch).probs)
    return torch.cat(out)


def run(source: Source, rows: Ints, method: Method) -> tuple[Floats, Floats, Ints]:
    """Whether each answer was right, how sure it was, and the labels given."""
    best = probabilities(source, rows, method).max(-1)
    labels = best.indices.numpy()
    right = (labels == source.labels[rows]).astype(np.float64)
    return right, best.values.double().numpy(), labels


def difference(gain: Floats, rows: Ints) -> tuple[float, float]:
    """Mean and half of its 95 % interval; the same image in several orders counts as one."""
    mean = gain.mean()
    off = np.bincount(rows, weights=gain - mean)
    return float(mean), float(1.96 * np.sqrt((off**2).sum()) / len(gain))


def by_chance(confidence: Floats, draws: int = 20) -> float:
    """The ECE of answers that are right just as often as they say: few images make much of it."""
    rng = np.random.default_rng(0)
    right = rng.random((draws, len(confidence))) < confidence
    return float(np.mean([ece(confidence, r) for r in right]))


def share_errors(method: Method, given: Ints, truth: Ints, classes: int) -> dict[str, float] | None:
    """Half the L1 distance from the true shares, and how many of them the intervals hold."""
    found = getattr(method.class_prior, "shares", None)
    if found is None:
        return None
    true, counted = (np.bincount(x, minlength=classes) / len(truth) for x in (truth, given))
    low, high = found.low.numpy(), found.high.numpy()
    inside = (low <= true) & (true <= high)
    return {
        "estimated": float(np.abs(found.share.numpy() - true).sum() / 2),
        "counted": float(np.abs(counted - true).sum() / 2),
        "inside": float(inside.mean()),
        "inside_shown": float(inside[true > 0].mean()),
    }


class Answers(NamedTuple):
    """What a method said of one stream: of which images, whether right, how sure; of its shares."""

    rows: Ints
    right: Floats
    sure: Floats
    errors: dict[str, float] | None


class Task(NamedTuple):
    """A method on one draw of a stream."""

    where: str
    source: str
    kind: str
    method: tuple[str, dict[str, Any]]
    seed: int
    apart: int
    warm: bool
    limit: int | None


@cache
def named(where: str) -> dict[str, Source]:
    return {source.name: source for source in sources(where)}


def answered(task: Task) -> Answers:
    torch.set_num_threads(1)
    where, name, *rest = task
    return answers(named(where)[name], *rest)


def answers(
    source: Source,
    kind: str,
    rule: tuple[str, dict[str, Any]],
    seed: int,
    apart: int = 0,
    warm: bool = False,
    limit: int | None = None,
) -> Answers:
    """What a method says of a draw; `apart` images are none of its stream, but to begin with."""
    classes = source.context.class_weights.shape[0]  # type: ignore[union-attr]
    before, others = parted(source, apart, seed)
    source, whole = source.of(others), source
    order = draw(source, kind, seed)[:limit]
    method = create_method(rule[0], **rule[1])
    if warm:
        run(whole, before, method)
        method.begin()
    right, sure, given = run(source, order, method)
    errors = None if apart else share_errors(method, given, source.labels[order], classes)
    return Answers(others[order], right, sure, errors)


def apart(source: Source, methods: Methods) -> Methods:
    """Methods that are not the same: of one view SE is zero-shot."""
    single = source.features.shape[1] == 1
    return {k: v for k, v in methods.items() if not single or v != METHODS["se"]}


def figures(
    source: Source, kind: str, seeds: Sequence[int], methods: Methods
) -> list[dict[str, Any]]:
    """One row per method."""
    found = {
        title: [answers(source, kind, method, seed) for seed in seeds]
        for title, method in apart(source, methods).items()
    }
    return tabled(source, kind, found)


def tabled(source: Source, kind: str, found: dict[str, list[Answers]]) -> list[dict[str, Any]]:
    """One row per method, of what it said of every draw of a stream."""
    rows, first, plain = [], None, None
    for title, draws in found.items():
        right = np.concatenate([d.right for d in draws])
        sure = np.concatenate([d.sure for d in draws])
        row: dict[str, Any] = {
            "source": source.name,
            "stream": kind,
            "classes": source.context.class_weights.shape[0],  # type: ignore[union-attr]
            "images": len(draws[0].rows),
            "method": title,
            "accuracy": float(right.mean()),
            "ece": ece(sure, right),
            "ece_by_chance": by_chance(sure),
        }
        plain = right if title == "zero-shot" else plain
        if title == "se" or (source.features.shape[1] == 1 and first is None):
            first = right
        every = np.concatenate([d.rows for d in draws])
        for against, other in (("zero_shot", plain), ("reference", first)):
            if other is not None and other is not right:
                row[f"gain_over_{against}"] = difference(right - other, every)
        if errors := [d.errors for d in draws if d.errors]:
            row["shares"] = {k: float(np.mean([e[k] for e in errors])) for k in errors[0]}
        rows.append(row)
    return rows


def said(row: dict[str, Any]) -> str:
    gains = [
        f"{100 * row[key][0]:+5.1f} ± {100 * row[key][1]:.1f}" if key in row else " " * 11
        for key in ("gain_over_zero_shot", "gain_over_reference")
    ]
    return (
        f"  {row['method']:32s} {100 * row['accuracy']:5.1f} %   {gains[0]}   {gains[1]}   "
        f"ECE {100 * row['ece']:4.1f} (by chance {100 * row['ece_by_chance']:.1f})"
    )


def near_the_best(rows: list[dict[str, Any]]) -> list[tuple[str, set[str]]]:
    """Of every stream its source, and the methods that are best or within 0.3 points of it."""
    streams: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["method"] not in ASIDE:
            found = streams.setdefault((row["source"], row["stream"]), {})
            found[row["method"]] = row["accuracy"]
    return [
        (source, {m for m, accuracy in found.items() if accuracy >= max(found.values()) - 0.003})
        for (source, _), found in streams.items()
    ]


def in_hindsight(near: list[tuple[str, set[str]]]) -> int:
    """On how many streams one is near the best who takes for each source the best method of it."""
    counts: dict[str, Counter[str]] = {}
    for source, methods in near:
        counts.setdefault(source, Counter()).update(methods)
    return sum(max(count.values()) for count in counts.values())


def _usual(source: Source) -> tuple[str, ...]:
    return ("full", "sorted", "first 50", "one class") if source.open else STREAMS


def _span(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--streams", nargs="+", default=["all"], metavar="STREAM",
                        help=f"of {', '.join(STREAMS)}, one class")  # fmt: skip
    parser.add_argument("--seeds", nargs="+", type=_span, default=[range(1, 4)],
                        help="numbers, and spans as in 1-16")  # fmt: skip
    parser.add_argument(
        "--every", action="store_true", help="all methods that features suffice for"
    )
    parser.add_argument("--limit", type=int, help="images of a stream at most")
    parser.add_argument("--methods", nargs="+", help=f"of {', '.join(METHODS)}")
    parser.add_argument(
        "--warm", type=int, default=0, metavar="N", help="images to learn from first"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    methods = every() if args.every else METHODS
    methods = {k: v for k, v in methods.items() if not args.methods or k in args.methods}
    methods |= COLD if args.warm else {}
    streams = [
        (where, source, kind)
        for where in args.sources
        for source in named(where).values()
        for kind in (_usual(source) if args.streams == ["all"] else args.streams)
    ]
    tasks = [
        {
            title: [
                Task(where, source.name, kind, method, seed, args.warm, warm, args.limit)
                for seed in chain(*args.seeds)
            ]
            for title, method in apart(source, methods).items()
            for warm in [args.warm > 0 and title not in COLD]
        }
        for where, source, kind in streams
    ]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        flat = (task for stream in tasks for draws in stream.values() for task in draws)
        found = iter(pool.map(answered, flat) if args.jobs > 1 else map(answered, flat))
        for (_, source, kind), stream in zip(streams, tasks, strict=True):
            said_of = {title: [next(found) for _ in draws] for title, draws in stream.items()}
            new = tabled(source, kind, said_of)
            head = f"{source.name}, {kind}: {new[0]['images']} images"
            print(f"{head}, {new[0]['classes']} classes", *map(said, new), sep="\n", flush=True)
            rows += new
    if args.every:
        near = near_the_best(rows)
        print(f"best, or within 0.3 points of the best, of {len(near)} streams:")
        for method in ("tilt", "se + la", "tda"):
            print(f"  {method}: {sum(method in methods for _, methods in near)}")
        print(f"  the method of each source that is so most often: {in_hindsight(near)}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
