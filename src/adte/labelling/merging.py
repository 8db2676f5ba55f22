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
from adte.fit import check_fit, read_learned, read_method
from adte.labelling.saved import check_file

__all__ = ["merge_states"]


def merge_states(states: Sequence[StrPath], out: StrPath, force: bool = False) -> int:
    """Merge state files of the same classifier into one; return the number of images seen.

    States are merged in order, as by `Classifier.merge`, without loading a model. The temperature
    is that of the first. What states have in common because they began from the same state counts
    several times.

    Args:
        states: the state files.
        out: file to write.
        force: overwrite `out` if it exists.

    Raises:
        StateError: if the states are of different classifiers.
        InputError: if a file cannot be read or written.
    """
    _check(states, out, force)
    tensors, facts = read_learned(states[0])
    sizes = {"L": len(facts["classes"])}
    method = read_method(os.fspath(states[0]), facts)
    method.load_state_dict(tensors, sizes)
    known = [facts]
    for path in states[1:]:
        tensors, theirs = read_learned(path)
        check_fit(repr(os.fspath(path)), theirs, facts)
        other = method.clone()
        other.load_state_dict(tensors, sizes)
        method.merge(other)
        known.append(theirs)
    if any(other["temperature"] != facts["temperature"] for other in known):
        warnings.warn(
            f"the states have different temperatures; that of {os.fspath(states[0])!r} is kept, "
            f"{facts['temperature']:.3g}",
            stacklevel=2,
        )
    new: dict[str, Any] = {k: v for k, v in facts.items() if k != "outputs"}
    new["version"], new["seen"] = __version__, sum(other["seen"] for other in known)
    new["frozen"] = all(other["frozen"] for other in known)
    with Lock(out, 0):
        save_state(out, method.state_dict(), new)
    return int(new["seen"])


def _check(states: Sequence[StrPath], out: StrPath, force: bool) -> None:
    check_file("--out", out)
    claim([Target("--out", out, "state")], states, force)
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
