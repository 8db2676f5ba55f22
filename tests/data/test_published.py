"""ImageNet, CIFAR and their relatives: which image has which label in every layout."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.cards import row
from adte.data.names import imagenet_classes, imagenet_ids, imagenet_names

IDS = imagenet_ids()
A, R, TINY = (imagenet_ids(name) for name in ("imagenet-a", "imagenet-r", "tiny-imagenet"))
VAL = [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 5)]
Write = Callable[[Path, object], Path]


def part(spec: str, **options: Any) -> Any:
    """A miniature of a set."""
    return load_dataset(spec, complete=False, **options)


# ---------------------------------------------------------------- ImageNet's names


def test_the_thousand_names_and_the_subsets(shared_data: Path) -> None:
    lent = json.loads((shared_data / "imagenet-classes.json").read_text())
    assert dict(imagenet_classes()) == lent  # OpenAI's
    names = imagenet_names()
    assert len(names) == len(set(names)) + 2 == 1000
    assert [i for i, n in enumerate(names) if n in ("missile", "sunglasses")] == [
        657,
        744,
        836,
        837,
    ]
    for ids in (A, R, TINY):
        assert len(ids) == 200
        assert list(ids) == sorted(set(ids))
    assert (len({*A} & {*R}), len({*TINY} & {*A}), len({*TINY} & {*R})) == (86, 74, 62)
    with pytest.raises(InputError, match="unknown subset"):
        imagenet_ids("imagenet-x")


@pytest.mark.parametrize("subset", ["imagenet", "imagenet-a", "imagenet-r"])
def test_ids_agree_with_timm(subset: str) -> None:
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("compares with timm, which is not installed")
    file = f"data/_info/{subset.replace('-', '_')}_synsets.txt"
    text = Path(spec.submodule_search_locations[0], file).read_text()
    assert list(imagenet_ids(subset)) == text.split()


# ---------------------------------------------------------------- ImageNet and its relatives


@pytest.mark.parametrize(
    ("name", "ids", "places"),
    [
        ("imagenet", IDS, ["", "val/", "images/val/", "imagenet/images/val/", "imagenet-1k/val/"]),
        ("imagenet-a", A, ["imagenet-adversarial/imagenet-a/", "imagenet-a/"]),
        ("imagenet-r", R, ["imagenet-rendition/imagenet-r/", ""]),
        ("imagenet-sketch", IDS, ["sketch/"]),
        ("imagenet-v2", list(map(str, range(1000))), ["imagenetv2-matched-frequency-format-val/"]),
        ("tiny-imagenet", TINY, ["val/", "tiny-imagenet-200/val/"]),
    ],
)
def test_folders_by_id_in_every_tree(
    name: str, ids: Any, places: list[str], tmp_path: Path, plant: Callable
) -> None:
    """V2's are numbers: as texts, 10 comes before 2."""
    for number, place in enumerate(places):
        root = tmp_path / str(number)
        chosen = ids[10], ids[2], ids[-1]
        plant(root, [f"{place}{w}/{k}.JPEG" for w in chosen for k in (2, 1)])
        plant(root, [f"{place}{ids[2]}/.DS_Store", f"{place}README.txt"])
        data = part(f"{name}:{root}")
        last = len(ids) - 1
        assert data.labels.tolist() == [2, 2, 10, 10, last, last]
        assert data.ids[0] == f"{ids[2]}/1.JPEG"
        assert data[2].source.is_file()
        assert data.class_ids == (IDS if len(ids) == 1000 else ids)
        assert data.classes[2] == imagenet_names()[IDS.index(data.class_ids[2])]


def test_v2_s_variants_are_told_apart(tmp_path: Path, plant: Callable) -> None:
    folder = tmp_path / "imagenetv2-top-images-format-val"
    plant(folder, [f"{i}/x.jpeg" for i in range(3)])
    with pytest.raises(InputError, match="top-images variant"):
        part(f"imagenet-v2:{folder}")
    assert "top-images" in part(f"imagenet-v2:{tmp_path}", variant="top-images").split


