"""A worker, called as its pool calls it. No Ray runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from adte import InputError, Views
from adte.cluster.extract import Sources
from adte.cluster.worker import Encoder, Tower, Work, unfit
from adte.data import load_dataset, make_stream
from adte.testing import SmallModel
from predicting import pictures


@pytest.fixture
def work(monkeypatch, tmp_path):
    """Work on photographs by relative names; workers start elsewhere."""
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


def test_a_worker_is_where_the_driver_is(work):
    chunk = Encoder(work).encode([(i, i) for i in range(3)])
    assert (chunk.fault, chunk.errors) == ("", {})
    assert len(chunk.features) == 3


def test_a_worker_that_does_not_see_the_data_cannot_work(work):
    """Were its images unreadable instead, the cache would be finished without them."""
    work.roots = ["/nowhere/photos"]
    with pytest.raises(InputError, match="it does not see '/nowhere/photos'") as error:
        Encoder(work)
    assert "cannot work: it does not see" in unfit(error.value)
