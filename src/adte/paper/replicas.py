"""Replicas, our own study: what K copies lose that learn apart and merge every S images.

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

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray

from adte.core import state as declared
from adte.core.state import State
from adte.evaluate.features.stream import FeatureStream, Held
from adte.evaluate.running.figures import bootstrap_difference
from adte.methods import Method, create_method
from adte.paper.lab import OURS, Lab
from adte.paper.study import Figure, Finding, Row, Series, study

__all__ = ["REPLICAS", "STRETCHES", "in_replicas", "merged"]

REPLICAS = (1, 2, 4, 8)
STRETCHES = (16, 64, 256)
SAFE = (8, 16)  # what is recommended: at most so many replicas, merged every so many images


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


@study("replicas", "Replicas that learn apart and merge every S images", kind="figure", ours=True)
def replicas(lab: Lab) -> Finding:
    """Accuracy of K replicas that merge every S images by the declared reductions, as the
    difference to one sequential stream."""
    stream = Held.of(lab.main())
    seeds = max(lab.preset.seeds, 2)
    base = right(stream, OURS, 1, STRETCHES[0], seeds)
    found = {(k, s): right(stream, OURS, k, s, seeds) for k in REPLICAS if k > 1 for s in STRETCHES}
    bands = {pair: bootstrap_difference(mine, base) for pair, mine in found.items()}
    rows = [Row("one stream", tuple(float(base.mean()) for _ in STRETCHES))]
    for k in REPLICAS[1:]:
        cells = tuple((float(found[k, s].mean()), *bands[k, s]) for s in STRETCHES)
        rows.append(Row(f"K = {k}", cells))
    series = [
        Series(
            f"merged every {s} images",
            REPLICAS,
            (0.0, *(100 * float((found[k, s] - base).mean()) for k in REPLICAS[1:])),
            (0.0, *(100 * bands[k, s][0] for k in REPLICAS[1:])),
            (0.0, *(100 * bands[k, s][1] for k in REPLICAS[1:])),
        )
        for s in STRETCHES
    ]
    figure = Figure(
        "K replicas against one stream", "replicas K", "points of accuracy", tuple(series), True
    )
    k, s = SAFE
    gap = 100 * float((found[k, s] - base).mean())
    notes = (
        f"{seeds} shuffles. In brackets: 95 % of the difference to one stream, paired by image "
        "(bootstrap).",
        f"Recommended: at most {k} replicas, merged at least every {s} images; here that is "
        f"{gap:+.2f} points.",
    )
    columns = tuple(f"S = {s}" for s in STRETCHES)
    return Finding(lab.setting([stream]), columns, rows, figures=(figure,), notes=notes)
