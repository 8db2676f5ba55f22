"""A user's own data: folders, tables, tars and saved Hugging Face sets."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError, MissingExtra
from adte.data import check_dataset, load_dataset, looks_like
from adte.data.names import imagenet_ids, read_names
from adte.data.tars import expand

Write = Callable[[Path, object], Path]

# ---------------------------------------------------------------- folders


def test_folders_sort_by_code_point_and_skip_debris(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["zebra/1.jpg", "Ape/b.JPG", "Ape/a.png", "ape/1.jpg", "cheese_plate/1.jpg",
                     "cheesecake/deep/er/1.jpg", "ape/README.txt", "ape/.DS_Store", "ape/Thumbs.db",
                     ".cache/1.jpg", "ape/._1.jpg", "__MACOSX/ape/._1.jpg"])  # fmt: skip
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("Ape", "ape", "cheese_plate", "cheesecake", "zebra")
    assert list(data.ids) == ["Ape/a.png", "Ape/b.JPG", "ape/1.jpg", "cheese_plate/1.jpg",
                              "cheesecake/deep/er/1.jpg", "zebra/1.jpg"]  # fmt: skip
    assert data.labels.tolist() == [0, 0, 1, 2, 3, 4]
    assert data.name == tmp_path.name


def test_a_link_back_to_the_root_gives_no_class_the_images_of_others(
    tmp_path: Path, plant: Callable
) -> None:
    plant(tmp_path, ["cat/1.jpg", "dog/1.jpg"])
    (tmp_path / "cat/back").symlink_to("..")
    assert list(load_dataset(f"folder:{tmp_path}").ids) == ["cat/1.jpg", "dog/1.jpg"]


def test_images_beside_the_folders_are_noted(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["cat/1.jpg", "dog/1.jpg", "new.jpg"])
    with pytest.warns(UserWarning, match=r"left out, 1 such as 'new.jpg'; put them into one"):
        assert len(load_dataset(f"folder:{tmp_path}")) == 2


def test_names_of_folders(tmp_path: Path, plant: Callable, write: Write) -> None:
    wnids = imagenet_ids()[3], imagenet_ids()[1]
    plant(tmp_path, [f"{w}/1.jpg" for w in wnids])
    assert load_dataset(f"folder:{tmp_path}").classes == ("goldfish", "tiger shark")
    write(tmp_path / "classes.json", {wnids[0]: "shark", wnids[1]: "fish"})  # not in order
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("fish", "shark")
    assert data.class_ids == (wnids[1], wnids[0])
    names = write(tmp_path.parent / f"{tmp_path.name}.txt", "one\ntwo\n")
    assert load_dataset(f"folder:{tmp_path}", classes=str(names)).classes == ("one", "two")
    write(names, "one\ntwo\nthree\n")
    with pytest.raises(InputError, match="3 names for 2 folders"):
        load_dataset(f"folder:{tmp_path}", classes=str(names))
    write(tmp_path / "classes.json", {"x": "no folder", wnids[0]: "shark", wnids[1]: "fish"})
    data = load_dataset(f"folder:{tmp_path}")  # a name may have no images
    assert (data.classes[-1], data.counts.tolist()) == ("no folder", [1, 1, 0])
    write(tmp_path / "classes.json", {wnids[0]: "shark"})
    with pytest.raises(InputError, match=rf"folder '{wnids[1]}' .* has no name in classes.json"):
        load_dataset(f"folder:{tmp_path}")


def test_a_persons_own_data_may_name_more_classes_than_it_shows(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    """A published set may not: see `test_cifar.py`."""
    plant(tmp_path / "pets", ["cat/1.jpg", "dog/1.txt"])
    data = load_dataset(f"folder:{tmp_path / 'pets'}")
    assert data.counts.tolist() == [1, 0]
    assert data.gaps == ["dog"]
    names = write(tmp_path / "names.txt", "cat\ndog\nfox\n")
    table = write(tmp_path / "a.csv", "path,label\npets/cat/1.jpg,cat\n")
    data = load_dataset(f"csv:{table}?classes={names}")
    assert data.gaps == ["dog", "fox"]
    twice = write(tmp_path / "twice.txt", "cat\ndog\ncat\n")
    assert load_dataset(f"csv:{table}?classes={twice}").gaps == ["dog", "cat (class 2)"]
    found = {f.what: f.status for f in check_dataset("csv", str(table), classes=str(names))}
    assert found["empty classes"] == "note"


def test_options_behind_a_question_mark(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path / "pets", ["cat/1.jpg", "dog/1.txt"])
    folder = f"folder:{tmp_path / 'pets'}"
    assert load_dataset(f"{folder}?complete=false").counts.tolist() == [1, 0]
    odd = write(tmp_path / "50% & more?.txt", "big cat\nsmall dog\n")
    named = f"classes={str(odd).replace('%', '%25').replace('&', '%26')}"
    with pytest.raises(InputError, match=r"write NAME:PATH\?option=value"):
        load_dataset(f"{folder}?complete=false&classes")
    # the last question mark begins the options, so one in a value is written %3F
    data = load_dataset(f"{folder}?complete=false&{named.replace('?', '%3F')}")
    assert data.classes == ("big cat", "small dog")
    assert load_dataset(f"{folder}?complete=true", complete=False).counts.tolist() == [1, 0]
    for text, message in (
        ("complete=false&complete=true", "'complete' is given twice"),
        ("complete", "'complete' in the data '.*' is no option"),
        ("=3", "'=3' in the data '.*' is no option"),
        ("complete=", "option complete='' is not bool"),
    ):
        with pytest.raises(InputError, match=message) as error:
            load_dataset(f"{folder}?{text}")
        assert "\n" not in str(error.value)


def test_a_question_mark_in_a_path_stays_one(tmp_path: Path, plant: Callable, jpeg: bytes) -> None:
    plant(tmp_path / "who?x=1", ["cat/1.jpg"])
    assert load_dataset(f"folder:{tmp_path / 'who?x=1'}").classes == ("cat",)
    assert len(load_dataset(f"folder:{tmp_path / 'who?x=1'}?complete=false")) == 1
    for k in range(2):
        shard(tmp_path / f"s-{k}.tar", {"0.jpg": jpeg, "0.cls": b"0"})
    (tmp_path / "classnames.txt").write_text("cat\n")
    assert len(load_dataset(f"webdataset:{tmp_path}/s-?.tar")) == 2  # a pattern
    assert len(load_dataset(f"webdataset:{tmp_path}/s-?.tar?complete=false")) == 2


def test_a_flat_folder_is_told_to_make_folders(tmp_path: Path, plant: Callable) -> None:
    """It was told to unpack the set again."""
    plant(tmp_path, ["1.jpg", "2.jpg"])
    with pytest.raises(InputError, match="put the images into one folder per class") as error:
        load_dataset(f"folder:{tmp_path}")
    assert "unpack" not in str(error.value)


def test_a_folder_of_splits_is_not_a_folder_of_classes(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["train/cat/1.jpg", "val/cat/1.jpg"])
    with pytest.raises(InputError, match=r"are splits \(train, val\), not classes; give .*/val'"):
        load_dataset(f"folder:{tmp_path}")
    plant(tmp_path, ["flat/1.jpg"])
    with pytest.raises(InputError, match="does not hold an image folder"):
        load_dataset(f"folder:{tmp_path / 'flat'}")


def test_a_published_set_is_named_before_a_folder(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["cat/1.jpg", "dog/1.jpg"])
    with pytest.raises(
        InputError, match=r"does not hold ImageNet-A .*looks like folder: read it as"
    ):
        load_dataset(f"imagenet-a:{tmp_path}")


def test_a_file_where_a_folder_belongs(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["1.jpg"])
    table = write(tmp_path / "a.csv", "path,label\n1.jpg,cat\n")
    for name in ("pets", "imagenet", "cifar10-c", "folder"):
        with pytest.raises(InputError, match="looks like csv"):
            load_dataset(f"{name}:{table}")


def test_an_archive_where_a_folder_belongs(tmp_path: Path, write: Write) -> None:
    """A tar of ImageNet-A was taken for one of WebDataset's."""
    for spec in ("imagenet-a:a.tar", "eurosat:a.zip", "folder:a.zip", "cars:a.TGZ"):
        name, _, file = spec.partition(":")
        with pytest.raises(InputError, match="it is an archive: unpack it, and give the folder"):
            load_dataset(f"{name}:{write(tmp_path / file, 'packed')}")


