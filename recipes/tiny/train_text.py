"""Teach the text tower the sentence embeddings of MiniLM, reduced to 128 dimensions.

    python recipes/tiny/train_text.py --data packed --out runs/text

The targets: MiniLM embeds WordNet's names and glosses and names inside templates. The target of a
name in a template is the mean of that embedding and of the plain name's, so that a template stays
near its name. Centre and principal axes are those of the names. The loss is one minus the cosine,
plus the divergence between the similarities of a batch's targets as the student and as the targets
see them. One name in fifty is never shown, to measure unseen names.

Needs transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from templates import EVALUATION, TEMPLATES
from torch import Tensor

from adte.models._torchvision import import_torchvision
from adte.models.tiny import DIM, TextTower, Tokenizer


def read_texts(data: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Texts, their kinds and their weights."""
    with gzip.open(data / "texts.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [r[2] for r in rows], [r[1] for r in rows], np.array([float(r[0]) for r in rows])


@torch.inference_mode()
def embed(folder: Path, texts: list[str], device: str, batch: int = 2048) -> Tensor:
    """MiniLM's sentence embeddings (N, 384): the mean over tokens, normalised."""
    import_torchvision()  # one that was built for another torch imports all the same
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    dtype = torch.float16 if device != "cpu" else torch.float32
    model = AutoModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    order = np.argsort([len(t) for t in texts])
    result = torch.empty(len(texts), model.config.hidden_size)
    for start in range(0, len(texts), batch):
        chosen = order[start : start + batch]
        inputs = tokenizer(
            [texts[i] for i in chosen], padding=True, truncation=True, max_length=96,
            return_tensors="pt",
        ).to(device)  # fmt: skip
        hidden = model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][..., None]
        result[chosen] = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).cpu()
    return result


def _ids(job: tuple[list[str], list[str]]) -> list[list[int]]:
    vocab, texts = job
    tokenizer = Tokenizer(vocab)
    return [tokenizer.encode(text) for text in texts]


