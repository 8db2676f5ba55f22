"""Whether what was learned elsewhere fits a classifier: the facts of both, held side by side."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

from adte.classifier.facts import Facts, read_state
from adte.core.errors import InputError, StateError, brief
from adte.core.options import build
from adte.files.states import load_state
from adte.methods import Method, create_method, list_methods
from adte.methods.registry import method_info
from adte.models import Model

__all__ = [
    "check_fit", "check_named", "check_one_order", "check_same_model", "note_order", "read_learned",
    "read_method", "reordered",
]  # fmt: skip

# What may differ: what prompts are called, which numbers are drawn, how small images are cropped.
ALIKE = ("name", "prior.seed", "enlarge")


def read_learned(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A state file of this version, or of 0.1 where what it holds still means the same."""
    tensors, found = load_state(path)
    facts = read_state(found, str(path))
    if facts["format"] != 1:
        return tensors, facts
    if facts.get("method") in ("adte", "se", "zero-shot", "average", "te", "zero"):
        info = method_info(facts["method"])
        own = {k: v for k, v in facts["options"].items() if k != "noise"}  # of no effect
        method = build(info.cls, {**info.defaults, **own})
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
        if name != given.name:
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
        raise StateError(f"the header of {path!r} is damaged ({error}); save it again") from error


def check_named(path: str, facts: Facts, model: Model | str) -> None:
    """Refuse another model than that of a state file; one of the same weights is the same."""
    name = model if isinstance(model, str) else model.name
    same = not isinstance(model, str) and facts["fingerprint"] == model.fingerprint
    if name != facts["model"] and not same:
        raise StateError(
            f"{path!r} was saved with model {facts['model']!r}, but {name!r} was passed; pass the "
            "same model"
        )


def check_same_model(what: str, theirs: Facts, ours: Facts) -> None:
    """Refuse what was learned with other weights of the model, input or scale, as far as known."""
    there, here = theirs.get("fingerprint"), ours["fingerprint"]
    if there not in (None, here):
        raise StateError(
            f"{what} was saved with other weights of model {theirs['model']!r} (fingerprint "
            f"{there}, here {here}); use the weights that it was saved with"
        )
    was, now = theirs.get("preprocess"), ours.get("preprocess")
    if was is not None and now is not None and (odd := _differs(was, now)):
        raise StateError(
            f"{what} was learned from other pixels ({odd[0]} of the model's input was {odd[1]!r}, "
            f"here it is {odd[2]!r}); use the same preprocessing"
        )
    then, scale = theirs.get("scale"), ours.get("scale")
    if then is not None and scale is not None and not math.isclose(then, scale, rel_tol=1e-2):
        raise StateError(
            f"{what} was learned with a logit scale of {then:.4g}, here it is {scale:.4g}; use the "
            "same scale"
        )


def reordered(there: Sequence[str], here: Sequence[str]) -> list[int] | None:
    """Where each class of `here` lies `there`, if they are the same in another order.

    >>> reordered(["cat", "dog", "car"], ["dog", "car", "cat"])
    [1, 2, 0]
    """
    place = {name: i for i, name in enumerate(there)}
    if there == here or sorted(there) != sorted(here) or len(place) != len(there):
        return None
    return [place[name] for name in here]


def check_fit(what: str, theirs: Facts, ours: Facts) -> list[int] | None:
    """Refuse what was learned by another kind of classifier.

    Where it has the same classes in another order there is a note, and that order is returned: the
    place of each of our classes among theirs.
    """
    there, here = theirs["classes"], ours["classes"]
    ids = theirs.get("class_ids"), ours.get("class_ids")
    if order := reordered(there, here):
        there, ids = here, (ids[0] and [ids[0][i] for i in order], ids[1])
    if there == here and None not in ids:
        there, here = ids
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
    for key in ("model", "method"):
        same = key == "model" and weights is not None and weights == ours["fingerprint"]
        if theirs[key] != ours[key] and not same:
            raise StateError(
                f"{what} has {key} {theirs[key]!r}, here it is {ours[key]!r}; use the same {key}"
            )
    check_same_model(what, theirs, ours)
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
    if order:
        warnings.warn(note_order(what), stacklevel=3)
    return order


def check_one_order(*orders: list[int] | None) -> None:
    """Refuse a start among states of several orders: it is known by its bytes."""
    if any(orders):
        raise StateError(
            "with a start all states need their classes in the same order, since it is known by "
            "its bytes; name the classes in one order, or leave the start out"
        )


def note_order(what: str) -> str:
    """The note where classes come in another order."""
    return f"{what} has the same classes in another order; they are matched by name"


def _differs(theirs: Any, ours: Any) -> tuple[str, Any, Any] | None:
    """The first fact in which two differ, as JSON has them."""
    for key in {**ours, **theirs}:
        pair = (x.get(key) for x in (theirs, ours))
        a, b = (list(x) if isinstance(x, tuple) else x for x in pair)
        if a != b and key not in ALIKE:
            return key, a, b
    return None
