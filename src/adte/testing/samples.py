"""A small made-up stream with everything a method can ask for, and odd images of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from adte.core.batch import Sample
from adte.models.prompts import class_weights
from adte.testing.small import SmallModel

__all__ = ["CLASSES", "narrow", "one_view", "permuted", "samples", "world"]

CLASSES = ("cat", "golden retriever", "car", "oak tree", "bus", "cup of coffee", "fish")


@lru_cache
def world(count: int = 24, views: int = 9, classes: int = 7) -> tuple[Sample, ...]:
    """Samples with everything a method can ask for, from a small model and random pictures."""
    model, g = SmallModel(), torch.Generator().manual_seed(0)
    names = CLASSES[:classes]
    with torch.no_grad():
        weights = class_weights(model, names)
        out = []
        for _ in range(count):
            base = torch.randn(1, 3, 6, 6, generator=g)
            coarse = base + 0.6 * torch.randn(views, 3, 6, 6, generator=g)
            pixels = torch.nn.functional.interpolate(coarse, size=(24, 24), mode="bilinear")
            features = model.encode_image(pixels)
            logits = model.logits(features, weights)
            out.append(Sample(logits, features, weights, model.logit_scale, pixels, model, names))
    return tuple(out)


def samples(count: int = 24) -> list[Sample]:
    """The first images of a small made-up stream."""
    return list(world(max(24, count))[:count])


def permuted(sample: Sample, order: torch.Tensor) -> Sample:
    """The same image with the classes in another order."""
    assert sample.classes is not None
    assert sample.class_weights is not None
    names = [sample.classes[i] for i in order.tolist()]
    return replace(
        sample,
        logits=sample.logits[:, order],
        class_weights=sample.class_weights[order],
        classes=names,
    )


def one_view(sample: Sample) -> Sample:
    """The same image with its base view alone."""
    assert sample.features is not None
    assert sample.pixels is not None
    return replace(
        sample, logits=sample.logits[:1], features=sample.features[:1], pixels=sample.pixels[:1]
    )


def narrow(sample: Sample) -> Sample:
    """With fewer dimensions, as if from another model."""
    assert sample.features is not None
    assert sample.class_weights is not None
    x, w = (
        torch.nn.functional.normalize(v[:, :4], dim=-1)
        for v in (sample.features, sample.class_weights)
    )
    return replace(sample, features=x, class_weights=w)
