"""Replicas that learn apart and merge: one is the stream itself, and no image counts twice."""

from __future__ import annotations

import numpy as np
import pytest

from adte import create_method
from adte.evaluate import run
from adte.evaluate.features.cache import Cache
from adte.evaluate.features.stream import Held
from adte.paper.lab import PRESETS, Lab
from adte.paper.replicas import in_replicas, merged, replicas


@pytest.fixture(scope="module")
def stream():
    return Held.of(Cache().first(60))


@pytest.mark.parametrize("method", ["tilt", "tda"])
def test_one_replica_is_the_sequential_stream(stream, method):
    found = np.concatenate(list(in_replicas(create_method(method), stream, 1, 16)))
    assert found.tolist() == run(create_method(method), stream).predicted.tolist()


def test_merged_states_count_every_image_once(stream):
    (batch, _), *_ = stream.batches(60)
    whole, *parts = (create_method("adte", estimator="marginal") for _ in range(5))
    whole.learn(batch)
    for k, part in enumerate(parts):
        part.learn(batch[slice(k, None, 4)])
    one, all_ = whole.state_dict(), merged(parts).state_dict()
    assert int(all_["prior.seen"]) == int(one["prior.seen"]) == 60
    for name, value in one.items():
        np.testing.assert_allclose(all_[name].numpy(), value.numpy(), rtol=1e-9)


@pytest.mark.slow
def test_the_study_has_a_row_for_every_number_of_replicas():
    finding = replicas(Lab(preset=PRESETS["tiny"]))
    assert [row.name for row in finding.rows] == ["one stream", "K = 2", "K = 4", "K = 8"]
    assert finding.columns == ("S = 16", "S = 64", "S = 256")
    assert len(finding.figures[0].series) == 3
