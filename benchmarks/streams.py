"""Methods on many kinds of streams of features: what each gains, and the worst it does.

    python benchmarks/streams.py SOURCE … [--seeds 1 2 3] [--methods …] [--numbers] [--jobs N]
        [--json FILE]

SOURCE is as in benchmarks/default.py: a cache, a bundle by name, or FEATURES.npz.

Streams, 1,000 images at most, drawn once per seed, online, cold: *whole*; *sorted*, class after
class; *1/k shown*, some classes drawn at random; *k together*, neighbours in the list of classes,
which may go by kind; *in order*, class after class in the order of the list; *with* and *against
the bias*, class frequencies that fall as the model's favour falls or rises; *first k*; *lost*,
features pushed towards one direction, so that the model calls many things by few names.

A row is a mean over the streams of a kind. *worst* and *below* are the worst loss to zero-shot (to
SE where images have views) of all streams but the lost ones, and how many lose more than half a
point. With `--numbers` every number of `tilt` is changed alone, and the difference to `tilt` comes
with a 95 % interval over streams.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adte import create_method
from adte.core.batch import Batch
from adte.evaluate.running.figures import ece
from adte.methods import Method, tilt
from default import Source, draw, named

Rule = tuple[str, dict[str, Any]]

METHODS: dict[str, Rule] = {
    "zero-shot": ("zero-shot", {}),
    "se": ("se", {}),
    "se + la": ("se", {"adjust": "before"}),
    "tda": ("tda", {}),
    "adte": ("adte", {}),
    "adte-released": ("adte-released", {}),
    "tilt": ("tilt", {}),
}
NUMBERS: dict[str, Rule] = {  # a name in capitals is a constant of `adte.methods.tilt`
    "zero-shot": ("zero-shot", {}),
    "se": ("se", {}),
    "tilt": ("tilt", {}),
    "likeness 0": ("tilt", {"likeness": 0.0}),
    "likeness 0.25": ("tilt", {"likeness": 0.25}),
    "likeness 1": ("tilt", {"likeness": 1.0}),
    "smoothing 10": ("tilt", {"smoothing": 10.0}),
    "smoothing 20": ("tilt", {"smoothing": 20.0}),
    "smoothing 100": ("tilt", {"smoothing": 100.0}),
    "ROOT 0.4": ("tilt", {"ROOT": 0.4}),
    "ROOT 0.8": ("tilt", {"ROOT": 0.8}),
    "ROOT 1": ("tilt", {"ROOT": 1.0}),
    "OWN 0.1": ("tilt", {"OWN": 0.1}),
    "OWN 2": ("tilt", {"OWN": 2.0}),
    "NEAREST 4": ("tilt", {"NEAREST": 4}),
    "NEAREST 64": ("tilt", {"NEAREST": 64}),
    "frequencies equal": ("tilt", {"frequencies": "equal"}),
    "frequencies as they come": ("tilt", {"frequencies": "as-they-come"}),
}
KINDS = (
    "whole", "sorted", "1/20 shown", "1/5 shown", "1/2 shown", "1/5 together", "1/4 together",
    "kin 600", "kin 300", "in order", "in order 600", "in order 300", "with the bias 10:1",
    "against the bias 10:1", "first 100", "lost", "lost 1/5 shown",
)  # fmt: skip
HELD = (
    "whole", "sorted", "1/10 shown", "1/3 shown", "1/8 together", "1/3 together", "kin 450",
    "kin 150", "in order 450", "with the bias 30:1", "against the bias 30:1", "first 200", "lost",
    "lost 1/3 shown",
)  # fmt: skip
OPEN = ("whole", "sorted", "first", "1/2 shown", "1/3 shown", "lost", "in order")
FEW = 60  # classes; among fewer there are no neighbours to speak of
MOST = 1000


def suits(source: Source, kind: str) -> bool:
    """Whether a kind of stream says something of a source."""
    if source.open:
        return kind.startswith(OPEN) and not kind.endswith(("600", "450", "300", "lost 1/5 shown"))
    small = len(np.unique(source.labels)) < FEW
    return not small or not kind.startswith(("1/20", "1/10", "kin", "1/4 to", "1/5 to", "1/3 to",
                                             "1/8 to", "in order "))  # fmt: skip


def lost(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Features (N, V, D) pushed towards one direction."""
    g = torch.Generator().manual_seed(seed)
    mean, push = x.mean((0, 1)), torch.randn(x.shape[-1], generator=g)
    noise = 0.012 * torch.randn(x.shape, generator=g)
    x = 0.6 * (x - mean) + mean + 0.25 * push / push.norm() + noise
    return torch.nn.functional.normalize(x, dim=-1)


def made(rule: Rule) -> Method:
    """A method; options in capitals are constants of `tilt`, for this process."""
    name, options = rule
    vars(tilt).update(DEFAULTS | {k: v for k, v in options.items() if k.isupper()})
    return create_method(name, **{k: v for k, v in options.items() if not k.isupper()})


