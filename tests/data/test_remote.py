"""Parquet files, tars and addresses as data sets, by the file systems of Arrow."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from adte import InputError

pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

import pyarrow
from pyarrow import parquet

from adte.data import load_dataset, make_stream
from adte.data.names import read_names
from adte.data.places import File, Place, expand
from adte.data.streams import other_images


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


def remote(classes, path):
    return load_dataset(f"remote:{path}", classes=classes)


def read(source):
    return source() if callable(source) else source.read_bytes()


def test_an_address_is_the_folder_that_it_names(photos):
    near, far = load_dataset(f"folder:{photos}"), load_dataset(f"remote:{photos.as_uri()}")
    assert far.classes == near.classes
    assert far.labels.tolist() == near.labels.tolist()
    assert far.ids == list(near.ids)
    assert [read(e.source) for e in far] == [read(e.source) for e in near]


def test_images_of_the_same_names_are_told_apart_wherever_they_lie(tmp_path):
    """A set and another one, packed alike: by names and labels they are the same."""
    known = []
    for first in (0, 6):
        place = tmp_path / str(first)
        place.mkdir()
        data = [photo(first + i) for i in range(6)]
        table = pyarrow.table({"image": data, "label": ["cat", "dog"] * 3})
        parquet.write_table(table, place / "p.parquet", row_group_size=2)
        (place / "classnames.txt").write_text("cat\ndog\n")
        with tarfile.open(place / "t.tar", "w") as tar:
            for i, image in enumerate(data):
                for name, content in ((f"{i}.png", image), (f"{i}.cls", b"0")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        for spec in ("parquet:{}/p.parquet", "remote:{}/t.tar?classes={}/classnames.txt",
                     "webdataset:{}/t.tar"):  # fmt: skip
            known.append(make_stream(load_dataset(spec.format(place, place))).content)
    for one, *tars in (known[:3], known[3:]):
        assert tars[0] == tars[1]
        assert len(tars[0]) == 5
        assert one == tars[0][:1]  # a row of a Parquet file costs more
        assert all(tars[0])
    assert other_images(known[0], known[3])
    assert other_images(known[1], known[4])


def test_names_are_those_of_the_files(tmp_path):
    """Characters that mean something in an address, and images that begin with _."""
    names = ["50%.png", "50%25.png", "_DSC1.png", "_raw/x.png", "a#1.png", "a b.png", "q?1.png",
             "é.png"]  # fmt: skip
    for i, name in enumerate(names):
        path = tmp_path / "p" / "cat one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(i))
    (tmp_path / "p" / "cat one" / ".hidden.png").write_bytes(photo(0))
    (tmp_path / "p" / "_metadata.parquet").write_bytes(b"")
    place = f"file://{tmp_path}/p"
    found = dict(expand([place]))
    assert list(found) == [f"{place}/cat one/{n}" for n in sorted(names)]
    assert [found[f"{place}/cat one/{n}"]() for n in names] == [photo(i) for i in range(8)]
    far = load_dataset(f"remote:{place}")
    assert far.classes == ("cat one",)
    assert [read(e.source) for e in far] == [photo(names.index(n)) for n in sorted(names)]


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
    far = remote(str(names), f"{tmp_path.as_uri()}/t-{{000..001}}.tar")
    assert far.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [read(e.source) for e in far] == [photo(i) for i in range(6)]


def pack(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_sample_has_one_image(tmp_path):
    """A mask beside the image is not the image, and a second image is not passed over."""
    (tmp_path / "classes.json").write_text('["cat"]')
    tar, options = tmp_path / "t.tar", {"classes": str(tmp_path / "classes.json")}
    sample = {"v1.0/0.png": photo(0), "v1.0/0.seg.png": photo(1), "v1.0/0.cls": b"0"}
    pack(tar, {**sample, "v1.0/1.png": photo(2), "v1.0/1.cls": b"0"})
    for name in (f"remote:{tar.as_uri()}", f"webdataset:{tar}"):
        data = load_dataset(name, **options)
        assert data.ids == ["t/v1.0/0", "t/v1.0/1"]
        sources = [e.source for e in data]
        assert [s() for s in sources] == [photo(0), photo(2)]
    pack(tar, {**sample, "a.1.png": photo(2)})
    for name in (f"remote:{tar.as_uri()}", f"webdataset:{tar}"):
        with pytest.warns(match=r"1 samples of '.*' have no image, only such as 'a.1.png'"):
            assert load_dataset(name, **options).ids == ["t/v1.0/0"]
    pack(tar, {**sample, "v1.0/0.jpg": photo(2)})
    for name in (f"remote:{tar.as_uri()}", f"webdataset:{tar}"):
        with pytest.raises(InputError, match=r"'v1.0/0' in '.*' has two images; pack one"):
            load_dataset(name, **options)


def test_links_and_backslashes_in_a_tar_leave_nothing_out(tmp_path):
    (tmp_path / "classes.json").write_text('["cat"]')
    tar, options = tmp_path / "t.tar", {"classes": str(tmp_path / "classes.json")}
    pack(tar, {"..\\..\\0.png": photo(0), "..\\..\\0.cls": b"0"})
    assert load_dataset(f"webdataset:{tar}", **options).ids == ["t/../../0"]
    with tarfile.open(tar, "a") as file:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    for name in (f"remote:{tar.as_uri()}", f"webdataset:{tar}"):
        with pytest.raises(InputError, match=r"'1.png' in '.*' is a link or a device; pack the"):
            load_dataset(name, **options)


def test_a_damaged_file_of_a_place_costs_no_other(tmp_path):
    """The files behind it were left out, and the error named the place."""
    for name in ("a.tar", "c.tar"):
        pack(tmp_path / name, {"0.png": photo(0)})
    (tmp_path / "b.tar").write_bytes(b"x" * 600)
    table = pyarrow.table({"image": [photo(0)]})
    parquet.write_table(table, tmp_path / "e.parquet")
    (tmp_path / "d.parquet").write_bytes(b"x" * 600)
    place = tmp_path.as_uri()
    found = list(expand([place]))
    assert [name.removeprefix(place) for name, _ in found] == [
        "/a.tar/0", "/b.tar", "/c.tar/0", "/d.parquet", "/e.parquet/0"
    ]  # fmt: skip
    assert [isinstance(source, InputError) for _, source in found] == [0, 1, 0, 1, 0]


def test_archives_of_a_place_that_are_not_read_are_said(tmp_path):
    pack(tmp_path / "a.tar", {"0.png": photo(0)})
    (tmp_path / "b.tgz").write_bytes(b"")
    place = tmp_path.as_uri()
    with pytest.warns(
        UserWarning, match=r"1 such as '.*b\.tgz'; in an object store only \.tar and"
    ):
        assert len(list(expand([place]))) == 1


def test_labels_of_tars_are_not_asked_for_where_none_are_needed(tmp_path):
    """Unlabelled images were refused for a label that is a word."""
    pack(tmp_path / "t.tar", {"a.png": photo(0), "a.cls": b"cat"})
    address = f"{tmp_path.as_uri()}/t.tar"
    ((name, source),) = expand([address])
    assert (name, source()) == (f"{address}/a", photo(0))
    with pytest.raises(InputError, match=r"image 'a' in .*t.tar' has no whole number as label"):
        remote("names.txt", address)


def test_labels_in_json(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    pack(tmp_path / "t.tar", {"a.png": photo(0), "a.json": b'{"class": 1}'})
    for name in (f"remote:{tmp_path.as_uri()}/t.tar", f"webdataset:{tmp_path}/t.tar"):
        data = load_dataset(f"{name}?label_key=class", classes=str(names))
        assert data.labels.tolist() == [1]
        with pytest.raises(InputError, match=r"or under 'label' in .json; .* \?label_key=KEY"):
            load_dataset(name, classes=str(names))


@pytest.mark.parametrize("first", [0, 1])
def test_names_by_number(tmp_path, first):
    """An object keyed by numbers is sorted as such; where they are labels they begin at 0."""
    numbers = range(first, first + 12)
    names = tmp_path / "names.json"
    names.write_text(json.dumps({str(i): f"class {i}" for i in numbers}))
    assert list(read_names(names).values()) == [f"class {i}" for i in numbers]
    pack(tmp_path / "t.tar", {"a.png": photo(0), "a.cls": b"10"})
    table = pyarrow.table({"image": [photo(0)], "label": [10]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for place in ("webdataset:{}/t.tar", "remote:file://{}/t.tar", "parquet:{}/a.parquet"):
        name = place.format(tmp_path)
        if first:
            with pytest.raises(InputError, match=r"numbered 1, 2, 3, …; number them from 0 to 11"):
                load_dataset(name, classes=str(names))
        else:
            data = load_dataset(name, classes=str(names))
            assert data.classes[data[0].label] == "class 10"


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


def test_a_folder_of_parquet_may_end_in_a_slash(tmp_path):
    """As the Tab key writes it: it was searched for image files."""
    (tmp_path / "t.parquet").mkdir()
    table = pyarrow.table({"image": [photo(0)]})
    parquet.write_table(table, tmp_path / "t.parquet" / "part-0.parquet")
    plain, slash = (dict(expand([f"{tmp_path}/t.parquet{end}"])) for end in ("", "/"))
    assert [row() for row in slash.values()] == [photo(0)]
    assert list(slash) == list(plain)


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"'file:///gone' does not exist; check the address"):
        load_dataset("remote:file:///gone")
    with pytest.raises(InputError, match=r"cannot read 'file:///gone/a\.png'"):
        Place(File("file:///gone/a.png"))()
    table = pyarrow.table({"image": [photo(0)], "label": [3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"or \?classes=FILE behind"):
        load_dataset(f"parquet:{tmp_path / 'a.parquet'}")
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="none of images"):
        load_dataset(f"parquet:{tmp_path / 'x.parquet'}")


@pytest.mark.parametrize(("labels", "found"), [
    ([b"cat", b"dog"], ("cat", "dog")), (["a", None], "row 1 .* has the label None"),
    ([0, None], "row 1 .* has the label None"), ([0.5, 1.0], "row 0 .* has the label 0.5"),
    ([0.0, 1.0], "are numbers"), ([-1, 0], "row 0 .* has the label -1"),
])  # fmt: skip
def test_labels_of_tables_are_names_or_whole_numbers(tmp_path, labels, found):
    table = pyarrow.table({"image": [photo(0), photo(1)], "label": labels})
    parquet.write_table(table, tmp_path / "a.parquet")
    if isinstance(found, tuple):
        assert load_dataset(f"parquet:{tmp_path / 'a.parquet'}").classes == found
    else:
        with pytest.raises(InputError, match=found):
            load_dataset(f"parquet:{tmp_path / 'a.parquet'}")


def test_ids_say_where_below_a_folder_a_table_lies(tmp_path):
    """Tables of one name in two folders gave different images one id."""
    for i, name in enumerate("xy"):
        (tmp_path / name).mkdir()
        table = pyarrow.table({"image": [photo(i)], "label": ["cat"]})
        parquet.write_table(table, tmp_path / name / "part-0.parquet")
    assert load_dataset(f"parquet:{tmp_path}").ids == ["x/part-0/0", "y/part-0/0"]


def test_tars_with_other_files_beside_them(tmp_path):
    folder = tmp_path / "my.targets"  # which is no tar
    folder.mkdir()
    (folder / "classnames.txt").write_text("cat\ndog\n")
    hidden = {".x/a.png": photo(1), ".x/a.cls": b"0", "x/a.png": photo(2), "x/a.cls": b"0"}
    pack(folder / "t.tar", {"a.png": photo(0), "a.cls": b"1", **hidden})
    data = remote(str(folder / "classnames.txt"), str(folder))
    assert data.ids == ["t/a", "t/.x/a", "t/x/a"]
    assert data.labels.tolist() == [1, 0, 0]
    for label in (None, b"99999999999999999999", b"-1"):
        members = {"a.png": photo(0)} | ({} if label is None else {"a.cls": label})
        pack(folder / "t.tar", members)
        for kind in ("remote", "webdataset"):
            with pytest.raises(InputError, match=r"image 'a' in .* has no whole number as label"):
                load_dataset(f"{kind}:{folder}", classes=str(folder / "classnames.txt"))
