"""The public copies of the training images, and which of their files may be trained on.

Every set is a Git repository. `fetch.sh` clones them into one folder, `OWNER+NAME/repo` each; the
images are read from Git's own store, so nothing is unpacked. A set that is used for figures gives
its training part only: the split of CoOp where there is one, the official split otherwise. Images
of ImageNet's validation set, which some copies mix in, are left out.

`EVALUATED` names the parts that figures are measured on; `prepare.py` drops every training image
that looks like one of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

IMAGE = re.compile(r"\.(jpe?g|png)$", re.IGNORECASE)
SPLITS = "mariodoebler/test-time-adaptation"


class Repository:
    """A clone, read without unpacking it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.at = folder / name.replace("/", "+") / "repo"
        if not self.at.exists():
            raise SystemExit(f"{name} is not in {folder}; run recipes/tiny/fetch.sh first")
        listed = self._git("ls-tree", "-r", "-z", "HEAD").decode().split("\0")
        fields = (line.split("\t", 1) for line in listed if line)
        self.files = {path: facts.split()[2] for facts, path in fields}

    def _git(self, *words: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(self.at), *words], check=True, capture_output=True
        ).stdout

    def read(self, path: str) -> bytes:
        return self._git("cat-file", "blob", self.files[path])

    def there(self, paths: list[str]) -> set[str]:
        """Those of the files whose bytes the clone holds; a partial copy may lack the largest."""
        asked = "\n".join(self.files[p] for p in paths if p in self.files)
        told = subprocess.run(
            ["git", "-C", str(self.at), "cat-file", "--batch-check"],
            input=asked.encode(), check=True, capture_output=True,
        ).stdout.decode().splitlines()  # fmt: skip
        lost = {line.split()[0] for line in told if line.endswith(" missing")}
        return {p for p in paths if p in self.files and self.files[p] not in lost}

    def read_all(self, paths: list[str]) -> Iterator[bytes]:
        """The files' bytes, in order, through one process."""
        with subprocess.Popen(
            ["git", "-C", str(self.at), "cat-file", "--batch"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin
            assert process.stdout
            for path in paths:
                process.stdin.write(self.files[path].encode() + b"\n")
                process.stdin.flush()
                size = int(process.stdout.readline().split()[2])
                yield process.stdout.read(size)
                process.stdout.read(1)
            process.kill()  # workers forked meanwhile hold its input open: it would wait for more


@dataclass(frozen=True)
class Item:
    """One training image: its file, its name, and a WordNet noun that it certainly is under."""

    path: str
    name: str
    under: str = ""


@dataclass(frozen=True)
class Source:
    """A set: its repository, what of it is trained on and its licence."""

    key: str
    repository: str
    licence: str
    items: Callable[[Repository, Path], list[Item]]


def _tidy(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _official(names: dict[str, str]) -> Callable[[Repository, Path], list[Item]]:
    """Images of `train/WNID/`, less ImageNet's validation images."""

    def items(repository: Repository, _: Path) -> list[Item]:
        return [
            Item(path, names[path.split("/")[-2]])
            for path in sorted(repository.files)
            if path.startswith("train/") and IMAGE.search(path) and "ILSVRC2012_val" not in path
        ]

    return items


def _coop(split: str, folder: str, under: Callable[[str], str]):
    """The training part of one of CoOp's splits."""

    def items(repository: Repository, clones: Path) -> list[Item]:
        lists = Repository(clones, SPLITS)
        rows = json.loads(lists.read(f"classification/datasets/other_lists/{split}.json"))
        return [Item(f"{folder}/{p}", _tidy(name), under(p)) for p, _, name in rows["train"]]

    return items


def _tiny_imagenet(names: dict[str, str]) -> Callable[[Repository, Path], list[Item]]:
    def items(repository: Repository, _: Path) -> list[Item]:
        at = "tiny-imagenet-200/train/"
        return [
            Item(path, names[path.split("/")[2]])
            for path in sorted(repository.files)
            if path.startswith(at) and IMAGE.search(path)
        ]

    return items


def _folders(at: str, under: str) -> Callable[[Repository, Path], list[Item]]:
    """Images of `at/CLASS/`; numbers before a class's name are dropped."""

    def items(repository: Repository, _: Path) -> list[Item]:
        found = []
        for path in sorted(repository.files):
            if path.startswith(at) and IMAGE.search(path):
                name = re.sub(r"^\d+\.", "", path.split("/")[-2])
                found.append(Item(path, _tidy(name), under))
        return found

    return items


def _food(at: str) -> Callable[[Repository, Path], list[Item]]:
    """Images that are in Food101's official training list."""

    def items(repository: Repository, clones: Path) -> list[Item]:
        meta = Repository(clones, "Neilus03/GAN_food101")
        train = json.loads(meta.read("data/food-101/meta/train.json"))
        listed = {stem for stems in train.values() for stem in stems}
        found = []
        for path in sorted(repository.files):
            stem = "/".join(path.split("/")[-2:]).rsplit(".", 1)[0]
            if path.startswith(at) and IMAGE.search(path) and stem in listed:
                found.append(Item(path, _tidy(stem.split("/")[0]), "n00021265"))
        return found

    return items


def _flickr(repository: Repository, _: Path) -> list[Item]:
    """Flickr8k's training photographs; a name is the photograph's captions, one a line."""
    text = repository.read("Flicker8k_text/Flickr8k.token.txt").decode()
    captions: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, caption = line.split("\t", 1)
        captions.setdefault(key.split("#")[0], []).append(caption.strip(" ."))
    train = repository.read("Flicker8k_text/Flickr_8k.trainImages.txt").decode().split()
    return [
        Item(f"Flicker8k_Dataset/{file}", "\n".join(captions[file]))
        for file in train
        if f"Flicker8k_Dataset/{file}" in repository.files
    ]


def _pet(path: str) -> str:
    """Cats have capital letters in Oxford Pets' file names."""
    return "n02121808" if path[0].isupper() else "n02084071"


def sources(names: dict[str, str]) -> list[Source]:
    """Every set, in the order of packing. `names` maps ImageNet's wnids to class names."""
    imagenet = "ImageNet's terms: non-commercial research and education"
    return [
        Source("tiny-imagenet", "seshuad/IMagenet", imagenet, _tiny_imagenet(names)),
        Source("imagenette", "thunderInfy/imagenette", imagenet, _official(names)),
        Source("imagewoof", "q878787/imagewoof2-320", imagenet, _official(names)),
        Source("caltech101", "MachineLearning2020/Homework2-Caltech101", "CC BY 4.0",
               _coop("split_zhou_caltech101", "101_ObjectCategories",
                     lambda p: {"airplanes": "n02691156", "Motorbikes": "n03790512",
                                "car_side": "n02958343"}.get(p.split("/")[0], ""))),
        Source("pets", "shlim2210/oxford-pets-datasets", "CC BY-SA 4.0",
               _coop("split_zhou_oxford_pets", "oxford-pets-datasets/data/images", _pet)),
        Source("cars", "cyizhuo/Stanford_Cars_dataset", "non-commercial research",
               _folders("train/", "n02958343")),
        Source("cub", "cyizhuo/CUB-200-2011-dataset", "non-commercial research",
               _folders("train/", "n01503061")),
        Source("food-mnist", "srohit0/food_mnist", "Food-101: research, photographers' rights",
               _food("images/")),
        Source("food-gan", "Neilus03/GAN_food101", "Food-101: research, photographers' rights",
               _food("data/food-101/images/")),
        Source("flickr8k", "tnagire1/flickr8k_dataset", "non-commercial research", _flickr),
    ]  # fmt: skip


# Parts on which figures are measured: (repository, pattern of the paths).
EVALUATED = [
    ("seshuad/IMagenet", r"^tiny-imagenet-200/val/"),
    ("thunderInfy/imagenette", r"^val/"),
    ("q878787/imagewoof2-320", r"^val/"),
]
EVALUATED_SPLITS = [
    ("MachineLearning2020/Homework2-Caltech101", "split_zhou_caltech101", "101_ObjectCategories"),
    ("shlim2210/oxford-pets-datasets", "split_zhou_oxford_pets",
     "oxford-pets-datasets/data/images"),
]  # fmt: skip
