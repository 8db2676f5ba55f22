"""`predict --engine ray`: the labels of one machine, image by image, online."""

from __future__ import annotations

import csv
import io
import random
import tarfile
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from adte.cli import main

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
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


@pytest.mark.parametrize("method", ["adte", "tda"])
def test_rows_and_state_are_those_of_one_machine(nodes, photos, method):
    predict("photos", "--method", method, "--out", "here.csv", code=2)
    predict("photos", "--method", method, "--out", "there.csv", *RAY, code=2)
    assert (photos.parent / "there.csv").read_bytes() == (photos.parent / "here.csv").read_bytes()
    from adte.files import load_state

    a, b = (load_state(photos.parent / f"{n}.csv.adte")[0] for n in ("here", "there"))
    assert sorted(a) == sorted(b)
    assert all((a[k] == b[k]).all() for k in a)


def test_parquet_tars_and_addresses_have_the_same_labels(nodes, photos):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    predict("photos", "--out", "here.csv", code=2)
    with (photos.parent / "here.csv").open() as file:
        labels = [row["label"] or None for row in csv.DictReader(file)]
    files = sorted(photos.iterdir())
    with tarfile.open(photos.parent / "photos.tar", "w") as tar:
        for file in files:
            tar.add(file, file.name)
    table = pyarrow.table({"image": [f.read_bytes() for f in files]})
    parquet.write_table(table, photos.parent / "photos.parquet", row_group_size=7)
    for i, place in enumerate(("photos.parquet", f"{photos.parent.as_uri()}/photos.tar")):
        predict(place, "--out", f"there{i}.parquet", *ONE, code=2)
        rows = parquet.read_table(photos.parent / f"there{i}.parquet").to_pylist()
        assert [row["label"] for row in rows] == labels, place
        assert sum(row["error"] is not None for row in rows) == 1


def test_killed_workers_change_no_label(nodes, photos):
    rng = random.Random(1)
    more = ["photos"] * 6  # long enough to be killed in
    predict(*more, "--out", "here6.csv", code=2)
    found = []
    base = ["predict", "--classes", CLASSES, "--views", "6", "-q", *more, "--out", "there6.csv"]
    thread = threading.Thread(target=lambda: found.append(CliRunner().invoke(main, [*base, *RAY])))
    thread.start()
    killed = 0
    while thread.is_alive() and killed < 2:
        thread.join(rng.uniform(0.2, 1.0))
        killed += nodes.kill_worker("Remote", rng)
    thread.join()
    assert found[0].exit_code == 2, found[0].output
    assert killed == 2
    here, there = (photos.parent / f"{n}6.csv" for n in ("here", "there"))
    assert there.read_bytes() == here.read_bytes()


def test_it_goes_on_where_it_was(nodes, photos):
    predict("photos", "--out", "here.csv", code=2)
    predict("photos/000.jpg", "photos/001.jpg", "photos/002.jpg", "--out", "there.csv", *ONE)
    predict("photos", "--out", "there.csv", *ONE, code=2)
    assert (photos.parent / "there.csv").read_bytes() == (photos.parent / "here.csv").read_bytes()
