"""Train what `lite` reads from its image tower, and its text tower with it.

    python recipes/lite/train.py lite --data packed --texts texts --text runs/text --out runs/lite
    python recipes/lite/train.py lite2 --data packed --texts texts --text runs/lite --out runs/lite2

The image tower never changes, so its features of a few crops of every image are computed once:

- whole crops, and crops reduced to 24 to 96 pixels first. Both are to answer what the classifier
  says of the whole crop;
- *moved* features: those of a crop of class j, moved by γ Σ (w_k − w_j) until the classifier says k
  as firmly as it said j. Σ is the covariance of features, w the classifier's weights, and Σ w_k the
  direction in which class k lies (as in linear discriminants). So all 1,000 classes are seen, most
  of which no image that can be had shows.

Terms of the loss, all softmaxes over text embeddings in random templates, each with a learned scale:
the classifier's probabilities over the 1,000 names (*teacher*), over random label spaces cut from
WordNet (*cuts*), the image's name among those of its set (*labels*), its own sentence among those
of others (*captions*). The text tower learns along at a small rate, held to the sentence encoder's
embeddings (*texts*); with `lite2` it stays as `lite` left it.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny"))
from cuts import coverage, cuts
from targets import boxes
from templates import EVALUATION, TEMPLATES
from train_text import embed, read_texts

from adte.models.lite import CLASSES, DIM, HEAD, SHAPES, ImageTower, Readout, published
from adte.models.tiny import TextTower, Tokenizer

TERMS = ("teacher", "cuts", "labels", "captions", "texts")
SHOWN = TEMPLATES[:36]
LEMMAS = 3


def _decode(job: tuple[Path, np.ndarray, np.ndarray]) -> np.ndarray:
    path, offsets, sizes = job
    blob = np.memmap(path, mode="r")
    pieces = (blob[o : o + s].tobytes() for o, s in zip(offsets, sizes, strict=True))
    return np.stack([np.asarray(Image.open(io.BytesIO(p)).convert("RGB")) for p in pieces])


def decode(args: argparse.Namespace, rows: dict[str, np.ndarray], chosen: np.ndarray) -> Tensor:
    """Pixels (N, S, S, 3) of the chosen images, which have one size."""
    parts = np.array_split(chosen, 8 * args.workers)
    jobs = [(args.data / "images.bin", rows["offset"][p], rows["size"][p]) for p in parts if len(p)]
    with ProcessPoolExecutor(args.workers, get_context("forkserver")) as pool:
        return torch.from_numpy(np.concatenate(list(pool.map(_decode, jobs))))


def crop(x: Tensor, box: Tensor, size: int, mirror: Tensor, reduced: Tensor | None) -> Tensor:
    """Crops (N, 3, size, size) of images (N, S, S, 3), some by way of a few pixels, in −1…1."""
    theta = box.new_zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = box[:, 2] * mirror, box[:, 3]
    theta[:, :, 2] = box[:, :2]
    x = x.permute(0, 3, 1, 2).float()
    side = x.shape[-1]
    if reduced is not None:  # the whole image becomes a small one, which is then cropped
        for k in reduced.unique().tolist():
            mine = reduced == k
            small = F.interpolate(x[mine], size=k, mode="bicubic", antialias=True)
            x[mine] = F.interpolate(small, size=side, mode="bicubic").clamp(0, 255)
    grid = F.affine_grid(theta, [len(x), 3, size, size], align_corners=False)
    x = F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return (x.clamp(0, 255) - 127) / 128


@torch.inference_mode()
def features(args: argparse.Namespace, tower: ImageTower, images: Tensor, how: str, seed: int):
    """Features (N, K, 1280) in float16 of K crops of every image; the first is the base view."""
    size, device = SHAPES[args.model].size, args.device
    count = {"whole": 6, "reduced": 4, "small": 4}[how]
    box = boxes(len(images), count, 0.15 if how == "whole" else 0.3, seed)
    box[:, 0] = torch.tensor([0.0, 0.0, 0.875, 0.875])
    rng = torch.Generator().manual_seed(seed)
    out = torch.empty(len(images), count, HEAD, dtype=torch.float16, device=device)
    sides = torch.tensor([24, 32, 32, 48, 64, 96])
    for k in range(count):
        for i in torch.arange(len(images)).split(args.encode):
            mirror = 1 - 2.0 * torch.randint(2, (len(i),), generator=rng) * (k > 0)
            reduced = None
            if how == "reduced":
                reduced = sides[torch.randint(len(sides), (len(i),), generator=rng)].to(device)
            x = crop(images[i].to(device), box[i, k].to(device), size, mirror.to(device), reduced)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                out[i, k] = tower(x).half()
    return out


class Texts:
    """Token ids of every text in every template, read by the text tower when it is asked."""

    def __init__(self, names: list[str], tokenizer: Tokenizer, device: str, templates=SHOWN) -> None:
        self.count = len(names)
        ids, lengths = tokenizer([t.format(n) for t in templates for n in names])
        self.ids, self.lengths = ids.to(device), lengths.to(device)
        self.templates = len(templates)

    def __call__(self, tower: TextTower, rows: Tensor, template: int | None = None) -> Tensor:
        """Unit vectors of some texts, each in a template of its own or all in one."""
        if template is None:
            which = torch.randint(self.templates, rows.shape, device=rows.device)
        else:
            which = torch.full_like(rows, template)
        at = which * self.count + rows
        return tower(self.ids[at], self.lengths[at])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True, help="pack_images.py's folder")
    parser.add_argument("--texts", type=Path, required=True, help="recipes/tiny/prepare.py's folder")
    parser.add_argument("--text", type=Path, required=True, help="train_text.py's folder, or lite's")
    parser.add_argument("--vocab", type=Path, required=True, help="word pieces")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--text-lr", type=float, default=1.5e-4, help="0 leaves the text tower")
    parser.add_argument("--weights", type=float, nargs=5, default=[1.0, 1.0, 0.7, 0.3, 3.0],
                        metavar="W", help="of " + ", ".join(TERMS))  # fmt: skip
    parser.add_argument("--trust", type=float, default=0.6, help="of a label beside the classifier")
    parser.add_argument("--unnamed", nargs="*", default=["cars"], metavar="SET",
                        help="sets whose names are not trained on")  # fmt: skip
    parser.add_argument("--cuts", type=int, default=4000, help="number of random label spaces")
    parser.add_argument("--encode", type=int, default=512, help="images of a pass of the tower")
    parser.add_argument("--limit", type=int, help="about this many images, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    device, began = args.device, time.time()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    say = lambda what: print(f"{time.time() - began:5.0f} s  {what}", flush=True)  # noqa: E731

    # the tower, which stays as it is, and what it sees
    state = published(args.model)
    tower = ImageTower(SHAPES[args.model])
    tower.load_state_dict({k[12:]: v for k, v in state.items() if k.startswith("image_tower.")})
    tower.to(device, memory_format=torch.channels_last).eval()
    w, b = state["classes.weight"].to(device), state["classes.bias"].to(device)
    rows = dict(np.load(args.data / "images.npz"))
    sets = json.loads((args.data / "sets.json").read_text())
    keys = list(sets)
    if args.limit:
        rows["keep"] &= np.random.default_rng(0).random(len(rows["keep"])) < args.limit / len(rows["keep"])
    side = np.array([sets[k]["side"] for k in keys])[rows["set"]]
    large, little = (np.flatnonzero(rows["keep"] & (side == s)) for s in (192, 64))
    cache = args.data / f"features-{args.model}-{args.seed}.pt"  # of this seed's crops
    if cache.exists():
        whole, blurred, small = torch.load(cache, map_location=device)
    else:
        pixels = decode(args, rows, large)
        say(f"{len(large)} large images decoded")
        whole = features(args, tower, pixels, "whole", args.seed)
        blurred = features(args, tower, pixels, "reduced", args.seed)
        say("large images encoded")
        pixels = decode(args, rows, little)
        small = features(args, tower, pixels, "small", args.seed + 1)
        del pixels
        torch.save((whole, blurred, small), cache)
    say(f"{len(large)} large and {len(little)} small images encoded")
    answer = lambda h: (h.float() @ w.T + b).softmax(-1)  # noqa: E731
    on = lambda a: torch.from_numpy(np.ascontiguousarray(a)).to(device)  # noqa: E731
    chosen = np.concatenate([large, little])
    set_of, label, held = (on(rows[k][chosen]) for k in ("set", "label", "held"))
    set_of, label = set_of.long(), label.long()

    # what classes are and lie under
    classes = json.loads((args.texts / "classes.json").read_text())
    under = coverage(classes)
    drawn = cuts(under, np.array(classes["counts"]), args.cuts, 64, args.seed)
    spaces = [on(row[row >= 0]) for row in drawn]
    under = on(under).float()
    official = [k.startswith(("image", "tiny")) for k in keys]
    told = set_of == keys.index("flickr8k")
    leaf = torch.where(on(np.array(official))[set_of], label, -1)  # ImageNet's class, where known

    # texts
    tokenizer = Tokenizer(args.vocab.read_text("utf-8").splitlines())
    text = TextTower(len(tokenizer.vocab), 256, heads=8, dim=DIM)
    text.load_state_dict(load_file(args.text / "text.safetensors"))
    text.to(device)
    lemmas = [(row * LEMMAS)[:LEMMAS] for row in classes["lemmas"]]
    lemmas += [[name] * LEMMAS for name in classes["names"]]
    nouns = Texts([n for row in lemmas for n in row], tokenizer, device)
    first_leaf = len(classes["nodes"])
    named = [k for k in keys if k not in {"flickr8k", *args.unnamed} and not k.startswith("image")]
    spaced = {k: Texts(sets[k]["names"], tokenizer, device) for k in named if k != "tiny-imagenet"}
    captions = [c for group in json.loads((args.data / "captions.json").read_text()) for c in group]
    sentences = Texts(captions, tokenizer, device, ["{}"])
    phrases, kinds, frequency = read_texts(args.texts)
    plain = frequency * np.array([k == "name" for k in kinds])
    space = load_file((args.text / "space.safetensors") if (args.text / "space.safetensors").exists()
                      else args.texts / "space.safetensors")  # fmt: skip
    learns = args.text_lr > 0
    if learns:
        most = min(args.limit or 60_000, 60_000)
        pick = rng.choice(len(phrases), most, replace=False, p=plain / plain.sum())
        anchored = [phrases[i] for i in pick] + classes["names"] * 3 + captions[:most]
        z = embed(args.texts / "minilm", anchored, device).to(device)
        anchors = F.normalize((z - space["centre"].to(device)) @ space["axes"].to(device), dim=-1)
        anchor_texts = Texts(anchored, tokenizer, device, ["{}"])
        say(f"{len(anchored)} phrases embedded")

    # what learns
    readout = Readout().to(device)
    flat = whole.flatten(0, 1)
    probe = flat[torch.randint(len(flat), (50_000,), device=device)].float()
    mean, deviation = probe.mean(0), probe.std(0) + 1e-3
    centred = probe - mean
    sigma = centred.T @ centred / len(probe)
    lies = w @ sigma  # (K, H): where each class lies, by the classifier's weights
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        every = torch.arange(CLASSES, device=device)
        at = (first_leaf + every) * LEMMAS
        names = F.normalize(sum(nouns(text, at, k).float() for k in range(12)), dim=-1)
    readout.named.weight.data.copy_(names.T)
    nn.init.zeros_(readout.down.weight), nn.init.zeros_(readout.down.bias)
    readout.up.weight.data.div_(deviation)  # features as if they were standardised
    readout.up.bias.data.sub_(readout.up.weight.data @ mean)
    scales = nn.Parameter(torch.full((4,), 30.0, device=device).log())
    groups = [
        {"params": [readout.named.weight, readout.down.weight, readout.down.bias], "lr": args.lr},
        {"params": [readout.up.weight, readout.up.bias], "lr": args.lr / 4},
        {"params": [readout.sharpness, scales], "lr": args.lr},
    ]
    if learns:
        groups.append({"params": list(text.parameters()), "lr": args.text_lr})
    for group in groups:
        group["initial"] = group["lr"]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01, fused=device != "cpu")
    average = {k: v.detach().clone().float() for k, v in readout.state_dict().items()}
    slow_text = {k: v.detach().clone() for k, v in text.state_dict().items()}
    shares = torch.tensor(args.weights, device=device)
    train = [(~held[: len(large)]).nonzero()[:, 0], (~held[len(large) :]).nonzero()[:, 0]]
    curve = []

    @torch.inference_mode()
    def evaluate() -> dict[str, float]:
        """On held-back images: agreement with the classifier, and each set's accuracy."""
        net = Readout().to(device)
        net.load_state_dict(average)
        reader = TextTower(len(tokenizer.vocab), 256, heads=8, dim=DIM).to(device).eval()
        reader.load_state_dict(slow_text)
        at = (first_leaf + torch.arange(CLASSES, device=device)) * LEMMAS
        thousand = nouns(reader, at, 0)
        found = {}
        for kind, h in (("", whole[:, 0]), ("small ", blurred[:, 0]), ("tin ", small[:, 0])):
            mine = held[: len(large)] if kind != "tin " else held[len(large) :]
            offset = 0 if kind != "tin " else len(large)
            i = mine.nonzero()[:, 0]
            z = net(h[i].float(), h[i].float() @ w.T + b)
            logits = z @ thousand.T
            if kind != "tin ":
                truth = whole[i, 0].float() @ w.T + b
                found[f"{kind}agrees"] = logits.argmax(1).eq(truth.argmax(1)).float().mean().item()
            for key in named:
                its = set_of[i + offset] == keys.index(key)
                if not its.any():
                    continue
                if key == "tiny-imagenet":
                    present = label[len(large) :].unique()
                    right = present[logits[its][:, present].argmax(1)].eq(label[i + offset][its])
                else:
                    own = spaced[key](reader, torch.arange(spaced[key].count, device=device), 0)
                    right = (z[its] @ own.T).argmax(1).eq(label[i + offset][its])
                found[kind + key] = right.float().mean().item()
        return {k: round(v, 4) for k, v in found.items()}

    def pick_rows(pool: Tensor, count: int) -> Tensor:
        return pool[torch.randint(len(pool), (count,), device=device)]

    sums, count = torch.zeros(len(TERMS), device=device), 0
    say("training")
    for step in range(1, args.steps + 1):
        t = step / args.steps
        rate = min(t / 0.05, 1.0) * (0.5 + 0.5 * math.cos(math.pi * t))
        for group in optimizer.param_groups:
            group["lr"] = group["initial"] * rate
        # a third whole crops, a sixth moved ones, a sixth reduced ones, a third small images
        n = args.batch // 6
        i = pick_rows(train[0], 4 * n)
        j = torch.randint(whole.shape[1], (3 * n,), device=device)
        h = whole[i[: 3 * n], j].float()
        source = h[2 * n :]
        z = source @ w.T + b
        top = z.argmax(1)
        to = torch.randint(CLASSES, (n,), device=device)
        towards = lies[to] - lies[top]
        steep = ((w[to] - w[top]) * towards).sum(1).clamp(min=1e-6)
        rows_of = torch.arange(n, device=device)
        firm = z.max(1).values - z[rows_of, to]
        share = torch.empty(n, device=device).uniform_(0.8, 2.2)  # 1: as likely; 2: as firmly
        moved = (source + (share * firm / steep)[:, None] * towards).clamp(min=0)
        few = blurred.shape[1]
        jb = torch.randint(few, (n,), device=device)
        k = pick_rows(train[1], 2 * n)
        jk = torch.randint(small.shape[1], (2 * n,), device=device)
        h = torch.cat([h[: 2 * n], moved, blurred[i[3 * n :], jb].float(), small[k, jk].float()])
        with torch.no_grad():
            p = torch.cat([answer(h[: 3 * n]), answer(whole[i[3 * n :], 0]), answer(h[4 * n :])])
            who = torch.cat([i[: 2 * n], i[: n] * 0, i[3 * n :], len(large) + k])
            real = torch.ones(len(h), dtype=torch.bool, device=device)
            real[2 * n : 3 * n] = False
            known = ((leaf[who] >= 0) & real).float()[:, None] * args.trust
            p = (1 - known) * p + known * F.one_hot(leaf[who].clamp(min=0), CLASSES)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            z = readout(h, h @ w.T + b)
            cut = spaces[int(rng.integers(len(spaces)))]
            wanted = [(first_leaf + every) * LEMMAS,
                      cut * LEMMAS + torch.randint(LEMMAS, cut.shape, device=device)]  # fmt: skip
            with torch.set_grad_enabled(learns):
                read = nouns(text, torch.cat(wanted), int(rng.integers(len(SHOWN))) if rng.random() < 0.7 else None)
        z, read, s = z.float(), read.float(), scales.exp()
        thousand, cut_names = read.split([CLASSES, len(cut)])
        terms = [F.kl_div(F.log_softmax(s[0] * z @ thousand.T, -1), p, reduction="batchmean")]
        mass = p @ under[cut].T
        terms.append(-(mass * F.log_softmax(s[1] * z @ cut_names.T, -1)).sum() / mass.sum().clamp(min=1))
        key = named[int(rng.integers(len(named)))]
        its = ((set_of[who] == keys.index(key)) & real).nonzero()[:, 0]
        if key == "tiny-imagenet":
            present = label[len(large) :].unique()
            place = torch.searchsorted(present, label[who[its]])
            logits = s[2] * z[its] @ thousand[present].T
        else:
            place = label[who[its]]
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"), torch.set_grad_enabled(learns):
                own = spaced[key](text, torch.arange(spaced[key].count, device=device), int(rng.integers(len(SHOWN))))
            logits = s[2] * z[its] @ own.float().T
        terms.append(F.cross_entropy(logits, place, label_smoothing=0.05, reduction="sum") / max(len(its), 8))
        its = (told[who] & real).nonzero()[:, 0]
        said = 5 * label[who[its]] + torch.randint(5, its.shape, device=device)
        others = torch.randint(len(captions), (512,), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"), torch.set_grad_enabled(learns):
            spoken = sentences(text, torch.cat([said, others]), 0)
        logits = s[3] * z[its] @ spoken.float().T
        same = (said // 5)[:, None] == torch.cat([said, others]) // 5
        same[torch.arange(len(its)), torch.arange(len(its))] = False
        terms.append(F.cross_entropy(logits.masked_fill(same, -torch.inf),
                                     torch.arange(len(its), device=device), reduction="sum") / max(len(its), 8))  # fmt: skip
        if learns:
            some = torch.randint(anchor_texts.count, (1024,), device=device)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                mine = anchor_texts(text, some, 0)
            terms.append(1 - (mine.float() * anchors[some]).sum(1).mean())
        else:
            terms.append(torch.zeros((), device=device))
        loss = torch.stack(terms)
        optimizer.zero_grad(set_to_none=True)
        (loss @ shares).backward()
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 2.0)
        optimizer.step()
        with torch.no_grad():
            decay = max(0.002, 1 / (step + 1))
            for mild, module in ((average, readout), (slow_text, text)):
                now = module.state_dict()
                torch._foreach_lerp_(list(mild.values()), [now[k] for k in mild], decay)
            sums += loss.detach()
            count += 1
        if step % max(args.steps // 12, 1) == 0:
            losses = dict(zip(TERMS, (sums / count).tolist(), strict=True))
            curve.append({"step": step, **{k: round(v, 4) for k, v in losses.items()},
                          "held": evaluate(), "seconds": round(time.time() - began)})  # fmt: skip
            say(json.dumps(curve[-1]))
            sums.zero_()
            count = 0
    final = {k: v.contiguous().cpu() for k, v in average.items()}
    save_file(final | {"logit_scale": scales[0].exp().detach().cpu()}, args.out / "readout.safetensors")
    save_file({k: v.contiguous().cpu() for k, v in slow_text.items()}, args.out / "text.safetensors")
    save_file(space, args.out / "space.safetensors")
    # held-back features, to choose the scale with
    i = held.nonzero()[:, 0]
    base = torch.cat([whole[:, 0], small[:, 0]])
    save_file({"features": base[i].cpu(), "set": set_of[i].cpu(), "label": label[i].cpu()},
              args.out / "held.safetensors")  # fmt: skip
    facts = {
        "args": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
        "images": [len(large), len(little)], "held_back": int(held.sum()),
        "scales": scales.exp().tolist(), "sharpness": float(readout.sharpness.detach()),
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "seconds": round(time.time() - began), "curve": curve,
    }  # fmt: skip
    (args.out / "train.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
