"""What the default of `adte` was chosen by: estimators, forms and streams, on a cache of features.

    python benchmarks/defaults.py [CACHE] [--json FILE]

Without CACHE it is the embedded bundle. Labels decide between the rows, so a row that was picked
here is no independent result; docs/figures.md has one.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from adte import create_method
from adte.evaluate import run
from adte.evaluate.cache import Cache

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "SE": ("se", {}),
    "adte, no adjustment": ("adte", {"adjust": "none"}),
    "adte (default)": ("adte", {}),
    "adte, paper's form": ("adte", {"form": "paper"}),
    "adte, no smoothing": ("adte", {"smoothing": 0.0}),
    "adte, fixed point": ("adte", {"estimator": "fixed-point"}),
    "adte, fixed point, paper's form": ("adte", {"estimator": "fixed-point", "form": "paper"}),
}


def streams(labels: np.ndarray, classes: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Orders of the images: as they lie, sorted by class, thinned 10 : 1, and of few classes."""
    rng = np.random.default_rng(seed)
    rank, thin = rng.permutation(classes), []
    for label in range(classes):
        own = np.flatnonzero(labels == label)
        keep = max(1, round(len(own) * 10 ** (-rank[label] / max(classes - 1, 1))))
        thin += own[:keep].tolist()
    few = np.flatnonzero(np.isin(labels, rng.permutation(classes)[: max(2, classes // 20)]))
    return {
        "shuffled": np.arange(len(labels)),
        "sorted": np.argsort(labels, kind="stable"),
        "thinned": rng.permutation(thin),
        "few classes, 5 passes": np.concatenate([rng.permutation(few) for _ in range(5)]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", nargs="?")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cache = Cache(args.cache)
    data, rows = list(cache), []
    for stream, order in streams(cache.labels, len(cache.classes)).items():
        part = [data[i] for i in order]
        print(f"{stream}: {len(part)} images   (online, two-pass)")
        for name, (method, options) in ROWS.items():
            row = {"stream": stream, "name": name}
            for protocol in ("online", "two-pass"):
                done = run(create_method(method, **options), part, protocol)
                row[protocol] = float(done.correct.mean())
            rows.append(row)
            print(
                f"  {name:34s} {100 * row['online']:5.1f} {100 * row['two-pass']:5.1f}", flush=True
            )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
