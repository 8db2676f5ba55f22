"""Corrupted sets: published ones by type and severity, and any set corrupted on the fly.

A domain of a corrupted set is called "type/severity", as in "fog/3"; streams go by that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from adte.core.errors import InputError
from adte.core.options import option
from adte.data.base import Dataset, Lazy
from adte.data.corruptions import COMMON, CORRUPTIONS, Corruption, canonical
from adte.data.registry import Reader
from adte.images.decode import load_image

__all__ = ["CorruptedReader", "corrupted", "corruption_list", "severity_list"]


def corruption_list(given: str | Iterable[str]) -> tuple[str, ...]:
    """Types from "fog, frost", "common" (15), "all" (19) or a list, in the order given.

    >>> corruption_list("fog, motion-blur")
    ('fog', 'motion_blur')
    """
    names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
    groups = {"common": COMMON, "all": CORRUPTIONS}
    types = [t for n in names for t in groups.get(n, ()) or (canonical(n),)]
    return tuple(dict.fromkeys(types))


def severity_list(given: int | str | Iterable[int]) -> tuple[int, ...]:
    """Severities from 5, "5", "1,3", "1-5" or a list.

    >>> severity_list("1-3"), severity_list(5)
    ((1, 2, 3), (5,))
    """
    try:
        if isinstance(given, str):
            levels: list[int] = []
            for piece in given.split(","):
                low, dash, high = piece.partition("-")
                some = range(int(low), int(high if dash else low) + 1)
                levels += some or [0]  # the wrong way round: no severity
        else:
            levels = [given] if isinstance(given, int) else [int(s) for s in given]
    except (TypeError, ValueError):
        levels = []
    if not levels or not all(1 <= s <= 5 for s in levels):
        raise InputError(f"severity={given!r} cannot be used; give 1 to 5, as in 5, '1,3' or '1-5'")
    return tuple(dict.fromkeys(levels))


@dataclass(frozen=True, kw_only=True)
class CorruptedReader(Reader):
    """A reader of a published corrupted set."""

    corruption: str = option(
        "common", "types of corruption, separated by commas; common is 15, all 19"
    )
    severity: str | int = option("5", "severity, 1 to 5, or several as in 1,3 or 1-5")

    @property
    def chosen(self) -> list[tuple[str, int]]:
        """The domains to read: type and severity."""
        return list(product(corruption_list(self.corruption), severity_list(self.severity)))

    @property
    def words(self) -> str:
        """The options, for messages."""
        return f"severity {self.severity}: {', '.join(corruption_list(self.corruption))}"


def corrupted(data: Dataset, corruption: str, severity: int = 5, seed: int = 0) -> Dataset:
    """A copy of a data set whose images are corrupted as they are read.

    The corrupted images are a domain of their own, such as "fog/5". What happens to an image
    depends only on its id and the seed. The images are like those of the published corrupted sets
    in distribution, not pixel by pixel; `split` says that they are generated.

    Args:
        data: the clean data set.
        corruption: one of the 19 types, such as "fog" or "motion_blur".
        severity: 1 to 5.
        seed: seed of the random draws.
    """
    do = Corruption(corruption, severity, seed=seed)
    words = f"{data.split}; {do.name} at severity {do.severity}, generated with seed {seed}"
    return replace(
        data,
        sources=Lazy(len(data), partial(_corrupted, data, do)),
        clean=data,
        domains=[f"{do.name}/{do.severity}"] * len(data),
        split=words.removeprefix("; "),
    )


def _corrupted(data: Dataset, do: Corruption, index: int) -> Any:
    return do(load_image(data.sources[index]), key=data.ids[index])
