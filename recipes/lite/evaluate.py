"""Print the figures of the card of `lite`.

    python recipes/lite/evaluate.py --shared data --clones clones --texts texts --keep features

One base view and the template "a photo of a {}." everywhere; accuracy and expected calibration
error (15 bins) in per cent. What the image tower sees of every image is kept in `--keep`, since it
never changes: a new readout or text tower (`--readout`, `--text`) is measured in a minute.

`--shared` and `--clones` are as for `recipes/tiny/evaluate.py`; sets of the public copies that are
not cloned are left out.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny"))
from sources import IMAGE, Repository, _food, _tidy

from adte.images import base_view
from adte.models.lite import Lite, load_lite, published
from evaluate import TEMPLATE, UNSEEN, everyday, folder, public, score

# What the image tower learned from: figures on these flatter.
SEEN = "ImageNet's training set, which the image tower learned, includes them or their like"


def more(clones: Path, wnids: dict[str, str]) -> Iterator[tuple[str, list[str], list, Tensor]]:
    """Sets beside those of `tiny`'s card: title, names, images, labels."""
    names = list(wnids.values())
    at = Repository(clones, "ndb796/Small-ImageNet-Validation-Dataset-1000-Classes")
    there = at.there([p for p in at.files if p.lower().endswith("jpeg")])
    rows = [(p, int(p.split("/")[1])) for p in sorted(there)]
    yield (
        "ImageNet validation",
        names,
        at.read_all([p for p, _ in rows]),
        torch.tensor([k for _, k in rows]),
    )
    for title, name, pattern, most in (
        ("Imagewoof validation", "q878787/imagewoof2-320", r"^val/(n\d+)/", 1500),
        ("CUB test", "cyizhuo/CUB-200-2011-dataset", r"^test/([^/]+)/", 2000),
        ("Cars test", "cyizhuo/Stanford_Cars_dataset", r"^test/([^/]+)/", 1500),
    ):
        at = Repository(clones, name)
        found = [
            (p, m[1])
            for p in sorted(at.there(list(at.files)))
            if IMAGE.search(p) and (m := re.match(pattern, p))
        ]
        found = found[:: max(1, len(found) // most)]
        keys = sorted({k for _, k in found})
        words = [wnids.get(k, _tidy(re.sub(r"^\d+\.", "", k))) for k in keys]
        yield (
            title,
            words,
            at.read_all([p for p, _ in found]),
            torch.tensor([keys.index(k) for _, k in found]),
        )
    at = Repository(clones, "srohit0/food_mnist")
    train = {i.path for i in _food("images/")(at, clones)}
    found = [
        (p, p.split("/")[-2])
        for p in sorted(at.there(list(at.files)))
        if p.startswith("images/") and IMAGE.search(p)
    ]
    found = [(p, k) for p, k in found if p not in train]
    keys = sorted({k for _, k in found})
    labels = torch.tensor([keys.index(k) for _, k in found])
    words = [_tidy(k) for k in keys]
    yield "Food101, ten classes, test", words, at.read_all([p for p, _ in found]), labels


def encode(model: Lite, images: Iterable[bytes | Path]) -> Tensor:
    """What the image tower sees of base views (N, 1280)."""
    images, rows = iter(images), []
    while part := list(islice(images, 64)):
        views = []
        for item in part:
            with Image.open(item if isinstance(item, Path) else io.BytesIO(item)) as image:
                views.append(base_view(image.convert("RGB"), model.preprocess))
        rows.append(model.image_tower(torch.stack(views)))
    return torch.cat(rows)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shared", type=Path, required=True, help="folder of the three ImageFolders"
    )
    parser.add_argument("--clones", type=Path, required=True, help="fetch.sh's folder")
    parser.add_argument("--texts", type=Path, required=True, help="prepare.py's folder, for nouns")
    parser.add_argument("--keep", type=Path, required=True, help="where features are kept")
    parser.add_argument("--only-features", action="store_true", help="compute these and stop")
    parser.add_argument("--most", type=int, default=10**9, help="images of a set, evenly spread")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.keep.mkdir(parents=True, exist_ok=True)
    if args.only_features:
        model = Lite([""])
        state = {k: v for k, v in published().items() if k.startswith("image_tower.")}
        model.load_state_dict(state, strict=False)
        model.image_tower.to(memory_format=torch.channels_last)
        model.eval()
    else:
        model = load_lite()
    listed = json.loads((args.shared / "imagenet-classes.json").read_text())

    def seen(title: str, images: Iterable[bytes | Path]) -> Tensor:
        kept = args.keep / f"{re.sub(r'[^a-z0-9]+', '-', title.lower())}.pt"
        if not kept.exists():
            print(title, flush=True)
            torch.save(encode(model, images).half(), kept)
        return torch.load(kept).float()

    figures: dict[str, object] = {"model": "lite"}
    sets: dict[str, object] = {}
    pool: list[Tensor] = []
    shown: list[str] = []

    def measure(title: str, names: list[str], images, labels: Tensor) -> None:
        step = -(-len(labels) // args.most)
        labels = labels[::step]
        h = seen(f"{title} {step}", islice(images, 0, None, step))
        if args.only_features:
            return
        z = model.readout(h, model.classes(h))
        sets[title] = score(model, z, labels, names)
        if title.startswith("ImageNet"):
            own = model.classes(h).argmax(1).eq(labels).float().mean()
            sets[title]["classifier"] = round(100 * own.item(), 2)
        if title.startswith(("200", "Tiny", "CIFAR", "Caltech", "PACS photo")):
            pool.append(z)
            shown.extend(names[k] for k in labels.tolist())
        if title.startswith("200"):
            figures["everyday"] = everyday(model, z, wnids, args.texts)
        print(title, sets[title], flush=True)

    photos = sorted((args.shared / "photos").glob("*.jpg"))
    wnids = [p.name.split("_")[0] for p in photos]
    measure(
        "200 photographs, 200 names", [listed[w] for w in wnids], photos, torch.arange(len(photos))
    )
    names, paths, labels = folder(args.shared / "tiny-imagenet-val")
    measure("Tiny-ImageNet validation", [listed[n] for n in names], paths, labels)
    names, paths, labels = folder(args.shared / "cifar10-test")
    measure("CIFAR-10 test", names, paths, labels)
    for title, names, images, labels in chain(
        more(args.clones, listed), public(args.clones, listed)
    ):
        measure(title, names, images, labels)
    if args.only_features:
        return
    text = model.encode_text([TEMPLATE.format(n) for n in UNSEEN])
    best = (text @ torch.cat(pool).T).topk(5).indices.tolist()
    figures["nearest"] = {n: [shown[i] for i in row] for n, row in zip(UNSEEN, best, strict=True)}
    figures["sets"] = sets
    written = json.dumps(figures, indent=1)
    print(written)
    if args.json:
        args.json.write_text(written + "\n")


if __name__ == "__main__":
    main()
