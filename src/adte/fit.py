"""Whether what was learned elsewhere fits a classifier: the facts of both, held side by side."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor

from adte.errors import InputError, StateError, brief
from adte.facts import read_state
from adte.files.states import digest_of, load_state
from adte.methods import Method, create_method, list_methods
from adte.methods.registry import method_info
from adte.models import Model
from adte.options import build

__all__ = [
    "Common",
    "Origin",
    "begun",
    "check_fit",
    "check_named",
    "check_weights",
    "damaged",
    "gone_on",
    "in_common",
    "read_learned",
    "read_method",
]

Facts = Mapping[str, Any]  # as `Classifier.facts` has them

# What may differ: what prompts are called, which numbers are drawn, how small images are cropped.
ALIKE = ("name", "prior.seed", "enlarge")
WHOLE = "="  # before the digest of a state that another went on from, and so holds whole
MOST = 64  # of these that are remembered, the last ones
NAMELESS = ""  # what a method that is not registered was called before it had its class's name


def read_learned(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A state file of this version, or of 0.1 where what it holds still means the same."""
    tensors, found = load_state(path)
    facts = read_state(found, str(path))
    if facts["format"] != 1:
        return tensors, facts
    if facts.get("method") == "adte":
        facts["method"] = "adte-tsallis"  # as 0.1's default is called now
    if facts.get("method") in ("adte-tsallis", "se", "zero-shot", "average", "te", "zero"):
        cls = method_info(facts["method"]).cls
        method = build(cls, {**method_info(facts["method"]).defaults, **facts["options"]})
        known = method.entries()
        if "prior.total" in known or not known:
            kept = {k: v for k, v in tensors.items() if k in known}
            seen = int(kept.get("prior.seen", 0))
            return kept, {**facts, "options": method.params, "seen": seen}
    raise StateError(
        f"{str(path)!r} was saved by adte {facts.get('version', '0.1')} with method "
        f"{facts.get('method')!r}, whose state has another form now; learn it anew"
    )


def read_method(path: str, facts: Facts, given: Method | None = None) -> Method:
    """The method of a state file, with nothing learned; a copy of the one given, if it is that."""
    name = facts["method"]
    if given is not None:
        if not isinstance(given, Method):
            raise InputError(f"{brief(given)} is no method; pass that which {path!r} was saved by")
        if name not in (given.name, NAMELESS):
            raise StateError(
                f"{path!r} was saved with method {name!r}, but {given.name!r} was passed; pass the "
                "same method"
            )
        if odd := _differs(facts["options"], given.params):
            raise StateError(
                f"{path!r} was saved with {odd[0]}={odd[1]!r}, but the method that was passed has "
                f"{odd[2]!r}; give it the same options"
            )
        return given.clone()
    if name not in list_methods():
        raise StateError(
            f"{path!r} was saved with method {name!r}, which is not registered here; install or "
            "import what registers it, or pass the method itself: Classifier.load(…, method=…)"
        )
    try:
        return create_method(name, **facts["options"])
    except (TypeError, AttributeError, InputError) as error:
        raise damaged(path, error) from error


def damaged(path: str, error: Exception) -> StateError:
    """What is said of a header that nothing can be made of."""
    return StateError(f"the header of {path!r} is damaged ({error}); save it again")


def check_named(path: str, facts: Facts, model: Model | str) -> None:
    """Refuse another model than that of a state file; one of the same weights is the same."""
    name = model if isinstance(model, str) else model.name
    same = not isinstance(model, str) and facts["fingerprint"] == model.fingerprint
    if name != facts["model"] and not same:
        raise StateError(
            f"{path!r} was saved with model {facts['model']!r}, but {name!r} was passed; pass the "
            "same model"
        )


def check_weights(what: str, theirs: Facts, ours: Facts) -> None:
    """Refuse what was learned with other weights of the model."""
    there, here = theirs.get("fingerprint"), ours["fingerprint"]
    if there is not None and there != here:
        raise StateError(
            f"{what} was saved with other weights of model {theirs['model']!r} (fingerprint "
            f"{there}, here {here}); use the weights that it was saved with"
        )


def check_fit(what: str, theirs: Facts, ours: Facts) -> None:
    """Refuse what was learned by another kind of classifier."""
    there, here = theirs["classes"], ours["classes"]
    if there != here:
        where = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), None)
        detail = (
            f"class {where} is {there[where]!r} there and {here[where]!r} here"
            if where is not None
            else f"{len(there)} classes there, {len(here)} here"
        )
        raise StateError(
            f"{what} has other classes ({detail}); use the same classes, or learn anew with these, "
            "as `adte learn` does"
        )
    weights = theirs.get("fingerprint")
    for key, same in (
        ("model", weights is not None and weights == ours["fingerprint"]),
        ("method", theirs["method"] == NAMELESS),
    ):
        if theirs[key] != ours[key] and not same:
            raise StateError(
                f"{what} has {key} {theirs[key]!r}, here it is {ours[key]!r}; use the same {key}"
            )
    check_weights(what, theirs, ours)
    if bool(theirs.get("auto")) != bool(ours["auto"]):
        which = ["a fixed number of views", "views='auto'"]
        there, here = (which[bool(x.get("auto"))] for x in (theirs, ours))
        raise StateError(f"{what} has {there}, here it is {here}; use the same views")
    for key in ("prompts", "views", "options"):
        if odd := _differs(theirs[key], ours[key]):
            raise StateError(
                f"{what} has other {key} ({odd[0]} is {odd[1]!r} there, {odd[2]!r} here); "
                f"use the same {key}"
            )


