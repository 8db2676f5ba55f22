"""Methods paired by image: which images each had right, and the interval of a gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adte.evaluate.features.stream import shuffle
from adte.evaluate.running.figures import bootstrap_difference

if TYPE_CHECKING:
    from adte.evaluate.running.tasks import Outcome

__all__ = ["Item", "gain", "interval", "right", "right_over_seeds"]

# Id and domain of an image; and its place before the shuffle where these do not tell images apart.
Item = tuple[str, str, int]


def right(outcome: Outcome) -> dict[Item, bool] | None:
    """Whether each item of the stream was right; None where nobody knows which is which."""
    run, seed = outcome.run, outcome.task.seed
    count = len(run.labels)
    about = list(zip(run.ids, run.domains, strict=True)) or [("", "")] * count
    places = [0] * count
    if len(set(about)) < count:
        if seed and outcome.record.conditions.skipped:
            return None
        places = shuffle(count, seed).tolist()
    items = ((*names, place) for names, place in zip(about, places, strict=True))
    return dict(zip(items, run.correct.tolist(), strict=True))


def right_over_seeds(outcomes: Sequence[Outcome]) -> dict[Item, float] | None:
    """How often each item was right; None where the runs did not see the same ones."""
    found = [right(o) for o in outcomes]
    known = [f for f in found if f is not None and f.keys() == (found[0] or {}).keys()]
    if len(known) < len(found):
        return None
    return {item: sum(f[item] for f in known) / len(known) for item in known[0]}


def gain(
    mine: Mapping[Item, float] | None, theirs: Mapping[Item, float] | None
) -> tuple[float, list[float]] | None:
    """How much more often mine was right, with the 95 % interval; None for other items."""
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return None
    more = np.array([value - theirs[item] for item, value in mine.items()])
    return float(more.mean()), interval(more, [id for id, *_ in mine])


def interval(gain: NDArray[np.float64], ids: Sequence[str]) -> list[float]:
    """The 95 % interval of a mean gain, by the bootstrap over images.

    Where a stream shows an image more than once, as under several corruptions, its items are one
    draw, not several.
    """
    images = ids if all(ids) else None
    return list(bootstrap_difference(gain, np.zeros(len(gain)), images=images))
