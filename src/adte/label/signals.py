"""Interrupts that wait for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Deferred"]


class Deferred:
    """SIGINT and SIGTERM that come while a block runs are passed on after it.

    So a step that must be done wholly or not at all is not cut in two. A second signal does not
    wait. Outside the main thread, where Python allows no handlers, nothing changes.

        signals = Deferred()
        with signals.installed():
            for image in images:
                work(image)         # ends at once
                with signals:
                    learn(image)    # ends afterwards
    """

    def __init__(self) -> None:
        self._held: int | None = None
        self._inside = False
        self._old: dict[int, Any] = {}

    @contextmanager
    def installed(self) -> Iterator[Deferred]:
        """Within the block signals come here first; then the handlers are as they were."""
        if threading.current_thread() is threading.main_thread():
            for known in (signal.SIGINT, signal.SIGTERM):
                old = signal.getsignal(known)
                if old not in (None, signal.SIG_IGN):
                    self._old[known] = old
                    signal.signal(known, self._come)
        try:
            yield self
        finally:
            for number, old in self._old.items():
                signal.signal(number, old)

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self._inside and self._held is None:
            self._held = number
        elif callable(old := self._old[number]):
            old(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def __enter__(self) -> Deferred:
        self._inside = True
        return self

    def __exit__(self, *error: object) -> None:
        self._inside = False
        held, self._held = self._held, None
        if held is not None:
            self._come(held, None)
