"""What was learned, and the states that it goes back to, so that merging counts nothing twice.

A state is known by the digest of its tensors. A stream that *begins* with a state (`begin`) keeps
what that says of the model, and counts its images no more; one that *goes on* from a state holds it
whole. That was loaded (`load`), or *handed on*: saved, pickled or copied, so that others may go on
from it, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from torch import Tensor

from adte.core import state as declared
from adte.core.errors import StateError
from adte.files.states import digest_of
from adte.methods import Method

__all__ = ["MOST", "Learned", "Origin"]

WHOLE, HANDED = "=", ">"  # before the digest of a state that this one went on from, or handed on
MOST = 64  # of each that are remembered, the last ones


class Origin(NamedTuple):
    """Digests of the states that one was put together from, of those that they began from, and of
    those that they went on from or handed on, which they hold whole.
    """

    parts: frozenset[str]
    begun_from: frozenset[str]
    gone_on_from: frozenset[str]
    handed_on: frozenset[str]

    @staticmethod
    def of(tensors: Mapping[str, Tensor], begun_from: Iterable[str]) -> Origin:
        """That of a state; one that has learned nothing is part of nothing."""
        told: dict[str, set[str]] = {"": set(), WHOLE: set(), HANDED: set()}
        for name in begun_from:
            told[_kind(name)].add(name[len(_kind(name)) :])
        parts = {digest_of(tensors)} if tensors else ()
        return Origin(frozenset(parts), *map(frozenset, told.values()))

    @property
    def told(self) -> list[str]:
        """What `of` takes for `begun_from`."""
        whole = [WHOLE + name for name in self.gone_on_from]
        return sorted(self.begun_from) + sorted(whole + [HANDED + name for name in self.handed_on])

    @property
    def held(self) -> frozenset[str]:
        """All that it holds whole."""
        return self.parts | self.gone_on_from | self.handed_on

    @property
    def back(self) -> frozenset[str]:
        """All that it goes back to."""
        return self.begun_from | self.gone_on_from | self.handed_on

    def joined(self, other: Origin) -> Origin:
        """That of both, merged."""
        return Origin(*(a | b for a, b in zip(self, other, strict=True)))

    def shared(self, other: Origin) -> frozenset[str]:
        """What both go back to; one of them may be it."""
        here, there = self.back, other.back
        return (here & (there | other.parts)) | (self.parts & there)


class Learned(NamedTuple):
    """What a classifier has learned.

    Attributes:
        method: it holds the state.
        seen: the number of images that it is of.
        begun_from: digests of the states that it goes back to, as `Classifier.begun_from` says.
    """

    method: Method
    seen: int
    begun_from: Sequence[str]

    @property
    def origin(self) -> Origin:
        return Origin.of(self.method.state_dict(), self.begun_from)

    def copy(self) -> Learned:
        """One that the method does not change any more."""
        return self._replace(method=deepcopy(self.method))

    def going_on(self) -> Learned:
        """The same where it was loaded, or is merged: all that follows goes back to it."""
        return self._noted(WHOLE)

    def handed_on(self) -> Learned:
        """The same where others may go on from it, too."""
        return self._noted(HANDED)

    def _noted(self, kind: str) -> Learned:
        if not (tensors := self.method.state_dict()):
            return self
        new = kind + digest_of(tensors)
        old = [name for name in self.begun_from if name != new]
        like = [name for name in old if _kind(name) == kind]
        gone = set(like[: max(0, len(like) + 1 - MOST)])
        kept = [name for name in old if name not in gone]
        return self._replace(begun_from=[*kept, new])

    def in_order(self, order: Sequence[int]) -> Learned:
        """The same with class i being what class `order[i]` was; its method is changed in place."""
        own = self.method
        own.load_state_dict(declared.in_order(own.name, own.entries(), own.state_dict(), order))
        return self.going_on()

    def begin(self) -> Learned:
        """Begin another stream with it, in place: what it has learned of the model stays."""
        tensors = self.method.state_dict()
        old = {name[len(_kind(name)) :] for name in self.begun_from}
        self.method.begin()
        return Learned(self.method, 0, sorted({digest_of(tensors), *old}) if tensors else [])

    def merge(self, other: Learned, start: Learned | None, what: str) -> Learned:
        """Add what `what` has learned, in place; of the `start` of both, count it once."""
        ours, theirs = self.origin, other.origin
        once, twice_seen = _in_common(ours, theirs, start, what)
        self.method.merge(other.method, once)
        return Learned(self.method, self.seen + other.seen - twice_seen, ours.joined(theirs).told)

    def check_start_of(self, *states: Learned) -> None:
        """Raise a `StateError` unless one of the states goes back to it."""
        own = self.origin.parts
        if not any(own & state.origin.back for state in states):
            raise StateError(
                "what is merged began or went on from another state than the start that was "
                "given, or from none; give the file that it did, or leave it out"
            )


def _kind(name: str) -> str:
    """What stands before a digest."""
    return name[0] if name.startswith((WHOLE, HANDED)) else ""


def _in_common(
    ours: Origin, theirs: Origin, start: Learned | None, what: str
) -> tuple[Method | None, int]:
    """The part of both that has to count once, if the start is one, and its images.

    Of what would count twice, and is not at hand, there is a warning.
    """
    found: tuple[Method | None, int] = None, 0
    shared = ours.shared(theirs)
    if start is not None and shared & (own := start.origin).parts:
        begun = start.copy().begin()
        shared -= own.parts | own.back | begun.origin.parts
        if all(own.parts & state.held for state in (ours, theirs)):
            found = start.method, start.seen
        else:
            found = begun.method, 0
    if shared:
        warnings.warn(
            f"{what} and what it is merged with go back to the same state, which counts twice now; "
            "give that state, too: `adte merge --start FILE`, or merge(…, start=…)",
            stacklevel=4,
        )
    return found
