"""One state file of several."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from adte._version import __version__
from adte.classifier.fit import check_fit, check_one_order, read_learned, read_method
from adte.classifier.learned import Learned
from adte.core.errors import InputError
from adte.files.claims import Target, claim
from adte.files.devices import StrPath
from adte.files.locks import Lock
from adte.files.states import is_state, save_state
from adte.label.saved import check_file
from adte.methods import Method

__all__ = ["merge_states"]

Facts = dict[str, Any]


def merge_states(
    states: Sequence[StrPath], out: StrPath, force: bool = False, start: StrPath | None = None
) -> int:
    """Merge state files of the same classifier into one; return the number of images seen.

    States are merged in order, as by `Classifier.merge`, without loading a model. The temperature
    is that of the first. If states began or went on from the same state (`--start`, `--state`),
    pass that as `start`: otherwise it counts several times, with a warning.

    Args:
        states: the state files.
        out: file to write.
        force: overwrite `out` if it exists.
        start: the state that all or some of them go back to; it then counts once.

    Raises:
        StateError: if the states are of different classifiers, or none goes back to `start`.
        InputError: if a file cannot be read or written.
    """
    _check(states, out, force, start)
    tensors, facts = read_learned(states[0])
    method = read_method(os.fspath(states[0]), facts)
    whole, known = _held(method, tensors, facts), [facts]
    common, order = None, None
    if start is not None:
        common, _, order = _read(start, facts, method)
    for path in states[1:]:
        other, theirs, another = _read(path, facts, method)
        if common is not None:
            check_one_order(order, another)
        whole = whole.merge(other, common, repr(os.fspath(path)))
        known.append(theirs)
    if common is not None:
        common.check_start_of(whole)
    if any(each["temperature"] != facts["temperature"] for each in known):
        warnings.warn(
            f"the states have different temperatures; that of {os.fspath(states[0])!r} is kept, "
            f"{facts['temperature']:.3g}",
            stacklevel=2,
        )
    new: Facts = {k: v for k, v in facts.items() if k != "outputs"}
    for fact in ("preprocess", "scale"):  # older files have none
        new[fact] = next((each[fact] for each in known if each[fact] is not None), None)
    new |= {"version": __version__, "seen": whole.seen, "lineage": asdict(whole.lineage)}
    new["frozen"] = all(each["frozen"] for each in known)
    with Lock(out, 0):
        save_state(out, whole.method.state_dict(), new)
    return whole.seen


def _read(path: StrPath, like: Facts, method: Method) -> tuple[Learned, Facts, list[int] | None]:
    """What a file has learned, if it fits the first one, its facts, and the order it was in."""
    tensors, facts = read_learned(path)
    order = check_fit(repr(os.fspath(path)), facts, like)
    held = _held(method, tensors, facts)
    return held.in_order(order) if order else held, facts, order


def _held(method: Method, tensors: dict[str, Any], facts: Facts) -> Learned:
    """What a file has learned, in a copy of the method."""
    own = method.clone()
    own.load_state_dict(tensors, {"L": len(facts["classes"])})
    return Learned(own, facts["seen"], facts["lineage"]).noted()


def _check(
    states: Sequence[StrPath], out: StrPath, force: bool, start: StrPath | None = None
) -> None:
    check_file("--out", out)
    claim([Target("--out", out, "state")], [*states, *([start] if start else [])], force)
    if not force and is_state(out):
        raise InputError(
            f"--out {os.fspath(out)!r} holds a state already; give another name, or --force to "
            "write over it"
        )
    files = [os.path.realpath(path) for path in states]
    for i, path in enumerate(states):
        if files[i] in files[:i]:
            raise InputError(
                f"{os.fspath(path)!r} is given twice, and its images would count twice; name it "
                "once"
            )
