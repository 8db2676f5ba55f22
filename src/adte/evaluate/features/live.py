"""Features made on the fly, by the one way of an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adte.core.errors import InputError
from adte.data.base import Skipped
from adte.data.streams import Stream
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Image
from adte.files.inputs import is_newer
from adte.images import Views
from adte.models.base import Model
from adte.pipeline import Pipeline

__all__ = ["Live", "label_space"]


@dataclass(eq=False)
class Live(FeatureStream):
    """A stream of labelled images, encoded as it is read.

    Args:
        model, class_weights: the towers' side.
        stream: labelled images in order; views: how each becomes many.
        part: which of them, for work in pieces; all by default.
        keep_pixels: hand the pixels on, for methods that need the image tower.
        workers: threads that decode and crop; 0 does it in this one.
        strict: stop at an unreadable image. Otherwise it is skipped and listed in `skipped`.
        group: images a pass through the tower on a GPU; 0 takes the pipeline's own number.
    """

    model: Model
    class_weights: Tensor
    stream: Stream
    views: Views = field(default_factory=Views)
    prompts: dict[str, Any] = field(default_factory=dict)
    part: Sequence[int] | None = None
    keep_pixels: bool = False
    workers: int = 0
    strict: bool = False
    group: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.class_weights = self.class_weights.float()
        names, ids = label_space(self.stream)
        if len(names) != len(self.class_weights):
            raise InputError(
                f"the stream has {len(names)} classes, but there are {len(self.class_weights)} "
                "class weights; make them from the stream's class names"
            )
        model = self.model
        self.pipeline = Pipeline(
            model,
            self.views,
            keep_pixels=self.keep_pixels,
            workers=self.workers,
            group=self.group,
        )
        self.recipe = Recipe(
            model=model.name,
            fingerprint=model.fingerprint,
            dtype=str(model.dtype).removeprefix("torch."),
            device=model.device.type,
            kernel=self.pipeline.kernel,
            runtime="torch" if model.runner is None else model.runner.name,
            dim=model.dim,
            scale=float(model.logit_scale),
            bias=float(model.logit_bias),
            unit=model.unit,
            fixed_classes="text tower" not in model.offers,
            views=self.views,
            preprocess=model.preprocess,
            data=self.stream.describe(),
            content=self.stream.content,
            classes=tuple(names),
            class_ids=tuple(ids),
            prompts=self.prompts,
        )

    def __len__(self) -> int:
        return len(self.stream if self.part is None else self.part)

    @property
    def labels(self) -> NDArray[np.int64]:
        every = np.asarray(self.stream.labels, dtype=np.int64)
        return every if self.part is None else every[np.asarray(self.part, dtype=np.int64)]

    @property
    def domains(self) -> list[str]:
        every = self.stream.domains
        return every if self.part is None else [every[i] for i in self.part]

    def ordered(self, order: NDArray[np.int64]) -> Live:
        base = np.arange(len(self.stream)) if self.part is None else np.asarray(self.part)
        out = copy(self)  # not `replace`, which would describe the stream anew
        out.part = base[order].tolist()
        return out

    def readable(self, index: int) -> bool:
        """Whether the image at a place in the stream can be read by now."""
        try:
            self.pipeline.picture(lambda: self.stream[index].source)
        except InputError:
            return False
        return True

    def changed(self, since: int, places: Iterable[int] | None = None) -> int:
        """How many images lie in files that were written after a moment, in ns since the epoch; of
        all, or of those at some places in the stream.
        """
        wanted = self.part if places is None else places
        rows = self.stream.places if wanted is None else self.stream.places[list(wanted)]
        files = {self.stream.datasets[k].file(i) for k, i in rows.tolist()}
        return sum(is_newer(path, since) for path in files if path is not None)

    def images(self) -> Iterator[Image]:
        return (image for _, image in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Image]]:
        """The images with their places in the stream."""
        self.skipped = []

        def failed(index: int, error: InputError) -> None:
            id, domain = self.stream.identify(index)
            if self.strict:
                raise InputError(f"{error} (image {id!r}); leave strict off to skip such images")
            self.skipped.append(Skipped(index, id, domain, str(error)))

        def source(index: int) -> Any:
            return lambda: self.stream[index].source  # read, and corrupted, where it is decoded

        wanted = range(len(self.stream)) if self.part is None else self.part
        for e in self.pipeline(((i, source(i)) for i in wanted), failed):
            id, domain = self.stream.identify(e.key)
            label, group = int(self.stream.labels[e.key]), self.stream.group(e.key)
            yield e.key, Image(e.features, label, id, domain, group, e.pixels)


def label_space(stream: Stream) -> tuple[Sequence[str], Sequence[str]]:
    """Class names and ids of a stream with one label space."""
    if stream.classes is not None and stream.class_ids is not None:
        return stream.classes, stream.class_ids
    first, *others = stream.datasets
    for other in others:
        if other.class_ids != first.class_ids:
            raise InputError(
                f"data sets {first.name!r} and {other.name!r} have different classes; "
                "stream them with labels='shared' (--labels shared), or one at a time"
            )
    return first.classes, first.class_ids
