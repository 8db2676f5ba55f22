"""Reading a stream's images, with a policy for the unreadable ones: skip and say so, or stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from adte.data.base import Example
from adte.errors import InputError
from adte.images import load_image

__all__ = ["Images", "Skipped", "iterate"]


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read."""

    position: int
    id: str
    domain: str
    reason: str


@dataclass
class Images:
    """(example, image) of a stream in order, at every pass; `skipped` lists what was left out.

    Attributes:
        stream: a `Stream`, a `Dataset` or a list of examples.
        strict: stop at the first unreadable image instead of skipping it.
        skipped: of the current or last pass.
    """

    stream: Sequence[Example]
    strict: bool = False
    skipped: list[Skipped] = field(default_factory=list)

    def __len__(self) -> int:
        """Images in the stream, unreadable ones among them."""
        return len(self.stream)

    def __iter__(self) -> Iterator[tuple[Example, Any]]:
        self.skipped = []
        for i in range(len(self.stream)):
            try:  # a source may be read when the example is made, as in a tar
                example = self.stream[i]
                image = load_image(example.source)
            except (InputError, OSError) as error:
                name, domain = self._name(i)
                if self.strict:
                    raise InputError(
                        f"image {name!r} (number {i} of {len(self)}) cannot be read: {error}; mend "
                        "it, or leave strict off to skip it"
                    ) from error
                self.skipped.append(Skipped(i, name, domain, str(error)))
                continue
            yield example, image
        if self.skipped and len(self.skipped) == len(self):
            raise InputError(
                f"none of the {len(self)} images could be read, the first because "
                f"{self.skipped[0].reason}"
            )

    def _name(self, i: int) -> tuple[str, str]:
        if hasattr(self.stream, "identify"):
            name, domain = self.stream.identify(i)
            return str(name), str(domain)
        return self.stream[i].id, self.stream[i].domain

    def report(self) -> dict[str, Any]:
        """Count and list of the skipped images, for a result's JSON."""
        return {"skipped": len(self.skipped), "images": [asdict(s) for s in self.skipped]}


def iterate(stream: Sequence[Example], strict: bool = False) -> Images:
    """Decode a stream in order: `for example, image in iterate(stream)`."""
    return Images(stream, strict)
