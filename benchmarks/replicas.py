"""Replicas: what K copies lose that learn apart and merge every S images.

    python benchmarks/replicas.py [CACHE] [--seeds 3] [--json FILE]

A stream is dealt out to K replicas in turn. Each keeps what it has learned itself (its own state,
which only grows by its own images) and, to answer with, a merged one:

    serving_k = own_1 ⊕ … ⊕ own_K    of the last merge, and what replica k has seen since

where ⊕ is the reduction that every entry of the state declares (`adte.core.state`). As own states
are merged and merged states never are, no image counts twice, however often and in whatever order
replicas meet. One replica is the sequential stream itself.

What an image teaches depends a little on what is known by then. Where all of a state is sums, as
the default's is, an own state grows by what the serving one has gained (own += after − before), so
an image is learned from with all that the replica knows; otherwise the own state learns alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from adte.core import state as declared
from adte.core.state import State
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.stream import FeatureStream, Held
from adte.evaluate.running.figures import bootstrap_difference
from adte.methods import Method, create_method

REPLICAS, STRETCHES = (2, 4, 8), (16, 64, 256)


def merged(owns: Sequence[Method]) -> Method:
    """A method that has learned what all of them have, by the declared reductions."""
    out = owns[0].clone()

    def both(a: State, b: State) -> State:
        return declared.merge(out.name, out.entries(), a, b)

    states: list[State] = [state for own in owns if (state := own.state_dict())]
    if states:
        found: State = reduce(both, states)
        out.load_state_dict(found)
    return out


def in_replicas(
    method: Method, stream: FeatureStream, replicas: int, stretch: int
) -> Iterator[NDArray[np.int64]]:
    """The predicted classes, stretch by stretch: online, dealt out to replicas in turn.

    `stretch` is how many images all replicas together see from one merge to the next.
    """
    owns, serving = [method.clone() for _ in range(replicas)], method.clone()
    sums = all(e.reduce == "sum" for e in method.entries().values())
    for batch, _ in stream.batches(stretch):
        shares = [batch[slice(k, None, replicas)] for k in range(min(replicas, len(batch)))]
        known = merged(owns).state_dict()
        predicted = np.zeros(len(batch), np.int64)
        for k, share in enumerate(shares):
            serving.load_state_dict(known)
            predicted[k::replicas] = serving.step(share).probs.argmax(-1).cpu().numpy()
            if sums:
                _gain(owns[k], known, serving.state_dict())
            else:
                owns[k].learn(share)
        yield predicted


def _gain(own: Method, before: State, after: State) -> None:
    """own += after − before, entry by entry."""
    mine = own.state_dict()
    own.load_state_dict({
        k: mine.get(k, torch.zeros_like(v)) + v - before.get(k, torch.zeros_like(v))
        for k, v in after.items()
    })  # fmt: skip


def right(
    stream: FeatureStream, method: str, replicas: int, stretch: int, seeds: int
) -> NDArray[np.float64]:
    """How often each image is right over shuffles of the stream.  (N,)"""
    total = np.zeros(len(stream))
    for seed in range(seeds):
        order = stream.order_of(seed)
        runs = in_replicas(create_method(method), stream.shuffled(seed), replicas, stretch)
        total[order] += np.concatenate(list(runs)) == stream.labels[order]
    return total / seeds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", nargs="?", help="of `adte extract`; by default the bundle")
    parser.add_argument("--seeds", type=int, default=3, help="shuffles of the stream")
    parser.add_argument("--json", type=Path, metavar="FILE")
    o = parser.parse_args()
    stream = Held.of(Cache(o.cache) if o.cache else Cache())
    base = right(stream, "tilt", 1, STRETCHES[0], o.seeds)
    rows = [{"replicas": 1, "stretch": None, "accuracy": float(base.mean())}]
    print(f"one stream: {100 * base.mean():.1f} %")
    for k, s in product(REPLICAS, STRETCHES):
        mine = right(stream, "tilt", k, s, o.seeds)
        ends = bootstrap_difference(mine, base)
        low, high = (100 * x for x in ends)
        print(f"K = {k}, S = {s}: {100 * mine.mean():.1f} % ({low:+.1f}…{high:+.1f})")
        rows.append({"replicas": k, "stretch": s, "accuracy": float(mine.mean()), "gain": ends})
    if o.json:
        facts = {"images": len(stream), "seeds": o.seeds, "rows": rows}
        o.json.write_text(json.dumps(facts, indent=1), "utf-8")


if __name__ == "__main__":
    main()
