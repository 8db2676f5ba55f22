"""Features and class weights of a batch, and its base view."""

from __future__ import annotations

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch

__all__ = ["base_alone", "class_weights_of", "features_of"]


def features_of(batch: Batch) -> Tensor:
    """The image features (B, V, D), float32 or wider, one row per view."""
    return F.wide(batch.require("features"))


def class_weights_of(batch: Batch) -> Tensor:
    """The class weights (L, D), on the device and in the dtype of the features."""
    weights: Tensor = batch.require("class_weights")
    return weights.to(features_of(batch))


def base_alone(like: Tensor) -> Tensor:
    """The views that had a say, where only the base view has one: (1,), beside another tensor."""
    return torch.zeros(1, dtype=torch.int64, device=like.device)
