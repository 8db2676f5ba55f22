"""Names for things: register by decorator, look up with a hint, let other packages add theirs.

A package that extends adte names a module under the entry point group `adte.plugins`; importing the
module registers what it brings, by the same decorators that this package uses:

    [project.entry-points."adte.plugins"]
    mine = "my_package.for_adte"

Plug-ins are imported when something is first listed or looked up and not found. One that fails to
import is named in a warning and left out; everything else goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Generic, TypeVar

from adte.core.errors import InputError, brief, unknown

__all__ = ["GROUP", "Registry", "check_name", "load_plugins"]

GROUP = "adte.plugins"

T = TypeVar("T")

_lock = RLock()
_started = False  # importing plug-ins


def load_plugins() -> None:
    """Import every plug-in that is installed, once.

    Another thread waits until all are imported; a plug-in that looks something up as it is imported
    does not.
    """
    global _started
    with _lock:
        if not _started:
            _started = True
            for point in entry_points(group=GROUP):
                _load(point)


def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except Exception as error:  # whatever a stranger's module raises must not stop this one
        warnings.warn(
            f"the plug-in {point.name!r} ({point.value}) cannot be loaded and is left out: "
            f"{type(error).__name__}: {error}",
            stacklevel=3,
        )


class Registry(Generic[T]):
    """Things of one kind by name, in the order they were registered.

    >>> fruit = Registry[int]("fruit")
    >>> fruit.add("pear", 3)
    >>> fruit["pear"], list(fruit)
    (3, ['pear'])
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> None:
        """Make a thing known; the same name again is refused, unless it is the same source."""
        old = self._things.get(name)
        if old is not None and _origin(old) != _origin(thing):
            raise InputError(
                f"the {self.kind} {name!r} is registered already, by {_origin(old)}; "
                "choose another name"
            )
        self._things[name] = thing

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str) or name not in self:
            raise unknown(self.kind, name, self)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._things:
            load_plugins()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(list(self._things))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_name(name: object, how: str) -> None:
    """Refuse what is no name, such as a decorator's function or class where the name was left out;
    `how` shows the decorator with one.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"{brief(name)} is no name to register by; write {how}")


def _origin(thing: object) -> str:
    """Where a thing was made: the module that it says, or a class's or function's own and name."""
    if by := getattr(thing, "by", ""):
        return str(by)
    thing = getattr(thing, "cls", thing)
    module = getattr(thing, "__module__", type(thing).__module__)
    return f"{module}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
