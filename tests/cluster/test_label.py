"""`predict --engine ray`: the labels of one machine, image by image, online."""

from __future__ import annotations

import csv
import io
import os
import random
import tarfile
import threading
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte.cli import main
from adte.core.errors import InputError
from adte.files.states import load_state

pytest.importorskip("ray")

from adte.cluster.connect import ClusterOptions
from adte.cluster.pool import Pool
from adte.cluster.worker import Tower, Work
from clusters import live

pytestmark = pytest.mark.slow
CLASSES = "cat, dog, car, tree"


def photo(seed: int) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((90, 70), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of photographs, one of them broken."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i:03d}.jpg").write_bytes(photo(i) if i != 11 else b"no image")
    return folder


def predict(*words: str, code: int = 0):
    base = ["predict", "--classes", CLASSES, "--views", "6", "-q"]
    found = CliRunner().invoke(main, [*base, *words])
    assert found.exit_code == code, found.output
    return found


ONE = ("--engine", "ray", "--cluster-workers", "1")
RAY = ("--engine", "ray", "--cluster-workers", "2", "--cluster-chunk", "4")


def same(folder) -> None:
    """Rows and state of both ways are one another's."""
    assert (folder / "there.csv").read_bytes() == (folder / "here.csv").read_bytes()
    (a, _), (b, _) = (load_state(folder / f"{n}.csv.adte") for n in ("here", "there"))
    assert sorted(a) == sorted(b)
    assert all((a[k] == b[k]).all() for k in a)


def test_rows_and_state_are_those_of_one_machine(nodes, photos):
    """Of `tda`; those of `tilt` are where workers are killed."""
    predict("photos", "--method", "tda", "--out", "here.csv", code=2)
    predict("photos", "--method", "tda", "--out", "there.csv", *RAY, code=2)
    same(photos.parent)


def test_parquet_tars_and_addresses_have_the_same_labels(nodes, photos):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    predict("photos", "photos", "--out", "here.csv", code=2)
    with (photos.parent / "here.csv").open() as file:
        labels = [row["label"] or None for row in csv.DictReader(file)]
    files = sorted(photos.iterdir())
    with tarfile.open(photos.parent / "photos.tar", "w") as tar:
        for file in files:
            tar.add(file, file.name)
    table = pyarrow.table({"image": [f.read_bytes() for f in files]})
    parquet.write_table(table, photos.parent / "photos.parquet", row_group_size=7)
    places = ("photos.parquet", f"{photos.parent.as_uri()}/photos.tar")
    predict(*places, "--out", "there.parquet", *ONE, code=2)
    rows = parquet.read_table(photos.parent / "there.parquet").to_pylist()
    assert [row["label"] for row in rows] == labels
    assert sum(row["error"] is not None for row in rows) == 2


def test_killed_workers_change_no_label(nodes, photos):
    rng, out = random.Random(1), photos.parent / "there.csv"
    more = ["photos"] * 6  # long enough to be killed in
    predict(*more, "--out", "here.csv", code=2)
    found = []
    base = ["predict", "--classes", CLASSES, "--views", "6", "-q", *more, "--out", "there.csv"]
    thread = threading.Thread(target=lambda: found.append(CliRunner().invoke(main, [*base, *RAY])))
    thread.start()
    killed = 0
    while thread.is_alive() and killed < 2:
        thread.join(rng.uniform(0.05, 0.3))
        if out.exists() and out.read_bytes().count(b"\n") > 4:  # at work, not at their imports
            killed += nodes.kill_worker("Remote", rng)
    thread.join()
    assert found[0].exit_code == 2, found[0].output
    assert killed == 2
    assert "(raylet)" not in found[0].stdout  # Ray printed there that a worker died: no JSON then
    same(photos.parent)


def test_an_image_that_kills_every_worker_ends_the_run(nodes, monkeypatch):
    """It was sent from one to the next for ever."""
    monkeypatch.setattr("adte.cluster.pool.RETRIES", 1)
    stream = live(4)
    work = Work(Tower.itself(stream.model), stream.views, stream.model.preprocess)
    pool = Pool(nodes.ray, work, ClusterOptions(workers=1, chunk=2))

    def fatal():
        time.sleep(3)  # until what it encoded before has arrived
        os._exit(1)

    sources = [stream.stream[0].source, stream.stream[1].source, fatal]
    done = pool(enumerate(sources))
    try:
        assert [next(done)[0], next(done)[0]] == [0, 1]
        with pytest.raises(InputError, match=r"workers died .* at the same work \(.*more memory"):
            next(done)
    finally:
        pool.close()


def test_it_goes_on_where_it_was(nodes, photos):
    listed, first = ("--order", "listed"), (f"photos/00{i}.jpg" for i in range(3))
    predict("photos", "--out", "here.csv", *listed, code=2)
    predict(*first, "--out", "there.csv", *listed)
    predict("photos", "--out", "there.csv", *listed, *ONE, code=2)
    same(photos.parent)
