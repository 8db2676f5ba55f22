"""Tars, Parquet files and addresses as data sets, by offset and by the file systems of Arrow."""

from __future__ import annotations

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from adte import InputError

pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

import pyarrow
from pyarrow import parquet

from adte.data import load_dataset, looks_like, make_stream
from adte.data.names import read_names
from adte.data.places import File, Place, expand
from adte.data.streams import other_images
from adte.data.tars import expand as expand_tars


def photo(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_table(path, rows_per_group=None, **columns):
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows_per_group)
    return path


@pytest.fixture
def photos(tmp_path):
    """A folder per class, three images in each."""
    for i in range(6):
        folder = tmp_path / "photos" / ("cat" if i < 3 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(photo(i))
    return tmp_path / "photos"


def read(data):
    return [e.source() if callable(e.source) else e.source.read_bytes() for e in data]


# ---------------------------------------------------------------- folders at an address


def test_an_address_is_the_folder_that_it_names(photos):
    near, far = load_dataset(f"folder:{photos}"), load_dataset(f"remote:{photos.as_uri()}")
    assert far.classes == near.classes
    assert far.labels.tolist() == near.labels.tolist()
    assert far.ids == list(near.ids)
    assert read(far) == read(near)
    fsspec = pytest.importorskip("fsspec")  # for a scheme that Arrow does not know
    memory = fsspec.filesystem("memory")
    for path in photos.rglob("*.png"):
        memory.pipe(f"/shop/{path.relative_to(photos)}", path.read_bytes())
    other = load_dataset("remote:memory://shop")
    assert (other.classes, read(other)) == (far.classes, read(far))


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
    assert read(far) == [photo(names.index(n)) for n in sorted(names)]


# ---------------------------------------------------------------- tars

KINDS = ("webdataset:{}", "remote:{}", "webdataset:file://{}", "remote:file://{}")


def both(path, **options):
    """A tar by its path and by its address."""
    options.setdefault("classes", str(path.parent / "names.json"))
    return [load_dataset(kind.format(path), **options) for kind in KINDS]


@pytest.fixture
def tar(tmp_path):
    (tmp_path / "names.json").write_text('["cat", "dog", "ape"]')
    return tmp_path / "t.tar"


def test_tars_with_random_access(tmp_path, pack, write):
    other = photo(0) + b"tail"
    pack(tmp_path / "test-000.tar", {"a/0.jpg": photo(0), "a/0.cls": b"1", "a/1.cls": b"0\n",
                                     "a/1.jpg": other, "a/README": b"x"})  # fmt: skip
    label = json.dumps({"label": 2}).encode()
    pack(tmp_path / "test-001.tar", {"5.json": label, "5.jpeg": photo(1)})
    pattern = f"{tmp_path}/test-{{000..001}}.tar"
    with pytest.raises(InputError, match="no class names lie beside it"):
        load_dataset(f"webdataset:{pattern}")
    names = write(tmp_path / "classnames.txt", "cat\ndog\nape\n")
    far = f"remote:file://{pattern}?classes={names}"
    for spec in (pattern, tmp_path, f"{tmp_path}/*.tar", far):
        data = load_dataset(spec if spec == far else f"webdataset:{spec}")
        assert data.labels.tolist() == [1, 0, 2]
        assert list(data.ids) == ["test-000/a/0", "test-000/a/1", "test-001/5"]
        assert data.classes == ("cat", "dog", "ape")
        assert read(data) == read(pickle.loads(pickle.dumps(data))) == [photo(0), other, photo(1)]
    assert load_dataset(f"webdataset:{tmp_path}/test-000.tar").gaps == ["ape"]
    assert looks_like(tmp_path) == "webdataset"
    assert expand_tars("x-{9..11}.tar") == ["x-9.tar", "x-10.tar", "x-11.tar"]
    with pytest.raises(InputError, match=r"c-1.tar' is no tar"):
        load_dataset(f"webdataset:{tmp_path}/c-{{1..2}}.tar")
    for folder in "ab":  # tars of one name in two folders are told apart
        pack(tmp_path / "deep" / folder / "000.tar", {"x.jpg": photo(0), "x.cls": b"0"})
    assert load_dataset(f"webdataset:{tmp_path}/deep").ids == ["a/000/x", "b/000/x"]


def test_a_sample_has_one_image(tar, pack):
    """A mask beside the image is not the image, and a second image is not passed over."""
    sample = {"v1.0/0.png": photo(0), "v1.0/0.seg.png": photo(1), "v1.0/0.cls": b"0"}
    pack(tar, {**sample, "v1.0/1.png": photo(2), "v1.0/1.cls": b"0", ".x/a.png": photo(3),
               ".x/a.cls": b"1"})  # fmt: skip
    for data in both(tar):
        assert data.ids == ["t/v1.0/0", "t/v1.0/1", "t/.x/a"]
        assert data.labels.tolist() == [0, 0, 1]
        assert read(data) == [photo(0), photo(2), photo(3)]
    pack(tar, {**sample, "a.1.png": photo(2)})
    with pytest.warns(match=r"1 samples of '.*' have no image, only such as 'a.1.png'"):
        assert [data.ids for data in both(tar)] == [["t/v1.0/0"]] * 4
    pack(tar, {"..\\..\\0.png": photo(0), "..\\..\\0.cls": b"0"})
    assert both(tar)[0].ids == ["t/../../0"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0.png": b"x", "0.jpg": b"x"}, r"'0' in '.*' has two images; pack one"),
        ({"a.png": b"x"}, "image 'a' in .* has no whole number as label"),
        ({"a.png": b"x", "a.cls": b"cat"}, "image 'a' in .* has no whole number as label"),
        ({"a.png": b"x", "a.cls": b"99999999999999999999"}, "has no whole number as label"),
        ({"a.png": b"x", "a.cls": b"-1"}, "image 'a' in .* has no whole number as label"),
        ({"a.png": b"x", "a.json": b'{"class": 1}'}, r"under 'label' in .json; .*\?label_key=KEY"),
    ],
)
def test_bad_samples(members, message, tar, pack):
    pack(tar, members)
    for kind in KINDS:
        with pytest.raises(InputError, match=message):
            load_dataset(kind.format(tar), classes=str(tar.parent / "names.json"))
    if "a.json" in members:
        assert [d.labels.tolist() for d in both(tar, label_key="class")] == [[1]] * 4


