"""Logit adjustment on real CLIP logits, from the prior estimated without labels.

    python benchmarks/clip_logits.py FEATURES.npz [--json FILE]

FEATURES.npz holds `image` (N, D), `label` (N,) and `text` (L, D), as the features of OpenAI CLIP
ViT-B/32 on ImageNet do that the figures in docs/figures.md come from.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from adte import Sample, create_method
from adte.evaluate import run
from adte.evaluate.running.figures import bootstrap_difference
from adte.paper.tables import FIXED_POINT

ESTIMATORS: dict[str, dict[str, Any]] = {
    "fixed point, all items": FIXED_POINT | {"bank": "all"},
    "fixed point, last 10 per class": FIXED_POINT | {"bank": "fifo"},
    "fixed point, gap bank as released": FIXED_POINT
    | {"bank": "gap", "threshold": 1.0, "size": 20},
    "marginal": FIXED_POINT | {"estimator": "marginal"},
    "marginal, smoothed and clipped (as adte)": {},
}


def figures(path: str, seed: int = 0, classes: int | None = None) -> list[dict[str, Any]]:
    """Accuracy of zero-shot and of zero-shot with adjustment, online and two-pass.

    With `classes` the stream shows so many of them alone, five times over.
    """
    data = np.load(path)
    image, text = torch.from_numpy(data["image"]).float(), torch.from_numpy(data["text"]).float()
    logits = 100 * image @ torch.nn.functional.normalize(text, dim=-1).T
    order = np.random.default_rng(seed).permutation(len(logits))
    if classes is not None:
        shown = np.random.default_rng(seed + 1).permutation(len(text))[:classes]
        order = np.tile(order[np.isin(data["label"][order], shown)], 5)
    stream = [(Sample(logits[i][None]), int(data["label"][i])) for i in order]
    plain = run(create_method("zero-shot"), stream)
    rows = [{"name": "zero-shot", "protocol": "stateless", "accuracy": float(plain.correct.mean())}]
    for name, options in ESTIMATORS.items():
        for protocol in ("online", "two-pass"):
            method = create_method("zero-shot", adjust="after", **options)
            done = run(method, stream, protocol)
            rows.append(
                {
                    "name": f"+ LA, {name}",
                    "protocol": protocol,
                    "accuracy": float(done.correct.mean()),
                    "gain_ci95": bootstrap_difference(done.correct, plain.correct),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features")
    parser.add_argument("--classes", type=int, help="show only so many classes, five times over")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = figures(args.features, classes=args.classes)
    for r in rows:
        low, high = r.get("gain_ci95", (0.0, 0.0))
        print(f"{r['name']:40s} {r['protocol']:10s} {100 * r['accuracy']:5.2f} %   "
              f"gain {100 * low:+.2f} … {100 * high:+.2f}")  # fmt: skip
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
