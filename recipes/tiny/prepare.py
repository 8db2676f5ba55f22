"""Pack everything that training needs into one folder.

    python recipes/tiny/prepare.py --tiny-imagenet tiny-imagenet-200 --wordnet /usr/share/wordnet \
        --classes imagenet-classes.json --minilm all-MiniLM-L6-v2 \
        --mobilenet mobilenet_v2.pth --resnet resnet18.pkl --out packed

Reads Tiny-ImageNet's training images only. Writes

- `images.bin`, `images.npz`: the long-tailed training images and a held-out slice of the unused
  training images (10 a class where that many are left), as JPEG bytes with offsets and labels;
- `tiny-classes.json`: wnid, name and number of training images, in order of wnid;
- `classes.json`: the 1,000 ImageNet names and their WordNet ancestors;
- `texts.tsv.gz`: WordNet's names and glosses with a sampling weight; `vocab.txt`: word pieces;
- `minilm/`, `mobilenet.safetensors`, `resnet.safetensors`: the teachers in float16.

Needs numpy, torch, safetensors and tokenizers.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import math
import pickle
import re
import shutil
import string
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

# WordNet's lexicographer files whose nouns can be photographed: animal, artifact, body, event,
# food, location, object, person, phenomenon, plant, shape, substance
CONCRETE = {5, 6, 8, 11, 13, 15, 17, 18, 19, 20, 25, 27}
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def long_tail(classes: int, most: int, ratio: float, seed: int) -> np.ndarray:
    """Images a class: exponential from `most` to `most / ratio`, in a seeded random class order."""
    counts = most * ratio ** (-np.arange(classes) / (classes - 1))
    order = np.random.default_rng(seed).permutation(classes)
    result = np.empty(classes, dtype=int)
    result[order] = np.round(counts).astype(int)
    return result


def pack_images(args: argparse.Namespace, names: dict[str, str]) -> None:
    """Write the chosen training images and the held-out slice."""
    wnids = sorted(p.name for p in (args.tiny_imagenet / "train").iterdir() if p.is_dir())
    counts = long_tail(len(wnids), args.most, args.ratio, args.seed)
    rng = np.random.default_rng(args.seed + 1)
    offsets, labels, held, files = [0], [], [], []
    with open(args.out / "images.bin", "wb") as out:
        for label, (wnid, count) in enumerate(zip(wnids, counts, strict=True)):
            paths = sorted((args.tiny_imagenet / "train" / wnid / "images").glob("*.JPEG"))
            paths = [paths[i] for i in rng.permutation(len(paths))[: count + args.held_out]]
            for i, path in enumerate(paths):
                data = path.read_bytes()
                out.write(data)
                offsets.append(offsets[-1] + len(data))
                labels.append(label)
                held.append(i >= count)
                files.append(path.stem)
    np.savez_compressed(
        args.out / "images.npz",
        offsets=np.array(offsets),
        labels=np.array(labels, dtype=np.int16),
        held=np.array(held),
    )
    (args.out / "files.txt").write_text("\n".join(files) + "\n")
    rows = [
        {"wnid": w, "name": names[w], "count": int(c)} for w, c in zip(wnids, counts, strict=True)
    ]
    text = ",\n".join(json.dumps(row) for row in rows)
    (args.out / "tiny-classes.json").write_text(f"[\n{text}\n]\n")
    print(f"{len(labels)} images, {sum(held)} of them held out, {offsets[-1] / 2**20:.1f} MiB")


def read_wordnet(folder: Path) -> tuple[dict[str, dict], Counter[str]]:
    """Synsets by part of speech and offset, and how often a lemma occurs in tagged text."""
    synsets = {}
    for part, letter in (("noun", "n"), ("verb", "v"), ("adj", "a"), ("adv", "r")):
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if line.startswith(" "):
                continue
            fields, gloss = line.split(" | ", 1)
            parts = fields.split()
            count = int(parts[3], 16)
            lemmas = [parts[4 + 2 * i].split("(")[0].replace("_", " ") for i in range(count)]
            pointers = parts[5 + 2 * count :]
            parents = [
                "n" + pointers[i + 1]
                for i in range(0, len(pointers) - 3, 4)
                if pointers[i] == "@" and letter == "n"
            ]
            synsets[letter + parts[0]] = {
                "kind": int(parts[1]) if letter == "n" else -1,
                "lemmas": lemmas,
                "parents": parents,
                "gloss": gloss.split('; "')[0].strip(' ;"'),
            }
    seen: Counter[str] = Counter()
    for line in (folder / "cntlist.rev").read_text("latin-1").splitlines():
        key, _, count = line.split()
        seen[key.split("%")[0].replace("_", " ")] += int(count)
    return synsets, seen


def ancestors(synsets: dict[str, dict], leaves: list[str]) -> tuple[list[str], list[list[int]]]:
    """Names above the leaves in WordNet, and for every leaf which of them are above it."""

    def above(wnid: str) -> set[str]:
        found: set[str] = set()
        stack = list(synsets[wnid]["parents"])
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += synsets[node]["parents"]
        return found

    chains = [above(leaf) for leaf in leaves]
    cover = Counter(node for chain in chains for node in chain)
    # what is above nearly everything says nothing about a picture
    nodes = sorted(n for n, c in cover.items() if c <= 450 and n not in leaves)
    index = {n: i for i, n in enumerate(nodes)}
    rows = [sorted(index[n] for n in chain if n in index) for chain in chains]
    return [synsets[n]["lemmas"][0] for n in nodes], rows


def pack_texts(args: argparse.Namespace, names: dict[str, str]) -> None:
    """Write names and glosses with weights, the class names, and the word pieces."""
    synsets, seen = read_wordnet(args.wordnet)
    leaves = list(names)
    parents, rows = ancestors(synsets, leaves)
    facts = {"wnids": leaves, "names": list(names.values()), "ancestors": parents, "above": rows}
    (args.out / "classes.json").write_text(json.dumps(facts))

    weights: defaultdict[tuple[str, str], float] = defaultdict(float)
    for key, synset in synsets.items():
        lemmas, gloss = synset["lemmas"], synset["gloss"]
        concrete = synset["kind"] in CONCRETE
        for lemma in lemmas:
            usual = 1 + math.log1p(seen[lemma.lower()])
            weights["name", lemma] += usual * (3 if concrete else 1 if key[0] == "n" else 0.3)
        weight = 1.0 if concrete else 0.3
        weights["gloss", gloss] += weight
        if key[0] == "n":
            weights["gloss", f"a {lemmas[0]} is {gloss}"] += weight
            weights["gloss", f"{lemmas[-1]}, {gloss}"] += weight / 2
    for name in [*names.values(), *parents]:
        weights["name", name] += 30
    with gzip.open(args.out / "texts.tsv.gz", "wt", encoding="utf-8") as out:
        for (kind, text), weight in weights.items():
            out.write(f"{weight:.3g}\t{kind}\t{' '.join(text.split())}\n")
    print(f"{len(weights)} texts, {len(parents)} ancestors of {len(leaves)} names")
    (args.out / "vocab.txt").write_text("\n".join(word_pieces(weights, args.vocab)) + "\n")


def word_pieces(weights: dict[tuple[str, str], float], size: int) -> list[str]:
    """Padding, start, bytes, characters, then the most useful word pieces of the texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    def plain(text: str) -> str:
        text = unicodedata.normalize("NFKD", text.lower())
        return " ".join(re.findall(r"[a-z0-9]+", text))

    def corpus():
        for (kind, text), weight in weights.items():
            for _ in range(max(1, round(weight)) if kind == "name" else 1):
                yield plain(text)

    tokenizer = Tokenizer(models.WordPiece())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=size, show_progress=False, special_tokens=[])
    tokenizer.train_from_iterator(corpus(), trainer)
    learned = tokenizer.get_vocab()
    letters = string.ascii_lowercase + string.digits
    vocab = ["[PAD]", "[START]", *BYTES, *letters, *("##" + c for c in letters)]
    vocab += list(string.punctuation)
    vocab += [p for p in sorted(learned, key=learned.__getitem__) if p not in set(vocab)]
    return vocab[:size]


