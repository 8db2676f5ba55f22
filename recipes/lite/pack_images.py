"""Pack training images for `lite` into one file of small JPEGs.

    python recipes/lite/pack_images.py --clones clones --classes imagenet-classes.json \
        --photos photos --out packed

The sets are those of `tiny` (`recipes/tiny/sources.py`), some thinned out, and ImageNet's sample
images but for the ones in `--photos`, which figures are measured on. Tiny-ImageNet keeps its 64
pixels; the others become centred squares of 192. A training image that looks like an evaluated one
is dropped, see `recipes/tiny/pack_images.py`. Writes

- `images.bin`: the images, one behind the other;
- `images.npz`: by image its offset and size, set, label, and whether it is held back;
- `sets.json`: by set its repository, licence, names and counts; `captions.json`.

Needs numpy and pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny"))
from pack_images import evaluated, square, thumbnail
from sources import EVALUATED, Item, Repository, Source, sources

SIDE = 192
MOST = {"tiny-imagenet": 40_000, "imagenette": 2000, "imagewoof": 2000, "cars": 2000, "cub": 3000,
        "food-mnist": 1500, "food-gan": 1500}  # fmt: skip
EVALUATED += [("ndb796/Small-ImageNet-Validation-Dataset-1000-Classes", r"(?i)\.(jpe?g|png)$")]


def samples(names: dict[str, str], photos: Path) -> Source:
    """ImageNet's sample images, one a class, without those that are evaluated."""
    taken = {re.match(r"n\d+", p.name)[0] for p in photos.glob("n*")}

    def items(repository: Repository, _: Path) -> list[Item]:
        found = []
        for path in sorted(repository.files):
            wnid = re.match(r"n\d+", path)
            if wnid and wnid[0] in names and wnid[0] not in taken:
                found.append(Item(path, names[wnid[0]]))
        return found

    terms = "ImageNet's terms: non-commercial research and education"
    return Source("imagenet-samples", "EliSchwartz/imagenet-sample-images", terms, items)


def _pack(job: tuple[bytes, int]) -> tuple[bytes, np.ndarray]:
    image, out = square(*job), io.BytesIO()
    image.save(out, "JPEG", quality=85 if job[1] == 64 else 60)
    return out.getvalue(), thumbnail(image.resize((64, 64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clones", type=Path, required=True, help="recipes/tiny/fetch.sh's folder")
    parser.add_argument("--classes", type=Path, required=True, help="JSON: wnid to class name")
    parser.add_argument("--photos", type=Path, required=True, help="evaluated sample images")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alike", type=float, default=0.97, help="correlation of a duplicate")
    parser.add_argument("--held", type=float, default=0.03, help="share held back, of each set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = json.loads(args.classes.read_text())
    rng = np.random.default_rng(args.seed)
    facts, captions, thumbs, offset = {}, [], [], 0
    rows: dict[str, list] = {k: [] for k in ("offset", "size", "set", "label", "held")}
    with ProcessPoolExecutor(args.workers, get_context("forkserver")) as pool:
        others = evaluated(pool, args.clones, [args.photos]).astype(np.float32)
        print(f"{len(others)} evaluated images", flush=True)
        with open(args.out / "images.bin", "wb") as out:
            for number, source in enumerate([*sources(names), samples(names, args.photos)]):
                repository = Repository(args.clones, source.repository)
                items = source.items(repository, args.clones)
                there = repository.there([i.path for i in items])
                items = [i for i in items if i.path in there]
                if len(items) > (most := MOST.get(source.key, len(items))):
                    items = [items[i] for i in sorted(rng.permutation(len(items))[:most])]
                side = 64 if source.key == "tiny-imagenet" else SIDE
                if source.key.startswith(("image", "tiny")):
                    vocabulary = list(names.values())
                else:
                    vocabulary = sorted({i.name for i in items})
                index = {name: k for k, name in reversed(list(enumerate(vocabulary)))}
                told = source.key == "flickr8k"
                jobs = [(d, side) for d in repository.read_all([i.path for i in items])]
                for item, (data, thumb) in zip(
                    items, pool.map(_pack, jobs, chunksize=64), strict=True
                ):
                    out.write(data)
                    label = len(captions) if told else index[item.name]
                    if told:
                        captions.append(item.name.split("\n"))
                    held = bool(rng.random() < args.held)
                    for column, value in zip(
                        rows.values(), (offset, len(data), number, label, held), strict=True
                    ):
                        column.append(value)
                    thumbs.append(thumb)
                    offset += len(data)
                facts[source.key] = {
                    "repository": source.repository, "licence": source.licence,
                    "names": [] if told else vocabulary, "images": len(items), "side": side,
                }  # fmt: skip
                print(f"{source.key}: {len(items)} images, {offset >> 20} MB", flush=True)
    mine, likeness = np.stack(thumbs).astype(np.float32), np.zeros(len(thumbs), np.float32)
    for part in np.array_split(others, max(1, len(others) // 4096)):
        best = np.concatenate([(m @ part.T).max(1) for m in np.array_split(mine, 16)])
        likeness = np.maximum(likeness, best)
    keep = likeness < args.alike
    sets = np.array(rows["set"])
    for number, key in enumerate(facts):
        facts[key]["dropped"] = int((~keep & (sets == number)).sum())
    np.savez_compressed(
        args.out / "images.npz", keep=keep, **{k: np.array(v) for k, v in rows.items()}
    )
    (args.out / "sets.json").write_text(json.dumps(facts, indent=1) + "\n")
    (args.out / "captions.json").write_text(json.dumps(captions))
    print({k: (v["images"], v["dropped"]) for k, v in facts.items()})


if __name__ == "__main__":
    main()
