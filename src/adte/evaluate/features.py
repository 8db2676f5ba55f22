"""Images to features of their views: the one place where the image tower runs for an evaluation.

A `FeatureStream` is a re-iterable stream of (sample, label). `Live` makes the features as it goes;
`adte.evaluate.cache.Cache` reads them back. Both hand out the same numbers: features are rounded to
float16, the precision of the cache, and an image's views depend on its pixels and the seed alone.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from adte.data.base import Dataset
from adte.errors import InputError
from adte.methods import Sample
from adte.models.base import Model
from adte.views import Views, load_image

__all__ = ["Encoded", "FeatureStream", "Live", "Skipped", "default_workers", "fingerprint"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Features (V, D) float16 of one image's views, and whose they are."""

    features: Tensor
    label: int
    id: str
    domain: str = ""
    group: int = -1
    pixels: Tensor | None = None


@dataclass
class Skipped:
    """Images that could not be read: never silently left out."""

    strict: bool = False
    images: list[dict[str, str]] = field(default_factory=list)

    def add(self, id: str, reason: str) -> None:
        if self.strict:
            raise InputError(reason)
        if all(known["id"] != id for known in self.images):
            self.images.append({"id": id, "reason": reason})


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
        features = e.features.float()
        logits = self.facts["scale"] * features @ self.class_weights.T + self.facts["bias"]
        return Sample(
            logits,
            features,
            self.class_weights,
            self.facts["scale"],
            pixels=e.pixels,
            model=self.model,
            classes=self.classes,
        )


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

    def __init__(self, dataset: Dataset, views: Views, model: Model) -> None:
        self.dataset, self.views, self.preprocess = dataset, views, model.preprocess

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        try:
            image = load_image(self.dataset[index].source, exif=False)
            return index, self.views(image, self.preprocess)
        except InputError as error:
            return index, str(error)


def _alone(item: Any) -> Any:
    return item


@dataclass(eq=False)
class Live(FeatureStream):
    """Features made on the fly from a data set.

    Args:
        model, class_weights: the towers' side.
        dataset: labelled images; views: how each becomes many.
        indices: which images, in which order; all in order by default.
        keep_pixels: hand the pixels on, for methods that need the image tower.
        workers: processes that decode and crop; 0 does it in this one.
    """

    model: Model
    class_weights: Tensor
    dataset: Dataset
    views: Views = field(default_factory=Views)
    indices: Sequence[int] | None = None
    keep_pixels: bool = False
    workers: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    prompts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.class_weights = self.class_weights.float()
        self.facts = {
            "model": self.model.name,
            "fingerprint": fingerprint(self.model),
            "dim": self.model.dim,
            "scale": float(self.model.logit_scale),
            "bias": float(self.model.logit_bias),
            "preprocess": asdict(self.model.preprocess),
            "views": asdict(self.views),
            "data": {
                "name": self.dataset.name,
                "split": self.dataset.split,
                "images": len(self),
            },
            "classes": list(self.dataset.classes),
            "class_ids": list(self.dataset.class_ids),
            "prompts": self.prompts,
        }

    def __len__(self) -> int:
        return len(self.dataset) if self.indices is None else len(self.indices)

    def encoded(self) -> Iterator[Encoded]:
        order = range(len(self.dataset)) if self.indices is None else self.indices
        loader: DataLoader[Any] = DataLoader(
            _ViewsOf(self.dataset, self.views, self.model),
            batch_size=None,
            sampler=order,
            num_workers=self.workers,
            collate_fn=_alone,
            prefetch_factor=4 if self.workers else None,
        )
        for index, views in loader:
            example = self.dataset[index]
            if isinstance(views, str):
                self.skipped.add(example.id, views)
                continue
            with torch.no_grad():
                pixels = views.to(self.model.device, self.model.dtype)
                features = self.model.encode_image(pixels).half().cpu()
            yield Encoded(
                features,
                example.label,
                example.id,
                example.domain,
                -1 if example.group is None else example.group,
                pixels if self.keep_pixels else None,
            )