def test_damaged_and_hostile_tars(tar, pack):
    members = {"0.jpg": photo(0), "0.cls": b"0", "1.jpg": photo(1), "1.cls": b"0"}
    pack(tar, members, "w:gz")
    with pytest.raises(InputError, match="unpack compressed tars first"):
        both(tar)
    pack(tar, members)
    with tarfile.open(tar) as file:
        end = file.getmembers()[2].offset + 100
    whole = tar.read_bytes()
    tar.write_bytes(whole[:end])
    with pytest.raises(InputError, match=r"plain tar \(truncated header\); make it again"):
        both(tar)
    tar.write_bytes(whole)
    with tarfile.open(tar, "a") as file:
        link = tarfile.TarInfo("2.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    with pytest.raises(InputError, match=r"'2.png' in '.*' is a link or a device; pack the"):
        both(tar)


# ---------------------------------------------------------------- Parquet


@pytest.mark.parametrize("form", ["bytes", "struct"])
def test_parquet(tmp_path, form):
    images = [photo(i) for i in range(6)]
    column = images if form == "bytes" else [{"bytes": b, "path": None} for b in images]
    folder = tmp_path / "t.parquet"
    for name, part, group in (("x", slice(4), 3), ("y", slice(4, 6), None)):
        labels = (["cat"] * 3 + ["dog"] * 3)[part]
        folder.mkdir(exist_ok=True)
        write_table(folder / name / "0.parquet", group, image=column[part], label=labels)
    data = load_dataset(f"parquet:{folder}")
    assert data.classes == ("cat", "dog")
    assert data.ids == ["x/0/0", "x/0/1", "x/0/2", "x/0/3", "y/0/0", "y/0/1"]
    assert read(data) == images
    plain, slash = (dict(expand([f"{folder}{end}"])) for end in ("", "/"))  # as Tab writes it
    assert [row() for row in slash.values()] == images
    assert list(slash) == list(plain)


@pytest.mark.parametrize(("labels", "found"), [
    ([b"cat", b"dog"], ("cat", "dog")), (["a", None], "row 1 .* has the label None"),
    ([0, None], "row 1 .* has the label None"), ([0.5, 1.0], "row 0 .* has the label 0.5"),
    ([0.0, 1.0], r"are numbers.* or \?classes=FILE"), ([-1, 0], "row 0 .* has the label -1"),
])  # fmt: skip
def test_labels_of_tables_are_names_or_whole_numbers(tmp_path, labels, found):
    path = write_table(tmp_path / "a.parquet", image=[photo(0), photo(1)], label=labels)
    if isinstance(found, tuple):
        assert load_dataset(f"parquet:{path}").classes == found
    else:
        with pytest.raises(InputError, match=found):
            load_dataset(f"parquet:{path}")


@pytest.mark.parametrize("first", [0, 1])
def test_names_by_number(tmp_path, first, pack, write):
    """An object keyed by numbers is sorted as such; where they are labels they begin at 0."""
    numbers = range(first, first + 12)
    names = write(tmp_path / "names.json", {str(i): f"class {i}" for i in numbers})
    assert list(read_names(names).values()) == [f"class {i}" for i in numbers]
    pack(tmp_path / "t.tar", {"a.png": photo(0), "a.cls": b"10"})
    write_table(tmp_path / "a.parquet", image=[photo(0)], label=[10])
    for place in ("webdataset:{}/t.tar", "remote:file://{}/t.tar", "parquet:{}/a.parquet"):
        name = place.format(tmp_path)
        if first:
            with pytest.raises(InputError, match=r"numbered 1, 2, 3, …; number them from 0 to 11"):
                load_dataset(name, classes=str(names))
        else:
            data = load_dataset(name, classes=str(names))
            assert data.classes[data[0].label] == "class 10"


# ---------------------------------------------------------------- images without labels


def test_what_cannot_be_read_costs_no_other_file(tmp_path, pack):
    """Labels are not asked for: images were refused for one that is a word."""
    for name in ("a.tar", "c.tar"):
        pack(tmp_path / name, {"0.png": photo(0), "0.cls": b"cat"})
    for name in ("b.tar", "d.parquet"):
        (tmp_path / name).write_bytes(b"x" * 600)
    write_table(tmp_path / "e.parquet", image=[photo(0)])
    (tmp_path / "f.tgz").write_bytes(b"")
    place = tmp_path.as_uri()
    with pytest.warns(match=r"1 such as '.*f\.tgz'; in an object store only \.tar and"):
        found = list(expand([place]))
    assert [name.removeprefix(place) for name, _ in found] == [
        "/a.tar/0", "/b.tar", "/c.tar/0", "/d.parquet", "/e.parquet/0"
    ]  # fmt: skip
    assert [isinstance(source, InputError) for _, source in found] == [0, 1, 0, 1, 0]
    assert [source() for _, source in found[::2]] == [photo(0)] * 3


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"'file:///gone' does not exist; check the address"):
        load_dataset("remote:file:///gone")
    with pytest.raises(InputError, match=r"cannot read 'file:///gone/a\.png'"):
        Place(File("file:///gone/a.png"))()
    with pytest.raises(InputError, match="none of images"):
        load_dataset(f"parquet:{write_table(tmp_path / 'x.parquet', x=[1])}")


def test_images_of_the_same_names_are_told_apart_wherever_they_lie(tmp_path, pack):
    """A set and another one, packed alike: by names and labels they are the same."""
    known = []
    for first in (0, 6):
        place = tmp_path / str(first)
        data = [photo(first + i) for i in range(6)]
        write_table(place / "p.parquet", 2, image=data, label=["cat", "dog"] * 3)
        (place / "classnames.txt").write_text("cat\ndog\n")
        pack(place / "t.tar", {f"{i}.{kind}": content for i, image in enumerate(data)
                               for kind, content in (("png", image), ("cls", b"0"))})  # fmt: skip
        for spec in ("parquet:{}/p.parquet", "remote:{}/t.tar", "webdataset:{}/t.tar"):
            known.append(make_stream(load_dataset(spec.format(place))).content)
    for one, *tars in (known[:3], known[3:]):
        assert tars[0] == tars[1]
        assert len(tars[0]) == 5
        assert one == tars[0][:1]  # a row of a Parquet file costs more
        assert all(tars[0])
    assert other_images(known[0], known[3])
    assert other_images(known[1], known[4])
