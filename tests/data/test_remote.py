"""Parquet files, tars and addresses as data sets, by the file systems of Arrow."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from adte import InputError

pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

import pyarrow
from pyarrow import parquet

from adte.data import load_dataset
from adte.data.remote import Parquet, Place, Remote, expand


def photo(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path):
    """A folder per class, three images in each."""
    for i in range(6):
        folder = tmp_path / "photos" / ("cat" if i < 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(photo(i))
    return tmp_path / "photos"


def read(source):
    return source() if callable(source) else source.read_bytes()


def test_an_address_is_the_folder_that_it_names(photos):
    near, far = load_dataset(f"folder:{photos}"), load_dataset(f"remote:{photos.as_uri()}")
    assert far.classes == near.classes
    assert far.labels.tolist() == near.labels.tolist()
    assert far.ids == list(near.ids)
    assert [read(e.source) for e in far] == [read(e.source) for e in near]


def test_an_address_of_another_library(photos):
    """A scheme that Arrow does not know goes to fsspec."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in photos.rglob("*.png"):
        memory.pipe(f"/shop/{path.relative_to(photos)}", path.read_bytes())
    far = load_dataset("remote:memory://shop")
    assert far.classes == ("cat", "dog")
    assert [read(e.source) for e in far] == [photo(i) for i in range(6)]


def test_tars(photos, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    for part in range(2):
        with tarfile.open(tmp_path / f"t-{part:03d}.tar", "w") as tar:
            for i in range(3 * part, 3 * part + 3):
                for kind, data in (("png", photo(i)), ("cls", str(part).encode())):
                    info = tarfile.TarInfo(f"{i}.{kind}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    far = Remote(classes=str(names)).load(f"{tmp_path.as_uri()}/t-{{000..001}}.tar")
    assert far.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [read(e.source) for e in far] == [photo(i) for i in range(6)]


@pytest.mark.parametrize("form", ["bytes", "struct"])
def test_parquet(tmp_path, form):
    images = [photo(i) for i in range(6)]
    column = images if form == "bytes" else [{"bytes": b, "path": None} for b in images]
    table = pyarrow.table({"image": column, "label": ["cat"] * 3 + ["dog"] * 3})
    (tmp_path / "p").mkdir()
    parquet.write_table(table.slice(0, 4), tmp_path / "p" / "a.parquet", row_group_size=3)
    parquet.write_table(table.slice(4), tmp_path / "p" / "b.parquet")
    data = load_dataset(f"parquet:{tmp_path / 'p'}")
    assert data.classes == ("cat", "dog")
    assert data.ids == ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1"]
    assert [read(e.source) for e in data] == images
    items = list(expand([str(tmp_path / "p" / "a.parquet")]))
    assert [source() for _, source in items] == images[:4]


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"'file:///gone' does not exist; check the address"):
        Remote().load("file:///gone")
    with pytest.raises(InputError, match=r"cannot read 'file:///gone/a\.png'"):
        Place("file:///gone/a.png")()
    table = pyarrow.table({"image": [photo(0)], "label": [3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"put \?classes=FILE behind"):
        Parquet().load(str(tmp_path / "a.parquet"))
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="none of images"):
        Parquet().load(str(tmp_path / "x.parquet"))