def test_a_path_without_a_name_is_told_the_name(tmp_path: Path, write: Write) -> None:
    table = write(tmp_path / "a.csv", "path,label\n1.jpg,cat\n")
    for path, message in (
        (tmp_path, r"is a path; write NAME:PATH, or folder:/"),
        (table, r"is a file; write csv:/"),
        (write(tmp_path / "a.npz", ""), r"is a file; write npz:/.* for features"),
        (write(tmp_path / "a.bin", ""), r"is a file; write NAME:PATH"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(str(path))


def test_read_names(tmp_path: Path, write: Write) -> None:
    assert read_names(write(tmp_path / "a.json", {"b": "x", "a": "y"})) == {"a": "y", "b": "x"}
    assert read_names(write(tmp_path / "b.json", ["x", "x"])) == {"0": "x", "1": "x"}
    for bad in ({}, [], {"a": 3}, {"a": " "}, 3, ["a", "", "b"]):
        with pytest.raises(InputError, match="not a list of class names"):
            read_names(write(tmp_path / "c.json", bad))
    with pytest.raises(InputError, match="cannot read class names"):
        read_names(tmp_path / "none.txt")


@pytest.mark.parametrize(
    "data", ["folder:{}?classes=", "csv:{}/a.csv?classes=", "pets:{}?split_file="]
)
def test_a_home_that_is_not_there(data: str, tmp_path: Path, plant: Callable, write: Write) -> None:
    """It ended in a traceback, and a table did not look into one's own."""
    plant(tmp_path, ["cat/1.jpg"])
    write(tmp_path / "a.csv", "path,label\ncat/1.jpg,cat\n")
    with pytest.raises(InputError, match=r"~nosuchuser/n\.txt"):
        load_dataset(data.format(tmp_path) + "~nosuchuser/n.txt")


def test_a_table_looks_into_one_s_home(tmp_path: Path, write: Write, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(write(tmp_path / "names.txt", "cat\ndog\n").parent))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert list(read_names("~/names.txt").values()) == ["cat", "dog"]


def test_the_first_folders_may_be_empty(tmp_path: Path, plant: Callable) -> None:
    for number in range(60):
        (tmp_path / f"{number:02d}").mkdir()
    plant(tmp_path, ["59/1.jpg"])
    assert len(load_dataset(f"folder:{tmp_path}")) == 1


# ---------------------------------------------------------------- tables


def test_tables(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["x/1.jpg", "x/2.jpg", "3.jpg"])
    plain = write(tmp_path / "a.csv", "x/1.jpg,dog\nx/2.jpg,cat\n3.jpg,dog\n")
    data = load_dataset(f"csv:{plain}")
    assert data.classes == ("cat", "dog")
    assert [(e.id, e.label) for e in data] == [("x/1.jpg", 1), ("x/2.jpg", 0), ("3.jpg", 1)]
    assert data[2].source == tmp_path / "3.jpg"
    named = write(tmp_path / "b.csv", "Label, Path, domain\n1,x/1.jpg,clean\n0,3.jpg,fog/3\n")
    names = write(tmp_path / "names.txt", "missile\nmissile\n")
    data = load_dataset(f"csv:{named}", classes=str(names))
    assert data.labels.tolist() == [1, 0]
    assert [e.domain for e in data] == ["clean", "fog/3"]
    assert data.classes == ("missile", "missile")
    with pytest.raises(InputError, match=r"are numbers; give .* csv:b.csv\?classes=names.txt"):
        load_dataset(f"csv:{named}")
    assert looks_like(named) == "csv"
    mine = write(tmp_path / "c.csv", "path;label\nx/1.jpg;dog, small\n3.jpg;cat\n3.jpg;cat\n")
    assert load_dataset(f"csv:{mine}").classes == ("cat", "dog, small")  # as Excel may write it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("who,what\nx,y\n", "it needs path and label"),
        ("path,label\nno.jpg,cat\n", "names 'no.jpg', which is not in"),
        ("path,label\n1.jpg\n", "in row 1 of .* '1.jpg' has no label"),
        ("path,label\n", "has no rows"),
        ("path,label\n1.jpg,cat\n1.jpg, \n", "in row 2 of .* '1.jpg' has no label"),
        ("path,label\n,cat\n", "in row 1 of .* there is no path"),
        ("path,label\n1.jpg,cat\n1.jpg,dog\n", "'1.jpg' twice, as 'cat' and as 'dog'; keep one"),
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["1.jpg"])
    with pytest.raises(InputError, match=message):
        load_dataset(f"csv:{write(tmp_path / 'a.csv', text)}")


def test_a_label_outside_the_names(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["1.jpg"])
    names = write(tmp_path / "names.json", ["cat"])
    table = write(tmp_path / "a.csv", "path,label\n1.jpg,1\n")
    with pytest.raises(InputError, match="label '1' of image 1"):
        load_dataset(f"csv:{table}", classes=str(names))
    table = write(tmp_path / "a.csv", "path,label\nmissing.jpg,cat\n")
    assert len(load_dataset(f"csv:{table}", classes=str(names), complete=False)) == 1


# ---------------------------------------------------------------- tars


def shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_tars_with_random_access(tmp_path: Path, jpeg: bytes, write: Write) -> None:
    other = jpeg + b"tail"
    shard(tmp_path / "test-000.tar", {"a/0.jpg": jpeg, "a/0.cls": b"1", "a/1.cls": b"0\n",
                                      "a/1.jpg": other, "a/README": b"x"})  # fmt: skip
    shard(tmp_path / "test-001.tar", {"5.json": json.dumps({"label": 2}).encode(), "5.jpeg": jpeg})
    pattern = f"webdataset:{tmp_path}/test-{{000..001}}.tar"
    with pytest.raises(InputError, match="no class names lie beside it"):
        load_dataset(pattern)
    write(tmp_path / "classnames.txt", "cat\ndog\nape\n")
    for spec in (pattern, f"webdataset:{tmp_path}", f"webdataset:{tmp_path}/*.tar"):
        data = load_dataset(spec)
        assert data.labels.tolist() == [1, 0, 2]
        assert list(data.ids) == ["test-000/a/0", "test-000/a/1", "test-001/5"]
        assert data.classes == ("cat", "dog", "ape")
        assert [data[i].source() for i in (2, 1, 0)] == [jpeg, other, jpeg]
    assert pickle.loads(pickle.dumps(data))[1].source() == other
    assert load_dataset(f"webdataset:{tmp_path}/test-000.tar").gaps == ["ape"]
    assert looks_like(tmp_path) == "webdataset"


def test_bad_tars(tmp_path: Path, jpeg: bytes, write: Write) -> None:
    write(tmp_path / "classnames.txt", "cat\n")
    bad = shard(tmp_path / "a.tar", {"0.jpg": jpeg, "0.json": b'{"class": 0}'})
    with pytest.raises(InputError, match=r"image '0' .* put \?label_key=KEY"):
        load_dataset(f"webdataset:{bad}")
    assert load_dataset(f"webdataset:{bad}", label_key="class").labels.tolist() == [0]
    zipped = shard(tmp_path / "b.tar", {"0.jpg": jpeg, "0.cls": b"0"}, "w:gz")
    with pytest.raises(InputError, match="unpack compressed tars first"):
        load_dataset(f"webdataset:{zipped}")
    cut = shard(tmp_path / "d.tar", {"0.jpg": jpeg, "0.cls": b"0", "1.jpg": jpeg, "1.cls": b"0"})
    with tarfile.open(cut) as tar:
        end = tar.getmembers()[2].offset + 100
    cut.write_bytes(cut.read_bytes()[:end])
    with pytest.raises(InputError, match=r"plain tar \(truncated header\); make it again"):
        load_dataset(f"webdataset:{cut}")
    with pytest.raises(InputError, match=r"c-1.tar' is no tar"):
        load_dataset(f"webdataset:{tmp_path}/c-{{1..2}}.tar")
    assert expand("x-{9..11}.tar") == ["x-9.tar", "x-10.tar", "x-11.tar"]


# ---------------------------------------------------------------- Hugging Face


def test_hugging_face_needs_its_extra(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "dataset_info.json", {})
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=r"pip install 'adte\[hf\]'"):
        load_dataset(f"hf:{tmp_path}")


