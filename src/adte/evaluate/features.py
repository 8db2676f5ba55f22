"""Images to features of their views: the one place where the image tower runs for an evaluation.

A `FeatureStream` is a re-iterable stream of (sample, label). `Live` makes the features as it goes;
`adte.evaluate.cache.Cache` reads them back. Both hand out the same numbers: features are rounded to
float16, the precision of the cache, and an image's views depend on its pixels and the seed alone.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from adte.data.reading import Skipped
from adte.data.streams import Stream
from adte.errors import InputError
from adte.methods import Sample
from adte.models.base import ImageOnly, Model
from adte.views import Preprocess, Views, load_image

__all__ = [
    "Encoded",
    "FeatureStream",
    "Held",
    "Live",
    "default_workers",
    "fingerprint",
    "label_space",
    "shuffle",
]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features (V, D) float16 of one image's views, and whose they are."""

    features: Tensor
    label: int
    id: str
    domain: str = ""
    group: int = -1
    pixels: Tensor | None = None


class FeatureStream(ABC):
    """A re-iterable stream of (sample, label); `facts` say what it is, for the protocol."""

    facts: dict[str, Any]
    class_weights: Tensor  # (L, D)
    model: Model | None
    seen: list[tuple[str, str, int]]  # id, domain and group of the last pass

    @abstractmethod
    def encoded(self) -> Iterator[Encoded]:
        """The images in order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ordered(self, order: NDArray[np.int64]) -> FeatureStream:
        """The same images in another order, or some of them."""

    def shuffled(self, seed: int) -> FeatureStream:
        """The stream in an order of the seed's own; 0 leaves it as it is."""
        return self if seed == 0 else self.ordered(shuffle(len(self), seed))

    @property
    @abstractmethod
    def labels(self) -> NDArray[np.int64]:
        """The true classes, in the order of the stream."""

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.facts["classes"]
        return names

    @property
    def frequency(self) -> NDArray[np.float64] | None:
        """How many images of each class the model was trained on (L,), where that is known."""
        known = self.facts.get("frequency")
        return None if known is None else np.asarray(known, dtype=np.float64)

    def __iter__(self) -> Iterator[tuple[Sample, int]]:
        self.seen = []
        for e in self.encoded():
            self.seen.append((e.id, e.domain, e.group))
            yield self.sample(e), e.label

    def sample(self, e: Encoded) -> Sample:
        """What a method sees, on the model's device where there is a model."""
        if self.model is not None and self.class_weights.device != self.model.device:
            self.class_weights = self.class_weights.to(self.model.device)
        weights = self.class_weights
        features = e.features.to(weights.device).float()
        logits = self.facts["scale"] * features @ weights.T + self.facts["bias"]
        return Sample(
            logits,
            features,
            weights,
            self.facts["scale"],
            pixels=e.pixels,
            model=self.model,
            classes=self.classes,
        )


def shuffle(images: int, seed: int) -> NDArray[np.int64]:
    """The order of a seed; 0 keeps the order there is."""
    if seed == 0:
        return np.arange(images)
    order: NDArray[np.int64] = np.random.default_rng(seed).permutation(images)
    return order


class Held(FeatureStream):
    """Samples held in memory, so that many methods pay for reading them once."""

    def __init__(
        self,
        samples: Sequence[tuple[Sample, int]],
        facts: dict[str, Any],
        names: Sequence[tuple[str, str, int]] = (),
        model: Model | None = None,
    ) -> None:
        self.samples, self.facts, self.model = samples, facts, model
        self.names = names or [("", "", -1)] * len(samples)
        weights = samples[0][0].class_weights if samples else None
        self.class_weights = torch.empty(0) if weights is None else weights

    @classmethod
    def of(cls, stream: FeatureStream, tick: Callable[[], None] = lambda: None) -> Held:
        """All of a stream."""
        samples = []
        for pair in stream:
            samples.append(pair)
            tick()
        return cls(samples, stream.facts, stream.seen, stream.model)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([label for _, label in self.samples], dtype=np.int64)

    def ordered(self, order: NDArray[np.int64]) -> Held:
        picked = order.tolist()
        return Held(
            [self.samples[i] for i in picked],
            self.facts,
            [self.names[i] for i in picked],
            self.model,
        )

    def encoded(self) -> Iterator[Encoded]:
        for (sample, label), (id, domain, group) in zip(self.samples, self.names, strict=True):
            yield Encoded(sample.require("features"), label, id, domain, group, sample.pixels)

    def __iter__(self) -> Iterator[tuple[Sample, int]]:
        self.seen = list(self.names)
        return iter(self.samples)


