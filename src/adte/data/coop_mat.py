"""Stanford Cars and Oxford Flowers: labels in MATLAB files, counted from 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adte.core.errors import InputError
from adte.data.cards import CARDS
from adte.data.coop import CoopReader, Split
from adte.data.files import first
from adte.data.mat import load_mat
from adte.data.registry import Found, register_dataset

__all__ = ["Cars", "Flowers"]


@register_dataset(CARDS["cars"])
@dataclass(frozen=True, kw_only=True)
class Cars(CoopReader):
    """Cars; like CoOp, the year is put first: "2012 Acura RL Sedan"."""

    split_name = "split_zhou_StanfordCars.json"
    homes = ("stanford_cars", "StanfordCars")
    sizes = (6509, 1635, 8041)

    def locate(self, folder: Path, name: str) -> str:
        top, _, rest = name.partition("/")  # some copies nest cars_test/cars_test/
        return f"{top}/{name}" if (folder / top / top).is_dir() and rest else name

    def find_official(self, base: Path) -> Found | None:
        if not (base / "cars_test").is_dir():
            return None
        labelled = "cars_test_annos_withlabels.mat"
        home = first(base, ("", "devkit"), lambda p: (p / labelled).is_file())
        if home is None:
            raise InputError(
                f"{str(base)!r} has cars_test/ but no {labelled}; the annotations in the devkit "
                "carry no labels, so add that file, or CoOp's split_zhou_StanfordCars.json"
            )
        return Found(base, f"official test set by {labelled}", self.info.images, home / labelled)

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        meta = first(found.folder, ("devkit/cars_meta.mat", "cars_meta.mat"), Path.is_file)
        if meta is None:
            raise InputError(
                f"{str(found.folder)!r} has no devkit/cars_meta.mat, which holds the class names; "
                "unpack car_devkit.tgz there"
            )
        ids = tuple(str(n) for n in np.ravel(load_mat(meta)["class_names"]))
        rows = np.ravel(load_mat(found.split)["annotations"])
        files = [(f"cars_test/{row['fname']}", int(row["class"]) - 1) for row in rows]
        return Split(files, tuple(map(_year_first, ids)), ids)


def _year_first(name: str) -> str:
    car, _, year = name.rpartition(" ")
    return f"{year} {car}" if year.isdigit() else name


@register_dataset(CARDS["flowers"])
@dataclass(frozen=True, kw_only=True)
class Flowers(CoopReader):
    """Flowers; the official test set is `tstid`, the largest of the three parts."""

    split_name = "split_zhou_OxfordFlowers.json"
    homes = ("oxford_flowers", "flowers-102", "Flower102", "flower102")
    images = ("jpg", "")
    sizes = (4093, 1633, 2463)

    def find_official(self, base: Path) -> Found | None:
        if not all((base / n).exists() for n in ("jpg", "imagelabels.mat", "setid.mat")):
            return None
        return Found(base / "jpg", "official test set, tstid of setid.mat (not CoOp's split)", 6149,
                     base / "setid.mat")  # fmt: skip

    def read_official(self, found: Found) -> Split:
        assert found.split is not None
        labels = np.ravel(load_mat(found.split.parent / "imagelabels.mat")["labels"])
        numbers = np.ravel(load_mat(found.split)["tstid"])
        files = [(f"image_{i:05d}.jpg", int(labels[i - 1]) - 1) for i in numbers.tolist()]
        return Split(files, FLOWERS, FLOWERS)


# By label, in CoOp's spelling.
FLOWERS = tuple(
    """pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold,
tiger lily, moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot,
king protea, spear thistle, yellow iris, globe-flower, purple coneflower, peruvian lily,
balloon flower, giant white arum lily, fire lily, pincushion flower, fritillary, red ginger,
grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke, sweet william,
carnation, garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya,
cape flower, great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily,
poinsettia, bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion,
petunia, wild pansy, primula, sunflower, pelargonium, bishop of llandaff, gaura, geranium,
orange dahlia, pink-yellow dahlia, cautleya spicata, japanese anemone, black-eyed susan,
silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy,
gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily,
anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen,
watercress, canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow,
mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily""".replace(
        "\n", " "
    ).split(", ")
)