def test_a_complete_set(tmp_path: Path, plant: Callable) -> None:
    sizes = [37 + (i % 2) for i in range(200)]  # 7,500 in all
    plant(tmp_path, [f"imagenet-a/{w}/{k}.jpg" for w, n in zip(A, sizes, strict=True)
                     for k in range(n)])  # fmt: skip
    assert load_dataset(f"imagenet-a:{tmp_path}").counts.tolist() == sizes
    (tmp_path / "imagenet-a" / A[0] / "0.jpg").unlink()
    with pytest.raises(InputError, match="7499 images instead of 7500"):
        load_dataset(f"imagenet-a:{tmp_path}")


def test_flat_validation_with_a_ground_truth(tmp_path: Path, plant: Callable, write: Write) -> None:
    """The devkit numbers classes in an order of its own: here 1 is the last id, 2 the first."""
    io = pytest.importorskip("scipy.io")
    flat = tmp_path / "ILSVRC/Data/CLS-LOC/val"
    plant(flat, VAL[:3])
    with pytest.raises(InputError, match="flat and carry no labels"):
        part(f"imagenet:{tmp_path}")
    write(tmp_path / "LOC_val_solution.csv",
          f"ImageId,PredictionString\n{VAL[1][:-5]},{IDS[7]} 1 2 3 4\n"
          f"{VAL[0][:-5]},{IDS[9]} 1 2 3 4 {IDS[9]} 5 6 7 8\n")  # fmt: skip
    assert part(f"imagenet:{tmp_path}").labels.tolist() == [9, 7]
    kit = tmp_path / "ILSVRC2012_devkit_t12/data"
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    rows = [(1, IDS[999], "x"), (2, IDS[0], "y"), (3, IDS[744], "z"), (1001, "n00001740", "inner")]
    kit.mkdir(parents=True)
    io.savemat(kit / "meta.mat", {"synsets": np.array(rows, dtype=kind)})
    truth = write(kit / "ILSVRC2012_validation_ground_truth.txt", "2\n1\n3\n1\n")
    data = part(f"imagenet:{tmp_path}")
    assert data.labels.tolist() == [0, 999, 744]
    assert data.ids[1] == VAL[1]
    assert data.split.startswith(f"flat files with {truth.name}, less 1 of 4 images")
    write(truth, "2\n1\n3\n1001\n")
    with pytest.raises(InputError, match=r"00000004.JPEG' the class 'n00001740', which is none"):
        part(f"imagenet:{tmp_path}")


def test_tiny_imagenet_as_distributed(tmp_path: Path, plant: Callable, write: Write) -> None:
    top = tmp_path / "tiny-imagenet-200"
    plant(top, [f"val/images/val_{i}.JPEG" for i in range(3)])
    plant(top, [f"train/{w}/images/{w}_{k}.JPEG" for w in (TINY[9], TINY[2]) for k in range(2)])
    ids = (TINY[7], TINY[0], TINY[7])
    lines = [f"val_{i}.JPEG\t{w}\t0\t1\t2\t3\n" for i, w in enumerate(ids)]
    write(top / "val/val_annotations.txt", "".join(lines))
    write(top / "wnids.txt", "\n".join(reversed(TINY)))  # not sorted, and not to be used
    for place in (tmp_path, top, top / "val"):
        data = part(f"tiny-imagenet:{place}")
        assert data.labels.tolist() == [7, 0, 7]
        assert data[0].source.is_file()
    with pytest.raises(InputError, match="no image for 198 of 200"):
        load_dataset(f"tiny-imagenet:{tmp_path}")
    assert looks_like(tmp_path) == "tiny-imagenet"
    (top / "val/images/val_1.JPEG").unlink()
    with pytest.raises(InputError, match=r"names 'val_1.JPEG', which is not in .*complete=false"):
        load_dataset(f"tiny-imagenet:{tmp_path}")
    data = part(f"tiny-imagenet:{tmp_path}")
    assert data.labels.tolist() == [7, 7]
    assert "less 1 of 3 images" in data.split
    data = part(f"tiny-imagenet:{tmp_path}", part="train")
    assert data.labels.tolist() == [2, 2, 9, 9]
    assert data.ids[0] == f"{TINY[2]}/images/{TINY[2]}_0.JPEG"


