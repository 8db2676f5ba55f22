"""Random label spaces cut from WordNet.

People give a classifier names of any height: "dog, car, lemon". A *cut* is such a list: nouns of
which none is above another, so that every ImageNet class is under at most one of them. Training
draws a new one at every step, and the image tower learns to tell apart whatever it is asked to.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def coverage(classes: dict[str, Any]) -> np.ndarray:
    """Which of the 1,000 classes are under each noun (nouns + classes, 1000), bool."""
    leaves, nodes = len(classes["names"]), len(classes["nodes"])
    under = np.zeros((nodes + leaves, leaves), dtype=bool)
    for leaf, above in enumerate(classes["above"]):
        under[above, leaf] = True
    under[nodes:] = np.eye(leaves, dtype=bool)
    return under


def cuts(under: np.ndarray, counts: np.ndarray, count: int, most: int, seed: int) -> np.ndarray:
    """`count` cuts (count, most) of 5 to `most` nouns each, −1 where a cut is shorter.

    The first rows of `under` are nouns above classes, `counts` how often WordNet's texts use them;
    the rest are the classes themselves. Three in four candidates are of the former; everyday words
    and those that cover much come more often, by the root of (1 + count) · classes.
    """
    rng = np.random.default_rng(seed)
    nodes = np.sqrt((1.0 + counts.clip(max=100)) * under[: len(counts)].sum(1))
    leaves = np.ones(len(under) - len(nodes))
    chance = np.concatenate([0.75 * nodes / nodes.sum(), 0.25 * leaves / leaves.sum()])
    result = np.full((count, most), -1)
    for row in result:
        size = int(np.exp(rng.uniform(np.log(5), np.log(most + 1))))
        taken = np.zeros(under.shape[1], dtype=bool)
        found = 0
        for node in rng.choice(len(under), size=6 * most, replace=False, p=chance):
            if found < size and not (under[node] & taken).any():
                taken |= under[node]
                row[found] = node
                found += 1
    return result
