"""The ten cross-domain sets: CoOp's split files, the official lists, and their traps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.coop import read_split
from adte.data.registry import create_reader

Write = Callable[[Path, object], Path]


def part(spec: str, **options: Any) -> Any:
    """A miniature of a set."""
    return load_dataset(spec, complete=False, **options)


# ---------------------------------------------------------------- CoOp's split files


def split(*rows: tuple[str, int, str], train: tuple[str, int, str] | None = None) -> dict:
    return {"train": [train] if train else [], "val": [], "test": [list(r) for r in rows]}


@pytest.mark.parametrize(
    ("name", "sizes", "names"),
    [
        ("dtd", (2820, 1128, 1692), {0: "banded", 30: "polka-dotted", 46: "zigzagged"}),
        ("pets", (2944, 736, 3669), {0: "abyssinian", 36: "yorkshire_terrier"}),
    ],
)
def test_the_lent_split_files_read_fully(
    name: str, sizes: tuple[int, ...], names: dict, shared_data: Path
) -> None:
    file = shared_data / "coop-splits" / create_reader(name).coop
    raw = json.loads(file.read_text())
    for which, size in zip(("train", "val", "test"), sizes, strict=True):
        found = read_split(file, which)
        assert len(found.files) == size
        assert [[f, y, found.names[y]] for f, y in found.files] == raw[which]
    assert {i: found.names[i] for i in names} == names
    assert len(found.ids) == max(names) + 1


def test_a_whole_set_with_a_real_split_file(
    shared_data: Path, tmp_path: Path, plant: Callable
) -> None:
    file = shared_data / "coop-splits/split_zhou_DescribableTextures.json"
    rows = json.loads(file.read_text())["test"]
    plant(tmp_path, [f"dtd/images/{path}" for path, _, _ in rows])
    (tmp_path / "dtd" / file.name).write_text(file.read_text(), "utf-8-sig")  # as Notepad saves it
    data = load_dataset(f"dtd:{tmp_path}")  # all counts asserted, every image found
    assert data.counts.tolist() == [36] * 47
    assert data.templates == ("{} texture.",)
    inside = load_dataset(f"dtd:{tmp_path / 'dtd/images'}")  # it had taken another test set there
    assert (inside.split, inside.ids) == (data.split, data.ids)
    (tmp_path / "dtd/images" / rows[5][0]).unlink()
    with pytest.raises(InputError, match=rf"names '{rows[5][0]}', which is not in.*1 of 1692"):
        load_dataset(f"dtd:{tmp_path}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not a CoOp split file"),
        ({"test": []}, "is not a CoOp split file .KeyError"),
        (split(("a.jpg", 0, "cat"), ("b.jpg", 0, "dog")), "calls label 0 both 'cat' and 'dog'"),
        (split(("a.jpg", 0, "cat"), ("b.jpg", 2, "dog")), "no label 1"),
        (split(("a.jpg", 1, "cat")), "no label 0"),
    ],
)
def test_bad_split_files(content: object, message: str, tmp_path: Path, write: Write) -> None:
    good = split(("c.jpg", 2, "rose"), ("a.jpg", 0, "lily"), train=("b.jpg", 1, "iris"))
    found = read_split(write(tmp_path / "good.json", good))
    assert found.names == ("lily", "iris", "rose")  # by label, not by appearance
    assert found.files == [("c.jpg", 2), ("a.jpg", 0)]
    with pytest.raises(InputError, match=message):
        read_split(write(tmp_path / "s.json", content))


def test_a_split_file_is_asked_for_when_it_is_needed(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["2750/Forest/Forest_1.jpg", "2750/AnnualCrop/AnnualCrop_1.jpg"])
    for options, message in (
        ({"split": "coop"}, r"has no split_zhou_EuroSAT.json; it is linked from"),
        ({"part": "train"}, r"has no split_zhou_EuroSAT.json"),
        ({"split_file": str(tmp_path / "no.json")}, r"split file .* does not exist"),
        ({"split": "official", "part": "val"}, "belongs to CoOp's split"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(f"eurosat:{tmp_path}", **options)


def test_a_split_file_elsewhere_and_images_without_a_folder(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    plant(tmp_path, ["OxfordPets/Abyssinian_201.jpg"])  # as TPT has them
    file = write(tmp_path / "data_splits/split_zhou_OxfordPets.json",
                 split(("Abyssinian_201.jpg", 0, "abyssinian")))  # fmt: skip
    data = part(f"pets:{tmp_path}", split_file=str(file))
    assert data[0].source == tmp_path / "OxfordPets/Abyssinian_201.jpg"


# ---------------------------------------------------------------- the ten sets without CoOp's file

EUROSAT = ["AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture",
           "PermanentCrop", "Residential", "River", "SeaLake"]  # fmt: skip
SCENES = ["/a/abbey", "/a/apartment_building/outdoor", "/j/jail/indoor", "/j/jail_cell"]
PLANES = ["0000001 Model B200", "0000002 F-16A/B", "0000003 Hawk T1", "0000004 F/A-18"]
VARIANTS = ["707-320", "F-16A/B", "F/A-18", "Hawk T1", "Model B200"]
ACTIONS = ["Hammering", "HandstandPushups", "JumpRope", "YoYo"]
CALTECH = ["BACKGROUND_Google", "Faces", "Faces_easy", "Leopards", "accordion", "airplanes"]

# name, folders of the set, images, texts, and (id, class) of each image, in order
OFFICIAL: list[tuple[str, list[str], list[str], dict[str, str], list[tuple[str, str]]]] = [
    ("caltech101", ["caltech-101/101_ObjectCategories", "."],
     [f"{f}/image_0001.jpg" for f in CALTECH], {},
     [("Faces/image_0001.jpg", "face"), ("Leopards/image_0001.jpg", "leopard"),
      ("accordion/image_0001.jpg", "accordion"), ("airplanes/image_0001.jpg", "airplane")]),
    ("food101", ["food-101", "."],
     ["images/.DS_Store", *(f"images/{c}/{k}.jpg" for k in (1, 2)
                            for c in ("cheesecake", "cheese_plate", "apple_pie"))],
     {"meta/test.txt": "cheesecake/2\ncheese_plate/1\n"},
     [("cheesecake/2.jpg", "cheesecake"), ("cheese_plate/1.jpg", "cheese_plate")]),
    ("dtd", ["dtd/dtd", "dtd"],
     [f"images/{c}/{c}_0001.jpg" for c in ("polka-dotted", "banded")],
     {"labels/test1.txt": "polka-dotted/polka-dotted_0001.jpg\n"},
     [("polka-dotted/polka-dotted_0001.jpg", "polka-dotted")]),
    ("eurosat", ["eurosat/2750", "eurosat", "eurosat/images", "2750"],
     [f"{c}/1.jpg" for c in EUROSAT], {},
     [(f"{c}/1.jpg", name) for c, name in zip(EUROSAT, (
         "Annual Crop Land", "Forest", "Herbaceous Vegetation Land", "Highway or Road",
         "Industrial Buildings", "Pasture Land", "Permanent Crop Land", "Residential Buildings",
         "River", "Sea or Lake"), strict=True)]),
    ("pets", ["oxford_pets", "oxford-iiit-pet", "."],
     ["images/Abyssinian_201.jpg", "images/american_bulldog_1.jpg", "images/Bengal_10.jpg",
      "images/Abyssinian_1.mat"],
     {"annotations/test.txt":
      "\ufeffBengal_10 3 1 2\nAbyssinian_201 1 1 1\namerican_bulldog_1 2 2 1\n"},
     [("Bengal_10.jpg", "bengal"), ("Abyssinian_201.jpg", "abyssinian"),
      ("american_bulldog_1.jpg", "american_bulldog")]),
    ("aircraft", ["fgvc_aircraft", "fgvc-aircraft-2013b/data", "."],
     [f"images/{line[:7]}.jpg" for line in PLANES],
     {"variants.txt": "\n".join(VARIANTS) + "\n",
      "images_variant_test.txt": "\n".join(PLANES) + "\n"},
     [(f"{line[:7]}.jpg", line[8:]) for line in PLANES]),
    ("sun397", ["sun397"], [f"SUN397{c}/sun_a.jpg" for c in SCENES],
     {"ClassName.txt": "\n".join(SCENES), "Testing_01.txt": "\n".join(
         f"{c}/sun_a.jpg" for c in reversed(SCENES))},
     [("j/jail_cell/sun_a.jpg", "jail_cell"), ("j/jail/indoor/sun_a.jpg", "indoor jail"),
      ("a/apartment_building/outdoor/sun_a.jpg", "outdoor apartment_building"),
      ("a/abbey/sun_a.jpg", "abbey")]),
    ("ucf101", ["ucf101"],
     [f"UCF-101-midframes/{f}/v_1.jpg" for f in ("Hammering", "Handstand_Pushups", "Jump_Rope",
                                                 "Yo_Yo")],
     {"ucfTrainTestlist/classInd.txt": "".join(f"{i} {a}\r\n" for i, a in enumerate(ACTIONS, 1)),
      "ucfTrainTestlist/testlist01.txt": "".join(f"{a}/v_1.avi\n" for a in reversed(ACTIONS))},
     [(f"{f}/v_1.jpg", f) for f in ("Yo_Yo", "Jump_Rope", "Handstand_Pushups", "Hammering")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "homes", "images", "texts", "wanted"), OFFICIAL)
def test_official_labels(
    name: str, homes: list[str], images: list[str], texts: dict[str, str],
    wanted: list[tuple[str, str]], tmp_path: Path, plant: Callable, write: Write,
) -> None:  # fmt: skip
    for number, home in enumerate(homes):
        root = tmp_path / str(number)
        plant(root / home, images)
        for place, text in texts.items():
            write(root / home / place, text)
        data = part(f"{name}:{root}")
        assert [(e.id, data.classes[e.label]) for e in data] == wanted
        assert all(e.source.is_file() for e in data)
        assert looks_like(root) == name
        words = "official test list" if texts else "all images, no split"
        assert data.split.startswith(words)
        with pytest.raises(InputError, match=r"no image for|(classes|images) instead of"):
            load_dataset(f"{name}:{root}")


def test_coop_s_file_is_taken_first(tmp_path: Path, plant: Callable, write: Write) -> None:
    home = tmp_path / "caltech-101"
    plant(home, [f"101_ObjectCategories/{f}/image_0001.jpg" for f in CALTECH])
    official = part(f"caltech101:{tmp_path}")
    assert official.class_ids[:2] == ("Faces", "Leopards")
    rows = ("Faces/image_0001.jpg", 0, "face"), ("Leopards/image_0001.jpg", 1, "leopard")
    write(home / "split_zhou_Caltech101.json", split(*rows))
    coop = part(f"caltech101:{home}")
    assert (coop.classes, coop.class_ids) == (("face", "leopard"), ("Faces", "Leopards"))
    assert coop.split.startswith("CoOp")
    assert part(f"caltech101:{tmp_path}", split="official").ids == official.ids
    with pytest.raises(InputError, match="2 classes instead of 100"):
        load_dataset(f"caltech101:{tmp_path}")


def test_lists_that_do_not_fit(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["images/Abyssinian_201.jpg", "images/Bengal_10.jpg"])
    pets = write(tmp_path / "annotations/test.txt", "Bengal_10 2 1 2\nAbyssinian_201 1 1 1\n")
    inside = part(f"pets:{tmp_path / 'images'}")
    assert inside.ids == ["Bengal_10.jpg", "Abyssinian_201.jpg"]
    (tmp_path / "images/Bengal_10.jpg").unlink()
    with pytest.raises(InputError, match=r"names 'Bengal_10.jpg', which is not in"):
        load_dataset(f"pets:{tmp_path}")
    data = part(f"pets:{tmp_path}")
    assert data.ids == ["Abyssinian_201.jpg"]
    assert data.classes == inside.classes  # a class without images keeps its label
    assert "less 1 of 2 images that are not there: Bengal_10.jpg" in data.split
    for text in (b"caf\xe9_1 1 1 1\n", b"Abyssinian_1\n", b"Abyssinian_1 x 1 1\n"):
        pets.write_bytes(text)
        with pytest.raises(InputError, match=r"Pets in .* cannot be read \(\w+Error: .*; unpack"):
            load_dataset(f"pets:{tmp_path}")
        assert looks_like(tmp_path) == "folder"
    with pytest.raises(InputError, match="does not hold Stanford Cars"):
        load_dataset(f"cars:{tmp_path}")
    write(tmp_path / "variants.txt", "707-320\n")
    write(tmp_path / "images_variant_test.txt", "0000001 Model B200\n")
    with pytest.raises(InputError, match="names the class 'Model B200'"):
        part(f"aircraft:{tmp_path}")
    plant(tmp_path / "textures", ["banded/1.jpg"])
    with pytest.raises(InputError, match=r"no labels/test1.txt; add that file, or CoOp's split_zh"):
        part(f"dtd:{tmp_path / 'textures'}")


def test_cars_count_from_one_and_may_be_nested(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    io = pytest.importorskip("scipy.io")
    home = tmp_path / "stanford_cars"
    plant(home, [f"cars_test/cars_test/0000{i}.jpg" for i in (1, 2, 3)])
    with pytest.raises(InputError, match=r"no cars_test_annos_withlabels.mat; the annotations in"):
        part(f"cars:{tmp_path}")
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    rows = [(1, 2, "00001.jpg"), (1, 3, "00002.jpg"), (1, 1, "00003.jpg")]
    io.savemat(home / "cars_test_annos_withlabels.mat", {"annotations": np.array(rows, dtype=kind)})
    with pytest.raises(InputError, match=r"no devkit/cars_meta.mat"):
        part(f"cars:{tmp_path}")
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]
    (home / "devkit").mkdir()
    io.savemat(home / "devkit/cars_meta.mat", {"class_names": np.array(names, dtype=object)})
    data = part(f"cars:{tmp_path}")
    assert data.labels.tolist() == [1, 2, 0]
    assert data.classes[:2] == ("2000 AM General Hummer SUV", "2012 Acura RL Sedan")
    assert data.class_ids == tuple(names)
    assert data[0].source.is_file()
    coop = ("cars_test/00003.jpg", 1, "2012 Acura RL Sedan"), ("cars_test/00001.jpg", 0, "x")
    write(home / "split_zhou_StanfordCars.json", split(*coop))
    data = part(f"cars:{tmp_path}")
    assert data.labels.tolist() == [1, 0]
    assert data[0].source == home / "cars_test/cars_test/00003.jpg"


def test_flowers_count_from_one(tmp_path: Path, plant: Callable) -> None:
    io = pytest.importorskip("scipy.io")
    home = tmp_path / "oxford_flowers"
    plant(home, [f"jpg/image_0000{i}.jpg" for i in (1, 2, 3, 4)])
    io.savemat(home / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 60]])})
    io.savemat(home / "setid.mat", {"trnid": np.array([[1]]), "tstid": np.array([[4, 2, 3]])})
    data = part(f"flowers:{tmp_path}")
    assert [(e.id, e.label) for e in data] == [("image_00004.jpg", 59), ("image_00002.jpg", 0),
                                               ("image_00003.jpg", 101)]  # fmt: skip
    assert [data.classes[i] for i in (0, 15, 59, 76, 92, 101)] == [
        "pink primrose", "globe-flower", "pink-yellow dahlia", "passion flower", "ball moss",
        "blackberry lily"]  # fmt: skip
    assert len(data.classes) == 102
    assert data.split == "official test list setid.mat (not CoOp's split)"
