"""Data sets as values: labels are indices into names, ids are distinct, nothing is decoded."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import Dataset, Example, dataset_info, list_datasets, load_dataset
from adte.data.registry import DatasetInfo, Reader, create_reader, reader, register_dataset


def small(**changes: object) -> Dataset:
    data = Dataset.of_files(
        "small", Path("x"), [("b/1.jpg", 1), ("a/1.jpg", 0), ("b/2.jpg", 1)],
        classes=("missile", "missile"), class_ids=("a", "b"),
    )  # fmt: skip
    return replace(data, **changes)  # type: ignore[arg-type]


def test_a_dataset_is_a_sequence_of_examples() -> None:
    data = small(groups=np.array([3, 1, 2]))
    assert data[0] == Example(Path("x/b/1.jpg"), 1, "b/1.jpg", "small", 3)
    assert data[-1].id == "b/2.jpg"
    assert [e.label for e in data] == [1, 0, 1]
    assert [e.id for e in data[1:]] == ["a/1.jpg", "b/2.jpg"]
    assert data.counts.tolist() == [1, 2]
    with pytest.raises(IndexError):
        data[3]


def test_it_survives_pickling() -> None:
    data = small(domains=["x", "y", "x"])
    again = pickle.loads(pickle.dumps(data))
    assert list(again) == list(data)
    assert again.classes == data.classes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([0, 1, 2])}, "label 2 .* no class name"),
        ({"labels": np.array([0, -1, 1])}, "label -1"),
        ({"labels": np.array([0, 1])}, "one label and id an image"),
        ({"classes": ("one",)}, "one id a name"),
        ({"class_ids": ("a", "a")}, "'a' .* occurs twice"),
    ],
)
def test_labels_names_and_ids_must_agree(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**changes)


# images and classes of section 2 of the data-set cards
COUNTS = {
    "imagenet": (50_000, 1000), "imagenet-v2": (10_000, 1000), "imagenet-a": (7_500, 200),
    "imagenet-r": (30_000, 200), "imagenet-sketch": (50_889, 1000), "caltech101": (2_465, 100),
    "pets": (3_669, 37), "cars": (8_041, 196), "flowers": (2_463, 102), "food101": (30_300, 101),
    "aircraft": (3_333, 100), "sun397": (19_850, 397), "dtd": (1_692, 47), "eurosat": (8_100, 10),
    "ucf101": (3_783, 101), "imagenet-c": (50_000, 1000), "cifar10": (10_000, 10),
    "cifar100": (10_000, 100), "cifar10-c": (10_000, 10), "cifar100-c": (10_000, 100),
    "colored-mnist": (20_000, 2), "tiny-imagenet": (10_000, 200),
}  # fmt: skip


def test_the_cards_have_the_published_counts() -> None:
    cards = {n: dataset_info(n) for n in list_datasets()}
    assert {n: (c.images, c.classes) for n, c in cards.items() if c.images} == COUNTS
    assert set(cards) - set(COUNTS) == {"folder", "csv", "webdataset", "hf", "remote", "parquet"}
    assert cards["pets"].zero_shot == {"ViT-B-16": 0.889, "ViT-L-14": 0.935}
    ten = [c.zero_shot["ViT-B-16"] for c in cards.values() if c.column and c.column.endswith(".")]
    assert len(ten) == 10
    assert np.mean(ten) == pytest.approx(0.649, abs=6e-4)  # the paper's average
    for card in cards.values():
        assert card.how
        assert card.layouts
        for template in card.templates:
            assert template.count("{}") == 1
        for file in card.downloads:
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == {"md5": 32, "sha256": 64, "": 0}[kind]


@pytest.mark.parametrize("name", list_datasets())
def test_every_set_has_a_row_and_says_what_is_missing(name: str, tmp_path: Path) -> None:
    row = dataset_info(name).row()
    assert row["name"] == name
    assert "complete" in [o["name"] for o in row["options"]]
    assert row["usage"].startswith(f"{name}:PATH or {name}:PATH?")
    with pytest.raises(InputError, match=r"does not exist|is no tar"):
        load_dataset(f"{name}:{tmp_path / 'nowhere'}")
    if name not in ("webdataset", "csv"):
        with pytest.raises(InputError, match="in a layout that adte knows"):
            load_dataset(f"{name}:{tmp_path}")
    with pytest.raises(InputError, match="needs a path"):
        load_dataset(name)
    assert issubclass(reader(name), Reader)


@pytest.mark.parametrize("name", list_datasets())
def test_every_option_can_be_set_in_the_spec(name: str, tmp_path: Path) -> None:
    """Once `adte datasets NAME` listed options that no verb took."""
    for row in dataset_info(name).row()["options"]:
        value = (row["choices"] or [row["default"]])[-1]
        with pytest.raises(InputError, match=r"nowhere'.*(does not exist|is no tar)"):
            load_dataset(f"{name}:{tmp_path / 'nowhere'}?{row['name']}={value}")
    with pytest.raises(InputError, match=r"in the data '.*': unknown option 'nonsense'"):
        load_dataset(f"{name}:{tmp_path}?nonsense=1")
    with pytest.raises(InputError, match="complete='maybe' is not bool"):
        load_dataset(f"{name}:{tmp_path}?complete=maybe")


def test_unknown_names_and_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'imagenet-a'"):
        load_dataset(f"imagenet_a:{tmp_path}")
    with pytest.raises(InputError, match=r"unknown option .* 'spilt' .*did you mean 'split'"):
        load_dataset(f"pets:{tmp_path}", spilt="coop")
    for path in (str(tmp_path), tmp_path, None):
        with pytest.raises(InputError, match="write NAME:PATH"):
            load_dataset(path)  # type: ignore[arg-type]


def test_only_a_reader_with_a_card_is_registered() -> None:
    with pytest.raises(InputError, match=r"Reader.* is not a DatasetInfo"):
        register_dataset(Reader)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"dict.* is no class of readers"):
        register_dataset(DatasetInfo("own", "mine"))(dict)  # type: ignore[type-var]
    assert "own" not in list_datasets()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("colored-mnist", {"part": "tset"}, "unknown part of data set 'colored-mnist' 'tset'"),
        ("colored-mnist", {"seed": -1}, "seed=-1 of data set 'colored-mnist' must be at least 0"),
        ("pets", {"split": "coopp"}, "did you mean 'coop'"),
        ("pets", {"complete": "no"}, "complete='no' of data set 'pets' is no switch"),
        ("imagenet-v2", {"variant": None}, "unknown variant"),
    ],
)
def test_options_given_in_python_are_checked(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Once only those behind a path were."""
    with pytest.raises(InputError, match=message):
        create_reader(name, **values)
    with pytest.raises(InputError, match=message):
        load_dataset(f"{name}:{tmp_path}", **values)
