"""ImageNet and its relatives: which folder is which label."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.names import imagenet_classes, imagenet_ids, imagenet_names

IDS = imagenet_ids()
Write = Callable[[Path, object], Path]


def test_the_thousand_names_are_openai_s(shared_data: Path) -> None:
    lent = json.loads((shared_data / "imagenet-classes.json").read_text())
    assert dict(imagenet_classes()) == lent
    assert list(IDS) == sorted(lent)


def test_names_repeat_and_subsets_have_200() -> None:
    names = imagenet_names()
    assert len(names) == 1000
    assert len(set(names)) == 998
    assert [i for i, n in enumerate(names) if n == "missile"] == [657, 744]
    assert [i for i, n in enumerate(names) if n == "sunglasses"] == [836, 837]
    assert (names[134], names[517]) == ("crane bird", "construction crane")
    a, r, tiny = (imagenet_ids(s) for s in ("imagenet-a", "imagenet-r", "tiny-imagenet"))
    assert len(a) == len(r) == len(tiny) == 200
    for ids in (a, r, tiny):
        assert list(ids) == sorted(set(ids))
    assert len(set(a) & set(r)) == 86
    assert (len(set(tiny) & set(a)), len(set(tiny) & set(r))) == (74, 62)
    doubles = {IDS[i] for i in (657, 744, 836, 837)}
    assert not doubles & set(a)
    assert doubles & set(r) == {IDS[657]}
    with pytest.raises(InputError, match="unknown subset"):
        imagenet_ids("imagenet-x")


@pytest.mark.parametrize("place", ["", "val/", "images/val/", "imagenet/images/val/",
                                   "ImageNet/val/", "imagenet-1k/val/"])  # fmt: skip
def test_folders_by_wnid_in_every_tree(place: str, tmp_path: Path, plant: Callable) -> None:
    ids = [IDS[999], IDS[0], IDS[744]]
    plant(tmp_path, [f"{place}{w}/ILSVRC2012_val_0000000{k}.JPEG" for w in ids for k in (2, 1)])
    plant(tmp_path, [f"{place}{IDS[0]}/.DS_Store", f"{place}README.txt"])
    data = load_dataset(f"imagenet:{tmp_path}", complete=False)
    assert data.labels.tolist() == [0, 0, 744, 744, 999, 999]
    assert data.ids[0] == f"{IDS[0]}/ILSVRC2012_val_00000001.JPEG"
    assert data[2].source.is_file()
    assert (data.classes[744], data.class_ids[744]) == ("missile", IDS[744])
    assert len(data.classes) == 1000
    assert "WordNet" in data.split


def flat(root: Path, plant: Callable, n: int = 4) -> None:
    plant(root, [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, n + 1)])


def test_flat_validation_with_devkit_ids(tmp_path: Path, plant: Callable, write: Write) -> None:
    io = pytest.importorskip("scipy.io")
    flat(tmp_path / "val", plant)
    # the devkit numbers classes in an order of its own: here 1 is the last id, 2 the first
    kit = tmp_path / "ILSVRC2012_devkit_t12/data"
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    rows = [(1, IDS[999], "x"), (2, IDS[0], "y"), (3, IDS[744], "z"), (1001, "n00001740", "inner")]
    kit.mkdir(parents=True)
    io.savemat(kit / "meta.mat", {"synsets": np.array(rows, dtype=kind)})
    write(kit / "ILSVRC2012_validation_ground_truth.txt", "2\n1\n3\n1\n")
    data = load_dataset(f"imagenet:{tmp_path}", complete=False)
    assert data.labels.tolist() == [0, 999, 744, 999]
    assert data.ids[1] == "ILSVRC2012_val_00000002.JPEG"
    assert "ground_truth" in data.split
    write(kit / "ILSVRC2012_validation_ground_truth.txt", "2\n1\n3\n1001\n")
    with pytest.raises(InputError, match=r"00000004.JPEG' the class 'n00001740', which is none"):
        load_dataset(f"imagenet:{tmp_path}", complete=False)


def test_flat_validation_with_the_other_ground_truth(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    flat(tmp_path / "ILSVRC/Data/CLS-LOC/val", plant, 2)
    with pytest.raises(InputError, match="flat and carry no labels"):
        load_dataset(f"imagenet:{tmp_path}", complete=False)
    write(tmp_path / "LOC_val_solution.csv",
          f"ImageId,PredictionString\nILSVRC2012_val_00000002,{IDS[7]} 1 2 3 4\n"
          f"ILSVRC2012_val_00000001,{IDS[9]} 1 2 3 4 {IDS[9]} 5 6 7 8\n")  # fmt: skip
    data = load_dataset(f"imagenet:{tmp_path}", complete=False)
    assert data.labels.tolist() == [9, 7]


def test_v2_folders_are_numbers(tmp_path: Path, plant: Callable) -> None:
    place = "imagenetv2-matched-frequency-format-val"
    plant(tmp_path, [f"{place}/{i}/x.jpeg" for i in range(1000)])
    data = load_dataset(f"imagenet-v2:{tmp_path}", complete=False)
    assert data.labels.tolist() == list(range(1000))  # as texts: 0, 1, 10, 100, 101, …
    assert data.ids[2] == "2/x.jpeg"
    assert (data.classes[1], data.class_ids[1]) == ("goldfish", IDS[1])
    with pytest.raises(InputError, match="1000 images instead of 10000"):
        load_dataset(f"imagenet-v2:{tmp_path}")
    assert load_dataset(f"imagenet-v2:{tmp_path / place}", complete=False).labels[10] == 10


def test_v2_s_variants_are_told_apart(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, [f"imagenetv2-top-images-format-val/{i}/x.jpeg" for i in range(3)])
    folder = tmp_path / "imagenetv2-top-images-format-val"
    with pytest.raises(InputError, match="top-images variant"):
        load_dataset(f"imagenet-v2:{folder}", complete=False)
    data = load_dataset(f"imagenet-v2:{tmp_path}", complete=False, variant="top-images")
    assert "top-images" in data.split


@pytest.mark.parametrize(
    ("name", "place"),
    [("imagenet-a", "imagenet-adversarial/imagenet-a"),
     ("imagenet-r", "imagenet-rendition/imagenet-r"),
     ("imagenet-a", "imagenet-a"), ("imagenet-r", "")],
)  # fmt: skip
def test_a_and_r_are_200_way(name: str, place: str, tmp_path: Path, plant: Callable) -> None:
    ids = imagenet_ids(name)
    plant(tmp_path / place, [f"{w}/art_{k}.jpg" for w in (ids[199], ids[5]) for k in range(2)])
    plant(tmp_path / place, ["README.txt", f"{ids[5]}/README.txt"])
    data = load_dataset(f"{name}:{tmp_path}", complete=False)
    assert data.labels.tolist() == [5, 5, 199, 199]
    assert len(data.classes) == 200
    assert data.classes[5] == imagenet_names()[IDS.index(ids[5])]
    assert data.class_ids == ids


def test_imagenet_a_complete(tmp_path: Path, plant: Callable) -> None:
    ids = imagenet_ids("imagenet-a")
    sizes = [37 + (i % 2) for i in range(200)]  # 7,500 in all
    plant(tmp_path, [f"imagenet-a/{w}/{k}.jpg" for w, n in zip(ids, sizes, strict=True)
                     for k in range(n)])  # fmt: skip
    assert load_dataset(f"imagenet-a:{tmp_path}").counts.tolist() == sizes
    (tmp_path / "imagenet-a" / ids[0] / "0.jpg").unlink()
    with pytest.raises(InputError, match="7499 images instead of 7500"):
        load_dataset(f"imagenet-a:{tmp_path}")


def test_another_set_s_layout_is_named(tmp_path: Path, plant: Callable) -> None:
    a, r, tiny = (imagenet_ids(s) for s in ("imagenet-a", "imagenet-r", "tiny-imagenet"))
    plant(tmp_path, [f"a/{w}/x.jpg" for w in a])
    plant(tmp_path, [f"r/{w}/x.jpg" for w in r])
    plant(tmp_path, [f"tiny/{w}/x.jpg" for w in tiny])
    plant(tmp_path, [f"val/{w}/ILSVRC2012_val_00000001.JPEG" for w in IDS])
    plant(tmp_path, [f"sketch/{w}/sketch_0.JPEG" for w in IDS])
    plant(tmp_path, [f"v2/{i}/x.jpeg" for i in range(1000)])
    for folder, name in (("a", "imagenet-a"), ("r", "imagenet-r"), ("tiny", "tiny-imagenet"),
                         ("val", "imagenet"), ("sketch", "imagenet-sketch"),
                         ("v2", "imagenet-v2")):  # fmt: skip
        assert looks_like(tmp_path / folder) == name
    with pytest.raises(InputError, match=r"800 of 1000 classes.*looks like imagenet-a"):
        load_dataset(f"imagenet:{tmp_path / 'a'}")
    with pytest.raises(InputError, match=r"none of the 200 classes.*looks like imagenet-r"):
        load_dataset(f"imagenet-a:{tmp_path / 'r'}")
    with pytest.raises(InputError, match="looks like imagenet-v2"):
        load_dataset(f"imagenet:{tmp_path / 'v2'}")
    with pytest.raises(InputError, match=r"1000 images instead of 50889.*looks like imagenet:"):
        load_dataset(f"imagenet-sketch:{tmp_path / 'val'}")
    data = load_dataset(f"imagenet-sketch:{tmp_path}", complete=False)
    assert data.ids[3] == f"{IDS[3]}/sketch_0.JPEG"


def test_imagenet_c_by_type_and_severity(tmp_path: Path, plant: Callable, write: Write) -> None:
    names = [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(3)]
    plant(tmp_path, [f"defocus_blur/{s}/{w}/{names[k]}" for s in range(1, 6)
                     for k, w in enumerate((IDS[3], IDS[1], IDS[9]))])  # fmt: skip
    plant(tmp_path, [f"weather/fog/5/{IDS[2]}/{names[0]}"])  # the archive's name kept as a level
    both = load_dataset(f"imagenet-c:{tmp_path}", corruption="fog, defocus-blur", complete=False)
    assert both.labels.tolist() == [2, 1, 3, 9]
    assert [e.domain for e in both] == ["fog/5"] + ["defocus_blur/5"] * 3
    assert both.ids[0] == f"{IDS[2]}/{names[0]}"  # of the photograph, whatever was done to it
    assert both[0].source.is_file()
    every = load_dataset(f"imagenet-c:{tmp_path}", corruption="defocus_blur", severity="1-5",
                         complete=False)  # fmt: skip
    assert list(dict.fromkeys(e.domain for e in every)) == [
        f"defocus_blur/{s}" for s in range(1, 6)
    ]
    assert len(every) == 15
    assert len(set(every.ids)) == 3
    subset = write(tmp_path / "ids.txt", f"val/{IDS[3]}/{names[0]}\nval/{IDS[9]}/{names[2]}\n")
    few = load_dataset(f"imagenet-c:{tmp_path}", corruption="defocus_blur", severity=2,
                       subset_file=str(subset))  # fmt: skip
    assert few.labels.tolist() == [3, 9]  # complete: 997 of 1000 classes is how that list is
    assert "2 images of ids.txt" in few.split
    with pytest.raises(InputError, match=r"no gaussian_noise/5/; .*\?corruption=defocus_blur,fog "):
        load_dataset(f"imagenet-c:{tmp_path}", complete=False)
    with pytest.raises(InputError, match=r"no fog/1/; .* put \?severity=5 behind the path"):
        load_dataset(f"imagenet-c:{tmp_path}", corruption="fog", severity="1-5")
    with pytest.raises(InputError, match="severity='6'"):
        load_dataset(f"imagenet-c:{tmp_path}", corruption="fog", severity="6")
    assert looks_like(tmp_path) == "imagenet-c"


def package_file(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"compares with {package}, which is not installed")
    return Path(spec.submodule_search_locations[0]) / path


@pytest.mark.parametrize("subset", ["imagenet", "imagenet-a", "imagenet-r"])
def test_ids_agree_with_timm(subset: str) -> None:
    file = package_file("timm", f"data/_info/{subset.replace('-', '_')}_synsets.txt")
    assert list(imagenet_ids(subset)) == file.read_text().split()
