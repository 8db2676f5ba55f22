"""The order in which images are worked on, and back from it.

A method that learns loses accuracy on images that come class after class, as folders and lists are
mostly sorted. So where all images are known before the first is read, they are worked on in a
shuffled order. It follows from their names and a seed alone: no listing, no other file changes
which of two images comes first, and an interrupted run goes on in it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

__all__ = ["SORTED", "Blocks", "Order", "put_back", "shuffled", "watched"]

Order: TypeAlias = Literal["shuffled", "listed"]

FEW = 50  # images that come in any order as well
SORTED = (
    "the images come folder after folder; if folders are classes, a method that learns is better "
    "on shuffled images, as it takes a folder or a .zip by itself"
)


def shuffled(names: Sequence[str], seed: int) -> list[int]:
    """Numbers of the names, by a digest of each; equal names stay in their order.

    >>> shuffled(["a.jpg", "b.jpg", "c.jpg"], seed=0)
    [1, 0, 2]
    """
    key = b"%d" % seed
    turns = [blake2b(n.encode("utf-8", "surrogatepass"), key=key).digest() for n in names]
    return sorted(range(len(names)), key=turns.__getitem__)


def put_back(names: Sequence[Hashable], listing: Iterable[Hashable]) -> list[int]:
    """Numbers of the names in the order of a listing. Those that it lacks keep their places.

    >>> put_back(["c", "x", "a", "b"], ["a", "b", "c"])
    [2, 1, 3, 0]
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, name in enumerate(listing):
        places[name].append(place)
    turns: dict[int, int] = {}
    times: dict[Hashable, int] = defaultdict(int)
    for i, name in enumerate(names):
        if name in places:  # which may be listed several times
            turns[i] = places[name][min(times[name], len(places[name]) - 1)]
            times[name] += 1
    order = list(range(len(names)))
    for i, j in zip(turns, sorted(turns, key=turns.__getitem__), strict=True):
        order[i] = j
    return order


class Blocks:
    """Watches labels or folders along a stream, for those that come one after the other."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._last: Any = None
        self._changes = self._count = 0

    def add(self, key: Hashable) -> None:
        self._changes += key != self._last
        self._count += 1
        self._seen.add(key)
        self._last = key

    @property
    def is_sorted(self) -> bool:
        """Whether each came in one block so far, and several of them two images or more."""
        blocks = len(self._seen)
        return blocks == self._changes > 1 and self._count >= max(FEW, 2 * blocks)


def watched(
    items: Iterable[tuple[str, Any]], tell: Callable[[str], object]
) -> Iterator[tuple[str, Any]]:
    """The items as they are; once, where folders come one after the other, that is said."""
    blocks: Blocks | None = Blocks()
    for name, source in items:
        if blocks is not None:
            blocks.add(os.path.dirname(name))
            if blocks.is_sorted:
                tell(SORTED)
                blocks = None
        yield name, source
