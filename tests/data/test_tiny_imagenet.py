"""Tiny-ImageNet in its three shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.names import imagenet_ids

TINY = imagenet_ids("tiny-imagenet")


def distributed(root: Path, plant: Callable, write: Callable) -> Path:
    top = root / "tiny-imagenet-200"
    ids = (TINY[7], TINY[0], TINY[7])
    plant(top, [f"val/images/val_{i}.JPEG" for i in range(3)])
    plant(top, [f"train/{w}/images/{w}_{k}.JPEG" for w in (TINY[9], TINY[2]) for k in range(2)])
    plant(top, ["test/images/test_0.JPEG"])
    lines = [f"val_{i}.JPEG\t{w}\t0\t1\t2\t3\n" for i, w in enumerate(ids)]
    write(top / "val/val_annotations.txt", "".join(lines))
    write(top / "wnids.txt", "\n".join(reversed(TINY)))  # not sorted, and not to be used
    return root


def test_validation_as_distributed(tmp_path: Path, plant: Callable, write: Callable) -> None:
    root = distributed(tmp_path, plant, write)
    for place in (root, root / "tiny-imagenet-200", root / "tiny-imagenet-200/val"):
        data = load_dataset(f"tiny-imagenet:{place}", complete=False)
        assert data.labels.tolist() == [7, 0, 7]
        assert data.classes[0] == "goldfish"
        assert data[0].source.is_file()
    with pytest.raises(InputError, match="no image for 198 of 200"):
        load_dataset(f"tiny-imagenet:{root}")
    assert looks_like(root) == "tiny-imagenet"
    (root / "tiny-imagenet-200/val/images/val_1.JPEG").unlink()
    with pytest.raises(InputError, match=r"names 'val_1.JPEG', which is not in .*complete=false"):
        load_dataset(f"tiny-imagenet:{root}")
    part = load_dataset(f"tiny-imagenet:{root}", complete=False)  # was refused all the same
    assert part.labels.tolist() == [7, 7]
    assert "less 1 of 3 images" in part.split


def test_training_folders(tmp_path: Path, plant: Callable, write: Callable) -> None:
    root = distributed(tmp_path, plant, write)
    data = load_dataset(f"tiny-imagenet:{root}", part="train", complete=False)
    assert data.labels.tolist() == [2, 2, 9, 9]
    assert data.ids[0] == f"{TINY[2]}/images/{TINY[2]}_0.JPEG"


def test_validation_moved_into_folders(shared_data: Path) -> None:
    folder = shared_data / "tiny-imagenet-val"
    data = load_dataset(f"tiny-imagenet:{folder}", complete=False)
    assert len(data) == 2000
    assert data.counts.tolist() == [10] * 200
    assert data.class_ids == TINY
    same = load_dataset(f"folder:{folder}")  # names from its classes.json
    assert (same.classes, same.class_ids) == (data.classes, data.class_ids)
    assert same.labels.tolist() == data.labels.tolist()
    with pytest.raises(InputError, match="2000 images instead of 10000"):
        load_dataset(f"tiny-imagenet:{folder}")
