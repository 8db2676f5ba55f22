"""One state file of several."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from adte._version import __version__
from adte.errors import InputError
from adte.files.claims import Lock, Target, claim, kind_of
from adte.files.devices import StrPath
from adte.files.states import save_state
from adte.fit import Common, Origin, check_fit, gone_on, in_common, read_learned, read_method
from adte.labelling.saved import check_file
from adte.methods import Method

__all__ = ["merge_states"]


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
    sizes = {"L": len(facts["classes"])}
    method = read_method(os.fspath(states[0]), facts)
    method.load_state_dict(tensors, sizes)

    def other(path: StrPath) -> tuple[Method, dict[str, Any], Origin]:
        tensors, theirs = read_learned(path)
        check_fit(repr(os.fspath(path)), theirs, facts)
        its = method.clone()
        its.load_state_dict(tensors, sizes)
        return its, theirs, Origin.of(tensors, gone_on(theirs["begun_from"], tensors))

    common = None
    if start is not None:
        its, theirs, _ = other(start)
        common = Common.of(its, theirs["seen"], theirs["begun_from"])
    known, seen = [facts], int(facts["seen"])
    origin = Origin.of(tensors, gone_on(facts["begun_from"], tensors))
    for path in states[1:]:
        its, theirs, its_origin = other(path)
        once, twice_seen = in_common(repr(os.fspath(path)), its_origin, origin, common)
        method.merge(its, once)
        known.append(theirs)
        origin, seen = origin.joined(its_origin), seen + int(theirs["seen"]) - twice_seen
    if common is not None:
        common.check(origin)
    facts["begun_from"] = origin.told
    if any(each["temperature"] != facts["temperature"] for each in known):
        warnings.warn(
            f"the states have different temperatures; that of {os.fspath(states[0])!r} is kept, "
            f"{facts['temperature']:.3g}",
            stacklevel=2,
        )
    new: dict[str, Any] = {k: v for k, v in facts.items() if k != "outputs"}
    new["version"], new["seen"] = __version__, seen
    new["frozen"] = all(each["frozen"] for each in known)
    with Lock(out, 0):
        save_state(out, method.state_dict(), new)
    return seen


def _check(
    states: Sequence[StrPath], out: StrPath, force: bool, start: StrPath | None = None
) -> None:
    check_file("--out", out)
    claim([Target("--out", out, "state")], [*states, *([start] if start else [])], force)
    if not force and kind_of(out) == "state":
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
