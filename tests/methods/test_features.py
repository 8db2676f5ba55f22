"""Features and class weights of a batch: widened, and checked against the logits."""

from __future__ import annotations

import pytest
import torch

from adte import InputError, Sample
from adte.methods._features import class_weights_of, features_of

Z, X, W = torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(3, 4)


def test_both_are_float32_or_wider_and_of_one_dtype():
    assert features_of(Sample(Z, X).batch).dtype == torch.float32
    assert features_of(Sample(Z, X.double()).batch).dtype == torch.float64
    assert class_weights_of(Sample(Z, X, W.double()).batch).dtype == torch.float32
    assert class_weights_of(Sample(Z, X.double(), W).batch).dtype == torch.float64
    assert tuple(features_of(Sample(Z, X).batch).shape) == (1, 2, 4)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="needs features"):
        features_of(Sample(Z).batch)
    with pytest.raises(InputError, match="needs class weights"):
        class_weights_of(Sample(Z, X).batch)


@pytest.mark.parametrize("features", [X[:1], X[:, 0], X[:, :, None]])
def test_features_that_are_not_one_row_per_view_are_refused(features):
    with pytest.raises(InputError, match="do not go with logits of shape"):
        features_of(Sample(Z, features).batch)


@pytest.mark.parametrize("weights", [W[:2], W[:, :3], W[0]])
def test_class_weights_of_another_shape_are_refused(weights):
    with pytest.raises(InputError, match=r"= \(3, 4\)"):
        class_weights_of(Sample(Z, X, weights).batch)