def pack_teachers(args: argparse.Namespace) -> None:
    """Write the teachers' weights in float16."""

    class Plain(pickle.Unpickler):  # only what a state dict is made of
        def find_class(self, module: str, name: str):
            if (module, name) == ("torch.storage", "_load_from_bytes"):
                return lambda b: torch.load(io.BytesIO(b), map_location="cpu", weights_only=True)
            if (module, name) in {
                ("collections", "OrderedDict"),
                ("torch._utils", "_rebuild_tensor_v2"),
            }:
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"{module}.{name} is not expected here")

    def half(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            k: v.half().contiguous() if v.is_floating_point() else v.contiguous()
            for k, v in state.items()
        }

    mobilenet = torch.load(args.mobilenet, map_location="cpu", weights_only=True)
    save_file(half(mobilenet), args.out / "mobilenet.safetensors")
    with open(args.resnet, "rb") as file:
        save_file(half(dict(Plain(file).load())), args.out / "resnet.safetensors")
    shutil.copytree(args.minilm, args.out / "minilm", dirs_exist_ok=True)
    state = load_file(args.minilm / "model.safetensors")
    save_file(half(state), args.out / "minilm" / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny-imagenet", type=Path, required=True, help="tiny-imagenet-200")
    parser.add_argument("--wordnet", type=Path, required=True, help="WordNet 3.0's data.* files")
    parser.add_argument("--classes", type=Path, required=True, help="JSON: wnid to class name")
    parser.add_argument("--minilm", type=Path, required=True, help="all-MiniLM-L6-v2's folder")
    parser.add_argument("--mobilenet", type=Path, required=True, help="torchvision mobilenet_v2")
    parser.add_argument("--resnet", type=Path, required=True, help="torchvision-shaped resnet18")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=500, help="images of the most frequent class")
    parser.add_argument("--ratio", type=float, default=20, help="most to least frequent")
    parser.add_argument("--held-out", type=int, default=10, help="held-out images a class")
    parser.add_argument("--vocab", type=int, default=8192, help="number of word pieces")
    parser.add_argument("--seed", type=int, default=0, help="class order and choice of images")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = json.loads(args.classes.read_text())
    pack_images(args, names)
    pack_texts(args, names)
    pack_teachers(args)


if __name__ == "__main__":
    main()
