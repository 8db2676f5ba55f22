"""Pack the training images of every set into a few files of small WebP squares.

    python recipes/tiny/pack_images.py --clones clones --classes imagenet-classes.json --out packed

Tiny-ImageNet keeps its 64 pixels; the other sets become centred squares of 96. A training image
that looks like an evaluated one (thumbnails correlate above `--alike`) is dropped. Writes

- `SET.webp`: all images of a set, one behind the other; a set that is there is not packed again;
- `images.npz`: by image its set, offset, size, label, certain WordNet noun, whether it belongs to
  the long-tailed draw, whether it is held back, whether it is kept;
- `sets.json`: by set its repository, licence, class names and counts; `captions.json`;
- `tiny-classes.json`: wnid, name and number of images of the long-tailed draw, by wnid.

Needs numpy and pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image
from sources import EVALUATED, EVALUATED_SPLITS, SPLITS, Repository, sources


def long_tail(classes: int, most: int, ratio: float, seed: int) -> np.ndarray:
    """Images per class: exponential from `most` to `most / ratio`, in a seeded random order."""
    counts = most * ratio ** (-np.arange(classes) / (classes - 1))
    order = np.random.default_rng(seed).permutation(classes)
    result = np.empty(classes, dtype=int)
    result[order] = np.round(counts).astype(int)
    return result


def draw(paths: list[str], counts: np.ndarray, held: int, seed: int) -> tuple[set[str], set[str]]:
    """The long-tailed draw and up to `held` other images per class, from paths by wnid."""
    by_class: dict[str, list[str]] = {}
    for path in sorted(paths):
        by_class.setdefault(path.split("/")[2], []).append(path)
    rng = np.random.default_rng(seed + 1)
    chosen: set[str] = set()
    aside: set[str] = set()
    for wnid, count in zip(sorted(by_class), counts, strict=True):
        order = rng.permutation(len(by_class[wnid]))
        picked = [by_class[wnid][i] for i in order[: count + held]]
        chosen.update(picked[:count])
        aside.update(picked[count:])
    return chosen, aside


def square(data: bytes, side: int) -> Image.Image:
    """The centred square of an image, `side` pixels wide."""
    with Image.open(io.BytesIO(data)) as opened:
        opened.draft("RGB", (2 * side, 2 * side))  # JPEG: decode at reduced scale
        image = opened.convert("RGB")
    w, h = image.size
    if (w, h) == (side, side):
        return image
    k = min(w, h)
    left, top = (w - k) // 2, (h - k) // 2
    return image.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + k, top + k))


def thumbnail(image: Image.Image) -> np.ndarray:
    """A unit vector of 256 grey levels about their mean; images that look alike correlate."""
    grey = np.asarray(image.convert("L").resize((16, 16), Image.Resampling.BOX), np.float32).ravel()
    grey = grey - grey.mean()
    return (grey / max(float(np.linalg.norm(grey)), 1e-6)).astype(np.float16)


def _pack(job: tuple[bytes, int]) -> bytes:
    out = io.BytesIO()
    square(*job).save(out, "WEBP", quality=70, method=4)
    return out.getvalue()


def walk(data: bytes) -> np.ndarray:
    """Where each image of a packed set begins, and the end: a RIFF file says its own length."""
    starts = [0]
    while starts[-1] < len(data):
        at = starts[-1]
        assert data[at : at + 4] == b"RIFF"
        starts.append(at + 8 + int.from_bytes(data[at + 4 : at + 8], "little"))
    return np.array(starts)


def _look(data: bytes) -> np.ndarray:
    return thumbnail(square(data, 64))


def spread(pool: ProcessPoolExecutor, work, jobs: Iterable) -> Iterator:
    """`pool.map` in chunks, so that only some of the images are in memory."""
    jobs = iter(jobs)
    while part := list(islice(jobs, 4096)):
        yield from pool.map(work, part, chunksize=64)


def evaluated(pool: ProcessPoolExecutor, clones: Path, others: list[Path]) -> np.ndarray:
    """Thumbnails (N, 256) of all images that figures are measured on."""
    rows: list[np.ndarray] = []
    for name, pattern in EVALUATED:
        repository = Repository(clones, name)
        paths = [p for p in repository.files if re.search(pattern, p) and p[-3:] != "txt"]
        rows += spread(pool, _look, repository.read_all(sorted(repository.there(paths))))
    lists = Repository(clones, SPLITS)
    for name, split, folder in EVALUATED_SPLITS:
        repository = Repository(clones, name)
        parts = json.loads(lists.read(f"classification/datasets/other_lists/{split}.json"))
        paths = [f"{folder}/{row[0]}" for row in parts["test"] + parts["val"]]
        rows += spread(pool, _look, repository.read_all(sorted(repository.there(paths))))
    for folder in others:
        rows += spread(pool, _look, (p.read_bytes() for p in sorted(folder.rglob("*.jpg"))))
    return np.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clones", type=Path, required=True, help="fetch.sh's folder")
    parser.add_argument("--classes", type=Path, required=True, help="JSON: wnid to class name")
    parser.add_argument("--avoid", type=Path, nargs="*", default=[],
                        help="folders of further evaluated photographs")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=500, help="images of the most frequent class")
    parser.add_argument("--ratio", type=float, default=20, help="most to least frequent")
    parser.add_argument("--held", type=float, default=0.02, help="share held back, other sets")
    parser.add_argument("--alike", type=float, default=0.97, help="correlation of a duplicate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = json.loads(args.classes.read_text())
    rng = np.random.default_rng(args.seed)

    facts, captions = {}, []
    columns: dict[str, list] = {k: [] for k in ("set", "offset", "size", "label", "under",
                                               "longtail", "held", "side")}  # fmt: skip
    unders, thumbs = [""], []
    with ProcessPoolExecutor(args.workers, get_context("forkserver")) as pool:
        for number, source in enumerate(sources(names)):
            repository = Repository(args.clones, source.repository)
            items = source.items(repository, args.clones)
            there = repository.there([i.path for i in items])
            lost = len(items) - len(there)
            items = [i for i in items if i.path in there]
            first = source.key == "tiny-imagenet"
            side = 64 if first else 96
            packed = args.out / f"{source.key}.webp"
            if not packed.exists():
                jobs = ((data, side) for data in repository.read_all([i.path for i in items]))
                with open(packed.with_suffix(".part"), "wb") as out:
                    for data in spread(pool, _pack, jobs):
                        out.write(data)
                packed.with_suffix(".part").replace(packed)
            whole = packed.read_bytes()
            starts = walk(whole)
            assert len(starts) == len(items) + 1, f"{packed} is of other images; delete it"
            pieces = (whole[a:b] for a, b in pairwise(starts))
            thumbs += spread(pool, _look, pieces)
            if first:
                wnids = sorted({i.path.split("/")[2] for i in items})
                counts = long_tail(len(wnids), args.most, args.ratio, args.seed)
                tail, aside = draw([i.path for i in items], counts, 10, args.seed)
                rows = [{"wnid": w, "name": names[w], "count": int(c)}
                        for w, c in zip(wnids, counts, strict=True)]  # fmt: skip
                text = ",\n".join(json.dumps(row) for row in rows)
                (args.out / "tiny-classes.json").write_text(f"[\n{text}\n]\n")
                vocabulary = [names[w] for w in wnids]
            elif source.key.startswith("image"):
                vocabulary = list(names.values())
            elif source.key == "flickr8k":
                vocabulary = []
            else:
                vocabulary = sorted({i.name for i in items})
            index = {name: k for k, name in reversed(list(enumerate(vocabulary)))}
            for item, start, end in zip(items, starts[:-1], starts[1:], strict=True):
                if item.under not in unders:
                    unders.append(item.under)
                label = index.get(item.name, len(captions))
                if source.key == "flickr8k":
                    captions.append(item.name.split("\n"))
                held = item.path in aside if first else bool(rng.random() < args.held)
                row = (number, start, end - start, label, unders.index(item.under),
                       first and item.path in tail, held, side)  # fmt: skip
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
            facts[source.key] = {
                "repository": source.repository, "licence": source.licence, "names": vocabulary,
                "images": len(items), "missing": lost,
            }  # fmt: skip
            print(f"{source.key}: {len(items)} images, {lost} missing", flush=True)
        others = evaluated(pool, args.clones, args.avoid)
    mine = np.stack(thumbs).astype(np.float32)
    likeness = np.zeros(len(mine), np.float32)
    for part in np.array_split(others.astype(np.float32), max(1, len(others) // 2048)):
        for k in range(0, len(mine), 8192):
            best = (mine[k : k + 8192] @ part.T).max(1)
            likeness[k : k + 8192] = np.maximum(likeness[k : k + 8192], best)
    keep = likeness < args.alike
    sets = np.array(columns["set"])
    for number, key in enumerate(facts):
        facts[key]["dropped"] = int((~keep & (sets == number)).sum())
    types = {"set": np.uint8, "offset": np.uint32, "size": np.uint16, "label": np.int32,
             "under": np.uint8, "longtail": bool, "held": bool, "side": np.uint8}  # fmt: skip
    np.savez_compressed(
        args.out / "images.npz", keep=keep, likeness=likeness.astype(np.float16),
        unders=np.array(unders),
        **{k: np.array(v, types[k]) for k, v in columns.items()},
    )  # fmt: skip
    (args.out / "sets.json").write_text(json.dumps(facts, indent=1) + "\n")
    (args.out / "captions.json").write_text(json.dumps(captions))
    print({k: (v["images"], v["dropped"]) for k, v in facts.items()})


if __name__ == "__main__":
    main()
