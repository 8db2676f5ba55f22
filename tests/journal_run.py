"""A run over images that is killed and goes on, for tests of the journal."""

from __future__ import annotations

from pathlib import Path

import torch

from adte.files.journal import Journal, Mark
from adte.files.states import load_state, save_state


def row(name: str, error: str | None = None) -> dict[str, object]:
    return {"path": name, "label": "cat", "confidence": 0.5, "index": 0, "learned": error is None,
            "error": error}  # fmt: skip


class Killed(Exception):
    """The process ends here."""


class Run:
    """A run over images that keeps its state as a classifier would, and may be killed at a step.

    `bad` are images that cannot be read; `listing` is the order that rows have at the end.
    """

    bad: frozenset[str] = frozenset()
    listing: list[str] | None = None

    def __init__(self, path: Path, state: Path, images: list[str], every: int) -> None:
        self.path, self.state, self.images, self.every = path, state, images, every
        self.left = -1
        self.out: Journal | None = None

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def save(self, learned: list[str]) -> None:
        assert self.out is not None
        marks = self.out.mark(self.state, self.marks)
        self.step()
        save_state(self.state, {"a": torch.zeros(1)}, {"learned": learned, "outputs": marks})
        self.step()

    def go(self) -> None:
        learned: list[str] = []
        self.marks = {}
        if self.state.exists():
            facts = load_state(self.state)[1]
            learned, self.marks = facts["learned"], facts["outputs"]
        self.out = Journal(self.path, mark=Mark.among(self.marks, self.path, self.state))
        self.step()
        self.save(learned)
        self.out.begin()
        for name in self.images:
            if self.out.take(name):
                continue
            learned += [] if name in self.bad else [name]
            self.step()
            self.out.write(row(name, "broken" if name in self.bad else None))
            self.step()
            if self.out.rows % self.every == 0:
                self.save(learned)
        self.save(learned)
        self.out.close(self.listing)
        self.step()

    def killed_after(self, steps: int, torn: bytes) -> bool:
        """Whether it was killed; then it leaves the beginning of a line."""
        self.left = steps
        try:
            self.go()
        except Killed:
            if self.out is not None and self.out._file is not None:
                self.out._file.write(torn)
                self.out._file.close()
            return True
        return False
