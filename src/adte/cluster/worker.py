"""A worker of a cluster: it opens the model once, then chunks of images go the one way.

A worker that cannot work says why, as data (`Chunk.fault`): an exception would only make Ray start
it again, elsewhere or in the same place.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adte.core.errors import AdteError, InputError
from adte.core.loading import Loading
from adte.images import Preprocess, Views
from adte.models import FixedClasses, Model
from adte.models._weights import RANDOM
from adte.models.loading import load_with
from adte.pipeline import Pipeline

__all__ = ["Chunk", "Encoder", "Tower", "Work", "unfit"]

AHEAD = 2  # threads that open pictures beside a GPU


@dataclass(frozen=True)
class Tower(Loading):
    """A model, by what a worker loads it from: its name and files, or itself.

    Attributes:
        fingerprint: of the weights that the driver has; a worker with others is refused.
        columns: which of a model's fixed classes, if it has them.
    """

    name: str
    fingerprint: str
    model: Model | None = None
    columns: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: Model, how: Loading) -> Tower:
        """A model that this process has loaded by its name, to be loaded by workers, too."""
        loading = asdict(how.loading) | {"dtype": str(model.dtype).removeprefix("torch.")}
        for name in ("weights", "tokenizer"):
            if loading[name] not in (None, RANDOM):
                loading[name] = os.path.abspath(loading[name])
        columns = tuple(model.columns or ()) if isinstance(model, FixedClasses) else ()
        return cls(model.name, model.fingerprint, columns=columns or None, **loading)

    @classmethod
    def itself(cls, model: Model) -> Tower:
        """A model that travels: for those that have no name to load them by."""
        return cls(model.name, model.fingerprint, model=model)

    def open(self) -> Model:
        """The model, ready; refused if its weights are others."""
        model = self.model
        if model is None:
            model = load_with(self, self.name)
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"its weights of {self.name!r} have the fingerprint {model.fingerprint}, the "
                f"driver's {self.fingerprint}; give both the same file"
            )
        if self.columns is not None and isinstance(model, FixedClasses):
            model = model.narrowed(self.columns)
        return model.eval()


@dataclass(frozen=True)
class Chunk:
    """Images behind the tower, in order: features (n, V, D) float16 of those without an error.

    `fault` is why a worker cannot work at all.
    """

    keys: list[int] = field(default_factory=list)
    features: NDArray[np.float16] | tuple[()] = ()
    errors: dict[int, str] = field(default_factory=dict)
    fault: str = ""

    def images(self) -> Iterator[tuple[int, Any]]:
        """Key and features (V, D) of each, or an `InputError` in their place."""
        if self.fault:
            raise InputError(self.fault)
        good = iter(self.features)
        for key in self.keys:
            error = self.errors.get(key)
            yield key, next(good) if error is None else InputError(error)


def unfit(error: Exception) -> str:
    """Why a worker cannot work, in one sentence."""
    text = str(error) if isinstance(error, AdteError) else f"{type(error).__name__}: {error}"
    lines = [line for line in text.splitlines() if line.strip()]
    return f"a worker on {platform.node()} cannot work: {lines[-1].strip() if lines else text}"


@dataclass
class Work:
    """The work of all workers: the model, the views, and where images come from.

    Attributes:
        sources: the source of an image by its key; None where chunks bring their own.
        roots: files and folders that a worker has to see.
        folder: where relative paths start.
    """

    tower: Tower
    views: Views
    preprocess: Preprocess
    group: int = 0
    sources: Callable[[int], Any] | None = None
    roots: Sequence[str] = ()
    folder: str = field(default_factory=os.getcwd)
    threads: int = 1

    def enter(self) -> None:
        """Be where the driver is, and see what it sees."""
        torch.set_num_threads(self.threads)
        with suppress(OSError):
            os.chdir(self.folder)
        for root in self.roots:
            if not os.path.exists(root):
                raise InputError(
                    f"it does not see {root!r}; put the data where every machine has it under the "
                    "same path, or in an object store"
                )


class Encoder:
    """A worker with a model."""

    def __init__(self, work: Work) -> None:
        work.enter()
        self.sources, model = work.sources, work.tower.open()
        ahead = AHEAD if model.device.type == "cuda" else 0  # else its processor is busy anyway
        self.pipeline = Pipeline(model, work.views, group=work.group, workers=ahead)

    def encode(self, items: Sequence[tuple[int, Any]]) -> Chunk:
        """Images of a chunk, by the one way; those that cannot be read are named."""
        errors: dict[int, str] = {}

        def failed(number: int, error: InputError) -> None:
            errors[number] = str(error)

        if self.sources is not None:
            items = [(number, self.sources(key)) for number, key in items]
        done = [image.features.cpu() for image in self.pipeline(items, failed)]
        features = torch.stack(done).numpy() if done else ()
        return Chunk([number for number, _ in items], features, errors)
