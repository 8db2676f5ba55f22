"""Print the figures of the models' cards.

    python recipes/tiny/evaluate.py --shared data --clones clones --packed packed

One base view and the template "a photo of a {}." everywhere; accuracy and expected calibration
error (15 bins) in per cent, beside chance. Nothing here was trained on: test and validation parts
of the sets that were (by CoOp's splits where they exist), and sets that were not seen at all.

`--shared` holds ImageFolders `tiny-imagenet-val` (by wnid) and `cifar10-test` (by name) and
`photos` (`WNID_name.jpg`); `--clones` is fetch.sh's folder. Without one, its part is left out.
`--image` takes another image tower than the shipped one.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file
from sources import IMAGE, SPLITS, Repository
from torch import Tensor, nn

from adte import fixed_point, load_model
from adte.evaluate.running.figures import spearman
from adte.evaluate.running.metrics import ece
from adte.images import base_view
from adte.models.tiny import SHAPES, ImageTower, Tiny, tiny_classes

TEMPLATE = "a photo of a {}."
EVERYDAY = ["dog", "cat", "bird", "fish", "insect", "car", "boat", "food", "furniture", "building"]
UNSEEN = [  # names that no training set has
    "aeroplane", "musician", "sailing ship", "kitten", "puppy", "waterfowl", "castle", "railway",
    "snow-covered hill", "seafood", "jewellery", "kitchen", "playground", "mariner",
    "racing driver", "woodland", "stringed instrument", "bakery", "crowd of people",
    "sunset over water",
]  # fmt: skip


def views(images: Iterable[bytes | Path], model: Tiny) -> Iterator[Tensor]:
    """Base views in batches of 256."""
    images = iter(images)
    while part := list(islice(images, 256)):
        rows = []
        for item in part:
            opened = Image.open(item if isinstance(item, Path) else io.BytesIO(item))
            with opened as image:
                rows.append(base_view(image.convert("RGB"), model.preprocess))
        yield torch.stack(rows)


def encode(model: Tiny, images: Iterable[bytes | Path]) -> Tensor:
    return torch.cat([model.encode_image(x) for x in views(images, model)])


def score(model: Tiny, z: Tensor, labels: Tensor, names: list[str]) -> dict[str, float]:
    """Accuracy, calibration error and chance, in per cent."""
    logits = model.logit_scale * z @ model.encode_text([TEMPLATE.format(n) for n in names]).T
    right = logits.argmax(1).eq(labels).float()
    row = {
        "images": len(labels), "classes": len(names), "accuracy": 100 * right.mean().item(),
        "ece": 100 * ece(logits.softmax(1).max(1).values, right), "chance": 100 / len(names),
        "confidence": 100 * logits.softmax(1).max(1).values.mean().item(),
    }  # fmt: skip
    return {k: round(v, 2) for k, v in row.items()}


def folder(at: Path) -> tuple[list[str], list[Path], Tensor]:
    names = sorted(p.name for p in at.iterdir() if p.is_dir())
    pairs = [(p, k) for k, n in enumerate(names) for p in sorted((at / n).iterdir())]
    return names, [p for p, _ in pairs], torch.tensor([k for _, k in pairs])


def public(clones: Path, wnids: dict[str, str]) -> Iterator[tuple[str, list[str], list, Tensor]]:
    """Test parts of the public copies: title, names, images, labels."""
    lists = Repository(clones, SPLITS)
    for title, name, split, at in (
        ("Caltech101 test", "MachineLearning2020/Homework2-Caltech101", "caltech101",
         "101_ObjectCategories/"),
        ("Pets test", "shlim2210/oxford-pets-datasets", "oxford_pets",
         "oxford-pets-datasets/data/images/"),
        ("Flowers102 test, unseen", "3ba2ii/Flower-Classifier", "flowers102", ""),
    ):  # fmt: skip
        repository = Repository(clones, name)
        path = f"classification/datasets/other_lists/split_zhou_{split}.json"
        rows = json.loads(lists.read(path))
        classes = {label: n.replace("_", " ") for part in rows.values() for _, label, n in part}
        by_file = {p.split("/")[-1]: p for p in repository.files if p.startswith(at)}
        found = [(by_file[p] if at == "" else at + p, k) for p, k, _ in rows["test"]]
        images = list(repository.read_all([p for p, _ in found]))
        yield (
            title,
            [classes[k] for k in sorted(classes)],
            images,
            torch.tensor([k for _, k in found]),
        )
    for title, name, pattern, rename in (
        ("Imagenette validation", "thunderInfy/imagenette", r"^val/(n\d+)/", wnids),
        ("EuroSAT part, unseen",
         "Vinayak2005917/CNN-based-Satellite-Image-Classifier-trained-on-EuroSat",
         r"^test_images/([A-Za-z]+)_",
         {"AnnualCrop": "annual crop land", "HerbaceousVegetation": "brushland",
          "PermanentCrop": "permanent crop land", "SeaLake": "lake", "Highway": "highway",
          "Residential": "residential buildings", "Industrial": "industrial buildings"}),
        ("DTD part, unseen", "pan8915/DeepTexture", r"^images/([a-z-]+)/", {}),
        *((f"PACS {domain}, unseen", "MachineLearning2020/Homework3-PACS",
           rf"^PACS/{domain}/([a-z]+)/", {})
          for domain in ("photo", "art_painting", "cartoon", "sketch")),
    ):  # fmt: skip
        repository = Repository(clones, name)
        pictures = repository.there([p for p in repository.files if IMAGE.search(p)])
        found = [(p, m[1]) for p in sorted(pictures) if (m := re.match(pattern, p))]
        keys = sorted({k for _, k in found})
        names = [rename.get(k, k.replace("_", " ")).replace("Forest", "forest") for k in keys]
        images = repository.read_all([p for p, _ in found])
        yield title, names, images, torch.tensor([keys.index(k) for _, k in found])


def everyday(model: Tiny, z: Tensor, wnids: list[str], packed: Path) -> dict[str, object]:
    """Dogs, birds and others among ten everyday names; what a photo of none of them gets."""
    classes = json.loads((packed / "classes.json").read_text())
    above = {w: {classes["nodes"][i] for i in rows}
             for w, rows in zip(classes["wnids"], classes["above"], strict=True)}  # fmt: skip
    p = model.logit_scale * z @ model.encode_text([TEMPLATE.format(n) for n in EVERYDAY]).T
    p = p.softmax(1)
    top = p.max(1)
    noun = {
        "dog": "n02084071", "bird": "n01503061", "fish": "n02512053", "insect": "n02159955",
        "car": "n02958343", "food": "n00021265", "furniture": "n03405725", "building": "n02913152",
        "boat": "n02858304", "cat": "n02120997",
    }  # fmt: skip
    known = torch.zeros(len(wnids), dtype=torch.bool)
    rows: dict[str, object] = {}
    for k, name in enumerate(EVERYDAY):
        mine = torch.tensor([noun[name] in above[w] for w in wnids])
        known |= mine
        if mine.any():
            rows[name] = f"{int(top.indices[mine].eq(k).sum())} of {int(mine.sum())}"
    rows["median confidence, one of the ten"] = round(100 * top.values[known].median().item(), 1)
    rows["median confidence, none of these"] = round(100 * top.values[~known].median().item(), 1)
    rows["none of these above 50 %"] = round(
        100 * (top.values[~known] > 0.5).float().mean().item(), 1
    )
    return rows


def thirds(counts: Tensor) -> Tensor:
    """0 for the head, 1 for the middle and 2 for the tail third of the classes."""
    third = torch.empty(len(counts), dtype=torch.long)
    order = counts.argsort(descending=True, stable=True)
    third[order] = torch.arange(len(counts)) * 3 // len(counts)
    return third


class Transformer(nn.Module):
    """A vision transformer of ViT-B/16's shape with random weights, to be timed beside tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.project = nn.Linear(768, 512)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # (N, 196, 768)
        x = torch.cat([x.mean(1, keepdim=True), x], 1)
        return self.project(self.layers(x)[:, 0])