def test_a_lent_folder_is_read_alike_by_two_readers(shared_data: Path) -> None:
    folder = shared_data / "tiny-imagenet-val"
    data, same = part(f"tiny-imagenet:{folder}"), load_dataset(f"folder:{folder}")
    assert data.counts.tolist() == [10] * 200
    assert (same.classes, same.class_ids) == (data.classes, data.class_ids)
    assert same.labels.tolist() == data.labels.tolist()


def test_another_set_s_layout_is_named(tmp_path: Path, plant: Callable) -> None:
    numbers = [str(i) for i in range(1000)]
    for place, ids, file, name in (
        ("a", A, "x.jpg", "imagenet-a"), ("r", R, "x.jpg", "imagenet-r"),
        ("tiny", TINY, "x.jpg", "tiny-imagenet"), ("val", IDS, VAL[0], "imagenet"),
        ("sketch", IDS, "sketch_0.JPEG", "imagenet-sketch"),
        ("v2", numbers, "x.jpg", "imagenet-v2"),
    ):  # fmt: skip
        plant(tmp_path / place, [f"{w}/{file}" for w in ids])
        assert looks_like(tmp_path / place) == name
    for spec, message in (
        ("imagenet:a", r"800 of 1000 classes.*looks like imagenet-a"),
        ("imagenet-a:r", r"none of the 200 classes.*looks like imagenet-r"),
        ("imagenet:v2", "looks like imagenet-v2"),
        ("imagenet-sketch:val", r"1000 images instead of 50889.*looks like imagenet:"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(spec.replace(":", f":{tmp_path}/"))


def test_imagenet_c_by_type_and_severity(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, [f"defocus_blur/{s}/{w}/{VAL[k]}" for s in range(1, 6)
                     for k, w in enumerate((IDS[3], IDS[1], IDS[9]))])  # fmt: skip
    plant(tmp_path, [f"weather/fog/5/{IDS[2]}/{VAL[0]}"])  # the archive's name kept as a level
    both = part(f"imagenet-c:{tmp_path}", corruption="fog, defocus-blur")
    assert both.labels.tolist() == [2, 1, 3, 9]
    assert [e.domain for e in both] == ["fog/5"] + ["defocus_blur/5"] * 3
    assert both.ids[0] == f"{IDS[2]}/{VAL[0]}"  # of the photograph, whatever was done to it
    assert both[0].source.is_file()
    every = part(f"imagenet-c:{tmp_path}", corruption="defocus_blur", severity="1-5")
    assert [e.domain for e in every][::3] == [f"defocus_blur/{s}" for s in range(1, 6)]
    assert (len(every), len(set(every.ids))) == (15, 3)
    for options, message in (
        ({}, r"no gaussian_noise/5/; .*\?corruption=defocus_blur,fog "),
        ({"corruption": "fog", "severity": "1-5"}, r"no fog/1/; .* put \?severity=5 behind the"),
        ({"corruption": "fog", "severity": "6"}, "severity='6'"),
    ):
        with pytest.raises(InputError, match=message):
            part(f"imagenet-c:{tmp_path}", **options)
    assert looks_like(tmp_path) == "imagenet-c"


# ---------------------------------------------------------------- CIFAR

NAMES = {name: row(name)["names"] for name in ("cifar10", "cifar100")}
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def batch(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(data, protocol=2))


def cifar(root: Path, name: str = "cifar10") -> Path:
    flat = PIXELS.transpose(0, 3, 1, 2).reshape(4, -1)  # channel after channel, as stored
    if name == "cifar100":
        labels = {"fine_labels": [99, 0, 1, 53], "coarse_labels": [1, 2, 3, 4]}
        batch(root / "test", {"data": flat, **labels})
        batch(root / "meta", {"fine_label_names": list(NAMES[name])})
    else:
        batch(root / "test_batch", {"data": flat, "labels": [3, 9, 0, 1]})
        batch(root / "batches.meta", {"label_names": list(NAMES[name])})
    return root


@pytest.mark.parametrize(
    ("name", "names"),
    [("cifar10", ["cat", "truck", "airplane", "automobile"]),
     ("cifar100", ["worm", "apple", "aquarium_fish", "orange"])],
)  # fmt: skip
def test_cifar_s_test_batch(name: str, names: list[str], tmp_path: Path) -> None:
    cifar(tmp_path / ("cifar-10-batches-py" if name == "cifar10" else "."), name)
    data = part(f"{name}:{tmp_path}")
    assert [data.classes[e.label] for e in data] == names
    np.testing.assert_array_equal(data[2].source, PIXELS[2])
    assert data[2].id == "test/00002"
    assert len(pickle.loads(pickle.dumps(data))) == 4
    with pytest.raises(InputError, match=r"no image for \d+ of .* put \?complete=false behind"):
        load_dataset(f"{name}:{tmp_path}")
    other = {"cifar10": "cifar100", "cifar100": "cifar10"}[name]
    with pytest.raises(InputError, match=f"looks like {name}"):
        load_dataset(f"{other}:{tmp_path}")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("adte-was-here",)


def test_a_batch_cannot_run_code_nor_change_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batch(cifar(tmp_path) / "test_batch", Evil())
    with pytest.raises(InputError, match="is not a batch of CIFAR"):
        part(f"cifar10:{tmp_path}")
    assert not (tmp_path / "adte-was-here").exists()
    batch(tmp_path / "batches.meta", {"label_names": sorted(NAMES["cifar10"], reverse=True)})
    with pytest.raises(InputError, match="in their order"):
        part(f"cifar10:{tmp_path}")


def arrays(root: Path, labels: list[int], *types: str) -> Path:
    """Every pixel says its type, severity and image."""
    root.mkdir(parents=True, exist_ok=True)
    n = len(labels)
    for t, name in enumerate(types):
        values = [100 * t + 10 * (s + 1) + i for s in range(5) for i in range(n)]
        array = np.broadcast_to(np.array(values, np.uint8)[:, None, None, None], (5 * n, 32, 32, 3))
        np.save(root / f"{name}.npy", array)
    np.save(root / "labels.npy", np.tile(labels, 5))
    return root


def test_severity_s_is_the_sth_fifth(tmp_path: Path) -> None:
    arrays(tmp_path / "CIFAR-10-C", [3, 8, 9], "fog", "gaussian_blur")
    data = part(f"cifar10-c:{tmp_path}", corruption="gaussian_blur, fog", severity="2,5")
    assert data.labels.tolist() == [3, 8, 9] * 4
    assert [e.domain for e in data][::3] == ["gaussian_blur/2", "gaussian_blur/5", "fog/2", "fog/5"]
    assert [int(e.source[0, 0, 0]) for e in data] == [
        120, 121, 122, 150, 151, 152, 20, 21, 22, 50, 51, 52]  # fmt: skip
    assert data[4].id == "test/00001"
    again = pickle.loads(pickle.dumps(data))  # the memory maps stay behind
    assert int(again[11].source[0, 0, 0]) == 52
    assert len(pickle.dumps(data)) < 4000
    with pytest.raises(InputError, match=r"has no gaussian_noise.npy.*\?corruption=fog,gaussian_b"):
        part(f"cifar10-c:{tmp_path}")


def test_ten_and_hundred_are_told_apart_and_broken_arrays_named(tmp_path: Path) -> None:
    ten, hundred = tmp_path / "ten", arrays(tmp_path / "hundred", [3, 99], "fog")
    arrays(ten, [3, 9], "fog")
    assert (looks_like(ten), looks_like(hundred)) == ("cifar10-c", "cifar100-c")
    with pytest.raises(InputError, match="looks like cifar100-c"):
        load_dataset(f"cifar10-c:{hundred}", corruption="fog")
    data = part(f"cifar100-c:{hundred}", corruption="fog")
    assert [data.classes[e.label] for e in data] == ["bear", "worm"]
    np.save(ten / "fog.npy", np.zeros((9, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"fog.npy' holds uint8 \(9, 32, 32, 3\) instead of"):
        part(f"cifar10-c:{ten}", corruption="fog")
    np.save(ten / "labels.npy", np.arange(10))
    with pytest.raises(InputError, match="not the test labels five times over"):
        part(f"cifar10-c:{ten}", corruption="fog")
