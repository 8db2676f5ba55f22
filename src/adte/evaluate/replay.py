"""Replay: the features of many views of labelled images, as a stream without the image tower."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adte.errors import InputError
from adte.methods import Sample
from adte.state import load_state, save_state

__all__ = ["Replay"]


@dataclass(frozen=True, eq=False)
class Replay:
    """A re-iterable stream of (sample, label) from stored features.

    Attributes:
        features: (N, V, D) float16 unit vectors; view 0 is the base view.
        labels: (N,) true classes.
        class_weights: (L, D) float32 unit vectors.
        facts: model, scale, class names, how often each class was trained on where that is known,
            views, seed, source: what is needed to know what one is looking at.
    """

    features: Tensor
    labels: Tensor
    class_weights: Tensor
    facts: dict[str, Any]

    def __post_init__(self) -> None:
        n, _, d = self.features.shape
        if len(self.labels) != n or self.class_weights.shape[1] != d:
            raise InputError(
                f"a replay of {n} images of width {d} does not fit {len(self.labels)} labels and "
                f"class weights of shape {tuple(self.class_weights.shape)}; write it again"
            )

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.facts["classes"]
        return names

    @property
    def frequency(self) -> NDArray[np.float64]:
        """How many images of each class the model was trained on (L,)."""
        return np.asarray(self.facts["frequency"], dtype=np.float64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Sample, int]:
        features = self.features[index].float()
        scale = float(self.facts["scale"])
        logits = scale * features @ self.class_weights.T
        return Sample(logits, features, self.class_weights, scale), int(self.labels[index])

    def __iter__(self) -> Iterator[tuple[Sample, int]]:
        return (self[i] for i in range(len(self)))

    def first(self, count: int | None) -> Replay:
        """The first images alone; all of them for None."""
        if count is not None and count < 1:
            raise InputError(f"limit={count} leaves no image; give at least 1")
        return replace(self, features=self.features[:count], labels=self.labels[:count])

    def save(self, path: str | os.PathLike[str]) -> Path:
        tensors = {
            "features": self.features.half(),
            "labels": self.labels.to(torch.int16),
            "class_weights": self.class_weights.float(),
        }
        return save_state(path, tensors, {"kind": "replay", **self.facts})

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Replay:
        """From a file; without a path, the bundle that the package carries."""
        if path is None:
            with resources.as_file(
                resources.files("adte") / "assets" / "replay.safetensors"
            ) as file:
                return cls.load(file)
        tensors, facts = load_state(path)
        if facts.get("kind") != "replay":
            raise InputError(f"{str(path)!r} is not a replay; give a file that Replay.save wrote")
        return cls(tensors["features"], tensors["labels"], tensors["class_weights"], facts)
