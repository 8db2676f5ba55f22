"""Replicas that learn apart and merge: one is the stream itself, and no image counts twice."""

from __future__ import annotations

import numpy as np
import pytest

from adte import create_method
from adte.evaluate import run
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.stream import Held


@pytest.fixture(scope="module")
def script(script_of):
    return script_of("replicas")


@pytest.fixture(scope="module")
def stream():
    return Held.of(Cache().first(60))


@pytest.mark.parametrize("method", ["tilt", "tda"])
def test_one_replica_is_the_sequential_stream(script, stream, method):
    found = np.concatenate(list(script.in_replicas(create_method(method), stream, 1, 16)))
    assert found.tolist() == run(create_method(method), stream).predicted.tolist()


def test_merged_states_count_every_image_once(script, stream):
    (batch, _), *_ = stream.batches(60)
    whole, *parts = (create_method("adte", estimator="marginal") for _ in range(5))
    whole.learn(batch)
    for k, part in enumerate(parts):
        part.learn(batch[slice(k, None, 4)])
    one, all_ = whole.state_dict(), script.merged(parts).state_dict()
    assert int(all_["prior.seen"]) == int(one["prior.seen"]) == 60
    for name, value in one.items():
        np.testing.assert_allclose(all_[name].numpy(), value.numpy(), rtol=1e-9)
