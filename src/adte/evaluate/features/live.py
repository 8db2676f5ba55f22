"""Features made on the fly, by the one way of an image."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from adte.core.errors import InputError
from adte.data.base import Skipped
from adte.data.streams import Stream
from adte.evaluate.features.recipe import Recipe
from adte.evaluate.features.stream import FeatureStream, Image, Ints
from adte.files.inputs import is_newer
from adte.images import Views
from adte.models.base import Model
from adte.pipeline import Pipeline

__all__ = ["Live", "label_space"]


class Live(FeatureStream):
    """A stream of labelled images, encoded as it is read.

    Args:
        model, class_weights: the towers' side.
        stream: labelled images in order; views: how each becomes many.
        keep_pixels: hand the pixels on, for methods that need the image tower.
        workers: threads that decode and crop; 0 does it in this one.
        strict: stop at an unreadable image. Otherwise it is skipped and listed in `skipped`.
        group: images a pass through the tower on a GPU; 0 takes the pipeline's own number.
    """

    model: Model
    skipped: list[Skipped]

    def __init__(
        self,
        model: Model,
        class_weights: Tensor,
        stream: Stream,
        views: Views | None = None,
        prompts: dict[str, Any] | None = None,
        *,
        keep_pixels: bool = False,
        workers: int = 0,
        strict: bool = False,
        group: int = 0,
    ) -> None:
        self.stream, self.strict, self.group = stream, strict, group
        self.views = views = views or Views()
        self.pipeline = Pipeline(
            model, views, keep_pixels=keep_pixels, workers=workers, group=group
        )
        names, ids = label_space(stream)
        if len(names) != len(class_weights):
            raise InputError(
                f"the stream has {len(names)} classes, but there are {len(class_weights)} "
                "class weights; make them from the stream's class names"
            )
        recipe = Recipe(
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
            views=views,
            preprocess=model.preprocess,
            data=stream.describe(),
            content=stream.content,
            classes=tuple(names),
            class_ids=tuple(ids),
            prompts=prompts or {},
        )
        labels = np.asarray(stream.labels, dtype=np.int64)
        super().__init__(recipe, class_weights.float(), labels, stream.domains, model, [])

    @property
    def is_part(self) -> bool:
        """Whether images were left out, or put into another order."""
        return not np.array_equal(self.order, np.arange(len(self.stream)))

    def readable(self, place: int) -> bool:
        """Whether an image can be read now."""
        try:
            self.pipeline.picture(lambda: self.stream[place].source)
        except InputError:
            return False
        return True

    def note_newer(self, kept: Iterable[tuple[Path, Iterable[int]]], what: str, mend: str) -> None:
        """Warn of images, by place, that were written after the file that is kept of them."""
        newer = set()
        for path, places in kept:
            since = path.stat().st_mtime_ns
            for k, i in self.stream.places[list(places)].tolist():
                file = self.stream.datasets[k].file(i)
                if file is not None and is_newer(file, since):
                    newer.add(file)
        if newer:
            warnings.warn(
                f"images are newer ({len(newer)} of {len(self)}) than their {what}, which are used "
                f"as they are; {mend} if the images have changed",
                stacklevel=4,
            )

    def _read(self, places: Ints) -> Iterator[Image]:
        self.skipped = []

        def failed(place: int, error: InputError) -> None:
            id, domain = self.stream.identify(place)
            if self.strict:
                raise InputError(f"{error} (image {id!r}); leave strict off to skip such images")
            self.skipped.append(Skipped(place, id, domain, str(error)))

        def source(place: int) -> Any:
            return lambda: self.stream[place].source  # read, and corrupted, where it is decoded

        for e in self.pipeline(((i, source(i)) for i in places.tolist()), failed):
            id, domain = self.stream.identify(e.key)
            group = self.stream.group(e.key)
            yield Image(e.features, 0, id, domain, group, e.pixels, e.key)


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
