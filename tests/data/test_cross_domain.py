"""The ten cross-domain sets: CoOp's split files, the official lists, and their traps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.coop import read_split
from adte.data.registry import create_reader

Write = Callable[[Path, object], Path]


def split(*rows: tuple[str, int, str], train: tuple[str, int, str] | None = None) -> dict:
    return {"train": [train] if train else [], "val": [], "test": [list(r) for r in rows]}


# ---------------------------------------------------------------- the split files themselves


@pytest.mark.parametrize(
    ("name", "sizes", "names", "ids"),
    [
        ("dtd", (2820, 1128, 1692), {0: "banded", 30: "polka-dotted", 46: "zigzagged"}, 46),
        ("pets", (2944, 736, 3669), {0: "abyssinian", 1: "american_bulldog"}, 36),
    ],
)  # fmt: skip
def test_the_lent_split_files_read_fully(
    name: str, sizes: tuple[int, ...], names: dict, ids: int, shared_data: Path
) -> None:
    file = shared_data / "coop-splits" / create_reader(name).coop
    raw = json.loads(file.read_text())
    for part, size in zip(("train", "val", "test"), sizes, strict=True):
        found = read_split(file, part)
        assert len(found.files) == size
        assert [[f, y, found.names[y]] for f, y in found.files] == raw[part]
    assert {i: found.names[i] for i in names} == names
    assert len(found.ids) == ids + 1


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


def test_names_go_by_label_not_by_appearance(tmp_path: Path, write: Write) -> None:
    file = write(tmp_path / "s.json", split(("c.jpg", 2, "rose"), ("a.jpg", 0, "lily"),
                                            train=("b.jpg", 1, "iris")))  # fmt: skip
    found = read_split(file)
    assert found.names == ("lily", "iris", "rose")
    assert found.files == [("c.jpg", 2), ("a.jpg", 0)]


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
    with pytest.raises(InputError, match=message):
        read_split(write(tmp_path / "s.json", content))


def test_a_split_file_is_asked_for_when_it_is_needed(tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["2750/Forest/Forest_1.jpg", "2750/AnnualCrop/AnnualCrop_1.jpg"])
    with pytest.raises(InputError, match=r"has no split_zhou_EuroSAT.json; it is linked from"):
        load_dataset(f"eurosat:{tmp_path}", split="coop")
    with pytest.raises(InputError, match=r"has no split_zhou_EuroSAT.json"):
        load_dataset(f"eurosat:{tmp_path}", part="train")
    with pytest.raises(InputError, match=r"split file .* does not exist"):
        load_dataset(f"eurosat:{tmp_path}", split_file=str(tmp_path / "no.json"))
    with pytest.raises(InputError, match="belongs to CoOp's split"):
        load_dataset(f"eurosat:{tmp_path}", split="official", part="val")


# ---------------------------------------------------------------- folders of classes


def test_caltech_drops_background_and_easy_faces(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    folders = ["BACKGROUND_Google", "Faces", "Faces_easy", "Leopards", "Motorbikes", "accordion",
               "airplanes", "car_side", "water_lilly"]  # fmt: skip
    plant(tmp_path, [f"caltech-101/101_ObjectCategories/{f}/image_0001.jpg" for f in folders])
    plant(tmp_path, ["caltech-101/101_ObjectCategories/BACKGROUND_Google/tmp"])
    data = load_dataset(f"caltech101:{tmp_path}", complete=False)
    assert data.classes == ("face", "leopard", "motorbike", "accordion", "airplane", "car_side",
                            "water_lilly")  # fmt: skip
    assert data.class_ids[:2] == ("Faces", "Leopards")
    assert data.labels.tolist() == list(range(7))
    assert "no split" in data.split
    write(
        tmp_path / "caltech-101/split_zhou_Caltech101.json",
        split(("Faces/image_0001.jpg", 0, "face"), ("Leopards/image_0001.jpg", 1, "leopard")),
    )
    coop = load_dataset(f"caltech101:{tmp_path / 'caltech-101'}", complete=False)
    assert (coop.classes, coop.class_ids) == (("face", "leopard"), ("Faces", "Leopards"))
    assert coop.split.startswith("CoOp")
    assert load_dataset(f"caltech101:{tmp_path}", split="official", complete=False).ids == data.ids
    with pytest.raises(InputError, match="2 classes instead of 100"):
        load_dataset(f"caltech101:{tmp_path}")


def test_food_in_code_point_order(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, [f"food-101/images/{c}/{k}.jpg" for k in (1, 2)
                     for c in ("cheesecake", "cheese_plate", "apple_pie")])  # fmt: skip
    plant(tmp_path, ["food-101/images/.DS_Store"])
    write(tmp_path / "food-101/meta/test.txt", "cheesecake/2\ncheese_plate/1\n")
    data = load_dataset(f"food101:{tmp_path}", complete=False)
    assert data.classes == ("apple_pie", "cheese_plate", "cheesecake")  # not cheesecake first
    assert [(e.id, e.label) for e in data] == [("cheesecake/2.jpg", 2), ("cheese_plate/1.jpg", 1)]
    assert data.split == "official test list meta/test.txt (not CoOp's split)"
    with pytest.raises(InputError, match="no image for 1 of 3 classes, the first being 0 'apple"):
        load_dataset(f"food101:{tmp_path}")


def test_dtd_official(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, [f"dtd/dtd/images/{c}/{c}_0001.jpg" for c in ("polka-dotted", "banded")])
    write(tmp_path / "dtd/dtd/labels/test1.txt", "polka-dotted/polka-dotted_0001.jpg\n")
    data = load_dataset(f"dtd:{tmp_path}", complete=False)
    assert data.classes == ("banded", "polka-dotted")
    assert [(e.id, e.label) for e in data] == [("polka-dotted/polka-dotted_0001.jpg", 1)]
    assert looks_like(tmp_path) == "dtd"


EUROSAT = ["AnnualCrop", "Forest", "HerbaceousVegetation", "Highway", "Industrial", "Pasture",
           "PermanentCrop", "Residential", "River", "SeaLake"]  # fmt: skip


@pytest.mark.parametrize("place", ["eurosat/2750", "eurosat", "eurosat/images", "2750"])
def test_eurosat_names_are_coop_s(place: str, tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, [f"{place}/{c}/{c}_1.jpg" for c in EUROSAT])
    data = load_dataset(f"eurosat:{tmp_path}", complete=False)
    assert data.classes == (
        "Annual Crop Land", "Forest", "Herbaceous Vegetation Land", "Highway or Road",
        "Industrial Buildings", "Pasture Land", "Permanent Crop Land", "Residential Buildings",
        "River", "Sea or Lake")  # fmt: skip
    assert list(data.class_ids) == EUROSAT
    assert data.labels.tolist() == list(range(10))
    with pytest.raises(InputError, match="10 images instead of 27000"):
        load_dataset(f"eurosat:{tmp_path}")


# ---------------------------------------------------------------- official text lists


@pytest.mark.parametrize("home", ["oxford_pets", "oxford-iiit-pet", "."])
def test_pets_go_by_class_number(home: str, tmp_path: Path, plant: Callable, write: Write) -> None:
    images = ["Abyssinian_201", "american_bulldog_1", "Bengal_10"]  # capitals would sort first
    plant(tmp_path / home, [f"images/{n}.jpg" for n in images])
    plant(tmp_path / home, ["images/Abyssinian_1.mat"])
    write(tmp_path / home / "annotations/test.txt",
          "\ufeffBengal_10 3 1 2\nAbyssinian_201 1 1 1\namerican_bulldog_1 2 2 1\n")  # fmt: skip
    data = load_dataset(f"pets:{tmp_path}", complete=False)
    assert data.classes == ("abyssinian", "american_bulldog", "bengal")
    assert [(e.id, e.label) for e in data] == [("Bengal_10.jpg", 2), ("Abyssinian_201.jpg", 0),
                                               ("american_bulldog_1.jpg", 1)]  # fmt: skip
    assert looks_like(tmp_path) == "pets"
    inside = load_dataset(f"pets:{tmp_path / home / 'images'}", complete=False)
    assert (inside.ids, inside.classes) == (data.ids, data.classes)
    (tmp_path / home / "images/Bengal_10.jpg").unlink()
    with pytest.raises(InputError, match=r"names 'Bengal_10.jpg', which is not in"):
        load_dataset(f"pets:{tmp_path}")
    part = load_dataset(f"pets:{tmp_path}", complete=False)
    assert part.ids == ["Abyssinian_201.jpg", "american_bulldog_1.jpg"]
    assert part.classes == data.classes  # a class without images keeps its label
    assert "less 1 of 3 images that are not there: Bengal_10.jpg" in part.split


@pytest.mark.parametrize("text", [b"caf\xe9_1 1 1 1\n", b"Abyssinian_1\n", b"Abyssinian_1 x 1 1\n"])
def test_a_damaged_list_is_named(text: bytes, tmp_path: Path, plant: Callable) -> None:
    plant(tmp_path, ["images/Abyssinian_1.jpg", "annotations/test.txt"])
    (tmp_path / "annotations/test.txt").write_bytes(text)
    with pytest.raises(InputError, match=r"Pets in .* cannot be read \(\w+Error: .*; unpack the"):
        load_dataset(f"pets:{tmp_path}")
    assert looks_like(tmp_path) == "folder"
    with pytest.raises(InputError, match="does not hold Stanford Cars"):
        load_dataset(f"cars:{tmp_path}")


def test_pets_of_tpt_have_images_directly(tmp_path: Path, plant: Callable, write: Write) -> None:
    plant(tmp_path, ["OxfordPets/Abyssinian_201.jpg"])
    file = write(tmp_path / "data_splits/split_zhou_OxfordPets.json",
                 split(("Abyssinian_201.jpg", 0, "abyssinian")))  # fmt: skip
    data = load_dataset(f"pets:{tmp_path}", split_file=str(file), complete=False)
    assert data[0].source == tmp_path / "OxfordPets/Abyssinian_201.jpg"


@pytest.mark.parametrize("home", ["fgvc_aircraft", "fgvc-aircraft-2013b/data", "."])
def test_aircraft_splits_at_the_first_space(
    home: str, tmp_path: Path, plant: Callable, write: Write
) -> None:
    variants = ["707-320", "F-16A/B", "F/A-18", "Hawk T1", "Model B200"]
    lines = ["0000001 Model B200", "0000002 F-16A/B", "0000003 Hawk T1", "0000004 F/A-18"]
    plant(tmp_path / home, [f"images/{line[:7]}.jpg" for line in lines])
    write(tmp_path / home / "variants.txt", "\n".join(variants) + "\n")
    write(tmp_path / home / "images_variant_test.txt", "\n".join(lines) + "\n")
    data = load_dataset(f"aircraft:{tmp_path}", complete=False)
    assert list(data.classes) == variants
    assert [data.classes[e.label] for e in data] == ["Model B200", "F-16A/B", "Hawk T1", "F/A-18"]
    assert data[0].id == "0000001.jpg"
    write(tmp_path / home / "variants.txt", "707-320\n")
    with pytest.raises(InputError, match="names the class 'Model B200'"):
        load_dataset(f"aircraft:{tmp_path}", complete=False)


def test_sun_has_slashes_and_coop_turns_them_round(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    classes = ["/a/abbey", "/a/apartment_building/outdoor", "/j/jail/indoor", "/j/jail_cell"]
    files = [f"{c}/sun_{k}.jpg" for c in reversed(classes) for k in "ab"]
    plant(tmp_path / "sun397", [f"SUN397{f}" for f in files])
    write(tmp_path / "sun397/ClassName.txt", "\n".join(classes) + "\n")
    write(tmp_path / "sun397/Testing_01.txt", "\n".join(files) + "\n")
    data = load_dataset(f"sun397:{tmp_path}", complete=False)
    assert data.classes == ("abbey", "outdoor apartment_building", "indoor jail", "jail_cell")
    assert data.class_ids == (
        "a/abbey",
        "a/apartment_building/outdoor",
        "j/jail/indoor",
        "j/jail_cell",
    )
    assert data.labels.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]  # the line, not the leaf's rank
    assert data[4].source.is_file()
    write(
        tmp_path / "sun397/split_zhou_SUN397.json",
        split(("j/jail/indoor/sun_a.jpg", 1, "indoor jail"), ("a/abbey/sun_a.jpg", 0, "abbey")),
    )
    coop = load_dataset(f"sun397:{tmp_path}", complete=False)
    assert coop.class_ids == ("a/abbey", "j/jail/indoor")
    assert coop.labels.tolist() == [1, 0]


def test_ucf_goes_by_class_ind(tmp_path: Path, plant: Callable, write: Write) -> None:
    actions = ["Hammering", "HammerThrow", "HandstandPushups", "JumpingJack", "JumpRope",
               "CleanAndJerk", "YoYo"]  # fmt: skip
    folders = ["Hammering", "Hammer_Throw", "Handstand_Pushups", "Jumping_Jack", "Jump_Rope",
               "Clean_And_Jerk", "Yo_Yo"]  # fmt: skip
    video = {a: f"v_{a}_g01_c01" for a in actions} | {
        "HandstandPushups": "v_HandStandPushups_g01_c01"
    }
    home = tmp_path / "ucf101"
    plant(
        home,
        [f"UCF-101-midframes/{f}/{video[a]}.jpg" for f, a in zip(folders, actions, strict=True)],
    )
    write(home / "ucfTrainTestlist/classInd.txt",
          "".join(f"{i} {a}\r\n" for i, a in enumerate(actions, 1)))  # fmt: skip
    write(home / "ucfTrainTestlist/testlist01.txt",
          "".join(f"{a}/{video[a]}.avi\n" for a in reversed(actions)))  # fmt: skip
    data = load_dataset(f"ucf101:{tmp_path}", complete=False)
    assert list(data.classes) == folders
    assert data.labels.tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert data[4].id == "Handstand_Pushups/v_HandStandPushups_g01_c01.jpg"


# ---------------------------------------------------------------- MATLAB files


def test_cars_count_from_one_and_may_be_nested(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    io = pytest.importorskip("scipy.io")
    home = tmp_path / "stanford_cars"
    plant(home, [f"cars_test/cars_test/0000{i}.jpg" for i in (1, 2, 3)])
    with pytest.raises(
        InputError, match=r"no cars_test_annos_withlabels.mat; the annotations in the"
    ):
        load_dataset(f"cars:{tmp_path}", complete=False)
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    rows = [(1, 2, "00001.jpg"), (1, 3, "00002.jpg"), (1, 1, "00003.jpg")]
    io.savemat(home / "cars_test_annos_withlabels.mat", {"annotations": np.array(rows, dtype=kind)})
    with pytest.raises(InputError, match=r"no devkit/cars_meta.mat"):
        load_dataset(f"cars:{tmp_path}", complete=False)
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]
    (home / "devkit").mkdir()
    io.savemat(home / "devkit/cars_meta.mat", {"class_names": np.array(names, dtype=object)})
    data = load_dataset(f"cars:{tmp_path}", complete=False)
    assert data.labels.tolist() == [1, 2, 0]
    assert data.classes == (
        "2000 AM General Hummer SUV",
        "2012 Acura RL Sedan",
        "2012 Acura TL Sedan",
    )
    assert data.class_ids == tuple(names)
    assert data[0].source.is_file()
    write(
        home / "split_zhou_StanfordCars.json",
        split(("cars_test/00003.jpg", 1, "2012 Acura RL Sedan"), ("cars_test/00001.jpg", 0, "x")),
    )
    coop = load_dataset(f"cars:{tmp_path}", complete=False)
    assert coop.labels.tolist() == [1, 0]
    assert coop[0].source == home / "cars_test/cars_test/00003.jpg"


def test_flowers_count_from_one(tmp_path: Path, plant: Callable, write: Write) -> None:
    io = pytest.importorskip("scipy.io")
    home = tmp_path / "oxford_flowers"
    plant(home, [f"jpg/image_0000{i}.jpg" for i in (1, 2, 3, 4)])
    io.savemat(home / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 60]])})
    io.savemat(home / "setid.mat", {"trnid": np.array([[1]]), "tstid": np.array([[4, 2, 3]])})
    data = load_dataset(f"flowers:{tmp_path}", complete=False)
    assert [(e.id, e.label) for e in data] == [("image_00004.jpg", 59), ("image_00002.jpg", 0),
                                               ("image_00003.jpg", 101)]  # fmt: skip
    assert [data.classes[i] for i in (0, 15, 59, 76, 92, 101)] == [
        "pink primrose", "globe-flower", "pink-yellow dahlia", "passion flower", "ball moss",
        "blackberry lily"]  # fmt: skip
    assert len(data.classes) == 102
    assert data.split == "official test list setid.mat (not CoOp's split)"
    write(
        home / "split_zhou_OxfordFlowers.json",
        split(
            ("image_00001.jpg", 1, "hard-leaved pocket orchid"),
            ("image_00002.jpg", 0, "pink primrose"),
        ),
    )
    assert load_dataset(f"flowers:{tmp_path}", complete=False).labels.tolist() == [1, 0]


def test_another_cross_domain_layout_is_named(
    tmp_path: Path, plant: Callable, write: Write
) -> None:
    plant(tmp_path, [f"2750/{c}/{c}_1.jpg" for c in EUROSAT])
    with pytest.raises(InputError, match=r"does not hold Describable Textures.*looks like eurosat"):
        load_dataset(f"dtd:{tmp_path}")
