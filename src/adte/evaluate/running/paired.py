"""Methods paired by image: which images each had right, and the interval of a gain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adte.data.streams import TOGETHER, another_order
from adte.evaluate.running.figures import bootstrap_difference
from adte.evaluate.running.tasks import Outcome

__all__ = ["Drawn", "Item", "drawn", "gain", "interval", "right", "right_over_seeds"]


class Drawn(NamedTuple):
    """What a stream was drawn by, but for its order: seeds of its images and of their views."""

    images: int = 0
    views: int = 0


class Item(NamedTuple):
    """An image as a stream shows it; `place`, before the shuffle, where names do not tell."""

    id: str
    domain: str = ""
    place: int = 0
    drawn: Drawn = Drawn()

    @property
    def image(self) -> str:
        """Its name, whatever it is shown as."""
        return self.id or f"{self.place} of {self.drawn.images}"


def drawn(outcome: Outcome) -> Drawn:
    c = outcome.record.conditions
    return Drawn(int(c.data.get("seed") or 0), c.view_seed)


def right(outcome: Outcome) -> dict[Item, bool] | None:
    """Whether each item of the stream was right; None where nobody knows which is which."""
    run, seed = outcome.run, outcome.task.seed
    count = len(run.labels)
    about = list(zip(run.ids, run.domains, strict=True)) or [("", "")] * count
    places = [0] * count
    if len(set(about)) < count:
        c = outcome.record.conditions
        kept = c.data.get("order") in TOGETHER
        if seed and (c.skipped or kept or c.data.get("domains") == "gradual"):
            return None  # their order cannot be told from what came
        order = another_order(c.data, run.labels, lambda: run.domains, seed) if seed else None
        places = [*range(count)] if order is None else order.tolist()
    by = drawn(outcome)
    items = (Item(*names, place, by) for names, place in zip(about, places, strict=True))
    return dict(zip(items, run.correct.tolist(), strict=True))


def right_over_seeds(outcomes: Sequence[Outcome]) -> dict[Item, float] | None:
    """How often each item was right, over the orders of its stream; None where these did not show
    the same ones.
    """
    orders: dict[Drawn, list[dict[Item, bool]]] = defaultdict(list)
    for o in outcomes:
        found = right(o)
        if found is None:
            return None
        orders[drawn(o)].append(found)
    if any(f.keys() != known[0].keys() for known in orders.values() for f in known):
        return None
    return {
        item: sum(f[item] for f in known) / len(known)
        for known in orders.values()
        for item in known[0]
    }


def gain(
    mine: Mapping[Item, float] | None, theirs: Mapping[Item, float] | None
) -> tuple[float, list[float] | None] | None:
    """How much more often mine was right, with the 95 % interval; None for other items."""
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return None
    more, images = [value - theirs[i] for i, value in mine.items()], [i.image for i in mine]
    several = len(set(images)) > 1
    return float(np.mean(more)), interval(np.array(more), images) if several else None


def interval(gain: NDArray[np.float64], ids: Sequence[str]) -> list[float]:
    """The 95 % interval of a mean gain, by the bootstrap over images.

    Where a stream shows an image more than once, as under several corruptions, or several streams
    do, its items are one draw, not several.
    """
    images = ids if all(ids) else None
    return list(bootstrap_difference(gain, np.zeros(len(gain)), images=images))
