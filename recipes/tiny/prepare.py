"""Pack the texts and the teachers that training needs into one folder; needs no GPU.

    python recipes/tiny/prepare.py --wordnet /usr/share/wordnet --classes imagenet-classes.json \
        --minilm all-MiniLM-L6-v2 --mobilenet mobilenet_v2.pth --resnet resnet18.pkl \
        --text text.safetensors --out packed

`pack_images.py` writes the images into the same folder. Writes

- `classes.json`: the 1,000 ImageNet names, the nouns above them in WordNet with all their lemmas,
  and which noun is above which name;
- `texts.tsv.gz`: WordNet's names and glosses with a sampling weight; `vocab.txt`: word pieces;
- `captions.safetensors`: sentences of `captions.json` in the text tower's space. MiniLM reads them,
  for it knows sentences; a linear map, fitted on WordNet's names, takes its embeddings there;
- `minilm/`, `mobilenet.safetensors`, `resnet.safetensors`: the teachers in float16.

Without `--text` (the first time, when there is no text tower yet) the captions are left out.

Needs numpy, torch, safetensors, tokenizers and transformers.
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

import torch
from safetensors.torch import load_file, save_file

# WordNet's lexicographer files whose nouns can be photographed: animal, artifact, body, event,
# food, location, object, person, phenomenon, plant, shape, substance
CONCRETE = {5, 6, 8, 11, 13, 15, 17, 18, 19, 20, 25, 27}
BYTES = [f"<0x{b:02X}>" for b in range(256)]


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
    """Nouns above the leaves in WordNet, and for every leaf which of them are above it."""

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
    return nodes, rows


def pack_texts(args: argparse.Namespace, names: dict[str, str]) -> None:
    """Write names and glosses with weights, the class names, and the word pieces."""
    synsets, seen = read_wordnet(args.wordnet)
    leaves = list(names)
    nodes, rows = ancestors(synsets, leaves)
    parents = [synsets[n]["lemmas"][0] for n in nodes]
    facts = {
        "wnids": leaves, "names": list(names.values()), "nodes": nodes, "ancestors": parents,
        "lemmas": [synsets[n]["lemmas"] for n in nodes], "above": rows,
        "counts": [seen[name.lower()] for name in parents],
    }  # fmt: skip
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


def pack_captions(args: argparse.Namespace) -> None:
    """Write unit vectors (N, D) of all captions and the photograph of each."""
    from train_text import embed, read_texts

    from adte.models.tiny import TextTower, Tokenizer

    vocab = args.vocabulary.read_text("utf-8").splitlines()
    tower = TextTower(len(vocab))
    tower.load_state_dict({k: v.float() for k, v in load_file(args.text).items()})
    texts, kinds, weights = read_texts(args.out)
    concrete = [t for t, k, w in zip(texts, kinds, weights, strict=True) if k == "name" and w > 4]
    fit, check = concrete[::2][:8000], concrete[1::16][:1000]
    tokenizer = Tokenizer(vocab)

    def own(rows: list[str]) -> torch.Tensor:
        with torch.inference_mode():
            parts = [rows[i : i + 512] for i in range(0, len(rows), 512)]
            return torch.cat([tower(*tokenizer(part)) for part in parts])

    captions = json.loads((args.out / "captions.json").read_text())
    sentences = [c for group in captions for c in group]
    of = torch.tensor([k for k, group in enumerate(captions) for _ in group])
    seen = embed(args.out / "minilm", fit + check + sentences, "cpu", 256)
    ones = torch.ones(len(seen), 1)
    seen = torch.cat([seen, ones], 1)
    n, m = len(fit), len(fit) + len(check)
    gram = seen[:n].T @ seen[:n] + 1e-3 * torch.eye(seen.shape[1])
    mapped = torch.nn.functional.normalize(
        seen @ torch.linalg.solve(gram, seen[:n].T @ own(fit)), dim=-1
    )
    cosine = (mapped[n:m] * own(check)).sum(1).mean()
    direct = (mapped[m:][::40] * own(sentences[::40])).sum(1).mean()
    print(f"{len(sentences)} captions; cosine of the map {cosine:.3f} on names; of the tower's "
          f"own reading of captions {direct:.3f}")  # fmt: skip
    save_file({"z": mapped[m:].half().contiguous(), "of": of}, args.out / "captions.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=Path, required=True, help="WordNet 3.0's data.* files")
    parser.add_argument("--classes", type=Path, required=True, help="JSON: wnid to class name")
    parser.add_argument("--minilm", type=Path, required=True, help="all-MiniLM-L6-v2's folder")
    parser.add_argument("--mobilenet", type=Path, required=True, help="torchvision mobilenet_v2")
    parser.add_argument("--resnet", type=Path, required=True, help="torchvision-shaped resnet18")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="train_text.py's weights, for the captions")
    parser.add_argument(
        "--vocabulary", type=Path, help="its word pieces; the folder's own if absent"
    )
    parser.add_argument("--vocab", type=int, default=8192, help="number of word pieces")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = json.loads(args.classes.read_text())
    args.vocabulary = args.vocabulary or args.out / "vocab.txt"
    pack_texts(args, names)
    pack_teachers(args)
    if args.text:
        pack_captions(args)


if __name__ == "__main__":
    main()
