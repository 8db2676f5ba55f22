"""What is timed: a model by name, class names for it, and noise for pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adte.bench.conditions import conditions
from adte.core.errors import InputError
from adte.models import load_model
from adte.models.base import Model

__all__ = ["class_names", "facts", "load", "noise"]

_NOUNS = ("fox", "lamp", "boat", "tree", "cup", "bird", "chair", "bridge", "horse", "clock")
_LOOKS = ("old", "small", "red", "tall", "wild", "round", "soft", "dark", "striped", "golden")


def load(
    name: str,
    weights: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str = "auto",
) -> Model:
    """A vision-language model; figures of speed need no trained weights: weights="random"."""
    model = load_model(name, weights=weights, device=device, dtype=dtype, runtime=runtime)
    model.require({"text tower"}, by="a benchmark")
    return model


def class_names(model: Model, count: int | None = None) -> list[str]:
    """The embedded models' own 200 names, as far as they reach; else one to four words, none twice.

    >>> class_names(load_model("tiny"), 2)
    ['goldfish', 'fire salamander']
    """
    from adte.models.tiny import SHAPES, tiny_classes

    count = 200 if count is None else count
    if count < 2:
        raise InputError(f"{count} classes cannot be told apart; ask for at least 2")
    own = [str(row["name"]) for row in tiny_classes()] if model.name in SHAPES else []
    for i in range(len(own), count):
        rest, noun = divmod(i, len(_NOUNS))
        words = [_NOUNS[noun]]
        while rest:
            rest, look = divmod(rest - 1, len(_LOOKS))
            words.insert(0, _LOOKS[look])
        own.append(" ".join(words))
    return own[:count]


def noise(model: Model, views: int, images: int = 1) -> Tensor:
    """Pixels (images, views, 3, S, S) where the model is; what they show does not change speed."""
    if views < 1 or images < 1:
        raise InputError(f"{images} images of {views} views leave nothing to time; ask for some")
    side = model.preprocess.size
    g = torch.Generator().manual_seed(0)
    pixels = torch.randn(images, views, 3, side, side, generator=g)
    return pixels.to(model.device, model.dtype)


def facts(model: Model, views: int, **more: Any) -> dict[str, Any]:
    """The model and the work, and the conditions that it ran under."""
    where = conditions(model.device, model.dtype)
    return {"model": model.name, "views": views, **where, **more}
