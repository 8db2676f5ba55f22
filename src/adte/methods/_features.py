"""What methods on features share: features and class weights, checked, and the base view."""

from __future__ import annotations

import torch
from torch import Tensor

from adte.core import functional as F
from adte.core.batch import Batch
from adte.core.errors import InputError

__all__ = ["base_alone", "class_weights_of", "features_of"]


def features_of(batch: Batch) -> Tensor:
    """The image features (B, V, D), float32 or wider, one row per view."""
    features: Tensor = batch.require("features")
    if features.ndim != 3:
        raise InputError(
            f"features of shape {tuple(features.shape[1:])} do not go with logits of shape "
            f"{tuple(batch.logits.shape[1:])}; pass one row of features per view"
        )
    return F.wide(features)


def class_weights_of(batch: Batch) -> Tensor:
    """The class weights (L, D), on the device and in the dtype of the features."""
    features = features_of(batch)
    weights: Tensor = batch.require("class_weights")
    return weights.to(features)


def base_alone(like: Tensor) -> Tensor:
    """The views that had a say, where only the base view has one: (1,), beside another tensor."""
    return torch.zeros(1, dtype=torch.int64, device=like.device)