DEFAULTS = {k: v for k, v in vars(tilt).items() if k in ("ROOT", "OWN", "NEAREST")}


def run(where: str, number: int, kind: str, seed: int, rules: dict[str, Rule]) -> dict[str, Any]:
    """Accuracy and ECE of every method on one stream."""
    torch.set_num_threads(1)
    source = list(named(where).values())[number]
    most = MOST + MOST // 2 if kind.startswith("in order") else MOST
    rows = draw(source, kind.removeprefix("lost "), seed)[:most]
    x = source.features[torch.from_numpy(rows)]
    x = lost(x, seed) if kind.startswith("lost") else x
    found = {}
    for title, rule in rules.items():
        method, probs = made(rule), []
        for some in x.split(64):
            probs.append(method.step(Batch(source.scores(some), some, None, source.context)).probs)
        best = torch.cat(probs).max(-1)
        right = (best.indices.numpy() == source.labels[rows]).astype(np.float64)
        sure = best.values.double().numpy()
        found[title] = {"accuracy": float(right.mean()), "ece": float(ece(sure, right))}
    return {"source": source.name, "stream": kind, "seed": seed, "views": int(x.shape[1]),
            "images": len(rows), "open": source.open, "methods": found}  # fmt: skip


def family(row: dict[str, Any]) -> str:
    """The column of a stream."""
    name, kind = row["source"], row["stream"]
    if row["views"] > 1:
        return name
    if kind.startswith("lost"):
        return "lost"
    if kind.startswith("in order"):
        return "in order"
    if kind.startswith("kin") or kind.endswith("together"):
        return "kin"
    if name.endswith("closed"):
        return "closed"
    if row["open"]:
        return "open"
    return "few shown" if kind.endswith("shown") else "whole"


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per method: means by kind of stream, over seeds first."""
    streams: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        streams[row["source"], row["stream"]].append(row)
    titles = list(rows[0]["methods"])

    def values(title: str, key: str = "accuracy") -> dict[tuple[str, str], float]:
        return {
            stream: 100 * float(np.mean([r["methods"][title][key] for r in draws]))
            for stream, draws in streams.items()
        }

    column = {stream: family(draws[0]) for stream, draws in streams.items()}
    counted = [s for s in streams if not s[1].startswith("lost")]
    first, ours, out = values("zero-shot"), values("tilt") if "tilt" in titles else {}, []
    se = values("se") if "se" in titles else first
    base = {s: se[s] if streams[s][0]["views"] > 1 else first[s] for s in streams}
    for title in titles:
        mine, errors = values(title), values(title, "ece")
        gains = [mine[s] - base[s] for s in counted]
        row: dict[str, Any] = {"method": title}
        for name in sorted(set(column.values())):
            row[name] = float(np.mean([mine[s] for s in streams if column[s] == name]))
        row |= {"mean": float(np.mean([mine[s] for s in counted])), "worst": min(gains),
                "below": sum(g < -0.5 for g in gains),
                "ece": float(np.mean([errors[s] for s in counted]))}  # fmt: skip
        if ours:
            off = np.array([mine[s] - ours[s] for s in counted])
            half = 1.96 * off.std(ddof=1) / np.sqrt(len(off))
            row["over tilt"] = [float(off.mean()), float(half)]
        out.append(row)
    return out


def printed(rows: list[dict[str, Any]]) -> Iterator[str]:
    keys = [k for k in rows[0] if k not in ("method", "over tilt")]
    yield " " * 26 + " ".join(f"{k:>9s}" for k in keys) + "  over tilt"
    for row in rows:
        more = "{:+.2f} ± {:.2f}".format(*row["over tilt"]) if "over tilt" in row else ""
        yield f"{row['method']:26s}" + " ".join(f"{row[k]:9.2f}" for k in keys) + f"  {more}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--streams", nargs="+", metavar="STREAM",
                        help="kinds; held: those that nothing was chosen on")  # fmt: skip
    parser.add_argument("--methods", nargs="+", help=f"of {', '.join(METHODS)}, or any method")
    parser.add_argument("--numbers", action="store_true", help="change every number of tilt alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rules = NUMBERS if args.numbers else METHODS
    if args.methods:
        rules = {name: rules.get(name, (name, {})) for name in args.methods}
    kinds = HELD if args.streams == ["held"] else args.streams or KINDS
    tasks = [
        (where, number, kind, seed, rules)
        for where in args.sources
        for number, source in enumerate(named(where).values())
        for kind in kinds
        if suits(source, kind)
        for seed in args.seeds
    ]
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        every = zip(*tasks, strict=True)
        rows = list(pool.map(run, *every) if args.jobs > 1 else map(run, *every))
    found = summary(rows)
    print(*printed(found), sep="\n")
    if args.json:
        Path(args.json).write_text(json.dumps({"summary": found, "streams": rows}) + "\n", "utf-8")


if __name__ == "__main__":
    main()
