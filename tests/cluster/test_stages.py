"""The steps of an extraction, called as Ray Data calls them. No Ray runs here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adte import Views
from adte.cluster.extract import Decode, Encode, Sources
from adte.cluster.worker import Tower, Work, unpack
from adte.data import load_dataset, make_stream
from adte.testing import SmallModel
from predicting import pictures

COUNT = 3


@pytest.fixture
def work(monkeypatch, tmp_path):
    """What workers are told of photographs by relative names; they start elsewhere."""
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        Path("photos").mkdir(exist_ok=True)
        pictures(Path("photos", name), 2)
    model, stream = SmallModel().eval(), make_stream([load_dataset("folder:photos")])
    roots = [str(tmp_path / "photos")]
    made = Work(Tower.itself(model), Views(count=2), model.preprocess, 0, Sources(stream), roots)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return made


def through(work: Work, *kinds: type):
    """The chunk that comes out of these steps."""
    batch = {"item": np.array([0])}
    for kind in kinds:
        stage = kind(None)
        stage.work, stage.keys, stage.size = work, np.arange(COUNT), COUNT
        batch = {"data": stage(batch)["data"]}
    return unpack(batch["data"][0])


@pytest.mark.parametrize("kinds", [(Encode,), (Decode, Encode)], ids=["alone", "with a decoder"])
def test_a_worker_is_where_the_driver_is(work, kinds):
    chunk = through(work, *kinds)
    assert (chunk.fault, chunk.errors) == ("", {})
    assert len(chunk.features) == COUNT


@pytest.mark.parametrize("kinds", [(Encode,), (Decode,), (Decode, Encode)])
def test_a_worker_that_does_not_see_the_data_cannot_work(work, kinds):
    """Were its images unreadable instead, the cache would be finished without them."""
    work.roots = ["/nowhere/photos"]
    assert "cannot work: it does not see '/nowhere/photos'" in through(work, *kinds).fault