def test_hugging_face_on_disk(tmp_path: Path, jpeg: bytes) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"pic": datasets.Image(),
                                  "y": datasets.ClassLabel(names=["b", "a"]),
                                  "n": datasets.Value("int64")})  # fmt: skip
    rows = {"pic": [{"bytes": jpeg, "path": None}] * 3, "y": [1, 0, 1], "n": [0, 1, 0]}
    table = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": table, "test": table.select([2, 1])}).save_to_disk(str(tmp_path))
    data = load_dataset(f"hf:{tmp_path}")
    assert data.classes == ("b", "a")
    assert data.labels.tolist() == [1, 0]
    assert data[0].source == jpeg
    assert pickle.loads(pickle.dumps(data))[1].source == jpeg
    assert len(load_dataset(f"hf:{tmp_path}", part="train")) == 3
    with pytest.raises(InputError, match="has no part 'val'"):
        load_dataset(f"hf:{tmp_path}", part="val")
    with pytest.raises(InputError, match=r"no label column 'z'; put \?label=NAME"):
        load_dataset(f"hf:{tmp_path}", label="z")
    with pytest.raises(InputError, match=r"has no class names; .* \?classes=FILE"):
        load_dataset(f"hf:{tmp_path}", label="n")
    assert looks_like(tmp_path) == "hf"
    table.save_to_disk(str(tmp_path / "one"))
    assert len(load_dataset(f"hf:{tmp_path / 'one'}")) == 3


def test_the_lent_cifar_folder(shared_data: Path) -> None:
    data = load_dataset(f"folder:{shared_data / 'cifar10-test'}")
    assert len(data) == 1000
    assert data.classes[0] == "airplane"
    assert np.ptp(data.counts) == 0


def test_tars_of_one_name_in_two_folders_are_told_apart(tmp_path: Path, jpeg: bytes, write: Write):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shard(tmp_path / folder / "000.tar", {"x.jpg": jpeg, "x.cls": b"0"})
    write(tmp_path / "classnames.txt", "cat\n")
    assert list(load_dataset(f"webdataset:{tmp_path}").ids) == ["a/000/x", "b/000/x"]
