"""`check_dataset` finds what is wrong before a run does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from adte.core.errors import InputError
from adte.data import check_dataset
from adte.data.names import imagenet_ids


def statuses(name: str, path: Path, **options: object) -> dict[str, tuple[str, str]]:
    findings = check_dataset(name, str(path), **options)
    json.dumps([f.row() for f in findings])
    return {f.what: (f.status, f.detail) for f in findings}


def test_a_whole_set_is_found_right(shared_data: Path, tmp_path: Path, plant: Callable) -> None:
    file = shared_data / "coop-splits/split_zhou_DescribableTextures.json"
    plant(tmp_path, [f"images/{p}" for p, _, _ in json.loads(file.read_text())["test"]])
    (tmp_path / file.name).symlink_to(file)
    found = statuses("dtd", tmp_path)
    assert "wrong" not in {status for status, _ in found.values()}
    assert found["images"] == ("ok", "1692 images, 1692 expected")
    assert found["class sizes"] == ("ok", "36 to 36 images a class")
    assert found["class order"] == ("ok", "one label a folder")
    assert found["split file"][0] == "ok"
    assert found["sample"] == ("ok", "32 of 32 decoded, sides 6 to 8 pixels")
    assert "ViT-B-16 44.3 %" in found["zero-shot to expect"][1]
    (tmp_path / file.name).unlink()
    (tmp_path / file.name).write_text(file.read_text() + "\n")
    assert statuses("dtd", tmp_path)["split file"][0] == "note"


def test_counts_and_empty_classes(tmp_path: Path, plant: Callable) -> None:
    ids = imagenet_ids("imagenet-r")
    plant(tmp_path, [f"{w}/art_0.jpg" for w in ids[1:]])
    found = statuses("imagenet-r", tmp_path)
    assert found["images"] == ("wrong", "199 images, 30000 expected")
    assert found["empty classes"] == ("wrong", ids[0])
    assert found["class order"][0] == "ok"
    other = statuses("imagenet", tmp_path)
    assert other["looks like"] == ("note", "imagenet-r")
    assert "missile, sunglasses" in other["repeated names"][1]


def test_unreadable_samples_and_other_layouts(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["cat/0.jpg", "dog/0.jpg"])
    (tmp_path / "dog/1.jpg").write_bytes(b"torn")
    found = statuses("folder", tmp_path)
    assert found["sample"][0] == "wrong"
    assert "2 of 3 decoded" in found["sample"][1]
    assert "dog/1.jpg" in found["sample"][1]
    for path in tmp_path.rglob("*.jpg"):
        path.unlink()
        path.write_bytes(b"torn")
    status, said = statuses("folder", tmp_path)["sample"]
    assert (status, said.partition(",")[0]) == ("wrong", "none of the 3 images could be read")
    wrong = statuses("pets", tmp_path)
    assert wrong["layout"][0] == "wrong"
    assert "looks like folder" in wrong["layout"][1]
    assert statuses("pets", tmp_path / "none")["layout"][0] == "wrong"
    with pytest.raises(InputError, match="unknown data set"):
        check_dataset("petz", str(tmp_path))


def test_a_lent_folder(shared_data: Path) -> None:
    found = statuses("folder", shared_data / "tiny-imagenet-val", sample=8)
    assert found["sample"] == ("ok", "8 of 8 decoded, sides 64 to 64 pixels")
    assert found["class order"] == ("ok", "WordNet ids in sorted order")
