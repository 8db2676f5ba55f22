"""What labelled images do for confidence: the ECE of streams before and after `calibrate`.

    python benchmarks/calibrate.py SOURCE … [--labels 50 100 200] [--streams full] [--json FILE]

SOURCE is as in benchmarks/default.py. Once per seed some images are drawn for their labels, a
temperature is found with them as `Classifier.calibrate` finds it, and the method then runs online
over a stream of the others, cold. ECE is that of all seeds together; `by chance` is what so few
images would show if every answer were right as often as it says.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch

from adte import create_method
from adte.classifier.calibration import calibrate, tempered
from adte.core.batch import Batch
from adte.evaluate.running.figures import ece
from default import Source, by_chance, draw, parted, probabilities, sources


def figures(
    source: Source, kind: str, name: str, labels: int, seeds: list[int], limit: int
) -> dict[str, Any]:
    """ECE of a stream before and after."""
    right, before, after, temperatures = [], [], [], []
    for seed in seeds:
        known, others = map(source.of, parted(source, labels, 1000 + seed))
        rows = np.arange(labels)
        batches = [
            Batch(known.logits(part), known.features[part], None, known.context)
            for part in np.array_split(rows, max(1, labels // 50))
        ]
        found = calibrate(create_method(name), batches, known.labels.tolist(), learn=True)
        order = draw(others, kind, seed)[:limit]
        probs = probabilities(others, order, create_method(name))
        right.append(probs.argmax(-1).numpy() == others.labels[order])
        before.append(probs.amax(-1).double().numpy())
        after.append(tempered(probs, found.temperature).amax(-1).numpy())
        temperatures.append(found.temperature)
    good = np.concatenate(right)
    return {
        "source": source.name,
        "stream": kind,
        "method": name,
        "labels": labels,
        "images": len(right[0]),
        "accuracy": float(good.mean()),
        "ece_before": ece(np.concatenate(before), good),
        "ece_after": ece(np.concatenate(after), good),
        "ece_by_chance": by_chance(np.concatenate(after)),
        "temperatures": temperatures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--methods", nargs="+", default=["zero-shot", "se", "tilt"])
    parser.add_argument("--labels", nargs="+", type=int, default=[50, 100, 200])
    parser.add_argument("--streams", nargs="+", default=["full"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--limit", type=int, default=2000, help="images of a stream at most")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for source in (s for where in args.sources for s in sources(where)):
        for kind in args.streams:
            print(f"{source.name}, {kind}")
            for name in args.methods:
                for labels in args.labels:
                    if labels + 100 > len(source.labels):
                        continue
                    row = figures(source, kind, name, labels, args.seeds, args.limit)
                    print(
                        f"  {name:12s} {labels:4d} labels: ECE {100 * row['ece_before']:4.1f} to "
                        f"{100 * row['ece_after']:4.1f} (by chance "
                        f"{100 * row['ece_by_chance']:.1f}), T {np.mean(row['temperatures']):.2f}",
                        flush=True,
                    )
                    rows.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
