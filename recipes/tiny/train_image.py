"""Train an image tower against the frozen text tower.

    python recipes/tiny/train_image.py tiny --data packed --targets targets --out runs/tiny-0
    python recipes/tiny/train_image.py tiny-longtail --data packed --targets targets --out runs/lt-0

Terms of the loss, all softmaxes over text embeddings in a random template, each with a scale of its
own that is learned:

- *labels*: the image's name among the names of its set;
- *teachers* (`tiny` only): two ImageNet classifiers' probabilities of the same crop, mixed with the
  label where the image is ImageNet's, over the 1,000 names;
- *cuts*: the same probabilities over a random label space cut from WordNet (`cuts.py`);
- *captions* (`tiny` only): a photograph's own sentence among two thousand of others.

`tiny` learns from all sets. `tiny-longtail` learns from the long-tailed draw of Tiny-ImageNet alone
and has no teacher: nothing but its labels can give it a bias, and nothing rebalances them.

Curves come from held-back images. A run that is stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from cuts import coverage, cuts
from safetensors.torch import load_file, save_file
from targets import MEAN, SHOWN, STD, boxes, index, render
from torch import Tensor, nn

from adte.models.tiny import SHAPES, SIZE, ImageTower

TERMS = ("labels", "teachers", "cuts", "captions")


class Images:
    """The chosen images on the device: pixels, labels, teachers."""

    def __init__(self, args: argparse.Namespace) -> None:
        rows = index(args.data)
        sets = json.loads((args.data / "sets.json").read_text())
        self.keys = list(sets)
        everyday = args.model == "tiny"
        keep = rows["keep"] & (everyday | rows["longtail"] | (rows["held"] & (rows["set"] == 0)))
        if args.limit:
            keep &= np.random.default_rng(0).random(len(keep)) < args.limit / keep.sum()
        chosen = np.flatnonzero(keep)
        on = lambda a: torch.from_numpy(np.ascontiguousarray(a)).to(args.device)  # noqa: E731
        self.set, self.label, self.under = (
            on(rows[k][chosen].astype(np.int64)) for k in ("set", "label", "under")
        )
        self.held = on(rows["held"][chosen])
        self.small = on(rows["side"][chosen] == 64)
        self.place = torch.empty(len(chosen), dtype=torch.long, device=args.device)
        self.pixels = {}
        for side in (64, 96):
            mine = rows["side"][chosen] == side
            pixels = np.load(args.targets / f"pixels-{side}.npy", mmap_mode="r")
            self.pixels[side] = on(pixels[rows["place"][chosen][mine]])
            self.place[on(mine)] = torch.arange(int(mine.sum()), device=args.device)
        self.teachers = self.boxes = None
        if everyday:
            teachers = np.load(args.targets / "teachers.npy", mmap_mode="r")
            self.teachers = on(teachers[chosen])
            self.boxes = torch.load(args.targets / "boxes.pt")[chosen].to(args.device)
        self.unders = [str(u) for u in rows["unders"]]

    def crops(self, i: Tensor, box: Tensor, mirror: Tensor | None = None) -> Tensor:
        """Crops of images `i` (N, 3, 64, 64) in 0…1."""
        x = torch.empty(len(i), 3, SIZE, SIZE, device=i.device)
        for side, mine in ((64, self.small[i]), (96, ~self.small[i])):
            mine = mine.nonzero()[:, 0]
            if not len(mine):
                continue
            turned = None if mirror is None else mirror[mine]
            x[mine] = render(self.pixels[side][self.place[i[mine]]], box[mine], SIZE, turned)
        return x


def recolour(x: Tensor, coarse: float) -> Tensor:
    """A little brightness, contrast and saturation; some images grey, some of half the detail."""
    n = len(x)

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n, 1, 1, 1, device=x.device).uniform_(low, high)

    x = x * uniform(0.75, 1.25)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (x - mean) * uniform(0.75, 1.25)
    grey = x.mean(1, keepdim=True)
    colour = uniform(0.6, 1.4) * (uniform(0, 1) > 0.05)
    x = grey + (x - grey) * colour
    if coarse:
        half = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear")
        x = torch.where(uniform(0, 1) < coarse, half, x)
    return x.clamp(0, 1)


class Targets:
    """What the loss compares with: names, nouns, captions."""

    def __init__(self, args: argparse.Namespace, images: Images) -> None:
        device = args.device
        texts = torch.load(args.targets / "texts.pt")
        classes = json.loads((args.data / "classes.json").read_text())
        rows = json.loads((args.data / "tiny-classes.json").read_text())
        self.ours = torch.tensor(
            [classes["wnids"].index(row["wnid"]) for row in rows], device=device
        )
        keys = [k for k in images.keys if k not in {"flickr8k", "imagewoof"}]
        space = {k: n for n, k in enumerate(keys)} | {"imagewoof": 1, "flickr8k": 0}
        widths = [texts[k].shape[1] for k in keys]
        starts = dict(zip(keys, np.cumsum([0, *widths]).tolist(), strict=False))
        starts |= {"imagewoof": starts["imagenette"], "flickr8k": 0}
        self.names = torch.cat([texts[k] for k in keys], 1).to(device)  # (T, all names, D)
        self.nouns = texts["nouns"].to(device)  # (T, nouns, lemmas, D)
        space |= dict.fromkeys(args.unnamed, 0)  # any will do: their rows count for nothing
        self.space = torch.tensor([space[k] for k in images.keys], device=device)[images.set]
        start = torch.tensor([starts[k] for k in images.keys], device=device)[images.set]
        named = torch.tensor([k not in {"flickr8k", *args.unnamed} for k in images.keys])
        self.named = named.to(device)[images.set]
        self.told = images.set == images.keys.index("flickr8k")
        self.label = torch.where(self.named, start + images.label, 0)
        self.member = torch.zeros(len(keys), sum(widths), dtype=torch.bool, device=device)
        for k, key in enumerate(keys):
            self.member[k, starts[key] : starts[key] + widths[k]] = True
        # ImageNet's class of an image, or −1
        leaf = torch.full_like(self.label, -1)
        first = images.set == 0
        leaf[first] = self.ours[images.label[first]]
        for key in ("imagenette", "imagewoof"):
            mine = images.set == images.keys.index(key)
            leaf[mine] = images.label[mine]
        self.leaf = leaf
        under = coverage(classes)
        self.under = torch.from_numpy(under).float().to(device)
        allowed = [np.ones(under.shape[1], bool)]
        for wnid in images.unders[1:]:
            allowed.append(under[classes["nodes"].index(wnid)])
        self.allowed = torch.from_numpy(np.stack(allowed)).float().to(device)
        drawn = cuts(under, np.array(classes["counts"]), args.cuts, 64, args.seed)
        self.cuts = [torch.from_numpy(row[row >= 0]).to(device) for row in drawn]
        captions = load_file(args.data / "captions.safetensors")  # five of each photograph
        self.captions = captions["z"].float().to(device)
        self.caption_of = captions["of"].to(device)

    def leaves(self, i: Tensor, images: Images, k: Tensor | None, trust: float) -> Tensor:
        """A distribution over ImageNet's classes (N, 1000) for crops `k` of images `i`."""
        leaf = self.leaf[i]
        label = F.one_hot(leaf.clamp(min=0), self.under.shape[1]).float()
        if images.teachers is None or k is None:
            return label
        p = images.teachers[i, k].float() * self.allowed[images.under[i]] + 1e-8
        p = p / p.sum(1, keepdim=True)
        known = (leaf >= 0).float()[:, None] * trust
        return (1 - known) * p + known * label

    def label_loss(self, logits: Tensor, i: Tensor, smoothing: float) -> Tensor:
        """Cross entropy (N,) of each image's name among the names of its set."""
        member = self.member[self.space[i]]
        logp = F.log_softmax(logits.masked_fill(~member, -torch.inf), -1)
        right = logp.gather(1, self.label[i, None])[:, 0]
        even = logp.masked_fill(~member, 0).sum(1) / member.sum(1)
        return -((1 - smoothing) * right + smoothing * even) * self.named[i]