def seconds(net: nn.Module, x: Tensor, repeats: int) -> float:
    """Shortest time of a forward pass after one that warms up; other programs only add."""
    net(x)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        net(x)
        times.append(time.perf_counter() - begin)
    return min(times)


def speed(model: Tiny, threads: int) -> dict[str, float]:
    """Time of 64 views, as shipped, with batch norm folded, and of ViT-B/16."""
    torch.set_num_threads(threads)
    x = torch.randn(64, 3, 64, 64)
    plain, folded = (seconds(t.image_tower, x, 15) for t in (model, model.fold()))
    # eight views are enough to time the transformer: its time grows in proportion
    vit = 8 * seconds(Transformer().eval(), torch.randn(8, 3, 224, 224), 3)
    return {"plain": plain, "folded": folded, "vit_b_16": vit, "ratio": vit / folded}


def ranks(p: Tensor, classes: list[dict[str, object]]) -> dict[str, float]:
    """Spearman's rank correlation of the estimated class prior with the training counts.

    The fixed point is that of the matrix whose columns are the mean predictions of the images that
    are taken for each class.
    """
    counts = [float(str(row["count"])) for row in classes]
    taken = torch.eye(len(classes))[p.argmax(1)]  # (N, L)
    matrix = p.T @ taken / taken.sum(0).clamp(min=1)
    solution, _ = fixed_point(matrix, torch.full((len(classes),), 1 / len(classes)))
    estimates = {"marginal": p.mean(0), "fixed point": solution}
    return {k: round(spearman(v.numpy(), counts), 3) for k, v in estimates.items()}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="tiny")
    parser.add_argument("--image", type=Path, help="another image tower")
    parser.add_argument("--shared", type=Path, help="folder of the three ImageFolders")
    parser.add_argument("--clones", type=Path, help="fetch.sh's folder")
    parser.add_argument("--packed", type=Path, help="the packed folder, for WordNet's nouns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-speed", action="store_true", help="leave the timing out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model, device="cpu")
    assert isinstance(model, Tiny)
    if args.image:
        state = load_file(args.image)
        model.logit_scale = float(state.pop("logit_scale"))
        model.image_tower = ImageTower(**SHAPES[args.model]).eval()
        model.image_tower.load_state_dict(
            {k.removeprefix("image_tower."): v.float() for k, v in state.items()}
        )
    shown = model
    model = model.fold()
    classes = tiny_classes()
    figures: dict[str, object] = {"model": args.model, "logit_scale": round(model.logit_scale, 3)}
    sets: dict[str, object] = {}

    if args.shared:
        names, paths, labels = folder(args.shared / "tiny-imagenet-val")
        index = {str(row["wnid"]): k for k, row in enumerate(classes)}
        labels = torch.tensor([index[n] for n in names])[labels]
        z = encode(model, paths)
        words = [str(row["name"]) for row in classes]
        sets["Tiny-ImageNet validation"] = score(model, z, labels, words)
        third = thirds(torch.tensor([int(str(row["count"])) for row in classes]))[labels]
        text = model.encode_text([TEMPLATE.format(n) for n in words])
        right = (z @ text.T).argmax(1).eq(labels).float()
        figures["thirds"] = {
            n: round(100 * right[third == k].mean().item(), 2)
            for k, n in enumerate(("head", "middle", "tail"))
        }
        figures["spearman"] = ranks((model.logit_scale * z @ text.T).softmax(1), classes)
        pool, shown_as = [z], [words[k] for k in labels.tolist()]
        names, paths, labels = folder(args.shared / "cifar10-test")
        z = encode(model, paths)
        sets["CIFAR-10 test, unseen"] = score(model, z, labels, names)
        pool, shown_as = [*pool, z], [*shown_as, *(names[k] for k in labels.tolist())]
        photos = sorted((args.shared / "photos").glob("*.jpg"))
        z = encode(model, photos)
        wnids = [p.name.split("_")[0] for p in photos]
        listed = json.loads((args.shared / "imagenet-classes.json").read_text())
        sets["200 photographs, 200 names"] = score(
            model, z, torch.arange(len(photos)), [listed[w] for w in wnids]
        )
        pool, shown_as = [*pool, z], [*shown_as, *(listed[w] for w in wnids)]
        text = model.encode_text([TEMPLATE.format(n) for n in UNSEEN])
        best = (text @ torch.cat(pool).T).topk(5).indices.tolist()
        figures["nearest"] = {
            n: [shown_as[i] for i in row] for n, row in zip(UNSEEN, best, strict=True)
        }
        if args.packed:
            figures["everyday"] = everyday(model, z, wnids, args.packed)
        if args.clones:
            for title, names, images, labels in public(args.clones, listed):
                sets[title] = score(model, encode(model, images), labels, names)
                print(title, sets[title], flush=True)
    figures["sets"] = sets
    if not args.no_speed:
        figures["seconds_for_64_views"] = speed(shown, args.threads)

    text = json.dumps(figures, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
