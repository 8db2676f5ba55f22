"""Milliseconds per image for every corruption at 224 and 64 px, the slowest severity of each.

python benchmarks/corruptions.py [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
import torch

from adte.bench.timing import medians
from adte.data.corruptions import CORRUPTIONS, corrupt

SIDES = (224, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = {side: rng.integers(0, 256, (side, side, 3), np.uint8) for side in SIDES}
    rows = []
    print(f"{'corruption':20s}" + "".join(f"{side:>8d} px" for side in SIDES) + "   ms per image")
    for name in CORRUPTIONS:
        row: dict[str, str | float] = {"name": name}
        for side, image in images.items():
            calls = {str(s): partial(corrupt, image, name, s, 0) for s in range(1, 6)}
            row[f"ms_{side}"] = round(1e3 * max(medians(calls, args.repeats).values()), 3)
        rows.append(row)
        print(f"{name:20s}" + "".join(f"{row[f'ms_{side}']:11.2f}" for side in SIDES))
    for side in SIDES:
        print(f"mean at {side} px: {np.mean([row[f'ms_{side}'] for row in rows]):.2f} ms")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"rows": rows}, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
