"""views="auto" against all 64 views: accuracy, and how many views were encoded.

    python benchmarks/auto.py SOURCE … [--methods adte se] [--seeds 1 2 3] [--json FILE]

SOURCE is as in `default.py`: a cache of 64 views, or a bundle by name. Streams are run online. The
views of an image are drawn in an order that does not depend on their number, so the first k of a
cache are those that `views="auto"` would have encoded, and the rule is the pipeline's own.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from adte import create_method
from adte.core.batch import Batch
from adte.pipeline.rounds import SURE, enough, rounds
from default import Source, difference, draw, sources


def run(source: Source, name: str, seed: int, sure: float) -> list[tuple[int, float, float, int]]:
    """Of each image: its number, right by few views, right by all, views drawn."""
    few, full = create_method(name), create_method(name)
    rows = []
    for i in draw(source, "full", seed).tolist():
        x, logits = source.features[i : i + 1], source.logits(np.array([i]))
        most = logits.shape[1]
        drawn = (logits[0, : r.stop] for r in rounds(most))
        k = next(len(z) for z in drawn if enough(z, most, few.adjustment(z), sure))
        right = [
            float(m.step(Batch(z, f, None, source.context)).probs.argmax() == source.labels[i])
            for m, z, f in ((few, logits[:, :k], x[:, :k]), (full, logits, x))
        ]
        rows.append((i, right[0], right[1], k))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--methods", nargs="+", default=["tilt"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--sure", nargs="+", type=float, default=[SURE], help="standard errors")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for source in (s for where in args.sources for s in sources(where)):
        for name in args.methods:
            for sure in args.sure:
                done = [r for seed in args.seeds for r in run(source, name, seed, sure)]
                i, few, full, drawn = (np.array(c) for c in zip(*done, strict=True))
                mean, half = difference(few - full, i)
                row = {
                    "source": source.name,
                    "method": name,
                    "sure": sure,
                    "images": len(source.labels),
                    "accuracy_auto": float(few.mean()),
                    "accuracy_all": float(full.mean()),
                    "gain": [mean, half],
                    "views": float(drawn.mean()),
                    "share": float(drawn.mean() / source.features.shape[1]),
                }
                print(
                    f"{source.name}, {name}, {sure} errors: {100 * few.mean():.1f} % against "
                    f"{100 * full.mean():.1f} %, {100 * mean:+.2f} ± {100 * half:.2f} points, with "
                    f"{drawn.mean():.1f} views ({100 * row['share']:.0f} %)",
                    flush=True,
                )
                found.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