@torch.inference_mode()
def evaluate(net: ImageTower, images: Images, targets: Targets, norm) -> dict[str, float]:
    """Accuracy on the held-back images of every set, by name, in one template."""
    rows = images.held.nonzero()[:, 0]
    z, box = [], torch.tensor([0, 0, 0.875, 0.875], device=rows.device)
    for i in rows.split(1024):
        z.append(net(norm(images.crops(i, box.expand(len(i), 4)))))
    logits = torch.cat(z).float() @ targets.names[0].T
    logits = logits.masked_fill(~targets.member[targets.space[rows]], -torch.inf)
    right = logits.argmax(1).eq(targets.label[rows])
    result = {}
    for k, key in enumerate(images.keys):
        mine = (images.set[rows] == k) & targets.named[rows]
        if mine.any():
            result[key] = round(right[mine].float().mean().item(), 4)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True, help="the packed folder")
    parser.add_argument("--targets", type=Path, required=True, help="targets.py's folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="begin with an earlier run's image.safetensors")
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--seconds", type=float, help="run for this long instead")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--weights", type=float, nargs=4, default=[1.0, 1.0, 0.7, 0.5],
                        metavar="W", help="of " + ", ".join(TERMS))  # fmt: skip
    parser.add_argument("--trust", type=float, default=0.4, help="of a label beside the teachers")
    parser.add_argument("--smoothing", type=float, default=0.05, help="of the labels")
    parser.add_argument("--mixup", type=float, default=0.2, help="Beta's parameter; 0 turns it off")
    parser.add_argument("--cutmix", type=float, default=0.0, help="share of batches with a patch")
    parser.add_argument("--smallest", type=float, default=0.2, help="smallest crop, of the area")
    parser.add_argument("--coarse", type=float, default=0.15, help="share of images of half detail")
    parser.add_argument("--unnamed", nargs="*", default=["cars"], metavar="SET",
                        help="sets whose names are too fine for 64 pixels")  # fmt: skip
    parser.add_argument("--cuts", type=int, default=4000, help="number of random label spaces")
    parser.add_argument("--average", type=float, default=0.999, help="decay of the mean weights")
    parser.add_argument("--limit", type=int, help="about this many images, for a quick look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    device, began = args.device, time.time()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True

    images = Images(args)
    targets = Targets(args, images)
    everyday = args.model == "tiny"
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
    norm = lambda x: (x - mean) / std  # noqa: E731
    tower = ImageTower(**SHAPES[args.model]).to(device, memory_format=torch.channels_last)
    for module in tower.modules():
        if hasattr(module, "norm2"):
            nn.init.zeros_(module.norm2.weight)
    if args.start:
        state = load_file(args.start)
        state.pop("logit_scale")
        tower.load_state_dict(state)
    slow = ImageTower(**SHAPES[args.model]).to(device, memory_format=torch.channels_last).eval()
    slow.load_state_dict(tower.state_dict())
    scales = nn.Parameter(torch.full((len(TERMS),), 20.0, device=device).log())
    named = [*tower.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in named if p.ndim > 1], "weight_decay": args.weight_decay},
            {"params": [p for p in named if p.ndim < 2] + [scales], "weight_decay": 0.0},
        ],
        fused=device != "cpu",
    )
    shares = torch.tensor(args.weights, device=device)
    train = (~images.held).nonzero()[:, 0]
    step, spent, curve = 0, 0.0, []
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        tower.load_state_dict(saved["tower"])
        slow.load_state_dict(saved["slow"])
        optimizer.load_state_dict(saved["optimizer"])
        scales.data.copy_(saved["scales"])
        step, spent, curve = saved["step"], saved["spent"], saved["curve"]
        print(f"{args.out.name} goes on at step {step}", flush=True)
    now, mild = (
        [v for v in t.state_dict().values() if v.is_floating_point()] for t in (tower, slow)
    )
    start = time.time()

    def progress() -> float:
        """From 0 to 1 over the run."""
        if args.seconds:
            return (spent + time.time() - start) / args.seconds
        return step * args.batch / (len(train) * args.epochs)

    def batch_loss(i: Tensor) -> Tensor:
        """The terms of the loss (4,) of a batch."""
        n = len(i)
        if images.boxes is None:
            k, box = None, boxes(n, 2, args.smallest, int(rng.integers(2**62)))[:, 1].to(device)
        else:
            k = torch.randint(images.boxes.shape[1], (n,), device=device)
            box = images.boxes[i, k]
        mirror = torch.randint(2, (n,), device=device) * 2.0 - 1
        x = norm(recolour(images.crops(i, box, mirror), args.coarse if everyday else 0.0))
        p = targets.leaves(i, images, k, args.trust)
        share, other = 1.0, i
        dice = rng.random()
        if dice < args.cutmix:
            share = float(rng.uniform())
            side = round(SIZE * math.sqrt(1 - share))
            top, left = (int(rng.integers(SIZE - side + 1)) for _ in range(2))
            x = x.clone()
            x[:, :, top : top + side, left : left + side] = x.flip(0)[
                :, :, top : top + side, left : left + side
            ]
            share, other = 1 - side**2 / SIZE**2, i.flip(0)
        elif args.mixup and dice < args.cutmix + 0.4:
            share, other = float(rng.beta(args.mixup, args.mixup)), i.flip(0)
            x = share * x + (1 - share) * x.flip(0)
        p = share * p + (1 - share) * p.flip(0)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            z = tower(x)
        z, s = z.float(), scales.exp()
        pick = rng.integers(len(SHOWN), size=3)
        names = s[0] * z @ targets.names[pick[0]].T
        label = share * targets.label_loss(names, i, args.smoothing)
        if share < 1:
            label = label + (1 - share) * targets.label_loss(names, other, args.smoothing)
        terms = [label.mean()]
        leaves = targets.nouns[pick[1], -p.shape[1] :, 0]
        teach = F.kl_div(F.log_softmax(s[1] * z @ leaves.T, -1), p, reduction="none").sum(1)
        terms.append(teach.mean() if everyday else torch.zeros((), device=device))
        cut = targets.cuts[int(rng.integers(len(targets.cuts)))]
        mass = p @ targets.under[cut].T
        lemma = torch.randint(targets.nouns.shape[2], (len(cut),), device=device)
        nouns = targets.nouns[pick[2], cut, lemma]
        told = (mass * F.log_softmax(s[2] * z @ nouns.T, -1)).sum()
        terms.append(-told / mass.sum().clamp(min=0.05 * n))  # few cuts cover all classes
        if everyday:
            # rows without captions count for nothing; a fixed shape asks the device no question
            told = targets.told[i] & (share > 0.5)
            own = (5 * images.label[i] + torch.randint(5, i.shape, device=device)) * told
            rest = torch.randint(len(targets.captions), (2048,), device=device)
            near = s[3] * (z * targets.captions[own]).sum(1, keepdim=True)
            far = s[3] * z @ targets.captions[rest].T
            same = targets.caption_of[own][:, None] == targets.caption_of[rest]
            far = far.masked_fill(same, -torch.inf)
            loss = -F.log_softmax(torch.cat([near, far], 1), -1)[:, 0] * told
            terms.append(loss.sum() / told.sum().clamp(min=1))
        else:
            terms.append(torch.zeros((), device=device))
        return torch.stack(terms)

    def keep() -> None:
        """Checkpoint, weights and facts, each written whole."""
        state = {k: v.contiguous().cpu() for k, v in slow.state_dict().items()}
        state["logit_scale"] = scales[0].exp().detach().cpu()
        save_file(state, args.out / "image.safetensors")
        temporary = checkpoint.with_suffix(".part")
        torch.save(
            {"tower": tower.state_dict(), "slow": slow.state_dict(), "scales": scales.data,
             "optimizer": optimizer.state_dict(), "step": step, "curve": curve,
             "spent": spent + time.time() - start},
            temporary,
        )  # fmt: skip
        temporary.replace(checkpoint)
        facts = {
            "args": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
            "images": len(train), "held_back": int(images.held.sum()), "steps": step,
            "epochs": round(step * args.batch / len(train), 1),
            "scales": dict(zip(TERMS, scales.exp().tolist(), strict=True)),
            "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
            "seconds": round(spent + time.time() - start), "curve": curve,
        }  # fmt: skip
        (args.out / "image.json").write_text(json.dumps(facts, indent=1) + "\n")

    print(f"{args.out.name}: {len(train)} images, ready after {start - began:.0f} s", flush=True)
    while progress() < 1:
        tower.train()
        sums, count = torch.zeros(len(TERMS), device=device), 0
        for i in train[torch.randperm(len(train), device=device)].split(args.batch):
            if len(i) < args.batch and len(train) >= args.batch:
                continue  # one shape for all batches
            t = progress()
            if t >= 1:
                break
            # warm up for a twentieth, then half a cosine
            rate = (
                t / 0.05 + 0.01 if t < 0.05 else 0.5 + 0.5 * math.cos(math.pi * (t - 0.05) / 0.95)
            )
            for group in optimizer.param_groups:
                group["lr"] = args.lr * min(rate, 1)
            terms = batch_loss(i)
            optimizer.zero_grad(set_to_none=True)
            (terms @ shares).backward()
            nn.utils.clip_grad_norm_(tower.parameters(), 2.0)
            optimizer.step()
            step += 1
            with torch.no_grad():
                sums += terms.detach()
                count += 1
                torch._foreach_lerp_(mild, now, max(1 - args.average, 1 / (step + 1)))
        if count and (progress() >= min((len(curve) + 1) / 12, 1) or progress() >= 1):
            losses = {k: round(v, 4) for k, v in zip(TERMS, (sums / count).tolist(), strict=True)}
            curve.append({"step": step, **losses, "held": evaluate(slow, images, targets, norm),
                          "seconds": round(spent + time.time() - start)})  # fmt: skip
            print(args.out.name, json.dumps(curve[-1]), flush=True)
            keep()


if __name__ == "__main__":
    main()
