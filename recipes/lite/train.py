"""Train what `lite` reads from its image tower; both towers stay as they are. Minutes on two cores.

    python recipes/lite/train.py --data packed --texts texts --out runs/lite

The readout (`adte.models.lite.Readout`) begins as the text vectors of the 1,000 names, weighed by
the classifier's probabilities. It learns from features that `features.py` kept:

- of whole crops, and of the same images reduced to 24 to 96 pixels, which are to be answered like
  the whole ones;
- *moved* ones: those of a crop of class j, moved by γ Σ (w_k − w_j) until the classifier says k as
  firmly as it said j. Σ is the covariance of features, w the classifier's weights, and Σ w_k the
  direction in which class k lies (as in linear discriminants). So all 1,000 classes are seen, most
  of which no image that can be had shows.

Terms of the loss, all softmaxes over text vectors in random templates, each with a learned scale:
the classifier's probabilities over the 1,000 names (*teacher*) and over random label spaces cut
from WordNet (*cuts*), the image's name among those of its set (*labels*), a photograph's own
sentence among those of others (*captions*). The weights kept are the mean of the last ones.

`--plain` writes the readout that needs no training instead.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny"))
from cuts import coverage, cuts
from templates import EVALUATION, TEMPLATES

from adte import load_model
from adte.models.lite import CLASSES, Readout, published

TERMS = ("teacher", "cuts", "labels", "captions")
SHOWN = TEMPLATES[:18:2]
assert SHOWN[0] == EVALUATION


@torch.no_grad()
def read(texts: list[str], templates: list[str] = SHOWN) -> Tensor:
    """Unit vectors (templates, texts, D) by `tiny`'s text tower."""
    tower = load_model("tiny", device="cpu")
    parts = [
        [t.format(n) for n in texts[i : i + 256]]
        for t in templates
        for i in range(0, len(texts), 256)
    ]
    z = torch.cat([tower.encode_text(part) for part in parts])
    return z.unflatten(0, (len(templates), len(texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with features")
    parser.add_argument(
        "--texts", type=Path, required=True, help="recipes/tiny/prepare.py's folder"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true", help="no training")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument(
        "--dropout", type=float, default=0.2, help="of features, before the residual"
    )
    parser.add_argument("--weights", type=float, nargs=4, default=[1.5, 0.5, 0.7, 0.1],
                        metavar="W", help="of " + ", ".join(TERMS))  # fmt: skip
    parser.add_argument("--trust", type=float, default=0.6, help="of a label beside the classifier")
    parser.add_argument("--share", type=float, default=0.85,
                        help="of what was learned; the rest is the plain readout")  # fmt: skip
    parser.add_argument("--held", type=float, default=0.1, help="share of images held back")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    began = time.time()
    state = published()
    w, b = state["classes.weight"], state["classes.bias"]
    facts = json.loads((args.data / "sets.json").read_text())
    index = dict(np.load(args.data / "images.npz"))
    classes = json.loads((args.texts / "classes.json").read_text())
    thousand = read(classes["names"])  # (T, 1000, D)

    readout = Readout()
    readout.named.weight.data.copy_(F.normalize(thousand.mean(0), dim=-1).T)
    nn.init.zeros_(readout.down.weight), nn.init.zeros_(readout.down.bias)

    # images
    kept = {}
    for name in facts:
        at = args.data / f"features-{name}.safetensors"
        if at.exists():
            kept[name] = load_file(at)
    sets = list(kept)
    whole = torch.cat([kept[n]["whole"] for n in sets])  # (N, K, H)
    few = torch.cat(
        [kept[n]["reduced"] if "reduced" in kept[n] else kept[n]["whole"] for n in sets]
    )
    rows = torch.cat([kept[n]["rows"] for n in sets]).numpy()
    set_of = torch.cat([torch.full((len(kept[n]["rows"]),), k) for k, n in enumerate(sets)])
    label = torch.from_numpy(index["label"][rows]).long()
    held = torch.from_numpy(rng.random(len(rows)) < args.held)
    official = torch.tensor([n.startswith(("image", "tiny")) for n in sets])[set_of]
    small = set_of == (sets.index("tiny-imagenet") if "tiny-imagenet" in sets else -1)
    leaf = torch.where(official, label, -1)  # ImageNet's class, where known
    told = set_of == (sets.index("flickr8k") if "flickr8k" in sets else -1)
    named = [n for n in sets if facts[n]["names"] and not n.startswith("image") and n != "cars"]
    words = {n: read(facts[n]["names"]) for n in named if n != "tiny-imagenet"}
    captions = [c for group in json.loads((args.data / "captions.json").read_text()) for c in group]
    spoken = read(captions, ["{}"])[0] if told.any() else torch.zeros(0)
    present = label[small].unique()

    # what classes lie under
    under = coverage(classes)
    drawn = cuts(under, np.array(classes["counts"]), 2000, 64, args.seed)
    spaces = [torch.from_numpy(row[row >= 0]) for row in drawn]
    under = torch.from_numpy(under).float()
    nouns = torch.cat([read([row[0] for row in classes["lemmas"]]), thousand], 1)

    probe = whole[~small].flatten(0, 1).float()
    mean, deviation = probe.mean(0), probe.std(0) + 1e-3
    sigma = (probe - mean).T @ (probe - mean) / len(probe)
    lies = w @ sigma  # (K, H): where each class lies, by the classifier's weights
    readout.up.weight.data.div_(deviation)  # features as if they were standardised
    readout.up.bias.data.sub_(readout.up.weight.data @ mean)
    scales = nn.Parameter(torch.full((4,), 20.0).log())
    optimizer = torch.optim.AdamW([
        {"params": [readout.down.weight, readout.up.weight], "weight_decay": args.weight_decay},
        {"params": [readout.named.weight, readout.sharpness, readout.up.bias, readout.down.bias,
                    scales], "weight_decay": 0.0},
    ], lr=args.lr)  # fmt: skip
    average = {k: v.detach().clone() for k, v in readout.state_dict().items()}
    plain = {k: v.clone() for k, v in average.items() if not k.startswith("up.")}
    shares = torch.tensor(args.weights)
    train, train_large = (~held).nonzero()[:, 0], (~held & ~small & ~told).nonzero()[:, 0]
    print(f"{len(train)} images of {len(sets)} sets, {time.time() - began:.0f} s", flush=True)

    @torch.inference_mode()
    def evaluate() -> dict[str, float]:
        """On held-back images: agreement with the classifier, and each set's accuracy."""
        net = Readout()
        net.load_state_dict(average)
        found = {}
        for kind, source in (("", whole), ("reduced ", few)):
            h = source[:, 0].float()
            z = net(h, h @ w.T + b)
            mine = held & ~small
            sure = (whole[mine, 0].float() @ w.T + b).argmax(1)
            found[f"{kind}agrees"] = (z[mine] @ thousand[0].T).argmax(1).eq(sure).float().mean()
            for name in named:
                mine = held & (set_of == sets.index(name))
                if name == "tiny-imagenet":
                    guess = present[(z[mine] @ thousand[0, present].T).argmax(1)]
                else:
                    guess = (z[mine] @ words[name][0].T).argmax(1)
                found[kind + name] = guess.eq(label[mine]).float().mean()
        return {k: round(float(v), 3) for k, v in found.items()}

    curve = [{"step": 0, "held": evaluate()}]
    print(json.dumps(curve[0]), flush=True)
    for step in range(1, 0 if args.plain else args.steps + 1):
        t = step / args.steps
        rate = min(t / 0.05, 1.0) * (0.5 + 0.5 * math.cos(math.pi * t))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        n = args.batch // 3  # whole crops, moved ones, reduced or small ones
        i = train[torch.randint(len(train), (n,))]
        m = train_large[torch.randint(len(train_large), (n,))]
        k = train[torch.randint(len(train), (n,))]
        straight = whole[i, torch.randint(whole.shape[1], (n,))].float()
        source = whole[m, torch.randint(whole.shape[1], (n,))].float()
        z = source @ w.T + b
        top, to = z.argmax(1), torch.randint(CLASSES, (n,))
        towards = lies[to] - lies[top]
        steep = ((w[to] - w[top]) * towards).sum(1).clamp(min=1e-6)
        firm = z.max(1).values - z[torch.arange(n), to]
        far = torch.empty(n).uniform_(0.8, 2.2)  # 1: as likely; 2: as firmly
        moved = (source + (far * firm / steep)[:, None] * towards).clamp(min=0)
        reduced = few[k, torch.randint(few.shape[1], (n,))].float()
        h = torch.cat([straight, moved, reduced])
        who = torch.cat([i, m, k])
        real = torch.ones(len(h), dtype=torch.bool)
        real[n : 2 * n] = False
        with torch.no_grad():
            seen = torch.cat([straight, moved, whole[k, 0].float()])
            p = (seen @ w.T + b).softmax(-1)
            known = ((leaf[who] >= 0) & real).float()[:, None] * args.trust
            known = torch.where(small[who, None] & real[:, None], 0.9, known)
            p = (1 - known) * p + known * F.one_hot(leaf[who].clamp(min=0), CLASSES)
            logits = h @ w.T + b
        p1 = (readout.sharpness * logits).softmax(-1)
        residual = readout.down(F.relu(readout.up(F.dropout(h, args.dropout))))
        z = F.normalize(readout.named(p1) + residual, dim=-1)
        s, pick = scales.exp(), rng.integers(len(SHOWN), size=3)
        weight = (~told[who] | ~real).float()  # captions speak for themselves
        kl = F.kl_div(F.log_softmax(s[0] * z @ thousand[pick[0]].T, -1), p, reduction="none").sum(1)
        terms = [(kl * weight).sum() / weight.sum()]
        cut = spaces[int(rng.integers(len(spaces)))]
        mass = (p @ under[cut].T) * weight[:, None]
        logp = F.log_softmax(s[1] * z @ nouns[pick[1], cut].T, -1)
        terms.append(-(mass * logp).sum() / mass.sum().clamp(min=1))
        loss, seen_names = torch.zeros(()), 0
        for name in named:
            its = ((set_of[who] == sets.index(name)) & real).nonzero()[:, 0]
            if name == "tiny-imagenet":
                text, truth = (
                    thousand[pick[2], present],
                    torch.searchsorted(present, label[who[its]]),
                )
            else:
                text, truth = words[name][pick[2]], label[who[its]]
            loss = loss + F.cross_entropy(
                s[2] * z[its] @ text.T, truth, reduction="sum", label_smoothing=0.05
            )
            seen_names += len(its)
        terms.append(loss / max(seen_names, 1))
        its = (told[who] & real).nonzero()[:, 0]
        said = 5 * label[who[its]] + torch.randint(5, its.shape)
        others = torch.cat([said, torch.randint(max(len(spoken), 1), (512,))])
        if len(its):
            same = (said // 5)[:, None] == others // 5
            same[torch.arange(len(its)), torch.arange(len(its))] = False
            close = (s[3] * z[its] @ spoken[others].T).masked_fill(same, -torch.inf)
            terms.append(F.cross_entropy(close, torch.arange(len(its))))
        else:
            terms.append(torch.zeros(()))
        loss = torch.stack(terms)
        optimizer.zero_grad(set_to_none=True)
        (loss @ shares).backward()
        optimizer.step()
        with torch.no_grad():
            now = readout.state_dict()
            torch._foreach_lerp_(
                list(average.values()), [now[k] for k in average], max(0.003, 1 / (step + 1))
            )
        if step % max(args.steps // 8, 1) == 0:
            losses = dict(zip(TERMS, (round(x, 3) for x in loss.tolist()), strict=True))
            curve.append(
                {"step": step, **losses, "held": evaluate(), "seconds": round(time.time() - began)}
            )
            print(json.dumps(curve[-1]), flush=True)
    for key, value in plain.items():  # names of ImageNet lose less so, the sets a little more
        average[key].lerp_(value, 1 - args.share)
    save_file({k: v.contiguous() for k, v in average.items()}, args.out / "readout.safetensors")
    save_file({"features": whole[held, 0], "set": set_of[held], "label": label[held]},
              args.out / "held.safetensors")  # fmt: skip
    arguments = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}
    (args.out / "train.json").write_text(json.dumps({
        "args": arguments, "sets": {n: len(kept[n]["rows"]) for n in sets},
        "held_back": int(held.sum()),
        "scales": scales.exp().tolist(), "seconds": round(time.time() - began), "curve": curve,
    }, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