class Origin(NamedTuple):
    """Digests of the states that one was put together from, of those that they began from, and of
    those that they went on from, which they hold whole.
    """

    parts: frozenset[str]
    begun_from: frozenset[str]
    gone_on_from: frozenset[str]

    @staticmethod
    def of(tensors: Mapping[str, Tensor], begun_from: Iterable[str]) -> Origin:
        """That of a state; one that has learned nothing is part of nothing."""
        parts = {digest_of(tensors)} if tensors else ()
        whole = {name[len(WHOLE) :] for name in begun_from if name.startswith(WHOLE)}
        begun = {name for name in begun_from if not name.startswith(WHOLE)}
        return Origin(frozenset(parts), frozenset(begun), frozenset(whole))

    @property
    def told(self) -> list[str]:
        """What `of` takes for `begun_from`."""
        return sorted(self.begun_from) + sorted(WHOLE + name for name in self.gone_on_from)

    @property
    def back(self) -> frozenset[str]:
        """All that it goes back to."""
        return self.begun_from | self.gone_on_from

    def joined(self, other: Origin) -> Origin:
        """That of both, merged."""
        return Origin(*(a | b for a, b in zip(self, other, strict=True)))

    def shared(self, other: Origin) -> frozenset[str]:
        """What both go back to; one of them may be it."""
        here, there = self.back, other.back
        return (here & (there | other.parts)) | (self.parts & there)


def gone_on(begun_from: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """What a state goes back to, once it goes on from these tensors, as it may have before."""
    if not tensors:
        return list(begun_from)
    new = WHOLE + digest_of(tensors)
    old = [name for name in begun_from if name != new]
    begun, whole = ([n for n in old if n.startswith(WHOLE) == way] for way in (False, True))
    return [*begun, *whole[1 - MOST :], new]


def begun(begun_from: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """What a stream goes back to that begins from these tensors."""
    old = {name.removeprefix(WHOLE) for name in begun_from}
    return sorted({digest_of(tensors), *old}) if tensors else []


class Common(NamedTuple):
    """What states may have in common, at hand, so that it can count once.

    Attributes:
        method: with what was learned; those that began from it hold it as it is once `begun`.
    """

    method: Method
    seen: int
    origin: Origin

    @staticmethod
    def of(method: Method, seen: int, begun_from: Sequence[str]) -> Common:
        return Common(method, seen, Origin.of(method.state_dict(), begun_from))

    def check(self, *states: Origin) -> None:
        """Raise a `StateError` unless one of the states goes back to it."""
        if not any(self.origin.parts & state.back for state in states):
            raise StateError(
                "what is merged began or went on from another state than the start that was "
                "given, or from none; give the file that it did, or leave it out"
            )

    def begun(self) -> Method:
        """Its method as it is in a stream that began from it."""
        method = deepcopy(self.method)
        method.begin()
        return method

    def known(self) -> frozenset[str]:
        """What counts once if this does."""
        new = Origin.of(self.begun().state_dict(), ()).parts
        return self.origin.parts | self.origin.back | new

    def within(self, ours: Origin, theirs: Origin) -> tuple[Method, int] | None:
        """What is part of both and has to count once, if anything, and its images."""
        if not ours.shared(theirs) & self.origin.parts:
            return None
        if all(self.origin.parts & (state.parts | state.gone_on_from) for state in (ours, theirs)):
            return self.method, self.seen
        return self.begun(), 0


def in_common(
    what: str, theirs: Origin, ours: Origin, start: Common | None
) -> tuple[Method | None, int]:
    """What two states have in common and is at hand, to count once, and its images.

    Of what would count twice, and is not at hand, there is a warning.
    """
    part = None if start is None else start.within(ours, theirs)
    if ours.shared(theirs) - (frozenset() if start is None or part is None else start.known()):
        warnings.warn(
            f"{what} and what it is merged with go back to the same state, which counts twice now; "
            "give that state, too: `adte merge --start FILE`, or merge(…, start=…)",
            stacklevel=3,
        )
    return part or (None, 0)


def _differs(theirs: Any, ours: Any) -> tuple[str, Any, Any] | None:
    """The first fact in which two differ, as JSON has them."""
    for key in {**ours, **theirs}:
        a, b = (list(x) if isinstance(x, tuple) else x for x in (theirs.get(key), ours.get(key)))
        if a != b and key not in ALIKE:
            return key, a, b
    return None
