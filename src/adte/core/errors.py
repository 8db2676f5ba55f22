"""The library's own exceptions. Each message names the input and the mend in one sentence."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "AdteError", "InputError", "LockedError", "MissingExtra", "StateError", "UnknownModel",
    "UnreadableFile", "brief", "unknown",
]  # fmt: skip


class AdteError(Exception):
    """Base class of all errors that `adte` raises on purpose."""

    @property
    def problem(self) -> str:
        """The message without its mend, for those who know a better one."""
        return str(self).rpartition("; ")[0] or str(self)


class InputError(AdteError, ValueError):
    """An input cannot be used; the message names it and says what to do. Also a `ValueError`."""


class LockedError(InputError):
    """Another process uses the file; it may be free soon."""


class UnknownModel(InputError):
    """No model of this name can be loaded here."""


class UnreadableFile(InputError):
    """A file cannot be read; the message names the file."""


class StateError(AdteError):
    """A saved state cannot be used: it is damaged, or of other classes, another model, another
    method or a newer version.
    """


class MissingExtra(AdteError, ImportError):
    """An optional package is not installed; the message says how to install it. Also an
    `ImportError`.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"install it with: pip install 'adte[{extra}]'"
        )
        self._given = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        return type(self), self._given  # so that a worker process can send it


def unknown(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a registry; it suggests and lists what is."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    shown = repr(name) if isinstance(name, str) else brief(name)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return InputError(f"unknown {kind} {shown}{hint}; choose one of: {', '.join(names)}")


def brief(value: object) -> str:
    """A value as it is shown in an error: short and on one line, whatever it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return " ".join(line.strip() for line in short.repr(value).splitlines())