def default_workers() -> int:
    """Processes that decode and make views beside the one that encodes."""
    return min(8, max(0, (os.cpu_count() or 1) - 1))


def fingerprint(model: Model) -> str:
    """Tells two sets of weights apart, whatever their name."""
    digest = blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        step = max(1, flat.numel() // 64)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(flat[::step].float().cpu().numpy().tobytes())
    return digest.hexdigest()


class _ViewsOf(TorchDataset[tuple[int, Tensor | str]]):
    """Index to views, or to the reason why there are none."""

    def __init__(self, stream: Stream, views: Views, preprocess: Preprocess) -> None:
        self.stream, self.views, self.preprocess = stream, views, preprocess

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        try:
            image = load_image(self.stream[index].source, exif=False)
            return index, self.views(image, self.preprocess)
        except (InputError, OSError) as error:
            return index, str(error)


def _alone(item: Any) -> Any:
    return item


@dataclass(eq=False)
class Live(FeatureStream):
    """Features made on the fly.

    Args:
        model, class_weights: the towers' side.
        stream: labelled images in order; views: how each becomes many.
        part: which of them, for work in pieces; all by default.
        keep_pixels: hand the pixels on, for methods that need the image tower.
        workers: processes that decode and crop; 0 does it in this one.
        strict: stop at an unreadable image. Otherwise it is skipped and listed in `skipped`.
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
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.class_weights = self.class_weights.float()
        names, ids = label_space(self.stream)
        if len(names) != len(self.class_weights):
            raise InputError(
                f"the stream has {len(names)} classes, but there are {len(self.class_weights)} "
                "class weights; make them from the stream's class names"
            )
        self.facts = {
            "model": self.model.name,
            "fingerprint": fingerprint(self.model),
            "dim": self.model.dim,
            "scale": float(self.model.logit_scale),
            "bias": float(self.model.logit_bias),
            "preprocess": asdict(self.model.preprocess),
            "views": asdict(self.views),
            "data": self.stream.describe(),
            "classes": list(names),
            "class_ids": list(ids),
            "prompts": self.prompts,
        }
        if isinstance(self.model, ImageOnly):
            self.facts["fixed_classes"] = True
        if self.part is not None:
            said = ",".join(map(str, self.part)).encode()
            self.facts["part"] = blake2b(said, digest_size=6).hexdigest()

    def __len__(self) -> int:
        return len(self.stream if self.part is None else self.part)

    @property
    def labels(self) -> NDArray[np.int64]:
        every = np.asarray(self.stream.labels, dtype=np.int64)
        return every if self.part is None else every[np.asarray(self.part, dtype=np.int64)]

    def ordered(self, order: NDArray[np.int64]) -> Live:
        base = np.arange(len(self.stream)) if self.part is None else np.asarray(self.part)
        return replace(self, part=base[order].tolist())

    def encoded(self) -> Iterator[Encoded]:
        loader: DataLoader[Any] = DataLoader(
            _ViewsOf(self.stream, self.views, self.model.preprocess),
            batch_size=None,
            sampler=range(len(self.stream)) if self.part is None else self.part,
            num_workers=self.workers,
            collate_fn=_alone,
            prefetch_factor=4 if self.workers else None,
        )
        self.skipped = []
        for index, views in loader:
            id, domain = self.stream.identify(index)
            if isinstance(views, str):
                if self.strict:
                    raise InputError(
                        f"{views} (image {id!r}); leave strict off to skip such images"
                    )
                self.skipped.append(Skipped(index, id, domain, views))
                continue
            with torch.no_grad():
                pixels = views.to(self.model.device, self.model.dtype)
                features = self.model.encode_image(pixels).half().cpu()
            group = self.stream[index].group
            yield Encoded(
                features,
                int(self.stream.labels[index]),
                id,
                domain,
                -1 if group is None else group,
                pixels if self.keep_pixels else None,
            )


def label_space(stream: Stream) -> tuple[Sequence[str], Sequence[str]]:
    """Class names and ids of a stream with one label space."""
    if stream.classes is not None and stream.class_ids is not None:
        return stream.classes, stream.class_ids
    first, *others = stream.datasets
    for other in others:
        if other.class_ids != first.class_ids:
            raise InputError(
                f"data sets {first.name!r} and {other.name!r} have different classes; "
                "stream them with labels='shared', or one at a time"
            )
    return first.classes, first.class_ids
