"""Timing for the benchmarks: alternate the candidates in one run, take medians, print ratios."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any


def medians(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each candidate. They take turns, so a noisy moment hits all of them."""
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def main(run: Callable[..., dict[str, Any]], **options: Any) -> None:
    """Print a benchmark's rows and ratio; `--json FILE` writes them."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--json", metavar="FILE")
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = vars(parser.parse_args())
    target = args.pop("json")
    result = run(**args)
    for row in result["rows"]:
        print(f"{row['name']:44s} {1e3 * row['seconds']:10.3f} ms   × {row['ratio']:.2f}")
    print(f"{result['meaning']}: {result['ratio']:.2f}")
    if target:
        with open(target, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
