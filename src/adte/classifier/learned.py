"""The outcome of learning, and the states that it goes back to: merging counts nothing twice.

A state is known by the digest of its tensors. A stream that *begins* with a state keeps what that
says of the model, and counts its images no more. One that was loaded, copied or merged from a state
*holds* all of its images, and so does one that was saved: others may go on from the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

from adte.core import state as declared
from adte.core.errors import StateError
from adte.files.states import digest_of
from adte.methods import Method

__all__ = ["MOST", "Learned", "Lineage"]

MOST = 64  # of the states that one holds, the first and the last are remembered


@dataclass(frozen=True)
class Lineage:
    """The states that one goes back to, by their digests.

    Attributes:
        held: those whose images are all in it.
        begun_from: those that its stream began with, or those before it.
    """

    held: tuple[str, ...] = ()
    begun_from: tuple[str, ...] = ()

    @property
    def all(self) -> set[str]:
        return {*self.held, *self.begun_from}

    def holding(self, digest: str) -> Lineage:
        """The same with one more that is held, the latest."""
        held = (*(d for d in self.held if d != digest), digest)
        return Lineage(held[:MOST] + held[MOST:][-MOST:], self.begun_from)

    def joined(self, other: Lineage) -> Lineage:
        """That of both, merged."""
        return Lineage(
            tuple(dict.fromkeys(self.held + other.held)),
            tuple(dict.fromkeys(self.begun_from + other.begun_from)),
        )


class Learned(NamedTuple):
    """The outcome of a classifier's learning.

    Attributes:
        method: it holds the state.
        seen: the number of images that it is of.
        lineage: the states that it goes back to.
    """

    method: Method
    seen: int
    lineage: Lineage = Lineage()

    @property
    def digest(self) -> str:
        """The digest of the state; empty if nothing was learned."""
        tensors = self.method.state_dict()
        return digest_of(tensors) if tensors else ""

    def copy(self) -> Learned:
        """One that the method does not change any more."""
        return self._replace(method=deepcopy(self.method))

    def noted(self) -> Learned:
        """The same where this or others go on from it: all that follows holds it."""
        digest = self.digest
        return self._replace(lineage=self.lineage.holding(digest)) if digest else self

    def in_order(self, order: Sequence[int]) -> Learned:
        """The same with class i being what class `order[i]` was; its method is changed in place."""
        own = self.method
        own.load_state_dict(declared.in_order(own.name, own.entries(), own.state_dict(), order))
        return self.noted()

    def for_new_stream(self) -> Learned:
        """Begin another stream with it, in place: what it has learned of the model stays."""
        old, digest = self.lineage, self.digest
        self.method.begin()
        begun_from = dict.fromkeys((*old.begun_from, *old.held, digest)) if digest else ()
        return Learned(self.method, 0, Lineage((), tuple(begun_from)))

    def shared(self, other: Learned) -> set[str]:
        """The states that both go back to; one of them may be it."""
        ours, theirs = ({*x.lineage.all, x.digest} - {""} for x in (self, other))
        return ours & theirs

    def merge(self, other: Learned, start: Learned | None, what: str) -> Learned:
        """Add what `what` has learned, in place; of the `start` of both, count it once."""
        shared, once, twice_seen = self.shared(other), None, 0
        if start is not None and (own := start.digest) in shared:
            begun = start.copy().for_new_stream()
            shared -= {own, begun.digest, *start.lineage.all}
            if all(own in (*x.lineage.held, x.digest) for x in (self, other)):
                once, twice_seen = start.method, start.seen
            else:
                once = begun.method
        if shared:
            warnings.warn(
                f"{what} and what it is merged with go back to the same state, which counts twice "
                "now; give that state, too: `adte merge --start FILE`, or merge(…, start=…)",
                stacklevel=3,
            )
        lineage = self.lineage.joined(other.lineage)
        self.method.merge(other.method, once)
        return Learned(self.method, self.seen + other.seen - twice_seen, lineage)

    def check_start_of(self, *states: Learned) -> None:
        """Raise a `StateError` unless one of the states goes back to it."""
        if not any(self.digest in state.lineage.all for state in states):
            raise StateError(
                "what is merged began or went on from another state than the start that was "
                "given, or from none; give the file that it did, or leave it out"
            )
