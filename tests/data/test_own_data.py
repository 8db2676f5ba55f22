"""A user's own data: folders, tables and saved Hugging Face sets, and options behind a path."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError, MissingExtra
from adte.data import check_dataset, load_dataset, looks_like
from adte.data.names import imagenet_ids, read_names

Write = Callable[[Path, object], Path]

# ---------------------------------------------------------------- folders


def test_folders_sort_by_code_point_and_skip_debris(tmp_path: Path, plant: Callable) -> None:
    for number in range(60):  # the first folders may be empty
        (tmp_path / f".{number}").mkdir()
    plant(tmp_path, ["zebra/1.jpg", "Ape/b.JPG", "Ape/a.png", "ape/1.jpg", "cheese_plate/1.jpg",
                     "cheesecake/deep/er/1.jpg", "ape/README.txt", "ape/.DS_Store", "ape/Thumbs.db",
                     ".cache/1.jpg", "ape/._1.jpg", "__MACOSX/ape/._1.jpg"])  # fmt: skip
    (tmp_path / "ape/back").symlink_to("..")  # a link gives no class the images of others
    data = load_dataset(f"folder:{tmp_path}")
    assert data.classes == ("Ape", "ape", "cheese_plate", "cheesecake", "zebra")
    assert list(data.ids) == ["Ape/a.png", "Ape/b.JPG", "ape/1.jpg", "cheese_plate/1.jpg",
                              "cheesecake/deep/er/1.jpg", "zebra/1.jpg"]  # fmt: skip
    assert data.labels.tolist() == [0, 0, 1, 2, 3, 4]
    assert data.name == tmp_path.name
    plant(tmp_path, ["new.jpg"])
    with pytest.warns(UserWarning, match=r"left out, 1 such as 'new.jpg'; put them into one"):
        assert len(load_dataset(f"folder:{tmp_path}")) == 6


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
    """A published set may not: see `test_published.py`."""
    plant(tmp_path / "pets", ["cat/1.jpg", "dog/1.txt"])
    assert load_dataset(f"folder:{tmp_path / 'pets'}").gaps == ["dog"]
    table = write(tmp_path / "a.csv", "path,label\npets/cat/1.jpg,cat\n")
    for text, gaps in (
        ("cat\ndog\nfox\n", ["dog", "fox"]),
        ("cat\ndog\ncat\n", ["dog", "cat (class 2)"]),
    ):
        names = write(tmp_path / "names.txt", text)
        assert load_dataset(f"csv:{table}?classes={names}").gaps == gaps
    found = {f.what: f.status for f in check_dataset("csv", str(table), classes=str(names))}
    assert found["empty classes"] == "note"


def test_a_lent_folder(shared_data: Path) -> None:
    data = load_dataset(f"folder:{shared_data / 'cifar10-test'}")
    assert (len(data), data.classes[0], np.ptp(data.counts)) == (1000, "airplane", 0)


# ---------------------------------------------------------------- paths of something else


def test_each_wrong_path_has_its_sentence(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path / "flat", ["1.jpg", "2.jpg"])
    plant(tmp_path / "splits", ["train/cat/1.jpg", "val/cat/1.jpg"])
    plant(tmp_path / "own", ["cat/1.jpg", "dog/1.jpg"])
    write(tmp_path / "a.csv", "path,label\nown/cat/1.jpg,cat\n")
    for name in ("a.npz", "a.bin", "a.tar", "a.zip", "a.TGZ"):
        write(tmp_path / name, "packed")
    packed = "it is an archive: unpack it, and give the folder"
    for spec, message in (
        ("folder:flat", "does not hold an image folder.*; put the images into one folder per cl"),
        ("folder:splits", r"are splits \(train, val\), not classes; give .*/val'"),
        ("imagenet-a:own", r"does not hold ImageNet-A .*looks like folder: read it as"),
        *((f"{name}:a.csv", "looks like csv") for name in ("pets", "imagenet", "cifar10-c")),
        ("imagenet-a:a.tar", packed), ("eurosat:a.zip", packed), ("folder:a.zip", packed),
        ("cars:a.TGZ", packed),
        ("own", r"is a path; write NAME:PATH, or folder:/"),
        ("a.csv", r"is a file; write csv:/"),
        ("a.npz", r"is a file; write npz:/.* for features"),
        ("a.bin", r"is a file; write NAME:PATH"),
    ):  # fmt: skip
        name, colon, path = spec.rpartition(":")
        with pytest.raises(InputError, match=message) as error:
            load_dataset(f"{name}{colon}{tmp_path / path}")
        assert "unpack the set" not in str(error.value)


# ---------------------------------------------------------------- options behind a path


def test_options_behind_a_question_mark(
    tmp_path: Path, plant: Callable, write: Write, pack: Callable, jpeg: bytes
) -> None:
    plant(tmp_path / "pets", ["cat/1.jpg", "dog/1.txt"])
    folder = f"folder:{tmp_path / 'pets'}"
    odd = write(tmp_path / "50% & more?.txt", "big cat\nsmall dog\n")
    named = f"classes={str(odd).replace('%', '%25').replace('&', '%26')}"
    # the last question mark begins the options, so one in a value is written %3F
    data = load_dataset(f"{folder}?complete=false&{named.replace('?', '%3F')}")
    assert data.classes == ("big cat", "small dog")
    assert load_dataset(f"{folder}?complete=true", complete=False).counts.tolist() == [1, 0]
    for text, message in (
        ("complete=false&classes", r"write NAME:PATH\?option=value"),
        ("complete=false&complete=true", "'complete' is given twice"),
        ("complete", "'complete' in the data '.*' is no option"),
        ("=3", "'=3' in the data '.*' is no option"),
        ("complete=", "option complete='' is not bool"),
    ):
        with pytest.raises(InputError, match=message) as error:
            load_dataset(f"{folder}?{text}")
        assert "\n" not in str(error.value)
    # one in a path or a pattern stays one
    plant(tmp_path / "who?x=1", ["cat/1.jpg"])
    write(tmp_path / "classnames.txt", "cat\n")
    for k in range(2):
        pack(tmp_path / f"s-{k}.tar", {"0.jpg": jpeg, "0.cls": b"0"})
    for options in ("", "?complete=false"):
        assert load_dataset(f"folder:{tmp_path / 'who?x=1'}{options}").classes == ("cat",)
        assert len(load_dataset(f"webdataset:{tmp_path}/s-?.tar{options}")) == 2


def test_read_names(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_names(write(tmp_path / "a.json", {"b": "x", "a": "y"})) == {"a": "y", "b": "x"}
    assert read_names(write(tmp_path / "b.json", ["x", "x"])) == {"0": "x", "1": "x"}
    for bad in ({}, [], {"a": 3}, {"a": " "}, 3, ["a", "", "b"]):
        with pytest.raises(InputError, match="not a list of class names"):
            read_names(write(tmp_path / "c.json", bad))
    with pytest.raises(InputError, match="cannot read class names"):
        read_names(tmp_path / "none.txt")
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert list(read_names("~/b.json")) == ["0", "1"]


@pytest.mark.parametrize(
    "data", ["folder:{}?classes=", "csv:{}/a.csv?classes=", "pets:{}?split_file="]
)
def test_a_home_that_is_not_there(data: str, tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["cat/1.jpg"])
    write(tmp_path / "a.csv", "path,label\ncat/1.jpg,cat\n")
    with pytest.raises(InputError, match=r"~nosuchuser/n\.txt"):
        load_dataset(data.format(tmp_path) + "~nosuchuser/n.txt")


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
    assert looks_like(named) == "csv"
    mine = write(tmp_path / "c.csv", "path;label\nx/1.jpg;dog, small\n3.jpg;cat\n3.jpg;cat\n")
    assert load_dataset(f"csv:{mine}").classes == ("cat", "dog, small")  # as Excel may write it
    lost = write(tmp_path / "d.csv", "path,label\nmissing.jpg,cat\n")
    assert len(load_dataset(f"csv:{lost}", complete=False)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("path,label\n", "has no rows"),
        ("who,what\nx,y\n", "it needs path and label"),
        ("path,label\nno.jpg,cat\n", "names 'no.jpg', which is not in"),
        ("path,label\n1.jpg\n", "in row 1 of .* '1.jpg' has no label"),
        ("path,label\n1.jpg,cat\n1.jpg, \n", "in row 2 of .* '1.jpg' has no label"),
        ("path,label\n,cat\n", "in row 1 of .* there is no path"),
        ("path,label\n1.jpg,cat\n1.jpg,dog\n", "'1.jpg' twice, as 'cat' and as 'dog'; keep one"),
        ("path,label\n1.jpg,1\n", r"are numbers; give .* csv:a.csv\?classes=names.txt"),
        ("path,label\n1.jpg,5\n?", "label '5' of image 1 .* a number from 0 to 0"),
    ],
)
def test_bad_tables(text: str, message: str, tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["1.jpg"])
    text, mark, _ = text.partition("?")
    options = {"classes": str(write(tmp_path / "names.json", ["cat"]))} if mark else {}
    with pytest.raises(InputError, match=message):
        load_dataset(f"csv:{write(tmp_path / 'a.csv', text)}", **options)


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
    for options, message in (
        ({"part": "val"}, "has no part 'val'"),
        ({"label": "z"}, r"no label column 'z'; put \?label=NAME"),
        ({"label": "n"}, r"has no class names; .* \?classes=FILE"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(f"hf:{tmp_path}", **options)
    assert looks_like(tmp_path) == "hf"
    table.save_to_disk(str(tmp_path / "one"))
    assert len(load_dataset(f"hf:{tmp_path / 'one'}")) == 3