def tokenize(vocab: list[str], texts: list[str], workers: int) -> tuple[Tensor, Tensor]:
    """Ids (N, 64), padded with zeros, and lengths (N,)."""
    chunks = [(vocab, texts[i : i + 20000]) for i in range(0, len(texts), 20000)]
    with ProcessPoolExecutor(workers) as pool:
        rows = [row for part in pool.map(_ids, chunks) for row in part]
    ids = torch.zeros(len(rows), 64, dtype=torch.int16)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.int16)
    return ids, torch.tensor([len(row) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="prepare.py's folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dim", type=int, default=DIM, help="principal axes that are kept")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--captions", type=Path, help="captions.json, to be read like glosses")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--limit", type=int, help="use this many texts, for a quick look")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    began = time.time()

    classes = json.loads((args.data / "classes.json").read_text())
    known = set(classes["names"]) | set(classes["ancestors"])
    vocab = (args.data / "vocab.txt").read_text().splitlines()
    texts, kinds, weights = read_texts(args.data)
    if args.captions:
        told = [c for group in json.loads(args.captions.read_text()) for c in group]
        texts, kinds = [*texts, *told], [*kinds, *["gloss"] * len(told)]
        weights = np.concatenate([weights, np.ones(len(told))])
    if args.limit:
        keep = [i for i, t in enumerate(texts) if t in known or i < args.limit]
        texts, kinds, weights = [texts[i] for i in keep], [kinds[i] for i in keep], weights[keep]

    # captions: every class name in every template, every other name in three
    base = list(range(len(texts)))  # the plain name behind each text
    hidden = np.zeros(len(texts), dtype=bool)
    for i in range(len(weights)):
        if kinds[i] != "name":
            continue
        name = texts[i]
        hidden[i] = name not in known and rng.random() < 0.02
        few = [TEMPLATES[0], *(TEMPLATES[k] for k in rng.integers(1, len(TEMPLATES), 2))]
        for template in TEMPLATES if name in known else few:
            texts.append(template.format(name))
            kinds.append("caption")
            base.append(i)
    base = torch.tensor(base)
    added = len(texts) - len(weights)
    share = np.bincount(base[-added:], minlength=len(weights))
    weights = np.concatenate([weights, (weights / np.maximum(share, 1))[base[-added:]]])
    hidden = torch.from_numpy(hidden)[base]
    short = np.array([k != "gloss" for k in kinds])
    print(f"{len(texts)} texts after {time.time() - began:.0f} s", flush=True)

    teacher = embed(args.data / "minilm", texts, args.device)
    print(f"embedded after {time.time() - began:.0f} s", flush=True)
    target = (teacher + teacher[base]) / 2
    w = torch.from_numpy(weights * short).float()[:, None]
    centre = (w * target).sum(0) / w.sum()
    covariance = (w * (target - centre)).T @ (target - centre) / w.sum()
    values, axes = torch.linalg.eigh(covariance)
    print(f"variance kept by {args.dim} axes: {values[-args.dim :].sum() / values.sum():.3f}")
    axes = axes[:, -args.dim :].flip(1).contiguous()
    target = F.normalize((target - centre) @ axes, dim=-1)
    save_file({"centre": centre, "axes": axes}, args.out / "space.safetensors")

    ids, lengths = tokenize(vocab, texts, args.workers)
    print(f"tokenized after {time.time() - began:.0f} s, mean {lengths.float().mean():.1f} tokens")

    device = args.device
    tower = TextTower(len(vocab), args.width, heads=args.heads, dim=args.dim).to(device)
    torch.nn.init.normal_(tower.tokens.weight, std=0.02)
    average = {k: v.detach().clone() for k, v in tower.state_dict().items()}
    decay = [p for p in tower.parameters() if p.ndim > 1]
    rest = [p for p in tower.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.steps, pct_start=0.05
    )
    ids, target, on_device = ids.to(device), target.to(device), lengths.to(device)
    visible = (~hidden).numpy()
    pools = [np.flatnonzero(visible & short), np.flatnonzero(visible & ~short)]
    draws = []
    for pool in pools:  # cumulative weights: drawing is a search
        total = np.cumsum(weights[pool])
        draws.append((torch.from_numpy(pool), torch.from_numpy(total / total[-1])))

    def predict(rows: Tensor) -> Tensor:
        width = int(lengths[rows].max())
        there = rows.to(device)
        return tower(ids[there, :width].long(), on_device[there])

    def cosines(rows: Tensor) -> float:
        parts = [(predict(r) * target[r.to(device)]).sum(1) for r in rows.split(4096)]
        return torch.cat(parts).mean().item()

    place = {texts[i]: i for i in range(len(texts) - added) if kinds[i] == "name"}
    names = torch.tensor([place[n] for n in classes["names"]])
    captions = {(int(base[i]), texts[i]): i for i in range(len(texts) - added, len(texts))}
    photo = torch.tensor([captions[int(i), EVALUATION.format(texts[i])] for i in names])
    unseen = hidden.numpy() & np.array([k == "name" for k in kinds])
    unseen = torch.from_numpy(np.flatnonzero(unseen))
    upper = torch.triu_indices(len(names), len(names), 1)
    before = teacher[names] @ teacher[names].T
    reduced = (target[names] @ target[names].T).cpu()

    @torch.inference_mode()
    def evaluate() -> dict[str, float]:
        tower.eval()
        mine, prompts = predict(names), predict(photo)
        after = (mine @ mine.T).cpu()
        pairs = lambda m: m[upper[0], upper[1]]  # noqa: E731
        row = {
            "cos_names": cosines(names),
            "cos_photo": cosines(photo),
            "cos_unseen": cosines(unseen),
            "photo_finds_name": (prompts @ mine.T).argmax(1).eq(
                torch.arange(len(names), device=device)).float().mean().item(),
            "structure": torch.corrcoef(torch.stack([pairs(before), pairs(after)]))[0, 1].item(),
            "structure_target": torch.corrcoef(
                torch.stack([pairs(before), pairs(reduced)]))[0, 1].item(),
        }  # fmt: skip
        tower.train()
        return {k: round(v, 4) for k, v in row.items()}

    curve, total = [], 0.0
    for step in range(1, args.steps + 1):
        gloss = step % 6 == 0  # five batches of names to a smaller one of glosses
        pool, cumulative = draws[gloss]
        size = args.batch // 2 if gloss else args.batch
        rows = pool[torch.searchsorted(cumulative, torch.rand(size, dtype=torch.float64))]
        wanted = target[rows.to(device)]
        with torch.autocast(device, torch.bfloat16):
            mine = predict(rows)
        mine = mine.float()
        alike = F.softmax(wanted @ wanted.T / args.temperature, dim=-1)
        logits = mine @ wanted.T / args.temperature
        loss = (
            1
            - (mine * wanted).sum(1).mean()
            + 0.5 * F.kl_div(F.log_softmax(logits, dim=-1), alike, reduction="batchmean")
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            state = list(tower.state_dict().values())
            torch._foreach_lerp_(list(average.values()), state, max(0.001, 1 / (step + 1)))
        if step % 100 == 0:
            total = loss.item()
        if step % max(args.steps // 20, 1) == 0:
            curve.append({"step": step, "loss": round(total, 4), **evaluate(),
                          "seconds": round(time.time() - began)})  # fmt: skip
            print(json.dumps(curve[-1]), flush=True)

    tower.load_state_dict(average)
    final = evaluate()
    print("averaged weights", json.dumps(final))
    state = {k: v.float().cpu().contiguous() for k, v in tower.state_dict().items()}
    save_file(state, args.out / "text.safetensors")
    facts = {
        "args": {k: str(v) for k, v in vars(args).items() if k not in {"data", "out", "captions"}},
        "texts": len(texts), "seconds": round(time.time() - began), "final": final, "curve": curve,
    }  # fmt: skip
    (args.out / "text.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
